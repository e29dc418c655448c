"""`eagc demo`, the main job: what EAGC does to SimGCD, end to end on a small data set, on a CPU, without a download.

1. Pretrain a small ViT on `digits` without labels, freeze its trunk, and check that its features are worth anything (k-NN).
2. Train the reference model of every seed, and fit the known-class subspace.
3. Train five variants over the same seeds: (a) SimGCD from the pretrained weights, (b) SimGCD warm-started from the reference model,
   which is the fair baseline, (c) b + AGA, (d) b + EEP, (e) b + EAGC.
4. Say what came out, as it is, with paired differences against (b).
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eagc_ops.console import Parser, command
from eagc_ops.training.config import Config, resolve
from eagc_ops.training.data import open_data
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.jobs import Job, default_jobs, run_jobs, unfinished
from eagc_ops.training.engine.pretraining import EPOCHS, pretrained_encoder
from eagc_ops.training.report.page import measures, plus_minus, read_run, write_report
from eagc_ops.training.runs import run_job

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a": ("SimGCD, pretrained", {"eagc": False, "warm_start": False}),
    "b": ("SimGCD, warm start", {"eagc": False}),
    "c": ("b + AGA", {"lambda_p": 0.0}),
    "d": ("b + EEP", {"lambda_a": 0.0}),
    "e": ("b + EAGC", {}),
}
BASELINE, FULL = "b", "e"
SETTINGS: dict[str, Any] = {  # on top of the preset "paper" for digits; an epoch has 14 steps
    "warm_start": True, "log_every": 7, "diagnose": {"every": 7}, "device": "cpu",
}  # fmt: skip
COLUMNS = {  # metric: heading, digits; the report has more
    "all": ("All %", 1), "old": ("Old %", 1), "new": ("New %", 1), "gdc_clean": ("GDC clean", 3), "gdc_release": ("GDC release", 3),
    "soc_release": ("SOC", 3), "seconds": ("s / epoch", 2),
}  # fmt: skip

Records = Mapping[str, Mapping[int, Mapping[str, float]]]  # variant -> seed -> metric -> value


@command("eagc demo")
def main(argv: list[str]) -> int:
    """SimGCD with and without EAGC on scikit-learn's digits, end to end, in minutes on a CPU."""
    parser = Parser(prog="eagc demo", description=main.__doc__)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("runs/demo"),
        metavar="FOLDER",
        help="runs and report [runs/demo]",
    )
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="seeds 0 to N - 1 of every variant [3]"
    )
    parser.add_argument("--epochs", type=int, default=6, metavar="N", help="epochs of every run [6]")
    parser.add_argument(
        "--pretrain-epochs",
        type=int,
        default=EPOCHS,
        metavar="N",
        help=f"epochs of pretraining without labels [{EPOCHS}]",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=default_jobs("cpu"),
        metavar="N",
        help="runs at a time [one per core, up to 4]",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="do everything again; without it, what is there is used"
    )
    given = parser.parse_args(argv)
    for name in ("seeds", "epochs", "pretrain_epochs", "jobs"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(given, name)}")
    started, home = time.perf_counter(), given.output
    # One thread per process: on busy cores small products lose more in thread hand-overs than they gain, and bits do not depend on cores.
    torch.set_num_threads(1)
    if given.fresh:
        _remove(home)
    home.mkdir(parents=True, exist_ok=True)

    data = open_data("digits")
    counts = f"{len(data.labelled):,} labelled images of {data.known} known classes, {len(data.unlabelled):,} unlabelled images of"
    print(f"SimGCD with and without EAGC on digits: {counts} {data.known + data.novel} classes\n", flush=True)
    encoder = pretrained_encoder(home / "pretrained.safetensors", data, given.pretrain_epochs)
    print(f"1. {encoder}", flush=True)
    if encoder.fault:
        print(f"eagc demo: {encoder.fault}", file=sys.stderr)
        return 1
    configs = {
        (variant, seed): _config(home, variant, seed, given.epochs)
        for seed in range(given.seeds)
        for variant in VARIANTS
    }
    folders = {key: home / "runs" / f"{key[0]}-seed{key[1]}" for key in configs}
    trunk = _reference_stage(home, [configs[FULL, seed] for seed in range(given.seeds)])
    _run_stage(configs, folders, trunk, given.jobs)
    print("\n" + "\n".join(_story(folders)))
    names = {folder: _title(variant) for (variant, _), folder in folders.items()}
    report = write_report([folders[key] for key in sorted(folders)], home, names)
    print(f"\nreport: {report}\n{time.perf_counter() - started:.0f} s in all")
    return 0


# The runs --------------------------------------------------------------------------------------------------------------------------


def _config(home: Path, variant: str, seed: int, epochs: int) -> Config:
    places = {"weights": str(home / "pretrained.safetensors"), "trunk_cache": str(home / "trunk")}
    return resolve(
        "simgcd",
        "digits",
        "paper",
        seed=seed,
        epochs=epochs,
        **places,
        **{**SETTINGS, **VARIANTS[variant][1]},
    )


