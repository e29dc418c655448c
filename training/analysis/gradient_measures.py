"""Measures of a step's gradients: GDC, cosines with mixed gradients, rho_grad, shares of EEP and AGA.

Gradients are those of a step's batch before its update, over the trained parameters of the last block
(`parameters="block"`, the released code) or over all parameters that the step trains, encoder and heads
(`parameters="all"`, the paper):

    GDC = 1 - cos(g_L, g)
        gdc_clean      g_L: the gradient of L_sup, without the operator
                       g: the gradient that is applied, AGA and EEP included
        gdc_release    the operator acts in both, as in the released code: both then hold the same alignment
                       term, which pulls them together. (That code uses the tau of the previous batch; here it
                       is the tau of this batch, and the measure 5 % smaller.)
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
    eep_share, aga_share
                       sum |g'_i - g_i| / sum |g_i| over unlabelled rows, and over labelled ones: how much of
                       dL/dz the operator removes and adds. `probe` predicts the same shares. Without EAGC
                       there are none

An alignment loss (`alignment`) counts as part of the operator: it is in the applied gradient and in
gdc_release, and in nothing else. Without EAGC both GDCs are equal. Known and novel classes are told apart
by the true labels, which are used only to group rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from eagc_ops.diagnostics import gradient_deviation, gradient_dominance
from eagc_ops.training.data import GCDData, draw_key
from eagc_ops.training.data.batches import VIEWS
from eagc_ops.training.data.rows import Rows
from eagc_ops.training.engine.loop import Loop
from eagc_ops.training.methods import Loss
from eagc_ops.training.models.distributed import gather_rows
from eagc_ops.training.models.student import Student, gather

__all__ = ["gradient_measures"]


def gradient_measures(loop: Loop, rows: Rows, parameters: list[nn.Parameter]) -> dict[str, float]:
    """The measures of this file at the current weights. `.grad` is read, not changed."""
    student, everywhere, autocast = loop.student, gather(rows), loop.experiment.autocast
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
        loss = student.loss(h, z, z_ref, rows)
        extra = 0.0 if token is None else token
        measures["gdc_release"] = 1 - _cosine(gradient(loss.supervised + extra), applied)
        if token is not None:
            total = loss.supervised + loss.unsupervised + token
            before, after = torch.autograd.grad(total, (coordinated, z), retain_graph=True)
            changed, whole = (gather_rows(x.norm(dim=1), VIEWS) for x in (after - before, before))
            for name, side in (("eep_share", ~everywhere.mask), ("aga_share", everywhere.mask)):
                if side.any():
                    measures[name] = (changed[side].sum() / whole[side].sum()).item()
        return measures


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
    records = (eagc.last_energy, eagc.last_tau) if eagc is not None else (None, None)
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
