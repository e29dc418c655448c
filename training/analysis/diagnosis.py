"""Gradient entanglement, measured while a run trains, without changing a bit of the run.

Gradients are those of a step's batch before its update, over the trained parameters of the last block
(`parameters="block"`, the released code) or over all parameters that the step trains, encoder and heads
(`parameters="all"`, the paper):

    GDC = 1 - cos(g_L, g)
        gdc_clean      g_L: the gradient of L_sup, without the operator
                       g: the gradient that is applied, AGA and EEP included
        gdc_release    the operator acts in both, as in the released code: both then hold the same alignment
                       term, which pulls them together. (That code uses the tau of the previous batch; here it
                       is the tau of this batch.)
    cos(g_L, g_rows), appendix C.5. g_rows is the gradient of the method's whole loss, L_sup + L_unsup, as if
    the batch held only some of its rows; g_L is that of gdc_clean, on the whole batch; no operator
        cos_labelled   labelled rows
        cos_known      labelled rows and unlabelled rows of known classes
        cos_novel      labelled rows and unlabelled rows of novel classes
        cos_all        all rows
                       (me-max rewards all K classes in a batch, which by itself causes a gradient on rows
                       without novel classes)
    rho_grad           sum of |dL/dz_i| over rows of known classes, labelled ones included, as a share of the
                       sum over all rows; L as above, dL/dz before the operator. `known_rows` is the share of
                       these rows: it equals rho_grad if all rows have gradients of the same norm

Features are those of whole sets under the test transform, after the update: Z_old of labelled images, Z_new
of unlabelled images of novel classes.

    SOC = |Z_new P_old|^2 / |Z_new|^2, P_old: the k leading directions of Z_old
        soc_release    unit-norm rows centred on the mean of Z_old
        soc_paper      raw features
    rho_in             sum_i z_i S z_i^T / sum_i |z_i|^2 over Z_new, S: the conceptor of Z_old, with the run's
                       aperture. S is fitted anew to the current features, also in runs with EAGC (whose own S
                       is that of the reference model), so that runs can be compared

An alignment loss (`alignment`) counts as part of the operator: it is in the applied gradient and in
gdc_release, and in nothing else. Without EAGC both GDCs are equal. Known and novel classes are told apart
by the true labels, which are used only to group rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from eagc_ops import Subspace
from eagc_ops.diagnostics import (
    collapse_coefficient,
    gradient_deviation,
    gradient_dominance,
    subspace_overlap,
)
from eagc_ops.training.config import ConfigError, Diagnosis
from eagc_ops.training.data import Batch, GCDData, draw_key
from eagc_ops.training.data.batches import VIEWS
from eagc_ops.training.data.rows import Rows
from eagc_ops.training.data.trunk_cache import cache_bytes
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.loop import Callback, Loop
from eagc_ops.training.methods import Loss, Method
from eagc_ops.training.models.distributed import gather_rows
from eagc_ops.training.models.student import Student, gather

__all__ = ["MEASURES", "Diagnose"]

MEASURES = (
    "gdc_clean",
    "gdc_release",
    "soc_release",
    "soc_paper",
    "rho_grad",
    "rho_in",
    "cos_labelled",
    "cos_known",
    "cos_novel",
    "cos_all",
)
# Maximum memory for trunk tokens of test views; sets that need more go through the trunk every time.
KEPT_BYTES = 8 << 30


class Diagnose(Callback):
    """Measures every few optimizer steps, from step 0 on, and writes "diagnosis" lines to metrics.jsonl.

    A line holds the measures, and the seconds that measuring took (they are part of the seconds of the
    epoch). A measure is None where it does not exist: no labelled row in the batch, no row that cos_known or
    cos_novel would add, a phase that trains no block, no image of a novel class.
    """

    def __init__(self, settings: Diagnosis | None = None) -> None:
        self.settings = Diagnosis() if settings is None else settings
        self._line: dict[str, float] = {}
        self._sets: WholeSets | None = None

    def before_update(self, loop: Loop, rows: Rows) -> None:
        if not self._due(loop):
            return
        if loop.config.accumulation > 1:
            raise ConfigError(
                f"accumulation={loop.config.accumulation}: the diagnosis compares gradients of a whole "
                "batch; set it to 1 to diagnose"
            )
        started = time.perf_counter()
        block = [p for p in loop.student.encoder.tail[-1].parameters() if p.requires_grad]
        trained = [p for p in loop.student.parameters() if p.requires_grad]
        self._line = dict.fromkeys((*MEASURES, "known_rows"), math.nan)
        if block:
            self._line |= gradient_measures(
                loop, rows, trained if self.settings.parameters == "all" else block
            )
        self._line["seconds"] = time.perf_counter() - started

    def after_update(self, loop: Loop, rows: Rows) -> None:
        if not self._due(loop):
            return
        started = time.perf_counter()
        self._sets = self._sets or WholeSets(loop.experiment)
        loop.student.eval()
        old, new = self._sets.features()
        loop.student.train()
        self._line["k"] = k = min(self.settings.k, *old.shape)
        # Features that are not finite are left out: the loop itself reports a run that diverged.
        if new is not None and old.isfinite().all() and new.isfinite().all():
            conceptor = Subspace.conceptor(old, loop.config.aperture).matrix
            self._line["soc_release"] = subspace_overlap(old, new, k, "release").item()
            self._line["soc_paper"] = subspace_overlap(old, new, k, "paper").item()
            self._line["rho_in"] = collapse_coefficient(new, conceptor).item()
        self._line["seconds"] += time.perf_counter() - started
        line = {"epoch": loop.epoch, "position": loop.position, **self._line}
        loop.folder.log("diagnosis", loop.step + 1, line)

    def _due(self, loop: Loop) -> bool:
        every, steps = self.settings.every, self.settings.steps
        return loop.step % every == 0 and (steps is None or loop.step < steps)


# Gradients --------------------------------------------------------------------------------------------------


def gradient_measures(loop: Loop, rows: Rows, parameters: list[nn.Parameter]) -> dict[str, float]:
    """GDC, mixed-gradient cosines and rho_grad at the current weights. `.grad` is read, not changed."""
    student, everywhere, autocast = loop.student, gather(rows), loop.experiment.accelerator.autocast
    known = known_classes(loop.experiment.data).to(loop.experiment.device)[everywhere.uq_idx]
    applied = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    with autocast():
        z, z_ref = student.encode(rows)

    def gradient(loss: Tensor) -> Tensor:
        parts = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
        # The mean over processes, as DDP computes it for the applied gradient
        return loop.experiment.accelerator.reduce(torch.cat([part.flatten() for part in parts]), "mean")

    measures = {"known_rows": known.float().mean().item()}
    with _as_in_the_step(loop, operator=False):
        with autocast():
            h = student.heads(z)
        all_rows = torch.ones_like(known)
        loss = loss_of_rows(student, h, everywhere, all_rows)
        g_L = gradient(loss.supervised)
        measures["gdc_clean"] = 1 - _cosine(g_L, applied)
        (of_features,) = torch.autograd.grad(loss.supervised + loss.unsupervised, z, retain_graph=True)
        measures["rho_grad"] = gradient_dominance(gather_rows(of_features, VIEWS), known).item()
        added = {
            "labelled": everywhere.mask,
            "known": ~everywhere.mask & known,
            "novel": ~everywhere.mask & ~known,
            "all": all_rows,
        }
        for name, more in added.items():
            if more.any():
                loss = loss_of_rows(student, h, everywhere, everywhere.mask | more)
                measures[f"cos_{name}"] = _cosine(g_L, gradient(loss.supervised + loss.unsupervised))
    if student.eagc is None:
        return measures | {"gdc_release": measures["gdc_clean"]}
    with _as_in_the_step(loop, operator=True):
        with autocast():
            coordinated, token = student.coordinate(z, z_ref, rows)
            h = student.heads(coordinated)
        supervised = student.loss(h, z, z_ref, rows).supervised
        g_L = gradient(supervised if token is None else supervised + token)
        return measures | {"gdc_release": 1 - _cosine(g_L, applied)}


def loss_of_rows(student: Student, h: tuple[Tensor, ...], rows: Rows, chosen: Tensor) -> Loss:
    """The method's loss as if the batch held the `chosen` (n,) rows alone; an image's views go together."""
    columns = {name: getattr(rows, name)[chosen] for name in ("label", "mask", "uq_idx")}
    with torch.autocast(chosen.device.type, enabled=False), _buffers_restored(student):
        return student.method.loss(tuple(output[chosen] for output in h), rows._replace(**columns))


def known_classes(data: GCDData) -> Tensor:
    """bool by uq_idx: whether the image's true class is a known one."""
    parts = (data.labelled, data.unlabelled)
    known = torch.zeros(max(int(part.uq_idx.max()) for part in parts) + 1, dtype=torch.bool)
    for part in parts:
        known[part.uq_idx] = part.labels < data.known
    return known