def _reference_stage(home: Path, configs: list[Config]) -> str:
    """Reference model and subspace of every seed, before the runs that share them; and the tokens of the frozen trunk, whose fingerprint
    is returned."""
    losses = []
    for config in configs:
        experiment = Experiment(config)
        experiment.prepare(home / "runs" / "references")
        losses.append(f"{experiment.reference_cross_entropy:.3f}")
    print(
        f"2. Reference models of {len(configs)} seeds: cross-entropy {', '.join(losses)}; conceptors of aperture {config.aperture}",
        flush=True,
    )
    return experiment.facts.trunk


def _run_stage(
    configs: dict[tuple[str, int], Config], folders: dict[tuple[str, int], Path], trunk: str, at_a_time: int
) -> None:
    """Train what is not finished."""
    jobs = unfinished(
        [Job(configs[key], folder, {"trunk": trunk}) for key, folder in folders.items()],
        "pass --fresh, or another --output",
    )
    there, started = len(folders) - len(jobs), time.perf_counter()
    print(
        f"3. {len(jobs)} runs, {at_a_time} at a time"
        + (f"; {there} are finished and used again (--fresh repeats all)" if there else "")
    )
    for done, (job, result) in enumerate(run_jobs(jobs, at_a_time, run_job), 1):
        if isinstance(result, Exception):
            raise result
        last = " ".join(f"{name.capitalize()} {result['last'][name]:.1%}" for name in ("all", "old", "new"))
        print(
            f"   {done:2} of {len(jobs)}: {job.folder.name}  {last}  after {time.perf_counter() - started:.0f} s",
            flush=True,
        )


def _remove(home: Path) -> None:
    for folder in ("trunk", "runs"):
        shutil.rmtree(home / folder, ignore_errors=True)
    for file in ("pretrained.safetensors", "report.html"):
        (home / file).unlink(missing_ok=True)


# What came out ---------------------------------------------------------------------------------------------------------------------


def _story(folders: dict[tuple[str, int], Path]) -> list[str]:
    runs = {key: read_run(folder) for key, folder in folders.items()}
    records: dict[str, dict[int, dict[str, float]]] = {}
    for (variant, seed), run in runs.items():
        records.setdefault(variant, {})[seed] = measures(run)
    warned = [f"WARNING {run.path.name}: {text}" for run in runs.values() for text in run.result["warnings"]]
    return [
        *summary(records),
        "",
        *(warned or ["No run warns: all predict K classes, and no tau is near 0."]),
        "",
        *conclusions(records),
    ]


def summary(records: Records) -> list[str]:
    """Two tables: mean ± std over seeds, and paired differences against the baseline (mean ± std of the differences of a seed)."""
    heads = [head for head, _ in COLUMNS.values()]
    rows = [
        [_title(variant), *(plus_minus((r[m] for r in seeds.values()), d) for m, (_, d) in COLUMNS.items())]
        for variant, seeds in records.items()
    ]
    paired = [
        [
            _title(variant),
            *(
                plus_minus(differences(records, variant, metric), digits, "+")
                for metric, (_, digits) in COLUMNS.items()
            ),
        ]
        for variant in records
        if variant != BASELINE
    ]
    seeds = ", ".join(str(seed) for seed in records[BASELINE])
    return [
        f"Last epoch, mean ± std over seeds {seeds}; GDC and SOC (unit-norm, centred features, k = 16) are means over the run:",
        *_aligned([["", *heads], *rows]),
        "",
        f"Paired differences against ({BASELINE}), the fair baseline: same seed, reference model and draws; mean ± std over seeds:",
        *_aligned([["", *heads], *paired]),
    ]


def differences(records: Records, variant: str, metric: str) -> list[float]:
    """Value minus that of the baseline, seed by seed."""
    return [records[variant][seed][metric] - value[metric] for seed, value in records[BASELINE].items()]


def conclusions(records: Records) -> list[str]:
    """What the numbers show, said from their signs, and what they do not show."""
    n = len(records[BASELINE])
    lines = [f"What the numbers show, (variant) against ({BASELINE}):"]
    for metric in ("all", "new", "gdc_clean", "gdc_release", "soc_release"):
        parts = [
            f"({variant}) {_direction(differences(records, variant, metric))}"
            for variant in records
            if variant not in ("a", BASELINE)
        ]
        lines.append(f"  {COLUMNS[metric][0].removesuffix(' %'):12} {', '.join(parts)}")
    chance = min(2 / 2**n, 1)
    return [
        *lines,
        "What they do not show:",
        f"  With {n} seed{'s' * (n > 1)} the same sign on all comes by chance with probability {chance:.0%}: nothing here is significant.",
        "  Ten classes of 8 x 8 digits and a ViT pretrained for a minute say nothing about CUB or ImageNet.",
        "  (a) against (b) is the effect of the start, not of EAGC.",
        "  GDC release holds the alignment term in both gradients, which lowers it by itself; GDC clean does not.",
        "  Seconds are wall clock beside other runs and follow the load of the machine; `eagc bench` measures the cost of EAGC.",
    ]


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


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        ).rstrip()
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
