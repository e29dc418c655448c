"""The study's evidence as Markdown with figures: what was decided before the runs, and what the runs show.

`evidence.csv` beside it has the numbers of every planned run, `energies.csv` the energies at the end of runs.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from eagc_ops.app.files import atomic_write
from eagc_ops.app.table import Row, Table
from eagc_ops.evidence.comparisons import bootstrap_interval, holm
from eagc_ops.evidence.late_energies import LateEnergy
from eagc_ops.evidence.probe_text import probe_of
from eagc_ops.evidence.sets import conditions, read_begun
from eagc_ops.evidence.studies.earlier import CURVES, PAGE, TABLE, WRITTEN, Earlier, earlier_part
from eagc_ops.evidence.studies.numbers import COLUMNS, RunNumbers, table
from eagc_ops.evidence.studies.study import (
    BASELINE,
    FULL,
    LEVEL,
    NULL,
    Cell,
    Study,
    StudyRun,
    can_decide,
)
from eagc_ops.training.analysis.paired import Paired, paired_difference
from eagc_ops.training.engine.run_folder import SCORES
from eagc_ops.training.report import drawing
from eagc_ops.training.report.figures import accuracy_figure
from eagc_ops.training.report.measures import mean_std, measures, plus_minus, signed
from eagc_ops.training.report.runs import RunGroup, RunRecord

__all__ = ["Comparison", "compare", "decision", "evaluated", "write_evidence"]

NAN = math.nan
ENERGIES = "energies.csv"
Values = Mapping[str, Sequence[Mapping[str, float]]]  # arm -> by seed -> measure -> value
_DIFFERENCES = (
    "{0} minus {0} of the baseline, in points: single seeds (dots), their mean (diamond) with its bootstrap "
    "interval, and the noise floor (grey)."
)
_FORGETTING = (
    "EAGC minus baseline, in points, over the fall of Old of the baseline: what it forgets of known classes. "
    "A point for every complete regime, recipe and method: means over the seeds, with bootstrap intervals. "
    "This was not decided before the runs."
)
_ENERGIES = (
    "Energies of the unlabelled images in the runs with EAGC, known against novel classes. *Start*: features "
    "and subspace of the reference model. *End*: features of the trained student, the same subspace, "
    "as in the operator. *Refitted*: a subspace of the trained student's own labelled features."
)
_NAMES = (
    "What the predictions say without the matching of clusters to classes, in percent. It was not decided "
    "before the runs to measure this, and no p-value is corrected for it. *Own name*: images of known "
    "classes in the cluster of their own. *Known name*: images of novel classes in that of a known one. "
    "*Taken*: how many known classes lose their cluster to a novel class in the matching, so that their own "
    "images in it do not count in Old."
)
_EVERY_RUN = (
    "{} in percent at the last epoch, by seed; a dash for a run without a finished epoch. "
    "[evidence.csv](evidence.csv) has all measures of all runs."
)


class Comparison(NamedTuple):
    """An arm against the baseline, by a score of the last epoch."""

    paired: Paired
    low: float  # of the bootstrap interval
    high: float
    floor: float  # largest |null - baseline| over the seeds

    @property
    def range(self) -> str:
        return f"{signed(self.low, 2)} to {signed(self.high, 2)}"


Found = Mapping[tuple[Cell, str], Comparison | None]  # (cell, arm) -> None where runs are left


def write_evidence(study: Study) -> list[str]:
    """Write evidence.md, evidence.csv and the figures from the runs so far.

    Returns a line for every comparison that is complete: its difference, and what the registered rule says.
    """
    planned, earlier = study.runs(), earlier_part(study)
    records = {run.folder.name: record for run in planned if (record := read_begun(run.folder)) is not None}
    here = {name: _numbers(record) for name, record in records.items()}
    taken = [cell for cell in earlier.sections if evaluated(cell, planned, here) is None]
    there = [run.folder.name for run in planned if run.cell in taken]
    numbers = {**here, **{name: earlier.numbers[name] for name in there}}
    complete = {
        cell: values for cell in study.cells if (values := evaluated(cell, planned, numbers)) is not None
    }
    score = study.question.score
    outcome = score.capitalize()
    found = {
        (cell, arm): compare(complete[cell], arm, score) if cell in complete else None
        for cell in study.cells
        for arm in cell.tested
    }
    adjusted = _corrected(study, found)
    study.output.mkdir(parents=True, exist_ok=True)
    decided = {
        key: decision(comparison, adjusted.get(key, NAN), len(adjusted))
        for key, comparison in found.items()
        if comparison is not None
    }
    blocks = [f"# {study.question.title}", *_answer(study, complete, found, adjusted, decided)]
    if complete:
        with drawing.style():
            figure = _differences_figure(complete, score)
            forgetting = _forgetting_figure(complete)
        blocks.append(_figure(study.output, "figures/differences.svg", figure, _DIFFERENCES.format(outcome)))
        blocks.append(_figure(study.output, "figures/forgetting.svg", forgetting, _FORGETTING))
    blocks += ["## Decided before the runs", *study.question.text]
    for cell, values in complete.items():
        if cell in taken:
            blocks.append(earlier.sections[cell])
            _draw(study.output / CURVES.format(cell.key), earlier.curves[cell])
        else:
            own = [run for run in planned if run.cell == cell]
            blocks += _section(study, own, values, records)
    blocks += ["## All runs", _EVERY_RUN.format(outcome), _every_run(study, planned, numbers).markdown()]
    where = conditions()
    blocks.append(f"{WRITTEN}{where['date']} on {where['machine']}, commit {where['commit'] or 'unknown'}.")
    if taken:
        again = [(here[name], earlier.numbers[name]) for name in there if name in here]
        blocks.append(_origin(taken, earlier, again, score))
    atomic_write(study.output / PAGE, "\n\n".join(blocks) + "\n")
    atomic_write(study.output / TABLE, table(planned, numbers))
    if energies := _energies(study, planned):
        atomic_write(study.output / ENERGIES, energies)
    return _sentences(outcome, found, adjusted, decided)


def evaluated(cell: Cell, planned: Sequence[StudyRun], numbers: Mapping[str, RunNumbers]) -> Values | None:
    """The measures of all runs of a cell, in the order of the seeds; None unless all are finished."""
    values: dict[str, list[Mapping[str, float]]] = {arm: [] for arm in cell.arms}
    for run in planned:
        if run.cell == cell:
            own = numbers.get(run.folder.name)
            if own is None or own.reached is not None:
                return None
            values[run.arm].append(own.values)
    return values


def compare(values: Values, arm: str, measure: str = "all") -> Comparison:
    """The paired differences of an arm to the baseline, in points."""
    paired, null = (_differences(values, of, measure) for of in (arm, NULL))
    floor = max((abs(difference) for difference in null.differences), default=math.nan)
    return Comparison(paired, *bootstrap_interval(paired.differences), floor)


def decision(found: Comparison, adjusted: float, tests: int) -> str:
    """What the registered rule says of one of so many tests; see `questions`."""
    if not can_decide(found.paired.n, tests):
        return "too few seeds to decide"
    if not adjusted < LEVEL:
        return "nothing shown"
    if abs(found.paired.mean) <= found.floor:
        return "below the noise floor"
    return "a gain" if found.paired.mean > 0 else "a loss"


def _differences(values: Values, arm: str, measure: str) -> Paired:
    return paired_difference(*([value[measure] for value in values[of]] for of in (arm, BASELINE)))


def _section(
    study: Study, own: Sequence[StudyRun], values: Values, records: Mapping[str, RunRecord]
) -> list[str]:
    """The section of a cell whose runs `own` are here, with its figure."""
    cell = own[0].cell
    groups = [
        RunGroup(arm, "", [records[run.folder.name] for run in own if run.arm == arm]) for arm in cell.arms
    ]
    with drawing.style():
        curves = accuracy_figure(groups)
    assert curves is not None  # every run of a section has an epoch
    blocks = [f"## {cell}", _arms(values).markdown(), _paired(values).markdown()]
    blocks.append(_figure(study.output, CURVES.format(cell.key), curves.svg, curves.caption))
    if not any(math.isnan(value["own_name"]) for of in values.values() for value in of):
        blocks += [_NAMES, _names(values).markdown()]
    energies = [study.late_file(run) for run in own if run.arm == FULL]
    if all(file.exists() for file in energies):
        blocks += [_ENERGIES, _late(energies).markdown()]
    return blocks


def _origin(
    taken: Sequence[Cell], earlier: Earlier, again: Sequence[tuple[RunNumbers, RunNumbers]], score: str
) -> str:
    """Where the numbers come from that were taken over; `again`: pairs of a run here and there."""
    text = f"Taken over from an earlier page: {', '.join(cell.key for cell in taken)}."
    finished = [(a, b) for a, b in again if a.reached is None]
    if finished:
        most = max(abs(a.values[score] - b.values[score]) for a, b in finished)
        again_text = f"{score.capitalize()} differs by {most:.2f} points at most."
        text += f" {len(finished)} of these runs were made again: {again_text}"
    return f"{text}\n\nThat page: {earlier.written}"


def _numbers(record: RunRecord) -> RunNumbers:
    values = measures(record)
    reached = None if record.result is not None else record.lines["epoch"][-1]["epoch"] + 1
    return RunNumbers({name: values[name] for name in COLUMNS}, record.facts.commit or "", reached)


def _corrected(study: Study, found: Found) -> dict[tuple[Cell, str], float]:
    """Holm's p-values of the planned comparisons that are tested; NaN where one is not complete."""
    raw = [NAN if (comparison := found[key]) is None else comparison.paired.p for key in study.tested]
    return dict(zip(study.tested, holm(raw)))


