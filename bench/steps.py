"""SimGCD training steps of the released code and of this package, with the same weights and batch.

The variants are:

released            two full ViTs, with EAGC as hooks (bench/hooks.py)
shared trunk        AnchoredEncoder runs the frozen trunk once and the tail twice
labelled rows       the reference tail runs on labelled rows only
CLS-only            the last block computes the CLS token only, in student and reference
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from eagc_ops import EAGC, Subspace
from eagc_ops.bench.hooks import HookCoordinator
from eagc_ops.bench.inputs import MOMENTUM, SETTINGS, make_features
from eagc_ops.bench.memory import Memory, measure_step, optimizer_state, resident, size
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.kernels.panels import kept_for
from eagc_ops.training.config import resolve
from eagc_ops.training.data import Batch
from eagc_ops.training.data.rows import Rows, rows_of
from eagc_ops.training.methods import METHODS, Loss, Method, Problem
from eagc_ops.training.models.backbones import load_backbone
from eagc_ops.training.models.student import Student

LAMBDAS: dict[str, Any] = {"lambda_a": SETTINGS.lambda_a, "lambda_p": SETTINGS.lambda_p}


class Variant(NamedTuple):
    """A row of the overhead table. `baseline` is the same variant without EAGC; a baseline has None."""

    name: str
    baseline: str | None
    released: bool = False
    all_rows: bool = False
    cls_only: bool = False


VARIANTS = (
    Variant("SimGCD, as released", None, released=True),
    Variant("+ EAGC, as released (second full ViT)", "SimGCD, as released", released=True),
    Variant("SimGCD, frozen trunk outside the graph", None),
    Variant("+ EAGC, shared trunk", "SimGCD, frozen trunk outside the graph", all_rows=True),
    Variant("+ EAGC, shared trunk, labelled rows only", "SimGCD, frozen trunk outside the graph"),
    Variant("SimGCD, CLS-only last block", None, cls_only=True),
    Variant("+ EAGC, shared trunk, labelled rows, CLS-only", "SimGCD, CLS-only last block", cls_only=True),
)
RELEASED, RELEASED_EAGC, OURS_BASELINE, OURS = (VARIANTS[i].name for i in (0, 1, 5, 6))


@dataclass(frozen=True)
class Setting:
    """The inputs that variants share. `vit` and `reference` are never trained: variants work on copies."""

    vit: Any  # a timm ViT
    reference: nn.Module  # the same trunk, a different tail
    batch: Rows
    subspace: Subspace
    known: int
    classes: int
    device: torch.device
    precision: str = "no"  # or "bf16": autocast

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")


def make_setting(
    backbone: str = "vit_small_patch16_224",
    rows: int = 16,
    device: torch.device | str = "cpu",
    images: Tensor | None = None,
    image_size: int = 224,
    channels: int = 3,
    known: int = 100,
    classes: int = 200,
    precision: str = "no",
) -> Setting:
    """A setting with random weights (times do not depend on them); half the images are labelled.

    `images` is (rows, C, H, W), all first views before all second views; None stands for noise. The default
    numbers of classes are those of CUB.
    """
    if rows < 4 or rows % 4:
        raise ValueError(
            f"rows must be a positive multiple of 4, got {rows}: every image has two views, and half the "
            "images are labelled"
        )
    device = torch.device(device)
    generator = torch.Generator().manual_seed(0)
    vit = load_backbone(backbone, "random", image_size=image_size, channels=channels)
    with torch.no_grad():
        for parameter in vit.parameters():
            # A ViT's usual random start gives all images nearly the same feature; these weights do not.
            if parameter.ndim > 1:
                parameter.normal_(std=0.05, generator=generator)
        reference = copy.deepcopy(vit)
        for parameter in reference.blocks[-1].parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
    if images is None:
        images = torch.randn(rows, channels, image_size, image_size, generator=generator)
    labelled = torch.arange(rows // 2) % 2 == 0
    label = torch.arange(rows // 2) * 7 % known
    batch = rows_of(Batch(list(images.chunk(2)), label, torch.arange(rows // 2), labelled), device)
    matrix = Subspace.conceptor(make_features(1500, vit.embed_dim, generator)).matrix
    energy_ref = Subspace(matrix, 0.5).energy(make_features(500, vit.embed_dim, generator)).mean()
    subspace = Subspace(matrix, energy_ref).to(device)
    return Setting(vit.to(device), reference.to(device), batch, subspace, known, classes, device, precision)


class Step:
    """One variant, ready to train: a call makes one optimizer step, by default on the setting's batch."""

    def __init__(self, setting: Setting, variant: Variant) -> None:
        self.setting, self.variant = setting, variant
        torch.manual_seed(0)
        vit = copy.deepcopy(setting.vit)
        dtype = next(vit.parameters()).dtype
        with_eagc = variant.baseline is not None
        # The learning rate is tiny, so that a hundred rounds on one batch do not end in NaN.
        config = resolve("simgcd", "cub", "paper", backbone_lr=1e-6, head_lr=1e-6)
        problem = Problem(
            dim=vit.embed_dim,
            known=setting.known,
            classes=setting.classes,
            images=len(setting.batch.label) // 2,
        )
        self.method = METHODS["simgcd"](config, problem).to(setting.device, dtype)
        if variant.released:
            reference = copy.deepcopy(setting.reference) if with_eagc else None
            matrix, energy_ref = setting.subspace.matrix.to(dtype), setting.subspace.energy_ref.item()
            coordinator = HookCoordinator(matrix, energy_ref, **LAMBDAS, momentum=MOMENTUM)
            self.encoder: Any = vit
            self.model: Any = ReleasedStudent(vit, self.method, reference, coordinator)
        else:
            self.encoder = AnchoredEncoder(vit, len(vit.blocks) - 1, cls_only=variant.cls_only)
            if with_eagc:
                self.encoder.set_reference(setting.reference)
            eagc = EAGC(setting.subspace, **LAMBDAS, energy_momentum=MOMENTUM) if with_eagc else None
            self.model = Student(self.encoder, self.method, eagc)
        (self.optimizer,) = self.method.optimizers(self.encoder)
        self.model.train()

    def __call__(self, batch: Rows | None = None) -> None:
        self.finish(self.loss(batch))

    def loss(self, batch: Rows | None = None) -> Tensor:
        """L_GCD of a batch, EAGC in its graph."""
        batch = batch or self.setting.batch
        with self.setting.autocast():
            loss, token = self.model(batch._replace(labelled_rows=None) if self.variant.all_rows else batch)
        total = loss.supervised + loss.unsupervised
        return total if token is None else total + token

    def finish(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def add_on(self) -> Callable[[], Tensor] | None:
        """The part of the step that EAGC adds: z_ref and the operator, both ways. None for a baseline."""
        if self.variant.baseline is None:
            return None
        model, images = self.model, torch.cat(list(self.setting.batch.views))
        labelled = self.setting.batch.mask
        labelled_rows = None if self.variant.all_rows else self.setting.batch.labelled_rows
        z = torch.randn(len(images), self.setting.vit.embed_dim, device=images.device, requires_grad=True)
        g = torch.randn_like(z)
        if self.variant.released:
            return lambda: torch.autograd.grad(
                model.coordinator.attach(z, model.reference_features(images), labelled), z, g
            )[0]
        tokens = self.encoder.trunk(images)

        def ours() -> Tensor:
            with self.setting.autocast():
                z_ref = self.encoder.anchor(tokens, labelled_rows)
                out, token = model.eagc(z, z_ref, labelled, return_token=True)
            return torch.autograd.grad([out, token], z, [g, torch.ones_like(token)])[0]

        return ours

    @torch.no_grad()
    def predict(self) -> Tensor:
        """An evaluation pass as the training loop makes it, without reference model and coordinator."""
        self.model.eval()
        images = torch.cat(list(self.setting.batch.views))
        z = (
            self.encoder(images)
            if self.variant.released
            else self.encoder.student(self.encoder.trunk(images))
        )
        classes = self.method(z)[0].argmax(1)
        self.model.train()
        return classes

    def memory(self) -> Memory:
        """The memory of one step after the optimizer has made its state."""
        for group in self.optimizer.param_groups:  # a step with zero gradients makes the state
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self()  # the first step makes the CPU path's panels of S, which all later steps use
        copies = kept_for(self.model.eagc.matrix) if getattr(self.model, "eagc", None) else []
        model = [*resident(self.model), *copies]
        device, state = self.setting.device, optimizer_state(self.optimizer)
        held = [*model, *state]
        batch = self.setting.batch
        inputs = [*batch.views, batch.label, batch.mask, batch.uq_idx]
        inputs += [] if batch.labelled_rows is None else [batch.labelled_rows]
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            other_memory = torch.cuda.memory_allocated(device) - size(held)
        saved, alive = measure_step(self.loss, self.finish, held, inputs)
        peak = size(held) + alive
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(device) - other_memory
        return Memory(size(model), size(state), saved, peak)


class ReleasedStudent(nn.Module):
    """The released model: a whole ViT for z with `norm(x)[:, 0]`, a second one for z_ref, and hooks."""

    def __init__(
        self, vit: Any, method: Method, reference: nn.Module | None, coordinator: HookCoordinator
    ) -> None:
        super().__init__()
        for name, parameter in vit.named_parameters():
            parameter.requires_grad_(name.startswith(f"blocks.{len(vit.blocks) - 1}."))
        self.vit, self.method, self.coordinator = vit, method, coordinator
        self.reference = None if reference is None else reference.requires_grad_(False)
        if reference is not None:
            self.register_buffer("matrix", coordinator.matrix)

    def forward(self, rows: Rows) -> tuple[Loss, None]:
        images = torch.cat(list(rows.views))
        z = self.vit(images)
        if self.reference is not None:
            z = self.coordinator.attach(z, self.reference_features(images), rows.mask)
        return self.method.loss(self.method(z), rows), None

    @torch.no_grad()
    def reference_features(self, images: Tensor) -> Tensor:
        assert self.reference is not None
        return self.reference(images)