def _cosine(supervised: Tensor, other: Tensor) -> float:
    """Cosine of two gradients; NaN where one of them is zero and has no direction."""
    return 1 - gradient_deviation(supervised, other).item() if supervised.any() and other.any() else math.nan


@contextmanager
def _as_in_the_step(loop: Loop, operator: bool) -> Iterator[None]:
    """Heads and losses repeat the draws of the step, and leave nothing behind.

    Buffers and the coordinator's records are restored. `operator=False` removes the coordinator meanwhile,
    and the alignment loss that replaces its anchor term.
    """
    student, experiment = loop.student, loop.experiment
    eagc, alignment = student.eagc, student.alignment
    records = None if eagc is None else (eagc.last_energy, eagc.last_tau)
    if eagc is not None:
        eagc.eval()  # uses the running energy reference of the step, and does not update it a second time
    if not operator:
        student.eagc = student.alignment = None
    devices = [experiment.device] if experiment.device.type == "cuda" else []
    try:
        with _buffers_restored(student), torch.random.fork_rng(devices=devices):
            # An encoder draws nothing, so the heads draw first, as in the step.
            rank = experiment.accelerator.process_index
            torch.manual_seed(draw_key(loop.config.seed, loop.epoch, loop.position, rank, -1))
            yield
    finally:
        student.eagc, student.alignment = eagc, alignment
        if eagc is not None:
            eagc.train()
            eagc.last_energy, eagc.last_tau = records


