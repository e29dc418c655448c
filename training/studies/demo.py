"""The demo: SimGCD with and without EAGC, end to end on a small data set, on a CPU, without a download.

1. Pretrain a small ViT on `digits` without labels, freeze its trunk, and check its features by k-NN.
2. Train the reference model of every seed, and fit the known-class subspace.
3. Train five variants over the same seeds: (a) SimGCD from the pretrained weights, (b) SimGCD warm-started
   from the reference model, which is the fair baseline, (c) b + AGA, (d) b + EEP, (e) b + EAGC.
4. Print the results, with paired differences against (b), and the conclusions.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from eagc_ops.table import Row, Table
from eagc_ops.training.config import Config, Diagnosis, resolve
from eagc_ops.training.data import open_data
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.jobs import Job, run_jobs, unfinished
from eagc_ops.training.engine.pretraining import pretrained_encoder
from eagc_ops.training.report.measures import measures, plus_minus
from eagc_ops.training.report.page import write_report
from eagc_ops.training.report.runs import read_run
from eagc_ops.training.runs import run_job
from eagc_ops.training.scores import scores_text

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a": ("SimGCD, pretrained", {"eagc": False, "warm_start": False}),
    "b": ("SimGCD, warm start", {"eagc": False}),
    "c": ("b + AGA", {"lambda_p": 0.0}),
    "d": ("b + EEP", {"lambda_a": 0.0}),
    "e": ("b + EAGC", {}),
}
BASELINE, FULL = "b", "e"
SETTINGS: dict[str, Any] = {  # on top of the preset "paper" for digits; an epoch has 14 steps
    "warm_start": True,
    "log_every": 7,
    "diagnose": Diagnosis(every=7),
    "device": "cpu",
}
COLUMNS = {  # measure: heading, digits; the report has more
    "all": ("All %", 1),
    "old": ("Old %", 1),
    "new": ("New %", 1),
    "gdc_clean": ("GDC clean", 3),
    "gdc_release": ("GDC release", 3),
    "soc_release": ("SOC", 3),
    "seconds": ("s / epoch", 2),
}

Measured = Mapping[str, Mapping[int, Mapping[str, float]]]  # variant -> seed -> measure -> value
Say = Callable[[str], None]


class WeakEncoderError(RuntimeError):
    """The pretrained encoder is too weak for the runs to show anything."""


def run_demo(
    home: Path, *, seeds: int, epochs: int, pretrain_epochs: int, at_a_time: int, fresh: bool, say: Say
) -> Path:
    """Do the steps that are not finished in `home`, and return the report's path.

    `say` prints a text. `fresh` does everything again. Raises `WeakEncoderError` if pretraining fails.
    """
    # One thread per process: with small products, more threads cost more than they gain on busy cores, and
    # the bits would depend on the number of cores.
    torch.set_num_threads(1)
    if fresh:
        _remove(home)
    home.mkdir(parents=True, exist_ok=True)
    data = open_data("digits")
    say(
        f"SimGCD with and without EAGC on digits: {len(data.labelled):,} labelled images of {data.known} "
        f"known classes, {len(data.unlabelled):,} unlabelled images of {data.known + data.novel} classes\n"
    )
    encoder = pretrained_encoder(_weights(home), data, pretrain_epochs)
    say(f"1. {encoder}")
    if encoder.fault:
        raise WeakEncoderError(encoder.fault)
    configs = {
        (variant, seed): _config(home, variant, seed, epochs) for seed in range(seeds) for variant in VARIANTS
    }
    folders = {(variant, seed): home / "runs" / f"{variant}-seed{seed}" for variant, seed in configs}
    trunk = _prepare_references(home, [configs[FULL, seed] for seed in range(seeds)], say)
    jobs = [Job(configs[key], folder, {"trunk": trunk}) for key, folder in folders.items()]
    _train(jobs, at_a_time, say)
    say(f"\n{_story(folders)}")
    names = {folder: _title(variant) for (variant, _), folder in folders.items()}
    return write_report([folders[key] for key in sorted(folders)], home, names)


def summary(measured: Measured) -> str:
    """Two tables of mean ± std over seeds: of the values, and of paired differences against the baseline."""
    seeds = ", ".join(str(seed) for seed in measured[BASELINE])
    values = {
        variant: {name: [values[name] for values in by_seed.values()] for name in COLUMNS}
        for variant, by_seed in measured.items()
    }
    paired = {
        variant: {name: differences(measured, variant, name) for name in COLUMNS}
        for variant in measured
        if variant != BASELINE
    }
    return (
        f"Last epoch, mean ± std over seeds {seeds}; GDC and SOC (unit-norm, centred features, k = 16) are "
        f"means over the run:\n{_table(values).text()}\n\nPaired differences against ({BASELINE}), the fair "
        "baseline: same seed, reference model and draws; mean ± std over "
        f"seeds:\n{_table(paired, sign='+').text()}"
    )


def differences(measured: Measured, variant: str, name: str) -> list[float]:
    """The variant's value minus the baseline's, seed by seed."""
    return [measured[variant][seed][name] - values[name] for seed, values in measured[BASELINE].items()]


def conclusions(measured: Measured) -> str:
    """The conclusions that the signs of the differences allow, and those that they do not."""
    n = len(measured[BASELINE])
    lines = [f"The numbers show, (variant) against ({BASELINE}):"]
    for name in ("all", "new", "gdc_clean", "gdc_release", "soc_release"):
        parts = [
            f"({variant}) {_direction(differences(measured, variant, name))}"
            for variant in measured
            if variant not in ("a", BASELINE)
        ]
        lines.append(f"  {COLUMNS[name][0].removesuffix(' %'):12} {', '.join(parts)}")
    chance = min(2 / 2**n, 1)
    lines += [
        "What they do not show:",
        f"  With {n} seed{'s' * (n > 1)}, all differences have the same sign by chance with probability "
        f"{chance:.0%}: nothing here is significant.",
        "  Ten classes of 8 x 8 digits and a ViT pretrained for a minute say nothing about CUB or ImageNet.",
        "  The difference between (a) and (b) is the effect of the warm start, not of EAGC.",
        "  GDC release has the alignment term in both gradients, which lowers it by itself; GDC clean does "
        "not.",
        "  Seconds are wall-clock time beside other runs and depend on the load; `eagc bench` measures the "
        "cost of EAGC.",
    ]
    return "\n".join(lines)


def _weights(home: Path) -> Path:
    return home / "pretrained.safetensors"


def _config(home: Path, variant: str, seed: int, epochs: int) -> Config:
    _, switches = VARIANTS[variant]
    places = {"weights": str(_weights(home)), "trunk_cache": str(home / "trunk")}
    settings = {**SETTINGS, **places, **switches}
    return resolve("simgcd", "digits", "paper", seed=seed, epochs=epochs, **settings)


def _prepare_references(home: Path, configs: list[Config], say: Say) -> str:
    """Make the reference model and the subspace of every seed, and the trunk cache.

    Returns the fingerprint of the trunk.
    """
    losses = []
    for config in configs:
        experiment = Experiment(config)
        experiment.prepare(home / "runs" / "references")
        losses.append(f"{experiment.reference_cross_entropy:.3f}")
    say(
        f"2. Reference models of {len(configs)} seeds: cross-entropy {', '.join(losses)}; conceptors with "
        f"aperture {configs[0].aperture}"
    )
    return experiment.facts.trunk


def _train(jobs: list[Job], at_a_time: int, say: Say) -> None:
    """Train the runs that are not finished."""
    left = unfinished(jobs, "pass --fresh, or choose a different --output")
    done_before, started = len(jobs) - len(left), time.perf_counter()
    again = f"; {done_before} are finished and used again (--fresh repeats all)" if done_before else ""
    say(f"3. {len(left)} runs, {at_a_time} at a time{again}")
    for done, (job, result) in enumerate(run_jobs(left, at_a_time, run_job), 1):
        if isinstance(result, Exception):
            raise result
        last = scores_text(result["last"], 1)
        seconds = time.perf_counter() - started
        say(f"   {done:2} of {len(left)}: {job.folder.name}  {last}  after {seconds:.0f} s")


def _remove(home: Path) -> None:
    for folder in ("trunk", "runs"):
        shutil.rmtree(home / folder, ignore_errors=True)
    for file in (_weights(home), home / "report.html"):
        file.unlink(missing_ok=True)


def _story(folders: Mapping[tuple[str, int], Path]) -> str:
    runs = {key: read_run(folder) for key, folder in folders.items()}
    measured: dict[str, dict[int, dict[str, float]]] = {}
    for (variant, seed), run in runs.items():
        measured.setdefault(variant, {})[seed] = measures(run)
    warned = [f"WARNING {run.path.name}: {text}" for run in runs.values() for text in run.result["warnings"]]
    warnings = "\n".join(warned) or "No run has a warning: all predict K classes, and no tau is near 0."
    return f"{summary(measured)}\n\n{warnings}\n\n{conclusions(measured)}"


def _table(values: Mapping[str, Mapping[str, list[float]]], sign: str = "") -> Table:
    """mean ± std of the values, a row for each variant and a column for each measure."""
    rows = [
        Row([_title(variant), *(plus_minus(of[name], digits, sign) for name, (_, digits) in COLUMNS.items())])
        for variant, of in values.items()
    ]
    return Table(["", *(heading for heading, _ in COLUMNS.values())], rows)


def _direction(values: list[float]) -> str:
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return "not measured"
    up, down = sum(value > 0 for value in values), sum(value < 0 for value in values)
    if len(values) in (up, down):
        return f"{'up' if up else 'down'} on all {len(values)} seeds"
    return "unchanged" if up == down == 0 else f"mixed ({up} up, {down} down)"


def _title(variant: str) -> str:
    return f"({variant}) {VARIANTS[variant][0]}"
