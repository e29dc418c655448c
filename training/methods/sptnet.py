"""SPTNet: spatial prompts on the pixels of a trained SimGCD, learned in turns with its last block and heads.

    x' = x + pad prompt + patch prompt                   added to normalised pixels, shared by all images, not clipped
    prompt phase:       L_SimGCD(x'_1, x'_2)  ->  prompts             encoder and heads are fixed
    classifier phase:   L_SimGCD(x_1, x'_1)   ->  last block, heads   prompts are fixed, the second crop is not used

EAGC comes in two ways. Released: only the SimGCD run that is started from was trained with it (`sptnet_eagc="init"`, no operator here).
Integrated: the operator also acts in the classifier phase (`sptnet_eagc="on"`); the reference sees the pixels that the student sees.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eagc_ops.training.config import ConfigError, SPTNetConfig
from eagc_ops.training.engine.checkpoint import load_checkpoint, tensor_digest
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods.base import Problem, cosine, decay_groups, register
from eagc_ops.training.methods.simgcd import SimGCD

PATCH_WIDTH = 1  # pixels of a patch's border that are prompted

PROMPT, CLASSIFIER = 0, 1  # phases


@register("sptnet")
class SPTNet(SimGCD):
    """SimGCD's heads and loss; the prompts are parameters of the method, so they are in its checkpoints and in its evaluation."""

    Config = SPTNetConfig
    alternating = True

    def __init__(self, config: SPTNetConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.steps = problem.images // config.batch_size  # batches per epoch
        if config.phase_batches > self.steps:
            raise ConfigError(
                f"phase_batches={config.phase_batches}: an epoch has only {self.steps} batches, so it would end before the first "
                f"classifier phase; choose at most {self.steps}"
            )
        prompts = (
            [PadPrompt(problem.channels, problem.pixels, config.pad_width)] if config.prompts == "all" else []
        )
        self.prompts = nn.Sequential(*prompts, PatchPrompt(problem.channels, problem.pixels, problem.patch))
        for prompt in self.prompts.parameters():
            nn.init.normal_(prompt, std=config.prompt_std)

    def phase(self, position: int) -> int:
        """Prompt phase at the start of every epoch; it changes before batches 19, 39, ... (phase_batches = 20)."""
        return (position + 1) // self.config.phase_batches % 2

    def inputs(self, views: list[Tensor], position: int | None = None) -> Tensor:
        """(2B, C, H, W): both crops with prompts, or the first without and with them; a test view (position None) with prompts."""
        if position is None or self.phase(position) == PROMPT:
            return torch.cat([self.prompts(view) for view in views])
        return torch.cat([views[0], self.prompts(views[0]).detach()])

    def coordinated(self, position: int) -> bool:
        return self.phase(position) == CLASSIFIER

    def optimisers(self, encoder: nn.Module) -> list[torch.optim.Optimizer]:
        config, prompts = self.config, list(self.prompts.parameters())
        heads = [parameter for name, parameter in self.named_parameters() if not name.startswith("prompts.")]
        classifier = [
            *decay_groups(encoder.parameters(), config.backbone_lr, config.weight_decay),
            *decay_groups(heads, config.head_lr, config.weight_decay),
        ]
        return [
            torch.optim.SGD(
                decay_groups(prompts, config.prompt_lr, weight_decay=0.0), momentum=config.momentum
            ),
            torch.optim.SGD(classifier, momentum=config.momentum),
        ]

    def learning_rate(self, initial: float, epoch: int, position: int) -> float:
        """Prompts: by batches, linear warm-up and cosine to 0. Classifier phase: by epochs, cosine to a tenth."""
        if self.phase(position) == CLASSIFIER:
            return super().learning_rate(initial, epoch, position)
        step, warmup = (
            epoch * self.steps + position,
            self.config.prompt_warmup,
        )  # batches of the classifier phase count too
        if step < warmup:
            return initial * (step + 1) / warmup
        return cosine(step - warmup, self.config.epochs * self.steps - warmup, initial, 0.0)

    def starting_point(self, facts: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Last block and heads of the SimGCD run `init`, which must fit this run in data, trunk, heads and use of EAGC."""
        config, file = self.config, _checkpoint_of(self.config.init)
        tensors, state = load_checkpoint(file)
        theirs = state.get("identity", {})
        ours = {
            "split_hash": facts["split_hash"],
            "trunk": facts["trunk"],
            "mlp_head_layers": config.mlp_head_layers,
        }
        if (
            theirs.get("trunk") != facts["trunk"]
        ):  # most likely because the blocks above it are counted otherwise
            ours |= {"trainable_blocks": config.trainable_blocks, "reference_blocks": config.reference_blocks}
        differs = [
            f"{name} is {theirs.get(name)!r} there, {value!r} here"
            for name, value in ours.items()
            if theirs.get(name) != value
        ]
        weights = {name: value for name, value in tensors.items() if name.startswith(("encoder.", "method."))}
        heads = {
            f"method.{name}": value.shape
            for name, value in self.state_dict().items()
            if not name.startswith("prompts.")
        }
        found = {name: value.shape for name, value in weights.items() if name.startswith("method.")}
        differs += [
            f"{name} does not fit"
            for name in sorted(heads.keys() | found.keys())
            if heads.get(name) != found.get(name)
        ]
        if differs:
            raise ConfigError(f"init={config.init!r} is no start for this run: {'; '.join(differs[:3])}")
        if config.eagc and not config.has_operator and not theirs["eagc"]:
            raise ConfigError(
                f"init={config.init!r} was trained without EAGC, and sptnet_eagc='init' adds none: start from a run with EAGC, "
                "choose sptnet_eagc='on', or eagc=False"
            )
        if theirs["eagc"] and not config.eagc:
            raise ConfigError(
                f"init={config.init!r} was trained with EAGC, so this is no run without it: start from a run without EAGC, "
                "or choose eagc=True with sptnet_eagc='init'"
            )
        return weights, {
            "method": theirs["method"],
            "eagc": theirs["eagc"],
            "sha256": tensor_digest(weights),
            "accuracy": state["last"],
        }


class PadPrompt(nn.Module):
    """images (B, C, S, S) + four strips of `width` pixels along the margin: 69,840 parameters for 3 x 224 x 224 and width 30."""

    def __init__(self, channels: int, size: int, width: int) -> None:
        super().__init__()
        inner = size - 2 * width
        if inner < 1:
            raise ConfigError(
                f"pad_width={width}: nothing of an image of {size} pixels is left; choose less than {size / 2:g}"
            )
        self.inner = inner
        self.top, self.bottom = (nn.Parameter(torch.zeros(channels, width, size)) for _ in range(2))
        self.left, self.right = (nn.Parameter(torch.zeros(channels, inner, width)) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        centre = self.top.new_zeros(len(self.top), self.inner, self.inner)
        return images + torch.cat([self.top, torch.cat([self.left, centre, self.right], 2), self.bottom], 1)


class PatchPrompt(nn.Module):
    """images (B, C, S, S) + a prompt on the 1-pixel border of every patch: 150,528 parameters for 3 x 224 x 224, 35,280 of them in use."""

    mask: Tensor

    def __init__(self, channels: int, size: int, patch: int) -> None:
        super().__init__()
        self.pixels = nn.Parameter(torch.zeros(channels, size, size))
        inside = torch.arange(size) % patch
        inside = (inside >= PATCH_WIDTH) & (inside < patch - PATCH_WIDTH)
        self.register_buffer("mask", 1.0 - inside.float().outer(inside.float()), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images + self.pixels * self.mask


def _checkpoint_of(init: str | None) -> Path:
    """The checkpoint file of a path that is one, or of a complete run: its last or its best epoch, whichever it reports first."""
    if init is None:
        raise ConfigError(
            "init=None: SPTNet starts from a trained SimGCD; name a run folder of simgcd or a checkpoint"
        )
    path = Path(init)
    if not path.is_dir():
        return path
    folder = RunFolder.open(path)
    if folder.result() is None:
        raise ConfigError(
            f"init={init!r} is not complete: resume that run first, or name one of its checkpoints"
        )
    return folder.best if folder.config.headline == "best" else folder.last
