"""Gradient entanglement, measured while a run trains, without changing a bit of the run.

`gradient_measures` and `feature_measures` define what is measured; this file says when, and writes the lines.
"""

from __future__ import annotations

import math
import time

from eagc_ops.training.analysis.feature_measures import WholeSets, feature_measures
from eagc_ops.training.analysis.gradient_measures import gradient_measures
from eagc_ops.training.config import Diagnosis
from eagc_ops.training.data.rows import Rows
from eagc_ops.training.engine.loop import Callback, Loop

__all__ = ["MEASURES", "Diagnose"]

MEASURES = {  # and their titles
    "gdc_clean": "GDC, clean",
    "gdc_release": "GDC, release",
    "soc_release": "SOC, release",
    "soc_paper": "SOC, paper",
    "rho_grad": "rho_grad",
    "rho_in": "rho_in",
    "drift": "drift of labelled features",
    "eep_share": "share that EEP removes",
    "aga_share": "share that AGA adds",
    "cos_labelled": "cos: labelled",
    "cos_known": "cos: + known unlabelled",
    "cos_novel": "cos: + novel unlabelled",
    "cos_all": "cos: all",
}


class Diagnose(Callback):
    """Measures at the steps of `config.diagnose`, and writes "diagnosis" lines to metrics.jsonl.

    A line holds the measures, and the seconds that measuring took (they are part of the seconds of the
    epoch). A measure is None where it does not exist: no labelled row in the batch, no row that cos_known or
    cos_novel would add, a phase that trains no block, no image of a novel class, no reference model, no
    operator.
    """

    def __init__(self) -> None:
        self._line: dict[str, float] = {}
        self._sets: WholeSets | None = None

    def before_update(self, loop: Loop, rows: Rows) -> None:
        settings = self._settings_if_due(loop)
        if settings is None:
            return
        started = time.perf_counter()
        block = [p for p in loop.student.encoder.tail[-1].parameters() if p.requires_grad]
        trained = [p for p in loop.student.parameters() if p.requires_grad]
        self._line = dict.fromkeys((*MEASURES, "known_rows"), math.nan)
        if block:
            self._line |= gradient_measures(loop, rows, trained if settings.parameters == "all" else block)
        self._line["seconds"] = time.perf_counter() - started

    def after_update(self, loop: Loop, rows: Rows) -> None:
        settings = self._settings_if_due(loop)
        if settings is None:
            return
        started = time.perf_counter()
        self._sets = self._sets or WholeSets(loop.experiment)
        loop.student.eval()
        old, new = self._sets.features()
        old_ref = self._sets.reference_features()
        loop.student.train()
        self._line["k"] = k = min(settings.k, *old.shape)
        self._line |= feature_measures(old, new, old_ref, k, loop.config.aperture)
        self._line["seconds"] += time.perf_counter() - started
        line = {"epoch": loop.epoch, "position": loop.position, **self._line}
        loop.folder.log("diagnosis", loop.step + 1, line)

    def _settings_if_due(self, loop: Loop) -> Diagnosis | None:
        settings = loop.config.diagnose
        if settings is None or loop.step % settings.every:
            return None
        return settings if settings.steps is None or loop.step < settings.steps else None