def _sentences(
    outcome: str,
    found: Found,
    adjusted: Mapping[tuple[Cell, str], float],
    decided: Mapping[tuple[Cell, str], str],
) -> list[str]:
    lines = []
    for (cell, arm), word in decided.items():
        comparison, p = found[cell, arm], adjusted.get((cell, arm), NAN)
        assert comparison is not None  # it was decided
        corrected = "" if math.isnan(p) else f", corrected p {p:.3f}"
        lines.append(
            f"{arm} - {BASELINE}, {cell}: {outcome} {signed(comparison.paired.mean, 2)} points "
            f"({comparison.range}), noise floor {comparison.floor:.2f}"
            f"{corrected}: {word}"
        )
    return lines


def _answer(
    study: Study,
    complete: Mapping[Cell, Values],
    found: Found,
    adjusted: Mapping[tuple[Cell, str], float],
    decided: Mapping[tuple[Cell, str], str],
) -> list[str]:
    """The result in words, and a row for every planned comparison."""
    outcome, others = study.question.score, [name for name in SCORES if name != study.question.score]
    beside_it = ", ".join(name.capitalize() for name in others)
    header = ["arm", "method", "known", "of", "recipe", "seeds", "probe's AUC"]
    header += [f"{outcome.capitalize()} - baseline", "bootstrap 95 %", "noise floor", "p", "p, corrected"]
    header += ["decision", f"{beside_it} - baseline"]
    header.append("fall of Old, baseline and arm")
    rows = []
    for (cell, arm), comparison in found.items():
        regime = cell.regime
        probe = probe_of([study.probe_folder(regime)])
        cells = [arm, cell.method, str(regime.known), str(regime.classes), cell.recipe, str(regime.seeds)]
        cells.append("-" if probe is None else f"{probe.best.at_all.auc:.2f}")
        if comparison is None:
            cells += ["-"] * 5 + ["not complete", "-", "-"]
        else:
            p = adjusted.get((cell, arm), NAN)
            cells += [signed(comparison.paired.mean, 2), comparison.range]
            cells += [f"{comparison.floor:.2f}", f"{comparison.paired.p:.3f}"]
            beside = [signed(_differences(complete[cell], arm, score).mean, 2) for score in others]
            cells += ["-" if math.isnan(p) else f"{p:.3f}", decided[cell, arm], ", ".join(beside)]
            falls = [mean_std(value["old_fall"] for value in complete[cell][of])[0] for of in (BASELINE, arm)]
            cells.append(", ".join(f"{fall:.1f}" for fall in falls))
        rows.append(Row(cells))
    counted = [f"{word} ({count})" for word, count in Counter(decided.values()).items()]
    return [
        f"{len(decided)} of {len(found)} planned comparisons are complete"
        + (f": {', '.join(counted)}." if counted else "."),
        Table(header, rows, headings=5).markdown(),
        "Differences are in points of accuracy at the last epoch: All on all unlabelled images, Old and New "
        f"on those of known and of novel classes. {outcome.capitalize()} decides. The fall of Old is its "
        "highest value over the evaluated epochs minus the last: what a run forgets. A maximum of noisy "
        "values, it is biased upwards. The correction counts "
        f"the {len(adjusted)} planned comparisons with at least 6 seeds. The probe's AUC is that of its best "
        "conceptor, from labelled images alone, before the runs.",
    ]