@contextmanager
def _buffers_restored(module: nn.Module) -> Iterator[None]:
    before = {name: value.clone() for name, value in module.named_buffers()}
    try:
        yield
    finally:
        for name, value in module.named_buffers():
            # A write, even of the same values, would invalidate a graph that holds the buffer.
            if not torch.equal(value, before[name]):
                value.copy_(before[name])


# Features ---------------------------------------------------------------------------------------------------


class WholeSets:
    """Labelled images, and unlabelled ones of novel classes, under the test transform.

    The frozen trunk's tokens of these images are the same at every step: they are computed once and kept in
    memory, up to `KEPT_BYTES`. They are not kept if a trunk cache has them, or if the method changes the
    pixels (SPTNet's prompts).
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        data, student = experiment.data, experiment.student
        self.novel = int((data.unlabelled.labels >= data.known).sum())
        self.rank = experiment.accelerator.process_index
        self.world = experiment.accelerator.num_processes
        share = (len(data.labelled) + self.novel) / len(data.merged) / self.world
        fits = cache_bytes(student.encoder, data, views=0) * share <= KEPT_BYTES
        plain_inputs = type(student.method).inputs is Method.inputs
        self.keeps = fits and experiment.config.trunk_cache is None and plain_inputs
        self._kept: list[list[Batch]] | None = None

    def features(self) -> tuple[Tensor, Tensor | None]:
        """Z_old (N_old, D) and Z_new (N_new, D) or None, in fp32, by the current student."""
        if self._kept is None and self.keeps:
            self._kept = [
                [self._through_trunk(i, batch) for i, batch in enumerate(part)] for part in self._batches()
            ]
        old, new = self._batches() if self._kept is None else self._kept
        encode = self.experiment.features.encode
        return encode(old)[0], encode(new)[0] if self.novel else None

    def _batches(self) -> tuple[Iterable[Batch], Iterable[Batch]]:
        batches = self.experiment.batches
        return batches.labelled(), self._novel(batches.unlabelled())

    def _novel(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            chosen = batch.label >= self.experiment.data.known
            if chosen.any():
                yield Batch([view[chosen] for view in batch.views], *(column[chosen] for column in batch[1:]))

    def _through_trunk(self, i: int, batch: Batch) -> Batch:
        """The batch with tokens in place of pixels, or without views if a different process encodes it."""
        if i % self.world != self.rank:
            return batch._replace(views=[])
        encoder, device = self.experiment.student.encoder, self.experiment.device
        return batch._replace(
            views=[encoder.trunk(view.to(device, non_blocking=True)).cpu() for view in batch.views]
        )
