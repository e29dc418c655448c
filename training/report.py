"""One self-contained HTML page about some runs: a table with mean and std over seeds, curves, energies, GDC and SOC where measured.

Everything is read from the run folders; figures are SVG inside the page, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import html
import io
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eagc_ops.training.checkpoint import atomic_write, fingerprint
from eagc_ops.training.config import Config, ConfigError, to_json
from eagc_ops.training.data import SPECS
from eagc_ops.training.diagnose import MEASURES
from eagc_ops.training.loop import BINS, MACHINE
from eagc_ops.training.run import RunFolder

SCORES = ("all", "old", "new")
TITLES = {
    "gdc_clean": "GDC, clean",
    "gdc_release": "GDC, release",
    "soc_release": "SOC, release",
    "soc_paper": "SOC, paper",
}


class Run(NamedTuple):
    """What a run folder holds."""

    path: Path
    config: Config
    facts: dict[str, Any]
    result: dict[str, Any] | None  # None: not finished
    lines: dict[str, list[dict[str, Any]]]  # of metrics.jsonl, by kind: "step", "epoch", "diagnosis"


class Group(NamedTuple):
    """Runs that differ in nothing but the seed (and in the machine)."""

    name: str
    settings: str  # in which it differs from the other groups of its section
    runs: list[Run]


def write_report(runs: Sequence[str | Path], output: str | Path, names: Mapping[Path, str] | None = None) -> Path:
    """Write `output`/report.html about the run folders `runs`. `names`: of configurations, by any run of theirs; else letters."""
    read = [read_run(path) for path in runs]
    sections: dict[str, list[Run]] = {}
    for run in read:  # one section for each problem: figures of different data are not drawn into one another
        key = (run.config.dataset, *(run.facts[name] for name in ("split_hash", "classes", "images")))
        sections.setdefault(fingerprint(key), []).append(run)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "eagc", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        body = "\n".join(_section(members, names or {}) for members in sections.values())
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    atomic_write(output / "report.html", PAGE.replace("{body}", body).encode())
    return output / "report.html"


def read_run(path: str | Path) -> Run:
    """A run folder, finished or not."""
    folder = RunFolder.open(path)
    lines: dict[str, list[dict[str, Any]]] = {"step": [], "epoch": [], "diagnosis": []}
    for line in folder.metrics():
        lines.setdefault(line["kind"], []).append(line)
    if not lines["epoch"]:
        raise ConfigError(f"{path} has not finished its first epoch: there is nothing to report yet")
    return Run(folder.path, folder.config, folder.facts, folder.result(), lines)


def measures(run: Run) -> dict[str, float]:
    """The numbers of a run. Accuracies in percent, of the last epoch so far (`all`, `old`, `new`) and of the best one (`best_all`, ...);
    seconds per epoch (median, measuring GDC and SOC not counted); GDC and SOC as means over the steps they were measured at. NaN: no value.
    """
    epochs, diagnoses = run.lines["epoch"], run.lines["diagnosis"]
    best = max(epochs, key=lambda line: line["all"])
    found = {name: _number(epochs[-1][name], 100) for name in SCORES} | {f"best_{name}": _number(best[name], 100) for name in SCORES}
    diagnosing: dict[int, float] = {}
    for line in diagnoses:
        diagnosing[line["epoch"]] = diagnosing.get(line["epoch"], 0.0) + line["seconds"]
    whole = [line for line in epochs if line["steps"] == run.facts["steps_per_epoch"]]  # not one that a resumed run did half of
    seconds = [line["seconds"] - diagnosing.get(line["epoch"], 0.0) for line in whole]
    found["seconds"] = statistics.median(seconds) if seconds else math.nan
    for name in MEASURES:
        values = [line[name] for line in diagnoses if line.get(name) is not None]
        found[name] = statistics.fmean(values) if values else math.nan
    return found


def mean_std(values: Iterable[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1; NaN for one value) of the values that are not NaN."""
    values = [value for value in values if not math.isnan(value)]
    mean = statistics.fmean(values) if values else math.nan
    return mean, statistics.stdev(values) if len(values) > 1 else math.nan


