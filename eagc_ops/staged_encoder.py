"""`AnchoredEncoder` for other backbones than ViTs: a sequence of stages, the last of them trained.

A ResNet is such a sequence: its stem and its four stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .encoder import AnchoredEncoder

__all__ = ["StagedEncoder", "Stages"]


class Stages(nn.Module):
    """A backbone as a sequence of stages: images (B, C, S, S) -> stage after stage -> pool -> z (B, D).

    Each stage passes one tensor on: a map (B, C, H, W), tokens (B, N, D) or vectors (B, D). The stages
    always run in eval mode, so that student and reference model do not differ at random: dropout is off,
    and batch norm keeps its pretrained statistics.

    Args:
        stages: the modules, in order; not copied.
        pool: (B, ...) -> (B, D), after the last stage. Default: the mean over places or tokens.
        image_size: side of the images, in pixels.
        channels: channels of the images.

    Example:
        >>> net = Stages([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)], image_size=8)
        >>> net.embed_dim, net(torch.zeros(2, 3, 8, 8)).shape
        (16, torch.Size([2, 16]))
    """

    grad_checkpointing = False

    def __init__(
        self,
        stages: Iterable[nn.Module],
        pool: nn.Module | None = None,
        *,
        image_size: int,
        channels: int = 3,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(stages)
        self.pool: nn.Module = _Mean() if pool is None else pool
        if not len(self.blocks):
            raise ValueError("stages is empty: name at least one module")
        self.eval()
        # The shape of one image before every stage, and after the last one
        self.shapes: list[tuple[int, ...]] = []
        x = torch.zeros(1, channels, image_size, image_size)
        with torch.no_grad():
            for i, stage in enumerate(self.blocks):
                self.shapes.append(tuple(x.shape[1:]))
                x = stage(x)
                if not isinstance(x, Tensor) or not 2 <= x.ndim <= 4 or len(x) != 1:
                    got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
                    raise ValueError(
                        f"stage {i} gives {got} for one image; it must give a map (1, C, H, W), tokens "
                        "(1, N, D) or a vector (1, D)"
                    )
            z = self.pool(x)
        if not isinstance(z, Tensor) or z.ndim != 2:
            raise ValueError(
                f"pool gives {tuple(getattr(z, 'shape', ()))} for one image; it must give (1, D)"
            )
        self.embed_dim: int = z.shape[1]

    def forward(self, images: Tensor) -> Tensor:
        for stage in self.blocks:
            images = stage(images)
        z: Tensor = self.pool(images)
        return z

    def train(self, mode: bool = True) -> Stages:
        return super().train(False)


class StagedEncoder(AnchoredEncoder):
    """Student and reference features of `Stages`, with one pass through the shared trunk.

    `grad_from_block` is the first trainable stage. The trunk's output is always tokens (B, N, D): the places
    of a map are its tokens.

    Example:
        >>> net = Stages([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)], image_size=8)
        >>> encoder = StagedEncoder(net, grad_from_block=1)
        >>> encoder.set_reference()
        >>> z, z_ref = encoder(torch.randn(4, 3, 8, 8), labelled_rows=torch.tensor([0, 2]))
        >>> z.shape, z.requires_grad, torch.allclose(z[[0, 2]], z_ref[[0, 2]], atol=1e-5)
        (torch.Size([4, 16]), True, True)
    """

    def __init__(self, backbone: Stages, grad_from_block: int, **settings: Any) -> None:
        super().__init__(backbone, grad_from_block, cls_only=False, **settings)

    @property
    def token_shape(self) -> tuple[int, int]:
        shape = self.vit.shapes[self.grad_from_block]
        if len(shape) == 3:
            return shape[1] * shape[2], shape[0]
        return (shape[0], shape[1]) if len(shape) == 2 else (1, shape[0])

    def train(self, mode: bool = True) -> StagedEncoder:
        super().train(mode)
        if self.reference is not None:
            self.reference.eval()
        return self

    def _refuse(self, vit: nn.Module, cls_only: bool) -> None:
        if not isinstance(vit, Stages):
            raise TypeError(f"backbone is a {type(vit).__name__}: wrap its stages in Stages(...)")

    def _embed(self, images: Tensor) -> Tensor:
        return images

    def _as_tokens(self, x: Tensor) -> Tensor:
        if x.ndim == 4:
            return x.flatten(2).mT.contiguous()
        return x if x.ndim == 3 else x[:, None]

    def _feature(self, blocks: Iterable[nn.Module], tokens: Tensor) -> Tensor:
        shape, x = self.vit.shapes[self.grad_from_block], self._checked(tokens)
        if len(shape) == 3:
            x = x.mT.unflatten(2, shape[1:])
        elif len(shape) == 1:
            x = x[:, 0]
        z: Tensor = self.vit.pool(self._run(blocks, x))
        return z


class _Mean(nn.Module):
    """The mean over the places of a map, or over tokens; vectors stay."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(2) if x.ndim == 4 else x.mean(1) if x.ndim == 3 else x
