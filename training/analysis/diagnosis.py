"""Gradient entanglement, measured while a run trains (`diagnose=Diagnosis(every=10, steps=200)`). The run's numbers stay the same bits.

Gradients, on the batch of a step before its update, over the trained parameters of the last block (`parameters=block`, the released code)
or over all that the step trains, encoder and heads (`parameters=all`, the paper):

    GDC = 1 - cos(g_L, g)
        gdc_clean      g_L: the gradient of L_sup, without the operator;  g: the gradient that is applied, AGA and EEP included
        gdc_release    the operator acts in both, as in the released code: both then hold the same alignment term, which pulls them
                       together. (That code uses the tau of the batch before; here it is the tau of this batch.)
    cos(g_L, g_rows), appendix C.5: g_rows is the gradient of the whole method's loss, L_sup + L_unsup, of some rows of the batch alone, as
    if it held no others; g_L as in gdc_clean, on the whole batch; the operator takes no part
        cos_labelled   labelled rows;    cos_known, cos_novel   with unlabelled rows of known, or novel, classes;    cos_all   all rows
                       (me-max asks for all K classes in a batch, so rows without novel classes have a gradient of their own from it)
    rho_grad           sum of |dL/dz_i| over rows of known classes, labelled ones included, as a share of the sum over all rows; L as above,
                       dL/dz before the operator. `known_rows` is their share of the rows: what rho_grad is when all rows pull alike

Features, after the update, of whole sets under the test transform: Z_old of labelled images, Z_new of unlabelled images of novel classes

    SOC = |Z_new P_old|^2 / |Z_new|^2, P_old: the k leading directions of Z_old
        soc_release    unit-norm rows centred on the mean of Z_old;    soc_paper   raw features
    rho_in             sum_i z_i S z_i^T / sum_i |z_i|^2 over Z_new, S: the conceptor of Z_old, with the run's aperture. It is fitted anew
                       to the features as they are, in runs with EAGC too (whose own S is that of the reference model): so runs compare

An alignment loss (`alignment`) counts as part of the operator: it is in the applied gradient and in gdc_release, in nothing else.
Without EAGC both GDCs are one number. Known and novel are told by the truth, which is used here and reaches no loss.
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
from eagc_ops.training.config import ConfigError
from eagc_ops.training.data import Batch, GCDData, draw_key
from eagc_ops.training.data.batches import VIEWS
from eagc_ops.training.data.trunk_cache import cache_bytes
from eagc_ops.training.engine.loop import Callback, Loop
from eagc_ops.training.methods import Loss, Method, Rows
from eagc_ops.training.methods.losses import gather_rows
from eagc_ops.training.models.student import Student, StudentBatch, gather

MEASURES = (
    "gdc_clean", "gdc_release", "soc_release", "soc_paper", "rho_grad", "rho_in", "cos_labelled", "cos_known", "cos_novel", "cos_all"
)  # fmt: skip
KEPT_BYTES = (
    8 << 30
)  # most memory for trunk tokens of test views; sets that need more go through the trunk every time


class Diagnose(Callback):
    """Measures at optimiser steps 0, every, 2 * every, ..., below step `steps` (None: to the end); SOC with `k` directions of Z_old.

    Writes lines of kind "diagnosis" to metrics.jsonl: the measures, and the seconds that measuring took (they are part of the
    seconds of the epoch). A measure is None where it does not exist: no labelled row in the batch, no row that cos_known or cos_novel
    would add, a phase that trains no block, no image of a novel class.
    """

    def __init__(
        self, every: int = 1, steps: int | None = None, k: int = 16, parameters: str = "block"
    ) -> None:
        if every < 1 or k < 1:
            raise ConfigError(f"every={every}, k={k}: both must be at least 1")
        if parameters not in ("block", "all"):
            raise ConfigError(f"parameters={parameters!r}: choose from block, all")
        self.every, self.steps, self.k, self.parameters = every, steps, k, parameters
        self._line: dict[str, float] = {}
        self._sets: WholeSets | None = None

    def before_update(self, loop: Loop, batch: StudentBatch) -> None:
        if not self._due(loop):
            return
        if loop.config.accumulation > 1:
            raise ConfigError(
                f"accumulation={loop.config.accumulation}: gradients of one whole batch are compared; set it to 1 to diagnose"
            )
        started = time.perf_counter()
        block = [
            parameter for parameter in loop.student.encoder.tail[-1].parameters() if parameter.requires_grad
        ]
        trained = (
            [parameter for parameter in loop.student.parameters() if parameter.requires_grad]
            if self.parameters == "all"
            else block
        )
        self._line = dict.fromkeys((*MEASURES, "known_rows"), math.nan)
        if block:
            self._line |= gradient_measures(loop, batch, trained)
        self._line["seconds"] = time.perf_counter() - started

    def after_update(self, loop: Loop, batch: StudentBatch) -> None:
        if not self._due(loop):
            return
        started = time.perf_counter()
        self._sets = self._sets or WholeSets(loop)
        loop.student.eval()
        old, new = self._sets.features()
        loop.student.train()
        self._line["k"] = k = min(self.k, *old.shape)
        if (
            new is not None and old.isfinite().all() and new.isfinite().all()
        ):  # a run that diverged is the loop's to report
            self._line |= {
                f"soc_{mode}": subspace_overlap(old, new, k, mode).item() for mode in ("release", "paper")
            }
            self._line["rho_in"] = collapse_coefficient(
                new, Subspace.conceptor(old, loop.config.aperture).matrix
            ).item()
        self._line["seconds"] += time.perf_counter() - started
        loop.folder.log(
            "diagnosis", loop.step + 1, {"epoch": loop.epoch, "position": loop.position, **self._line}
        )

    def _due(self, loop: Loop) -> bool:
        return loop.step % self.every == 0 and (self.steps is None or loop.step < self.steps)


# Gradients -------------------------------------------------------------------------------------------------------------------------


def gradient_measures(loop: Loop, batch: StudentBatch, parameters: list[nn.Parameter]) -> dict[str, float]:
    """GDC, mixed-gradient cosines and rho_grad at the weights as they are. `.grad` is read, and not touched."""
    student, rows = loop.student, gather(batch.rows)
    known = known_classes(loop.data).to(loop.device)[rows.uq_idx]
    applied = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    with loop.accelerator.autocast():
        z, z_hat = student.encode(*batch)

    def gradient(loss: Tensor) -> Tensor:
        parts = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
        return loop.accelerator.reduce(
            torch.cat([part.flatten() for part in parts]), "mean"
        )  # as DDP does with the one that is applied

    found = {"known_rows": known.float().mean().item()}
    with _as_in_the_step(loop, operator=False):
        with loop.accelerator.autocast():
            h, _ = student.heads(z, z_hat, batch.rows)
        everything = torch.ones_like(known)
        loss = loss_of_rows(student, h, rows, everything)
        g_L = gradient(loss.supervised)
        found["gdc_clean"] = 1 - _cosine(g_L, applied)
        (of_features,) = torch.autograd.grad(loss.supervised + loss.unsupervised, z, retain_graph=True)
        found["rho_grad"] = gradient_dominance(gather_rows(of_features, VIEWS), known).item()
        added = {
            "labelled": rows.labelled,
            "known": ~rows.labelled & known,
            "novel": ~rows.labelled & ~known,
            "all": everything,
        }
        for name, more in added.items():
            if more.any():
                loss = loss_of_rows(student, h, rows, rows.labelled | more)
                found[f"cos_{name}"] = _cosine(g_L, gradient(loss.supervised + loss.unsupervised))
    if student.eagc is None:
        return found | {"gdc_release": found["gdc_clean"]}
    with _as_in_the_step(loop, operator=True):
        with loop.accelerator.autocast():
            h, token = student.heads(z, z_hat, batch.rows)
        supervised = student.loss(h, z, z_hat, batch.rows).supervised
        return found | {
            "gdc_release": 1 - _cosine(gradient(supervised if token is None else supervised + token), applied)
        }


def loss_of_rows(student: Student, h: tuple[Tensor, ...], rows: Rows, chosen: Tensor) -> Loss:
    """The method's loss as if the batch held the `chosen` (n,) rows alone; the views of an image are chosen together."""
    columns = {name: getattr(rows, name)[chosen] for name in ("label", "labelled", "uq_idx")}
    with torch.autocast(chosen.device.type, enabled=False), _buffers_put_back(student):
        return student.method.loss(tuple(output[chosen] for output in h), rows._replace(**columns))


