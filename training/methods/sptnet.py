"""SPTNet: spatial prompts on the pixels of a trained SimGCD, learned in turns with its last block and heads.

    x' = x + pad prompt + patch prompt              on normalised pixels, shared by all images, not clipped
    prompt phase:       L_SimGCD(x'_1, x'_2)  ->  prompts             encoder and heads are fixed
    classifier phase:   L_SimGCD(x_1, x'_1)   ->  last block, heads   prompts are fixed, no second crop

EAGC is used in one of two ways. Released (`sptnet_eagc="init"`): only the SimGCD run that SPTNet starts from
was trained with it, and there is no operator here. Integrated (`sptnet_eagc="on"`): the operator acts in the
classifier phase, and the reference model sees the same pixels as the student.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from eagc_ops.training.config import ConfigError, Sizes, SPTNetConfig
from eagc_ops.training.methods.registry import register
from eagc_ops.training.methods.simgcd import SimGCD
from eagc_ops.training.models.method import Problem
from eagc_ops.training.models.optimization import cosine, decay_groups, sgd

PATCH_WIDTH = 1  # pixels of a patch's border that are prompted

PROMPT, CLASSIFIER = 0, 1  # phases


@register("sptnet")
class SPTNet(SimGCD):
    """SimGCD's heads and loss, and prompts, which are parameters and so part of every checkpoint."""

    Config = SPTNetConfig
    config: SPTNetConfig
    alternating = True

    def __init__(self, config: SPTNetConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.steps = problem.images // config.batch_size  # batches per epoch
        config.check_sizes(Sizes(images=problem.images, pixels=problem.pixels))
        prompts = (
            [PadPrompt(problem.channels, problem.pixels, config.pad_width)] if config.prompts == "all" else []
        )
        if not problem.patch:
            raise ConfigError(
                f"backbone={config.backbone!r} has no patches, whose borders SPTNet prompts; choose a ViT"
            )
        self.prompts = nn.Sequential(*prompts, PatchPrompt(problem.channels, problem.pixels, problem.patch))
        for prompt in self.prompts.parameters():
            nn.init.normal_(prompt, std=config.prompt_std)

    def phase(self, position: int) -> int:
        """An epoch starts with the prompt phase and changes before batches 19, 39, ... (phase_batches=20)."""
        return (position + 1) // self.config.phase_batches % 2

    def inputs(self, views: Sequence[Tensor], position: int | None = None) -> Tensor:
        """(2B, C, H, W): both crops with prompts, or (classifier phase) the first crop without and with them.

        A test view (position None) gets prompts.
        """
        if position is None or self.phase(position) == PROMPT:
            return torch.cat([self.prompts(view) for view in views])
        return torch.cat([views[0], self.prompts(views[0]).detach()])

    def coordinated(self, position: int) -> bool:
        return self.phase(position) == CLASSIFIER

    def optimizers(self, encoder: nn.Module) -> list[torch.optim.Optimizer]:
        config, prompts = self.config, list(self.prompts.parameters())
        heads = [parameter for name, parameter in self.named_parameters() if not name.startswith("prompts.")]
        classifier = [
            *decay_groups(encoder.parameters(), config.backbone_lr, config.weight_decay),
            *decay_groups(heads, config.head_lr, config.weight_decay),
        ]
        return [
            sgd(decay_groups(prompts, config.prompt_lr, weight_decay=0.0), momentum=config.momentum),
            sgd(classifier, momentum=config.momentum),
        ]

    def learning_rate(self, initial: float, epoch: int, position: int) -> float:
        """Prompts: linear warm-up, then a cosine to 0, by batches; classifier phase: a cosine by epochs."""
        if self.phase(position) == CLASSIFIER:
            return super().learning_rate(initial, epoch, position)
        # Batches of the classifier phase count too.
        step, warmup = epoch * self.steps + position, self.config.prompt_warmup
        if step < warmup:
            return initial * (step + 1) / warmup
        return cosine(step - warmup, self.config.epochs * self.steps - warmup, initial, 0.0)

    def starting_weights(
        self, tensors: Mapping[str, Tensor], recipe: Mapping[str, Any], identity: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """Last block and heads of a SimGCD run that fits this run in data, trunk, heads and use of EAGC."""
        weights = {name: value for name, value in tensors.items() if name.startswith(("encoder.", "method."))}
        differences = [*self._different_settings(recipe, identity), *self._different_heads(weights)]
        init, eagc = self.config.init, self.config.eagc
        if differences:
            raise ConfigError(f"init={init!r} does not fit this run: {'; '.join(differences[:3])}")
        if eagc and not self.config.has_operator and not recipe["eagc"]:
            raise ConfigError(
                f"init={init!r} was trained without EAGC, and sptnet_eagc='init' does not add it: "
                "start from a run with EAGC, choose sptnet_eagc='on', or eagc=False"
            )
        if recipe["eagc"] and not eagc:
            raise ConfigError(
                f"init={init!r} was trained with EAGC, but this run has eagc=False: "
                "start from a run without EAGC, or choose eagc=True with sptnet_eagc='init'"
            )
        return weights

    def _different_settings(self, recipe: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
        config = self.config
        recipe = config.with_added(recipe)
        ours = {
            "split_hash": identity["split_hash"],
            "glyphs": config.glyphs.model_dump(),  # other drawings may be split alike
            "trunk": identity["trunk"],
            "mlp_head_layers": config.mlp_head_layers,
        }
        if recipe.get("trunk") != ours["trunk"]:  # most likely because the number of blocks above it differs
            ours |= {"trainable_blocks": config.trainable_blocks, "reference_blocks": config.reference_blocks}
        return [
            f"{name} is {recipe.get(name)!r} there, {value!r} here"
            for name, value in ours.items()
            if recipe.get(name) != value
        ]

    def _different_heads(self, weights: Mapping[str, Tensor]) -> list[str]:
        ours = {
            f"method.{name}": value.shape
            for name, value in self.state_dict().items()
            if not name.startswith("prompts.")
        }
        theirs = {name: value.shape for name, value in weights.items() if name.startswith("method.")}
        return [
            f"{name} does not fit"
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name)
        ]


class PadPrompt(nn.Module):
    """images (B, C, S, S) + four strips of `width` pixels along the margin.

    It has 69,840 parameters for 3 x 224 x 224 pixels and width 30.
    """

    def __init__(self, channels: int, size: int, width: int) -> None:
        super().__init__()
        self.inner = inner = size - 2 * width
        self.top, self.bottom = (nn.Parameter(torch.zeros(channels, width, size)) for _ in range(2))
        self.left, self.right = (nn.Parameter(torch.zeros(channels, inner, width)) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        center = self.top.new_zeros(len(self.top), self.inner, self.inner)
        return images + torch.cat([self.top, torch.cat([self.left, center, self.right], 2), self.bottom], 1)


class PatchPrompt(nn.Module):
    """images (B, C, S, S) + a prompt on the 1-pixel border of every patch.

    It has 150,528 parameters for 3 x 224 x 224 pixels and patches of 16, of which 35,280 are in use.
    """

    mask: Tensor

    def __init__(self, channels: int, size: int, patch: int) -> None:
        super().__init__()
        self.pixels = nn.Parameter(torch.zeros(channels, size, size))
        inside = torch.arange(size) % patch
        inside = (inside >= PATCH_WIDTH) & (inside < patch - PATCH_WIDTH)
        self.register_buffer("mask", 1.0 - inside.float().outer(inside.float()), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images + self.pixels * self.mask
