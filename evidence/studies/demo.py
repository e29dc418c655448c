"""The demo: what EAGC changes, against the noise floor, on a problem that needs no download.

The data set `glyphs` has 60 characters, 10 of them known, and an encoder that comes with this package.

1. Probe the labelled images: some known characters play novel, and the energies must tell.
2. Train the reference model of every seed, and fit the known-class subspace.
3. Train five variants over the same seeds: SimGCD warm-started from the reference model, which is the fair
   baseline; with AGA, with EEP and with both (EAGC); and a null run, with EAGC of almost no strength.
4. Print the results, with paired differences against the baseline, and a verdict. What null runs change is
   rounding: a difference of that size is none. What the probe said stands beside what training showed.
5. Draw the categories that a run discovered.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from eagc_ops.app.table import Row, Table
from eagc_ops.evidence.frozen_features import probe_once
from eagc_ops.evidence.jobs import Job, unfinished
from eagc_ops.evidence.late_energies import LateEnergy, late_energies
from eagc_ops.evidence.probe_text import PROBE_FILE, write_probe
from eagc_ops.evidence.probing import Probe, Separation
from eagc_ops.evidence.probing import verdict as verdict_of_probe
from eagc_ops.evidence.sets import trained
from eagc_ops.evidence.studies.image_sheets import categories, write_part, write_sheet
from eagc_ops.training.analysis.paired import Paired, paired_difference
from eagc_ops.training.config import NULL, Config, Diagnosis, resolve
from eagc_ops.training.data import open_data
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.report.measures import measures, plus_minus, signed
from eagc_ops.training.report.page import write_report
from eagc_ops.training.report.runs import read_run
from eagc_ops.training.report.verdict import LEVEL

BASELINE, FLOOR, FULL = "baseline", "null", "eagc"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    BASELINE: ("SimGCD, warm start", {"eagc": False}),
    FLOOR: ("null run, EAGC with λ = 1e-4", NULL),
    "aga": ("+ AGA", {"lambda_p": 0.0}),
    "eep": ("+ EEP", {"lambda_a": 0.0}),
    FULL: ("+ EAGC", {}),
}
SETTINGS: dict[str, Any] = {  # on top of the preset "paper" for glyphs; an epoch has 14 steps
    "warm_start": True,
    "projector_width": 512,
    "cache_views": 4,
    "log_every": 14,
    "evaluate_every": 5,
    "checkpoint_epochs": 5,
    "tensorboard_every": 0,
    "diagnose": Diagnosis(every=28),
    "device": "cpu",
}
COLUMNS = {  # measure: heading, digits; the report has more
    "all": ("All %", 1),
    "old": ("Old %", 1),
    "new": ("New %", 1),
    "gdc_clean": ("GDC clean", 3),
    "soc_release": ("SOC", 3),
}
_HOW_TO_READ = (
    "their most typical images and the true character of most of them.\nBlue: a known one; green: a novel "
    "one; orange: no character has half of the images"
)

Measured = Mapping[str, Mapping[int, Mapping[str, float]]]  # variant -> seed -> measure -> value
Say = Callable[[str], None]


def run_demo(home: Path, *, seeds: int, epochs: int, at_a_time: int, fresh: bool, say: Say) -> Path:
    """Do the steps that are not finished in `home`, and return the report's path.

    `say` prints a text. `fresh` does everything again.
    """
    # One thread per process: with small products, more threads cost more than they gain on busy cores, and
    # the bits would depend on the number of cores.
    torch.set_num_threads(1)
    if fresh:
        _remove(home)
    home.mkdir(parents=True, exist_ok=True)
    data = open_data("glyphs")
    say(
        f"SimGCD with and without EAGC on glyphs: {len(data.labelled):,} labelled images of {data.known} "
        f"known characters, {len(data.unlabelled):,} unlabelled images of {data.known + data.novel}\n"
    )
    configs = {
        (variant, seed): _config(home, variant, seed, epochs) for seed in range(seeds) for variant in VARIANTS
    }
    folders = {(variant, seed): home / "runs" / f"{variant}-seed{seed}" for variant, seed in configs}
    aperture = configs[FULL, 0].aperture
    found = probe_once(home, configs[FULL, 0], home / "features")
    say(f"1. {probe_lines(found, aperture)}")
    trunk = _prepare_references(home, [configs[FULL, seed] for seed in range(seeds)], say)
    jobs = [Job(configs[key], folder, {"trunk": trunk}) for key, folder in folders.items()]
    _train(jobs, at_a_time, say)
    records = {key: read_run(folder) for key, folder in folders.items()}
    measured: dict[str, dict[int, dict[str, float]]] = {}
    for (variant, seed), record in records.items():
        measured.setdefault(variant, {})[seed] = measures(record)
    say(f"\n{summary(measured)}")
    say(f"\n{verdict(measured)}")
    late = late_energies(folders[FULL, 0])
    (after,) = (energy for energy in late if (energy.energy, energy.stage) == ("conceptor", "end"))
    say(probe_beside(found, aperture, after, measured))
    if warned := sum(bool(record.result and record.result["warnings"]) for record in records.values()):
        say(f"\n{warned} of {len(records)} runs have warnings, which the report lists")
    write_probe(folders[FULL, 0] / PROBE_FILE, found)  # reports of this run show it
    names = {folder: _title(variant) for (variant, _), folder in folders.items()}
    sheet = home / "categories.png"
    title = f"Categories that SimGCD + EAGC (seed 0) discovered, {_HOW_TO_READ}"
    write_sheet(sheet, categories(folders[FULL, 0]), title)
    write_part(folders[FULL, 0] / "categories.part.html", sheet, title)
    # The report names configurations in the order of their folders: the baseline first, then EAGC.
    report = write_report([folders[key] for key in sorted(folders, key=_order)], home, names)
    say(f"\ncategories that (eagc) discovered with seed 0: {sheet}")
    return report


def summary(measured: Measured) -> str:
    """Two tables: of the values, mean ± std over seeds, and of paired differences against the baseline."""

    def table(variants: Iterable[str], cell: Callable[[str, str, int], str]) -> str:
        rows = [
            Row([_title(variant), *(cell(variant, name, digits) for name, (_, digits) in COLUMNS.items())])
            for variant in variants
        ]
        return Table(["", *(heading for heading, _ in COLUMNS.values())], rows).text()

    def value(variant: str, name: str, digits: int) -> str:
        return plus_minus([values[name] for values in measured[variant].values()], digits)

    def paired(variant: str, name: str, digits: int) -> str:
        return _interval(difference(measured, variant, name), digits)

    seeds, others = ", ".join(map(str, measured[BASELINE])), [name for name in measured if name != BASELINE]
    return (
        f"Last epoch, mean ± std over seeds {seeds}; GDC and SOC (unit-norm, centred features, k = 16) are "
        f"means over the run:\n{table(measured, value)}\n\nPaired differences against (baseline): same seed, "
        f"reference model and draws; mean over seeds and its 95% interval:\n{table(others, paired)}"
    )


def difference(measured: Measured, variant: str, name: str) -> Paired:
    """The variant's values minus the baseline's, seed by seed."""
    base = measured[BASELINE]
    return paired_difference(
        [measured[variant][seed][name] for seed in base], [values[name] for values in base.values()]
    )


def verdict(measured: Measured) -> str:
    """What EAGC changed, against the noise floor, in words."""
    floor = max(abs(value) for value in difference(measured, FLOOR, "all").differences)
    seeds = len(measured[BASELINE])
    lines = [
        "VERDICT",
        f"  Noise floor: rounding alone moved All of single runs by up to {floor:.1f} points.",
    ]
    for variant in (FULL, *(name for name in measured if name not in (BASELINE, FLOOR, FULL))):
        lines.append(f"  {_effect(variant, difference(measured, variant, 'all'), floor)}")
    lines += [
        f"  {seeds} seed{'s' * (seeds > 1)} of 60 drawn characters with a small encoder: whatever is shown "
        "here holds for this problem.",
        "  All variants start from the reference model: the effect of that start is in the baseline too.",
    ]
    return "\n".join(lines)


def probe_lines(found: Probe, aperture: float) -> str:
    """What the probe says before training, at the aperture of the runs."""
    at = found.conceptor(aperture).at_all
    return (
        f"Probe of the {found.images} labelled images, before any training: {verdict_of_probe(at)}\n"
        f"   at aperture {aperture:g}: {_predicted(at, found.aga)}"
    )


def probe_beside(found: Probe, aperture: float, after: LateEnergy, measured: Measured) -> str:
    """What the probe said, beside what training showed."""
    at = found.conceptor(aperture).at_all
    eep, aga = (
        plus_minus((100 * values[name] for values in measured[FULL].values()), 1)
        for name in ("eep_share", "aga_share")
    )
    return (
        f"  The probe said, from labelled images alone: AUC {at.auc:.2f}, {_predicted(at, found.aga)}.\n"
        f"  Training showed, by the true characters: AUC {after.auc:.2f}, mean tau {after.tau_known:.2f} "
        f"known, {after.tau_novel:.2f} novel at the end of ({FULL}), seed 0;\n"
        f"  in the runs of ({FULL}) EEP removed {eep}% of the unlabelled gradients, and AGA's term was "
        f"{aga}% of the labelled ones.\n"
        "  An operator that acts need not raise the accuracy: the lines above say whether it did."
    )


def _predicted(at: Separation, aga: float) -> str:
    return (
        f"mean tau {at.tau_known:.2f} known, {at.tau_novel:.2f} novel; EEP removes {at.eep_known:.1%} and "
        f"{at.eep_novel:.1%} of their gradients, AGA's term is {aga:.0%} of the labelled ones"
    )


def _effect(variant: str, paired: Paired, floor: float) -> str:
    name = VARIANTS[variant][0].removeprefix("+ ")
    if paired.n == 1:
        return f"{name}: no effect is shown. All {signed(paired.mean)} points: one seed has no interval."
    change = f"All {signed(paired.mean)} points, 95% interval {signed(paired.low)} to {signed(paired.high)}"
    if paired.clear and abs(paired.mean) <= floor:
        return f"{name}: no effect is shown. {change}: no more than rounding does."
    if paired.clear and paired.p >= LEVEL:
        word = "higher" if paired.mean > 0 else "lower"
        return f"{name}: {word} in these seeds, which are too few to say more. {change}, p = {paired.p:.2g}."
    if paired.clear:
        return f"{name} {'helps' if paired.mean > 0 else 'harms'}: {change}, beyond the noise floor."
    return f"{name}: no effect is shown. {change}: the interval has 0 in it."


def _config(home: Path, variant: str, seed: int, epochs: int) -> Config:
    _, switches = VARIANTS[variant]
    settings = {**SETTINGS, "trunk_cache": str(home / "trunk"), **switches}
    return resolve("simgcd", "glyphs", "paper", seed=seed, epochs=epochs, **settings)


def _prepare_references(home: Path, configs: list[Config], say: Say) -> str:
    """Make the trunk cache, and the reference model and the subspace of every seed.

    Returns the fingerprint of the trunk.
    """
    losses = []
    for config in configs:
        experiment = Experiment(config)
        experiment.prepare(home / "runs" / "references")
        losses.append(f"{experiment.reference_cross_entropy:.3f}")
    say(
        f"2. Reference models, one for each seed: cross-entropy {', '.join(losses)}; conceptors with "
        f"aperture {configs[0].aperture}"
    )
    return experiment.facts.trunk


def _train(jobs: list[Job], at_a_time: int, say: Say) -> None:
    """Train the runs that are not finished."""
    left = unfinished(jobs, "pass --fresh, or choose a different --output")
    done_before = len(jobs) - len(left)
    again = f"; {done_before} are finished and used again (--fresh repeats all)" if done_before else ""
    say(f"3. {len(left)} runs, {at_a_time} at a time{again}")
    for _, result in trained(left, at_a_time, say):
        if isinstance(result, Exception):
            raise result


def _remove(home: Path) -> None:
    for folder in ("trunk", "features", "runs"):
        shutil.rmtree(home / folder, ignore_errors=True)
    for file in (PROBE_FILE, "report.html", "categories.png"):
        (home / file).unlink(missing_ok=True)


def _order(key: tuple[str, int]) -> tuple[int, int]:
    """The baseline, EAGC, its parts, and the null run."""
    variant, seed = key
    return [BASELINE, FULL, "aga", "eep", FLOOR].index(variant), seed


def _interval(paired: Paired, digits: int) -> str:
    if paired.n == 0:
        return "-"
    text, low, high = (signed(x, digits) for x in (paired.mean, paired.low, paired.high))
    return text if paired.n == 1 else f"{text} [{low}, {high}]"


def _title(variant: str) -> str:
    return f"({variant}) {VARIANTS[variant][0]}"