def known_classes(data: GCDData) -> Tensor:
    """bool by uq_idx: whether the image's true class is a known one."""
    known = torch.zeros(
        max(int(part.uq_idx.max()) for part in (data.labelled, data.unlabelled)) + 1, dtype=torch.bool
    )
    for part in (data.labelled, data.unlabelled):
        known[part.uq_idx] = part.labels < data.known
    return known


def _cosine(supervised: Tensor, other: Tensor) -> float:
    """NaN where one of them is zero and has no direction."""
    return 1 - gradient_deviation(supervised, other).item() if supervised.any() and other.any() else math.nan


@contextmanager
def _as_in_the_step(loop: Loop, operator: bool) -> Iterator[None]:
    """Heads and losses draw what they drew in the step, and leave nothing behind: buffers and the coordinator's records are put back.

    `operator=False` takes the coordinator out meanwhile, and the loss that stands in for its anchor term.
    """
    student: Student = loop.student
    eagc, alignment = student.eagc, student.alignment
    records = None if eagc is None else (eagc.last_energy, eagc.last_tau)
    if eagc is not None:
        eagc.eval()  # the running energy reference is used as the step left it, and not updated a second time
    if not operator:
        student.eagc = student.alignment = None
    devices = [loop.device] if loop.device.type == "cuda" else []
    try:
        with _buffers_put_back(student), torch.random.fork_rng(devices=devices):
            # Nothing in an encoder draws, so the heads come first, as in the step.
            torch.manual_seed(
                draw_key(loop.config.seed, loop.epoch, loop.position, loop.accelerator.process_index, -1)
            )
            yield
    finally:
        student.eagc, student.alignment = eagc, alignment
        if eagc is not None:
            eagc.train()
            eagc.last_energy, eagc.last_tau = records