def plus_minus(values: Iterable[float], digits: int = 1) -> str:
    """`mean ± std` as text; the std is left out where there is one value, and a dash stands for none.

    >>> plus_minus([1.0, 2.0, 3.0]), plus_minus([0.5], 2), plus_minus([])
    ('2.0 ± 1.0', '0.50', '-')
    """
    mean, std = mean_std(values)
    return "-" if math.isnan(mean) else f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def grouped(runs: Sequence[Run], names: Mapping[Path, str] | None = None) -> list[Group]:
    """Runs by configuration, in the order in which they come."""
    members: dict[str, list[Run]] = {}
    for run in runs:
        members.setdefault(fingerprint([_recipe(run), run.facts["trunk"]]), []).append(run)
    recipes = [_recipe(group[0]) for group in members.values()]
    fields = dict.fromkeys(name for recipe in recipes for name in recipe)
    varying = [name for name in fields if any(recipe.get(name) != recipes[0].get(name) for recipe in recipes)]
    groups = []
    for i, (group, recipe) in enumerate(zip(members.values(), recipes)):
        given = [names[run.path] for run in group if names and run.path in names]
        settings = ", ".join(f"{name}={recipe[name]}" for name in varying if name in recipe)
        groups.append(Group(given[0] if given else chr(ord("A") + i) if i < 26 else f"{i + 1}", settings, group))
    return groups


def _recipe(run: Run) -> dict[str, Any]:
    return {name: value for name, value in to_json(run.config).items() if name not in ("seed", *MACHINE)}


def _number(value: float | None, scale: float = 1.0) -> float:
    return math.nan if value is None else scale * value


# The page --------------------------------------------------------------------------------------------------------------------------


def _section(runs: list[Run], names: Mapping[Path, str]) -> str:
    config, facts, groups = runs[0].config, runs[0].facts, grouped(runs, names)
    title = SPECS[config.dataset].title
    problem = (
        f"{facts['images']:,} images: {facts['labelled']:,} labelled ones of {facts['known']} known classes, "
        f"{facts['images'] - facts['labelled']:,} unlabelled ones of {facts['classes']} classes in all. "
    )
    parts = [f"<h2>{html.escape(title)}</h2>", f"<p>{problem}{_conditions(runs)}</p>", _table(groups), _warnings(runs)]
    for draw in (_accuracy_figure, _measure_figure, _quantile_figure, _histogram_figure, _loss_figure):
        parts.append(draw(groups, problem))
    return "\n".join([*parts, _provenance(groups)])


def _conditions(runs: list[Run]) -> str:
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
    return html.escape("; ".join(f"{name}: {text}" for name, text in texts.items())) + "."


def _table(groups: list[Group]) -> str:
    columns: list[tuple[str, Callable[[Run], float], int]] = [
        (f"{name.capitalize()}, {which} epoch, %", lambda run, key=prefix + name: measures(run)[key], 1)
        for which, prefix in (("last", ""), ("best", "best_"))
        for name in SCORES
    ]
    measured = [name for name in MEASURES if any(run.lines["diagnosis"] for group in groups for run in group.runs)]
    columns += [(TITLES[name], lambda run, key=name: measures(run)[key], 3) for name in measured]
    columns += [("seconds per epoch", lambda run: measures(run)["seconds"], 2)]
    head = "".join(f"<th>{html.escape(title)}</th>" for title, _, _ in columns)
    rows = []
    for group in groups:
        done = [run for run in group.runs if run.result is not None]
        count = f"{len(done)}" if len(done) == len(group.runs) else f"{len(done)} of {len(group.runs)} finished"
        cells = "".join(f"<td>{plus_minus(map(value, done), digits)}</td>" for _, value, digits in columns)
        name = f"{html.escape(group.name)}<br><small>{html.escape(group.settings)}</small>"
        rows.append(f"<tr><th scope=row>{name}</th><td>{count}</td>{cells}</tr>")
    note = (
        "Mean ± sample standard deviation over the finished runs of a configuration (its seeds). Accuracy on the unlabelled training "
        "images after one optimal matching of clusters to classes; the last epoch is the result, the best epoch is chosen with the true "
        "labels of the same images and flatters. Seconds per epoch: median of a run, wall clock, without the time for GDC and SOC."
    )
    if measured:
        note += " " + _measure_note(groups)
    return (
        f"<table class=results><thead><tr><th>configuration</th><th>runs</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"<p class=note>{html.escape(note)}</p>"
    )


def _measure_note(groups: list[Group]) -> str:
    k = " or ".join(str(k) for k in sorted({line["k"] for group in groups for run in group.runs for line in run.lines["diagnosis"]}))
    return (
        "GDC = 1 - cos of the supervised and the whole gradient of the last block, on training batches: clean takes the supervised "
        "gradient without EAGC's operator and the gradient that is applied; release has the operator in both, as the released code. SOC: "
        f"share of the energy of novel-class features in the {k} leading directions of labelled features, test transform, novel classes by "
        "their true labels: release with unit-norm rows centred on the labelled mean, paper with raw features. "
        "Numbers are means over the steps measured."
    )