def _arms(values: Values) -> Table:
    names = ("own_name", "known_name", "taken")  # have a table of their own
    shown = {name: heading for name, heading in COLUMNS.items() if name not in names}
    rows = [
        Row([arm, *(plus_minus((v[name] for v in of), digits) for name, (_, digits) in shown.items())])
        for arm, of in values.items()
    ]
    return Table(["arm, mean ± std over seeds", *(heading for heading, _ in shown.values())], rows)


def _paired(values: Values) -> Table:
    """All arms against the baseline; the p-values of this table are not corrected."""
    rows = [
        Row([arm, *(_interval(compare(values, arm, score)) for score in SCORES)])
        for arm in values
        if arm != BASELINE
    ]
    return Table(["difference to the baseline", *(score.capitalize() for score in SCORES)], rows)


def _interval(found: Comparison) -> str:
    return f"{signed(found.paired.mean, 2)} ({found.range}), p {found.paired.p:.3f}"


def _names(values: Values) -> Table:
    """The shares of `naming` in percent by arm, and their differences to the baseline."""
    rows = []
    for arm, of in values.items():
        cells = [arm]
        for share in ("own_name", "known_name"):
            cells.append(plus_minus((v[share] for v in of), 1))
            cells.append("" if arm == BASELINE else _interval(compare(values, arm, share)))
        rows.append(Row([*cells, f"{sum(v['taken'] for v in of):.0f}"]))
    header = ["arm", "own name", "- baseline", "known name", "- baseline", "taken, in all seeds"]
    return Table(header, rows)


