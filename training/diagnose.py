"""Gradient entanglement, measured while a run trains: GDC before and SOC after an optimiser step. The run's numbers stay the same bits.

    GDC = 1 - cos(g_L, g) on the batch of the step, over the parameters of the last block (as in the released code)
        gdc_clean     g_L: the gradient of L_sup alone, without the operator;  g: the gradient that is applied, AGA and EEP included
        gdc_release   the operator acts in both, as in the released code: both then hold the same alignment term, which pulls them
                      together. (That code uses the tau of the batch before; here it is the tau of this batch.)
    SOC = |Z_new P_old|^2 / |Z_new|^2 of whole sets under the test transform: labelled images, and unlabelled ones of novel classes
        soc_release   unit-norm rows centred on the mean of Z_old;  soc_paper: raw features

Without EAGC both GDCs are one number. The novel classes are known from the truth, which is used here and reaches no loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from eagc_ops.diagnostics import gradient_deviation, subspace_overlap
from eagc_ops.training.config import ConfigError
from eagc_ops.training.data import draw_key
from eagc_ops.training.loop import Callback, Loop
from eagc_ops.training.student import Student, StudentBatch

MEASURES = ("gdc_clean", "gdc_release", "soc_release", "soc_paper")


class Diagnose(Callback):
    """Measures at optimiser steps 0, every, 2 * every, ..., below step `steps` (None: to the end); SOC with `k` directions of Z_old.

    Writes lines of kind "diagnosis" to metrics.jsonl: the measures, and the seconds that measuring took (they are part of the
    seconds of the epoch). GDC is None where it does not exist: no labelled row in the batch, or a phase that trains no block.
    """

    def __init__(self, every: int = 1, steps: int | None = None, k: int = 16) -> None:
        if every < 1 or k < 1:
            raise ConfigError(f"every={every}, k={k}: both must be at least 1")
        self.every, self.steps, self.k = every, steps, k
        self._line: dict[str, float] = {}

    def before_update(self, loop: Loop, batch: StudentBatch) -> None:
        if not self._due(loop):
            return
        if loop.config.accumulation > 1:
            raise ConfigError(
                f"accumulation={loop.config.accumulation}: GDC compares gradients of one whole batch; set it to 1 to diagnose"
            )
        started = time.perf_counter()
        block = [parameter for parameter in loop.student.encoder.tail[-1].parameters() if parameter.requires_grad]
        clean = release = math.nan
        if block:
            applied = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in block])
            clean = release = _deviation(supervised_gradient(loop, batch, block, operator=False), applied)
            if loop.student.eagc is not None:
                release = _deviation(supervised_gradient(loop, batch, block, operator=True), applied)
        self._line = {"gdc_clean": clean, "gdc_release": release, "seconds": time.perf_counter() - started}

    def after_update(self, loop: Loop, batch: StudentBatch) -> None:
        if not self._due(loop):
            return
        started = time.perf_counter()
        loop.student.eval()
        old, _ = loop.features.labelled()
        unlabelled, label = loop.features.unlabelled()
        loop.student.train()
        new = unlabelled[label >= loop.data.known]
        self._line["k"] = k = min(self.k, *old.shape)
        for mode in ("release", "paper"):
            self._line[f"soc_{mode}"] = subspace_overlap(old, new, k, mode).item() if len(new) else math.nan
        self._line["seconds"] += time.perf_counter() - started
        loop.folder.log("diagnosis", loop.step + 1, {"epoch": loop.epoch, "position": loop.position, **self._line})

    def _due(self, loop: Loop) -> bool:
        return loop.step % self.every == 0 and (self.steps is None or loop.step < self.steps)


def supervised_gradient(loop: Loop, batch: StudentBatch, parameters: list[nn.Parameter], operator: bool) -> Tensor:
    """Flat gradient of L_sup on the batch, through the operator (with its alignment term) or without it. `.grad` is not touched."""
    with _unchanged(loop.student, operator), torch.random.fork_rng(devices=[loop.device] if loop.device.type == "cuda" else []):
        # The draws of the step itself: a method with dropout is measured as it was trained.
        torch.manual_seed(draw_key(loop.config.seed, loop.epoch, loop.position, loop.accelerator.process_index, -1))
        with loop.accelerator.autocast():
            loss, token = loop.student(*batch)
        total = loss.supervised if token is None else loss.supervised + token
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(total, parameters, materialize_grads=True)])
    return loop.accelerator.reduce(gradient, "mean")  # as DDP does with the gradient that is applied


def _deviation(supervised: Tensor, applied: Tensor) -> float:
    return gradient_deviation(supervised, applied).item() if supervised.any() else math.nan


@contextmanager
def _unchanged(student: Student, operator: bool) -> Iterator[None]:
    """A forward that leaves nothing behind: buffers and the coordinator's records are put back. `operator=False` takes it out meanwhile."""
    eagc, buffers = student.eagc, {name: value.clone() for name, value in student.named_buffers()}
    records = None if eagc is None else (eagc.last_energy, eagc.last_tau)
    if eagc is not None:
        eagc.eval()  # the running energy reference is used as the step left it, and not updated a second time
    if not operator:
        student.eagc = None
    try:
        yield
    finally:
        student.eagc = eagc
        if eagc is not None:
            eagc.train()
            eagc.last_energy, eagc.last_tau = records
        for name, value in student.named_buffers():
            value.copy_(buffers[name])