def _warnings(runs: list[Run]) -> str:
    items = [f"<li>{html.escape(f'{run.path.name}: {text}')}</li>" for run in runs for text in (run.result or {}).get("warnings", [])]
    for run in (run for run in runs if run.result is None):
        epochs = f"{len(run.lines['epoch'])} of {run.config.epochs} epochs"
        items.append(f"<li>{html.escape(run.path.name)}: not finished, {epochs}</li>")
    return f"<h3>Warnings</h3><ul class=warnings>{''.join(items)}</ul>" if items else ""


def _provenance(groups: list[Group]) -> str:
    rows = []
    for group in groups:
        for run in group.runs:
            last = run.lines["epoch"][-1]
            scores = " / ".join("-" if last[name] is None else f"{100 * last[name]:.2f}" for name in SCORES)
            versions = ", ".join(f"{name} {version}" for name, version in run.facts["versions"].items() if version)
            cells = [run.path.name, group.name, run.config.seed, scores, run.facts["split_hash"][:12], run.facts["trunk"][:12]]
            cells += [(run.facts["git_commit"] or "-")[:12], versions]
            rows.append("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>")
    head = ("run", "configuration", "seed", "All / Old / New, last epoch", "split (sha256)", "trunk (sha256)", "commit", "versions")
    common = html.escape("\n".join(f"{name} = {value}" for name, value in _recipe(groups[0].runs[0]).items()))
    return (
        f"<details><summary>Every run, and all settings of configuration {html.escape(groups[0].name)}</summary>"
        f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"<pre>{common}</pre></details>"
    )


# The figures -----------------------------------------------------------------------------------------------------------------------


def _accuracy_figure(groups: list[Group], problem: str) -> str:
    figure, axes = _axes(1, 3)
    for axis, name in zip(axes, SCORES):
        for i, group in enumerate(groups):
            _curve(axis, i, group, [[(line["epoch"] + 1, _number(line[name], 100)) for line in run.lines["epoch"]] for run in group.runs])
        axis.set(title=name.capitalize(), xlabel="epoch", ylabel="accuracy, %")
    caption = (
        f"Accuracy on the unlabelled training images after every epoch (one matching of clusters and classes for all three). {problem}"
    )
    return _figure(figure, groups, caption)


def _loss_figure(groups: list[Group], problem: str) -> str:
    figure, axes = _axes(1, 3)
    for axis, (name, title) in zip(axes, {"loss": "whole loss", "supervised": "supervised", "unsupervised": "unsupervised"}.items()):
        for i, group in enumerate(groups):
            _curve(axis, i, group, [[(line["step"], _number(line[name])) for line in run.lines["step"]] for run in group.runs])
        axis.set(title=title, xlabel="optimiser step", ylabel="loss")
    caption = "Training loss, means between log lines; both parts with their weights. EAGC changes gradients, not the loss itself. "
    return _figure(figure, groups, caption + problem)


def _measure_figure(groups: list[Group], problem: str) -> str:
    measured = [group for group in groups if any(run.lines["diagnosis"] for run in group.runs)]
    if not measured:
        return ""
    figure, axes = _axes(1, 4)
    for axis, name in zip(axes, MEASURES):
        for i, group in enumerate(groups):
            _curve(axis, i, group, [[(line["step"], _number(line.get(name))) for line in run.lines["diagnosis"]] for run in group.runs])
        axis.set(title=TITLES[name], xlabel="optimiser step")
    return _figure(figure, measured, f"Gradient deviation and subspace overlap while training. {_measure_note(measured)} {problem}", groups)


def _quantile_figure(groups: list[Group], problem: str) -> str:
    with_tau = _with_operator(groups)
    if not with_tau:
        return ""
    figure, axes = _axes(1, 2)
    for axis, name in zip(axes, ("energy", "tau")):
        for i, group in enumerate(groups):
            low, middle, high = (
                _over_seeds([[(line["step"], _number(line.get(f"{name}_q{q}"))) for line in run.lines["step"]] for run in group.runs])
                for q in (10, 50, 90)
            )
            steps = [x for x, _, _ in middle]
            axis.plot(steps, [y for _, y, _ in middle], color=f"C{i}")
            axis.fill_between(steps, [y for _, y, _ in low], [y for _, y, _ in high], color=f"C{i}", alpha=0.2, linewidth=0)
        axis.set(title={"energy": "energy ratio E", "tau": "projection weight tau"}[name], xlabel="optimiser step", ylim=(-0.02, 1.02))
    caption = (
        "Energy ratio and projection weight of the unlabelled rows of logged training batches. tau = clamp(1 - E / mean labelled E, 0, 1); "
        "EEP takes the share lambda_p tau of a row's gradient out of the known-class subspace (tau is shown also where lambda_p = 0 leaves "
        "it unused). "
    )
    band = "medians, bands from the 10 % to the 90 % quantile; all are means over seeds"
    return _figure(figure, with_tau, caption + problem, groups, band)