def _late(files: Sequence[Path]) -> Table:
    """Mean and standard deviation over the seeds of what `late_energies` measures."""
    found = [LateEnergy(**entry) for file in files for entry in json.loads(file.read_text(encoding="utf-8"))]
    rows = []
    for energy, stage in dict.fromkeys((one.energy, one.stage) for one in found):
        own = [one for one in found if (one.energy, one.stage) == (energy, stage)]
        taus = (plus_minus([getattr(one, name) for one in own], 3) for name in ("tau_known", "tau_novel"))
        rows.append(Row([energy, stage, plus_minus([one.auc for one in own], 3), *taus]))
    return Table(["energy", "stage", "AUC", "tau, known", "tau, novel"], rows, headings=2)


def _energies(study: Study, planned: Sequence[StudyRun]) -> str:
    """CSV with a line for every energy and stage of every run that was measured; "" if none was."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    for run in planned:
        if (file := study.late_file(run)).exists():
            for entry in json.loads(file.read_text(encoding="utf-8")):
                lines.writerow([run.folder.name, *LateEnergy(**entry)])
    header = ",".join(("run", *LateEnergy._fields))
    return f"{header}\n{text.getvalue()}" if text.getvalue() else ""


def _every_run(study: Study, planned: Sequence[StudyRun], numbers: Mapping[str, RunNumbers]) -> Table:
    """A row for every arm of every cell: its score by seed, or how far the run is."""
    rows = []
    for cell in study.cells:
        for arm in cell.arms:
            own = [run.folder.name for run in planned if (run.cell, run.arm) == (cell, arm)]
            shown = (_progress(numbers.get(name), study.question.score) for name in own)
            rows.append(Row([cell.key, arm, *shown]))
    seeds = max((cell.regime.all_seeds for cell in study.cells), key=len)
    rows = [Row([*row.cells, *[""] * (len(seeds) + 2 - len(row.cells))]) for row in rows]
    return Table(["", "arm", *(f"seed {seed}" for seed in seeds)], rows, headings=2)


def _progress(run: RunNumbers | None, score: str) -> str:
    if run is None:
        return "-"
    return f"{run.values[score]:.1f}" if run.reached is None else f"to epoch {run.reached}"


def _differences_figure(complete: Mapping[Cell, Values], score: str) -> str:
    """A panel for every cell: the differences of all arms, seed by seed, and the noise floor as a band."""
    columns = min(len(complete), 3)
    figure, panels = drawing.axes(math.ceil(len(complete) / columns), columns)
    for axis, (cell, values) in zip(panels, complete.items()):
        arms = [arm for arm in values if arm != BASELINE]
        floor = compare(values, NULL, score).floor
        axis.axvspan(-floor, floor, color="#bbbbbb", alpha=0.5, linewidth=0)
        for i, arm in enumerate(arms):
            found = compare(values, arm, score)
            y, colour = len(arms) - i, drawing.COLOURS[i]
            axis.plot(
                found.paired.differences, [y] * found.paired.n, "o", color=colour, markersize=3, alpha=0.5
            )
            axis.plot([found.low, found.high], [y - 0.25] * 2, color=colour, linewidth=2)
            axis.plot([found.paired.mean], [y - 0.25], "D", color=colour, markersize=5)
        name = score.capitalize()
        axis.set(title=str(cell).replace(", ", "\n", 1), xlabel=f"{name} - {name} of the baseline, points")
        axis.set_yticks(range(len(arms), 0, -1), arms)
        axis.axvline(0, color="black", linewidth=0.8)
    for axis in panels[len(complete) :]:
        axis.set_axis_off()
    return drawing.picture(figure, "", []).svg


def _forgetting_figure(complete: Mapping[Cell, Values]) -> str:
    """Old and All of EAGC minus those of the baseline, a panel each, over the fall of the baseline's Old."""
    figure, panels = drawing.axes(1, 2, height=3.6)
    for axis, score in zip(panels, ("old", "all")):
        for i, (cell, values) in enumerate(complete.items()):
            fall, _ = mean_std(value["old_fall"] for value in values[BASELINE])
            found = compare(values, FULL, score)
            colour = drawing.COLOURS[i % len(drawing.COLOURS)]
            axis.plot([fall] * 2, [found.low, found.high], color=colour, linewidth=1)
            marker = drawing.MARKERS[i % len(drawing.MARKERS)]
            axis.plot([fall], [found.paired.mean], marker, color=colour, markersize=5, label=cell.key)
        axis.axhline(0, color="black", linewidth=0.8)
        name = score.capitalize()
        axis.set(xlabel="fall of Old of the baseline, points", ylabel=f"{name} - {name} of the baseline")
    panels[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    return drawing.picture(figure, "", []).svg


def _figure(folder: Path, name: str, svg: str, caption: str) -> str:
    _draw(folder / name, svg)
    return f"![{caption}]({name})\n\n{caption}"


def _draw(file: Path, svg: str) -> None:
    file.parent.mkdir(exist_ok=True)
    atomic_write(file, f"{svg.rstrip()}\n")