@contextmanager
def _buffers_put_back(module: nn.Module) -> Iterator[None]:
    before = {name: value.clone() for name, value in module.named_buffers()}
    try:
        yield
    finally:
        for name, value in module.named_buffers():
            if not torch.equal(
                value, before[name]
            ):  # a write, even of the same values, would spoil a graph that holds the buffer
                value.copy_(before[name])


# Features --------------------------------------------------------------------------------------------------------------------------


class WholeSets:
    """Labelled images, and unlabelled ones of novel classes, under the test transform.

    The frozen trunk's tokens of these images are the same at every step: they are computed once and kept in memory, up to `KEPT_BYTES`. Not
    where a trunk cache has them already, nor for a method whose inputs change the pixels (SPTNet's prompts).
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.novel = int((loop.data.unlabelled.labels >= loop.data.known).sum())
        self.rank, self.world = loop.accelerator.process_index, loop.accelerator.num_processes
        share = (len(loop.data.labelled) + self.novel) / len(loop.data.merged) / self.world
        fits = cache_bytes(loop.student.encoder, loop.data, views=0) * share <= KEPT_BYTES
        self.keeps = (
            fits and loop.config.trunk_cache is None and type(loop.student.method).inputs is Method.inputs
        )
        self._kept: list[list[Batch]] | None = None

    def features(self) -> tuple[Tensor, Tensor | None]:
        """Z_old (N_old, D) and Z_new (N_new, D), None if there is none, by the student as it is now. fp32."""
        if self._kept is None and self.keeps:
            self._kept = [
                [self._through_trunk(i, batch) for i, batch in enumerate(part)] for part in self._batches()
            ]
        old, new = self._batches() if self._kept is None else self._kept
        encode = self.loop.features.encode
        return encode(old)[0], encode(new)[0] if self.novel else None

    def _batches(self) -> tuple[Iterable[Batch], Iterable[Batch]]:
        return self.loop.batches.labelled(), self._novel(self.loop.batches.unlabelled())

    def _novel(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            chosen = batch.label >= self.loop.data.known
            if chosen.any():
                yield Batch([view[chosen] for view in batch.views], *(column[chosen] for column in batch[1:]))

    def _through_trunk(self, i: int, batch: Batch) -> Batch:
        """The batch with tokens for views; without either if another process encodes it."""
        if i % self.world != self.rank:
            return batch._replace(views=[])
        encoder, device = self.loop.student.encoder, self.loop.device
        return batch._replace(
            views=[encoder.trunk(view.to(device, non_blocking=True)).cpu() for view in batch.views]
        )
