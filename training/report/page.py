"""One self-contained HTML page about runs: verdict, results, curves, diagnostics, the origin of every run.

Everything is read from the run folders. Figures are SVG inside the page, which loads nothing from elsewhere.
Pictures of weights, which also need the data, come from the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from eagc_ops.app.files import atomic_write
from eagc_ops.app.table import Cell, Row, Table
from eagc_ops.training.analysis.diagnosis import MEASURES
from eagc_ops.training.data import SPECS
from eagc_ops.training.engine.facts import RunFacts
from eagc_ops.training.engine.run_folder import SCORES, scores_text
from eagc_ops.training.report import drawing
from eagc_ops.training.report.figures import DIAGNOSTICS, RESULTS
from eagc_ops.training.report.measures import (
    BEST,
    BEST_START,
    START_MEASURE,
    mean_std,
    measured,
    measures,
    scores_starts,
)
from eagc_ops.training.report.runs import RunGroup, RunRecord, by_problem, grouped, read_run, recipe
from eagc_ops.training.report.verdict import comparisons, sentences, verdict_figure

_PACKAGE = "eagc_ops.training.report"
# Pictures for a section's groups, and notes on what they leave out
MorePictures = Callable[[Sequence[RunGroup]], tuple[list[drawing.Picture], list[str]]]
PARTS = "*.part.html"  # what other commands leave in the folder of a run for its report


def write_report(
    runs: Sequence[str | Path],
    output: str | Path,
    names: Mapping[Path, str] | None = None,
    *,
    weights: MorePictures | None = None,
) -> Path:
    """Write `output`/report.html about the run folders `runs`, and return its path.

    `names` has the name of a configuration under the path of any of its runs; the others are called A, B, C,
    ... `weights` draws the figures that need the runs' data and weights: `evidence.weight_figures`.
    """
    sections = render_sections([read_run(path) for path in runs], names, weights=weights)
    page = templates(_PACKAGE).get_template("report.html.j2")
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    file = output / "report.html"
    atomic_write(file, page.render(title="EAGC report", heading="EAGC report", sections=sections))
    return file


def render_sections(
    records: Sequence[RunRecord],
    names: Mapping[Path, str] | None = None,
    *,
    weights: MorePictures | None = None,
    headings: bool = True,
) -> Markup:
    """The sections of a report as HTML, one for each problem: a figure never mixes data sets."""
    template = templates(_PACKAGE).get_template("section.html.j2")
    with drawing.style():
        sections = [_section(runs, grouped(runs, names), weights) for runs in by_problem(records)]
    if not headings:
        sections = [{**section, "title": ""} for section in sections]
    return Markup("\n").join(Markup(template.render(section)) for section in sections)


def templates(package: str) -> jinja2.Environment:
    """The templates of a package, which may extend the report's `base.html.j2`."""
    loaders = [jinja2.PackageLoader(name) for name in dict.fromkeys((package, _PACKAGE))]
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _section(
    runs: Sequence[RunRecord], groups: Sequence[RunGroup], weights: MorePictures | None
) -> dict[str, Any]:
    """The values for the section's template."""
    found = comparisons(groups)
    verdict = verdict_figure(groups, found)
    pictures, diagnostics = (
        [picture for draw in figures if (picture := draw(groups)) is not None]
        for figures in (RESULTS, DIAGNOSTICS)
    )
    weight_pictures, weight_notes = weights(groups) if weights is not None else ([], [])
    diagnosed = {name: (MEASURES[name], 3) for name in measured(groups)}
    return {
        "title": SPECS[runs[0].config.dataset].title,
        "problem": _problem(runs[0].facts),
        "conditions": _conditions(runs),
        "verdict": sentences(groups, found),
        "verdict_pictures": [verdict] if verdict else [],
        "runs": [(group.name, drawing.line_style(i)["color"]) for i, group in enumerate(groups)],
        "results": _results(groups).html(),
        "result_notes": _result_notes(groups),
        "warnings": _warnings(runs),
        "parts": _parts(runs),
        "pictures": pictures,
        "diagnosed": _table(groups, diagnosed).html() if diagnosed else "",
        "diagnostics": diagnostics,
        "weight_pictures": weight_pictures,
        "weight_notes": weight_notes,
        "first_group": groups[0].name,
        "provenance": _provenance(groups).html(),
        "settings": recipe(groups[0].runs[0]),
    }


def _problem(facts: RunFacts) -> str:
    return (
        f"{facts.images:,} images: {facts.labelled:,} labelled ones of {facts.known} known classes, "
        f"{facts.images - facts.labelled:,} unlabelled ones of {facts.classes} classes in all."
    )