def _histogram_figure(groups: list[Group], problem: str) -> str:
    with_tau = _with_operator(groups)
    if not with_tau:
        return ""
    figure, axes = _axes(len(with_tau), 2, height=2.0)
    edges = [i / BINS for i in range(BINS + 1)]
    for row, group in enumerate(with_tau):
        for axis, name in zip(axes[2 * row : 2 * row + 2], ("energy", "tau")):
            for which, style in ((0, {"fill": False}), (-1, {"fill": True, "alpha": 0.5})):
                logged = [[line[f"{name}_histogram"] for line in run.lines["step"] if f"{name}_histogram" in line] for run in group.runs]
                counts = [sum(column) for column in zip(*(lines[which] for lines in logged if lines))]
                share = [count / max(sum(counts), 1) for count in counts]
                axis.stairs(share, edges, color=f"C{groups.index(group)}", label="first" if which == 0 else "last", **style)
            axis.set(title=f"{group.name}: {name}", xlim=(0, 1), xlabel=name, ylabel="share of rows")
            axis.legend(fontsize=7)
    caption = (
        "Energy ratio and tau of the unlabelled rows of one training batch per seed: the first that was logged (outline) and the last "
        "(filled). A tau of 0 on almost every row means that EEP does nothing. "
    )
    return _figure(figure, [], caption + problem)


def _with_operator(groups: list[Group]) -> list[Group]:
    return [group for group in groups if any("tau_histogram" in line for run in group.runs for line in run.lines["step"])]


def _over_seeds(curves: list[list[tuple[float, float]]]) -> list[tuple[float, float, float]]:
    """(x, mean, std) over the runs that have a value at x."""
    at: dict[float, list[float]] = {}
    for curve in curves:
        for x, y in curve:
            if not math.isnan(y):
                at.setdefault(x, []).append(y)
    return [(x, *mean_std(at[x])) for x in sorted(at)]


def _curve(axis: Axes, colour: int, group: Group, curves: list[list[tuple[float, float]]]) -> None:
    points = _over_seeds(curves)
    if not points:
        return
    x, mean, std = zip(*points)
    axis.plot(x, mean, color=f"C{colour}", marker="." if len(x) < 40 else None)
    band = [0.0 if math.isnan(s) else s for s in std]
    axis.fill_between(
        x, [m - b for m, b in zip(mean, band)], [m + b for m, b in zip(mean, band)], color=f"C{colour}", alpha=0.15, linewidth=0
    )


def _axes(rows: int, columns: int, height: float = 2.9) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(11, height * rows + 0.2), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _figure(
    figure: Figure,
    shown: list[Group],
    caption: str,
    groups: list[Group] | None = None,
    lines: str = "means over seeds, bands one standard deviation to each side",
) -> str:
    """The figure as HTML, with a legend of the groups shown (colours by their place in `groups`) and its conditions below."""
    groups = shown if groups is None else groups
    handles = [Line2D([], [], color=f"C{groups.index(group)}", label=group.name) for group in shown]
    if handles:
        figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5), frameon=False)
        seeds = "; ".join(f"{group.name}: {', '.join(str(run.config.seed) for run in group.runs)}" for group in shown)
        caption += f" Lines are {lines}. Seeds of {seeds}."
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Creator": None, "Date": None, "Format": None, "Type": None})
    svg = out.getvalue()
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{html.escape(caption)}</figcaption></figure>"


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>EAGC report</title><style>
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1150px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #ddd; padding: 4px 8px; text-align: right; vertical-align: top; }
th[scope=row], table td:first-child { text-align: left; } thead th { font-weight: 600; }
small, figcaption, .note { color: #555; } .note, figcaption { font-size: 13px; } .warnings { color: #a33; }
figure { margin: 2em 0; } svg { max-width: 100%; height: auto; } pre { font-size: 12px; }
</style></head><body><h1>EAGC report</h1>
{body}
</body></html>
"""