def _conditions(runs: Sequence[RunRecord]) -> str:
    def spread(values: Iterable[Any]) -> str:
        return ", ".join(str(value) for value in dict.fromkeys(values))

    texts = {
        "Method": spread(run.config.method for run in runs),
        "encoder": spread(run.config.backbone for run in runs),
        "trained blocks": spread(run.config.trainable_blocks for run in runs),
        "epochs": spread(run.config.epochs for run in runs),
        "images per step": spread(run.config.batch_size for run in runs),
        "seeds": spread(sorted(run.config.seed for run in runs)),
    }
    return "; ".join(f"{name}: {text}" for name, text in texts.items()) + "."


Columns = dict[str, tuple[str, int]]  # measure: heading, digits


def _results(groups: Sequence[RunGroup]) -> Table:
    """The accuracies, few enough columns for a screen."""
    titles = {"": "last epoch, %", "best_": f"{BEST}, %"}
    if scores_starts(groups):
        titles["start_"] = f"{BEST_START}, %"
    columns = {prefix + name: (name.capitalize(), 1) for prefix in titles for name in SCORES}
    columns["seconds"] = ("s / epoch", 2)
    return _table(groups, columns, [*((title, len(SCORES)) for title in titles.values()), ("time", 1)])


def _table(groups: Sequence[RunGroup], columns: Columns, titles: Sequence[tuple[str, int]] = ()) -> Table:
    """A row for each configuration: means over its finished runs, with the deviation below."""
    rows = []
    for group in groups:
        done, total = len(group.finished), len(group.runs)
        values = [measures(run) for run in group.finished]
        count = f"{done} run{'s' * (done != 1)}" if done == total else f"{done} of {total} runs finished"
        first = Cell(group.name, f"{count}; {group.settings}" if group.settings else count)
        cells = [_cell([v[name] for v in values], digits) for name, (_, digits) in columns.items()]
        rows.append(Row([first, *cells]))
    return Table(["configuration", *(heading for heading, _ in columns.values())], rows, groups=titles)


def _cell(values: Sequence[float], digits: int) -> Cell:
    mean, std = mean_std(values)
    text = "-" if math.isnan(mean) else f"{mean:.{digits}f}"
    return Cell(text, "" if math.isnan(std) else f"± {std:.{digits}f}")


def _result_notes(groups: Sequence[RunGroup]) -> list[str]:
    best = [group.name for group in groups if group.runs[0].config.headline == "best"]
    notes = [
        "Values are mean ± sample standard deviation over the finished runs of a configuration, one run for "
        "each seed.",
        "Accuracy is measured on the unlabelled training images, after one optimal matching of clusters to "
        "classes.",
        "The last epoch is the result. The best epoch is chosen with the true labels of the same images and "
        "is optimistic.",
        *([f"Preset release reports the {BEST}; it is the headline of {', '.join(best)}."] if best else []),
        "Seconds per epoch are the median over the epochs of a run, in wall-clock time, without the time "
        "for diagnosis.",
    ]
    if scores_starts(groups):
        notes.append(START_MEASURE)
    if measured(groups):
        notes.append(
            "GDC, SOC, rho and cos are below, with the diagnostics: means over the steps at which they were "
            "measured."
        )
    return notes


def _parts(runs: Sequence[RunRecord]) -> list[Markup]:
    """The HTML that other commands have left in the folders of runs; one of each name."""
    files = {file.name: file for run in reversed(runs) for file in run.path.glob(PARTS)}
    return [Markup(files[name].read_text(encoding="utf-8")) for name in sorted(files)]


def _warnings(runs: Sequence[RunRecord]) -> list[str]:
    lines = [f"{run.path.name}: {text}" for run in runs for text in (run.result or {}).get("warnings", [])]
    for run in (run for run in runs if run.result is None):
        epochs = f"{len(run.lines['epoch'])} of {run.config.epochs} epochs"
        lines.append(f"{run.path.name}: not finished, {epochs}")
    return lines


def _provenance(groups: Sequence[RunGroup]) -> Table:
    rows = []
    for group in groups:
        for run in group.runs:
            last, facts = run.lines["epoch"][-1], run.facts
            scores = scores_text({name: last.get(name) for name in SCORES})
            cells = [run.path.name, group.name, str(run.config.seed), scores]
            cells += [facts.split_hash[:12], facts.trunk[:12], _short(facts.commit)]
            cells += [", ".join(f"{name} {text}" for name, text in (facts.versions or {}).items() if text)]
            rows.append(Row(cells))
    header = ["run", "configuration", "seed", "last epoch"]
    return Table([*header, "split (sha256)", "trunk (sha256)", "commit", "versions"], rows)


def _short(commit: str | None) -> str:
    """The first 12 digits of a commit; a "+" stands for changes in the working tree."""
    return "-" if commit is None else commit.partition("+")[0][:12] + "+" * ("+" in commit)
