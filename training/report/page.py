"""One self-contained HTML page about some runs: a table with mean and std over seeds, curves, energies, diagnoses, pictures of weights.

Everything is read from the run folders; figures are SVG inside the page, and nothing is loaded from elsewhere. Pictures that need the data
and the weights (energies of whole sets, t-SNE, attention maps) are drawn on request, see `pictures`.
"""

from __future__ import annotations

import html
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from eagc_ops.files import atomic_write, fingerprint
from eagc_ops.training.analysis.diagnosis import MEASURES
from eagc_ops.training.config import Config, ConfigError
from eagc_ops.training.data import SPECS
from eagc_ops.training.engine.metrics import BINS
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.report.pictures import STYLE, as_html, axes, line_style
from eagc_ops.training.report.pictures import pictures as pictures_of_weights

SCORES = ("all", "old", "new")
TITLES = {
    "gdc_clean": "GDC, clean",
    "gdc_release": "GDC, release",
    "soc_release": "SOC, release",
    "soc_paper": "SOC, paper",
    "rho_grad": "rho_grad",
    "rho_in": "rho_in",
    "cos_labelled": "cos: labelled",
    "cos_known": "cos: + known unlabelled",
    "cos_novel": "cos: + novel unlabelled",
    "cos_all": "cos: all",
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


class Sweep(NamedTuple):
    """Configurations that differ in one numeric setting."""

    setting: str
    points: list[tuple[float, Group]]  # by value
    centre: (
        Group | None
    )  # from which several sweeps go out; None: there is one sweep, and no value stands out


def write_report(
    runs: Sequence[str | Path],
    output: str | Path,
    names: Mapping[Path, str] | None = None,
    *,
    pictures: bool = False,
    **changes: Any,
) -> Path:
    """Write `output`/report.html about the run folders `runs`. `names`: of configurations, by any run of theirs; else letters.

    `pictures`: also what needs the runs' data and weights; `changes` then say where these are now, as in `runs.evaluate`.
    """
    if changes and not pictures:
        raise ConfigError(
            f"{', '.join(changes)} changes nothing without pictures: only they read data and weights"
        )
    read = [read_run(path) for path in runs]
    sections: dict[str, list[Run]] = {}
    for run in read:  # one section for each problem: figures of different data are not drawn into one another
        key = (run.config.dataset, *(run.facts[name] for name in ("split_hash", "classes", "images")))
        sections.setdefault(fingerprint(key), []).append(run)
    with matplotlib.rc_context(STYLE):
        body = "\n".join(
            _section(members, names or {}, changes if pictures else None) for members in sections.values()
        )
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    atomic_write(output / "report.html", page("EAGC report", "EAGC report", body).encode())
    return output / "report.html"


def page(title: str, heading: str, body: str, style: str = "") -> str:
    """A self-contained HTML page. `body` is HTML; `style`: more CSS."""
    parts = {"title": html.escape(title), "heading": html.escape(heading), "style": style, "body": body}
    return re.sub(r"\{(title|heading|style|body)\}", lambda match: parts[match[1]], PAGE)


def read_run(path: str | Path) -> Run:
    """A run folder, finished or not."""
    folder = RunFolder.open(path)
    lines: dict[str, list[dict[str, Any]]] = {"step": [], "epoch": [], "diagnosis": []}
    for line in folder.metrics():
        lines.setdefault(line["kind"], []).append(line)
    if not lines["epoch"]:
        raise ConfigError(f"{path} has not finished its first epoch: there is nothing to report yet")
    return Run(folder.path, folder.config, folder.facts.to_json(), folder.result(), lines)


def measures(run: Run) -> dict[str, float]:
    """The numbers of a run. Accuracies in percent, of the last epoch so far (`all`, `old`, `new`) and of the best one (`best_all`, ...);
    seconds per epoch (median, measuring GDC and SOC not counted); GDC and SOC as means over the steps they were measured at. NaN: no value.
    """
    epochs, diagnoses = run.lines["epoch"], run.lines["diagnosis"]
    best = max(epochs, key=lambda line: line["all"])
    found = {name: _number(epochs[-1][name], 100) for name in SCORES} | {
        f"best_{name}": _number(best[name], 100) for name in SCORES
    }
    diagnosing: dict[int, float] = {}
    for line in diagnoses:
        diagnosing[line["epoch"]] = diagnosing.get(line["epoch"], 0.0) + line["seconds"]
    whole = [
        line for line in epochs if line["steps"] == run.facts["steps_per_epoch"]
    ]  # not one that a resumed run did half of
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


def plus_minus(values: Iterable[float], digits: int = 1, sign: str = "") -> str:
    """`mean ± std` as text; the std is left out where there is one value, and a dash stands for none. `sign` "+": also of positive means.

    >>> plus_minus([1.0, 2.0, 3.0]), plus_minus([0.5], 2), plus_minus([])
    ('2.0 ± 1.0', '0.50', '-')
    """
    mean, std = mean_std(values)
    return (
        "-"
        if math.isnan(mean)
        else f"{mean:{sign}.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")
    )


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
        groups.append(
            Group(given[0] if given else chr(ord("A") + i) if i < 26 else f"{i + 1}", settings, group)
        )
    return groups


def sweeps(groups: Sequence[Group]) -> list[Sweep]:
    """Settings whose effect the groups show: numeric ones in which groups differ from a common centre, one at a time.

    The centre is the group with most others one step away. A setting counts if it has three values, or if centre and steps are all groups.
    """
    recipes = [_recipe(group.runs[0]) for group in groups]
    if any(recipe["reference_blocks"] is not None for recipe in recipes):  # none stands for a number
        recipes = [
            {**recipe, "reference_blocks": group.runs[0].config.blocks_of_reference}
            for recipe, group in zip(recipes, groups)
        ]

    def step(i: int, j: int) -> str | None:
        """The setting, if it is a number and the only difference."""
        a, b = recipes[i], recipes[j]
        differing = [name for name in a.keys() | b.keys() if a.get(name) != b.get(name)]
        same_trunk = groups[i].runs[0].facts["trunk"] == groups[j].runs[0].facts["trunk"]
        if len(differing) != 1 or not (
            same_trunk or differing[0].endswith("_blocks")
        ):  # the trunk is what is not trained
            return None
        return (
            differing[0] if all(type(recipe.get(differing[0])) in (int, float) for recipe in (a, b)) else None
        )

    steps = [
        {j: setting for j in range(len(groups)) if j != i and (setting := step(i, j))}
        for i in range(len(groups))
    ]
    centre = max(range(len(groups)), key=lambda i: len(steps[i]))
    complete = len(steps[centre]) == len(groups) - 1
    members: dict[str, list[int]] = {}
    for j, setting in steps[centre].items():
        members.setdefault(setting, [centre]).append(j)
    found = []
    for setting, numbers in members.items():
        if complete or len(numbers) > 2:
            points = sorted(((recipes[i][setting], groups[i]) for i in numbers), key=lambda point: point[0])
            found.append(Sweep(setting, points, groups[centre] if len(members) > 1 else None))
    return found


def _recipe(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.config.recipe().items() if name != "seed"}


def _number(value: float | None, scale: float = 1.0) -> float:
    return math.nan if value is None else scale * value


# The page --------------------------------------------------------------------------------------------------------------------------


def _section(runs: list[Run], names: Mapping[Path, str], changes: Mapping[str, Any] | None) -> str:
    config, facts, groups = runs[0].config, runs[0].facts, grouped(runs, names)
    title = SPECS[config.dataset].title
    problem = (
        f"{facts['images']:,} images: {facts['labelled']:,} labelled ones of {facts['known']} known classes, "
        f"{facts['images'] - facts['labelled']:,} unlabelled ones of {facts['classes']} classes in all. "
    )
    parts = [
        f"<h2>{html.escape(title)}</h2>",
        f"<p>{problem}{_conditions(runs)}</p>",
        _table(groups),
        _warnings(runs),
    ]
    for draw in (
        _accuracy_figure,
        _sweep_figure,
        _measure_figure,
        _quantile_figure,
        _histogram_figure,
        _loss_figure,
    ):
        parts.append(draw(groups, problem))
    if changes is not None:
        figures, notes = pictures_of_weights(groups, problem, **changes)
        parts += [*figures, _items(notes)]
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
    measured = _measured(groups)
    columns += [(TITLES.get(name, name), lambda run, key=name: measures(run)[key], 3) for name in measured]
    columns += [("seconds per epoch", lambda run: measures(run)["seconds"], 2)]
    head = "".join(f"<th>{html.escape(title)}</th>" for title, _, _ in columns)
    rows = []
    for group in groups:
        done = [run for run in group.runs if run.result is not None]
        count = (
            f"{len(done)}" if len(done) == len(group.runs) else f"{len(done)} of {len(group.runs)} finished"
        )
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


def _measured(groups: list[Group]) -> list[str]:
    """The measures of which some run has a value."""
    lines = [line for group in groups for run in group.runs for line in run.lines["diagnosis"]]
    return [name for name in MEASURES if any(line.get(name) is not None for line in lines)]


def _measure_note(groups: list[Group]) -> str:
    k = " or ".join(
        str(k)
        for k in sorted(
            {line["k"] for group in groups for run in group.runs for line in run.lines["diagnosis"]}
        )
    )
    texts = {
        "gdc": "GDC = 1 - cos of the supervised and the whole gradient of the last block (or of all trained parameters, where a run asks "
        "for it), on training batches: clean takes the supervised gradient without EAGC's operator and the gradient that is applied; "
        "release has the operator in both, as the released code.",
        "soc": f"SOC: share of the energy of novel-class features in the {k} leading directions of labelled features, test transform, "
        "novel classes by their true labels: release with unit-norm rows centred on the labelled mean, paper with raw features.",
        "rho_grad": "rho_grad: share of rows of known classes, labelled ones included, in the sum of |dL/dz| over a batch, L the "
        "method's whole loss before the operator acts; the grey line is their share of the rows, where all rows would pull alike.",
        "rho_in": "rho_in: share of the energy of novel-class features inside the conceptor of the labelled features as they are then (not "
        "of the reference model), with the run's aperture.",
        "cos": "cos: cosine of the supervised gradient and the gradient of the whole loss of some rows of the batch alone: labelled ones, "
        "these and unlabelled ones of known classes, these and unlabelled ones of novel classes, all; the operator takes no part.",
    }
    shown = [
        text for name, text in texts.items() if any(measure.startswith(name) for measure in _measured(groups))
    ]
    return " ".join([*shown, "Numbers are means over the steps measured."])


def _warnings(runs: list[Run]) -> str:
    items = [f"{run.path.name}: {text}" for run in runs for text in (run.result or {}).get("warnings", [])]
    for run in (run for run in runs if run.result is None):
        epochs = f"{len(run.lines['epoch'])} of {run.config.epochs} epochs"
        items.append(f"{run.path.name}: not finished, {epochs}")
    return f"<h3>Warnings</h3>{_items(items)}" if items else ""


def _items(lines: list[str]) -> str:
    return (
        f"<ul class=warnings>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"
        if lines
        else ""
    )


def _provenance(groups: list[Group]) -> str:
    rows = []
    for group in groups:
        for run in group.runs:
            last = run.lines["epoch"][-1]
            scores = " / ".join("-" if last[name] is None else f"{100 * last[name]:.2f}" for name in SCORES)
            versions = ", ".join(
                f"{name} {version}" for name, version in run.facts["versions"].items() if version
            )
            cells = [
                run.path.name,
                group.name,
                run.config.seed,
                scores,
                run.facts["split_hash"][:12],
                run.facts["trunk"][:12],
            ]
            cells += [(run.facts.get("commit") or "-")[:12], versions]
            rows.append("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>")
    head = (
        "run",
        "configuration",
        "seed",
        "All / Old / New, last epoch",
        "split (sha256)",
        "trunk (sha256)",
        "commit",
        "versions",
    )
    common = html.escape("\n".join(f"{name} = {value}" for name, value in _recipe(groups[0].runs[0]).items()))
    return (
        f"<details><summary>Every run, and all settings of configuration {html.escape(groups[0].name)}</summary>"
        f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"<pre>{common}</pre></details>"
    )


# The figures -----------------------------------------------------------------------------------------------------------------------


def _accuracy_figure(groups: list[Group], problem: str) -> str:
    figure, panels = axes(1, 3)
    for axis, name in zip(panels, SCORES):
        for i, group in enumerate(groups):
            _curve(
                axis,
                i,
                [
                    [(line["epoch"] + 1, _number(line[name], 100)) for line in run.lines["epoch"]]
                    for run in group.runs
                ],
            )
        axis.set(title=name.capitalize(), xlabel="epoch", ylabel="accuracy, %")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    caption = f"Accuracy on the unlabelled training images after every epoch (one matching of clusters and classes for all three). {problem}"
    return _figure(figure, groups, caption)


def _sweep_figure(groups: list[Group], problem: str) -> str:
    found = sweeps(groups)
    if not found:
        return ""
    columns = min(len(found), 3)
    figure, panels = axes(math.ceil(len(found) / columns), columns)
    for axis, sweep in zip(panels, found):
        for i, name in enumerate(SCORES):
            done = [
                (value, [measures(run)[name] for run in group.runs if run.result is not None])
                for value, group in sweep.points
            ]
            x, mean, std = zip(*((value, *mean_std(scores)) for value, scores in done))
            bars = [0.0 if math.isnan(deviation) else deviation for deviation in std]
            axis.errorbar(
                x,
                mean,
                bars,
                marker="os^"[i],
                markersize=4,
                capsize=3,
                label=name.capitalize(),
                **line_style(i),
            )
        if sweep.centre is not None:
            axis.axvline(
                next(value for value, group in sweep.points if group is sweep.centre),
                color="0.5",
                linewidth=0.8,
                zorder=0,
            )
        axis.set(title=sweep.setting, xlabel=sweep.setting, ylabel="accuracy, last epoch, %")
        values = [value for value, _ in sweep.points]
        if values[0] > 0 and values[-1] >= 10 * values[0]:
            axis.set_xscale("log")
        axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.minorticks_off()
    for axis in panels[len(found) :]:
        axis.remove()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    help = {name: text for group in groups for name, text in group.runs[0].config.help_texts().items()}
    seeds = sorted(
        {
            len([run for run in group.runs if run.result is not None])
            for sweep in found
            for _, group in sweep.points
        }
    )
    shown = [group for sweep in found for _, group in sweep.points]
    others = [group.name for group in groups if group not in shown]
    caption = (
        f"Accuracy against {'; '.join(f'{sweep.setting} ({help[sweep.setting]})' for sweep in found)}. All other settings are the same "
        "along a curve"
        + (
            f": those of configuration {found[0].centre.name}, whose values the vertical lines mark. "
            if found[0].centre
            else ". "
        )
        + f"Finished runs, mean over seeds ({' or '.join(map(str, seeds))} a point), bars one sample standard deviation to each side "
        "(none for one seed). " + (f"Not in these curves: {', '.join(others)}. " if others else "")
    )
    return _figure(figure, [], caption + problem)


def _loss_figure(groups: list[Group], problem: str) -> str:
    figure, panels = axes(1, 3)
    for axis, (name, title) in zip(
        panels, {"loss": "whole loss", "supervised": "supervised", "unsupervised": "unsupervised"}.items()
    ):
        for i, group in enumerate(groups):
            _curve(
                axis,
                i,
                [[(line["step"], _number(line[name])) for line in run.lines["step"]] for run in group.runs],
            )
        axis.set(title=title, xlabel="optimiser step", ylabel="loss")
    caption = "Training loss, means between log lines; both parts with their weights. EAGC changes gradients, not the loss itself. "
    return _figure(figure, groups, caption + problem)


def _measure_figure(groups: list[Group], problem: str) -> str:
    measured = [group for group in groups if any(run.lines["diagnosis"] for run in group.runs)]
    if not measured:
        return ""
    names = _measured(groups)
    rows = [
        row
        for row in (
            [name for name in names if name.startswith(kind)] for kind in (("gdc", "soc"), "rho", "cos")
        )
        if row
    ]
    figure, panels = axes(len(rows), 4)
    for row, names in enumerate(rows):
        here = panels[4 * row : 4 * row + 4]
        for axis, name in zip(here, names):
            if name.startswith("cos") and axis is not here[0]:  # to be compared with one another
                axis.sharey(here[0])
            for i, group in enumerate(groups):
                _curve(
                    axis,
                    i,
                    [
                        [(line["step"], _number(line.get(name))) for line in run.lines["diagnosis"]]
                        for run in group.runs
                    ],
                )
            if name == "rho_grad":
                shares = [
                    line.get("known_rows")
                    for group in groups
                    for run in group.runs
                    for line in run.lines["diagnosis"]
                ]
                axis.axhline(
                    mean_std(_number(share) for share in shares)[0], color="0.5", linewidth=1, zorder=0
                )
            axis.set(title=TITLES.get(name, name), xlabel="optimiser step")
        for axis in here[len(names) :]:
            axis.remove()
    return _figure(
        figure, measured, f"Gradient entanglement while training. {_measure_note(measured)} {problem}", groups
    )


def _quantile_figure(groups: list[Group], problem: str) -> str:
    with_tau = _with_operator(groups)
    if not with_tau:
        return ""
    figure, panels = axes(1, 2)
    for axis, name in zip(panels, ("energy", "tau")):
        for i, group in enumerate(groups):
            low, middle, high = (
                _over_seeds(
                    [
                        [(line["step"], _number(line.get(f"{name}_q{q}"))) for line in run.lines["step"]]
                        for run in group.runs
                    ]
                )
                for q in (10, 50, 90)
            )
            steps = [x for x, _, _ in middle]
            axis.plot(steps, [y for _, y, _ in middle], **line_style(i))
            axis.fill_between(
                steps,
                [y for _, y, _ in low],
                [y for _, y, _ in high],
                color=line_style(i)["color"],
                alpha=0.2,
                linewidth=0,
            )
        axis.set(
            title={"energy": "energy ratio E", "tau": "projection weight tau"}[name],
            xlabel="optimiser step",
            ylim=(-0.02, 1.02),
        )
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
    figure, panels = axes(len(with_tau), 2, height=2.0)
    edges = [i / BINS for i in range(BINS + 1)]
    for row, group in enumerate(with_tau):
        for axis, name in zip(panels[2 * row : 2 * row + 2], ("energy", "tau")):
            for which, style in ((0, {"fill": False}), (-1, {"fill": True, "alpha": 0.5})):
                logged = [
                    [line[f"{name}_histogram"] for line in run.lines["step"] if f"{name}_histogram" in line]
                    for run in group.runs
                ]
                counts = [sum(column) for column in zip(*(lines[which] for lines in logged if lines))]
                if not counts:  # a uniform tau asks for no energy
                    continue
                share = [count / max(sum(counts), 1) for count in counts]
                axis.stairs(
                    share,
                    edges,
                    color=line_style(groups.index(group))["color"],
                    label="first" if which == 0 else "last",
                    **style,
                )
            axis.set(title=f"{group.name}: {name}", xlim=(0, 1), xlabel=name, ylabel="share of rows")
            if axis.patches:
                axis.legend(fontsize=7)
    caption = (
        "Energy ratio and tau of the unlabelled rows of one training batch per seed: the first that was logged (outline) and the last "
        "(filled). A tau of 0 on almost every row means that EEP does nothing. "
    )
    return _figure(figure, [], caption + problem)


def _with_operator(groups: list[Group]) -> list[Group]:
    return [
        group
        for group in groups
        if any("tau_histogram" in line for run in group.runs for line in run.lines["step"])
    ]


def _over_seeds(curves: list[list[tuple[float, float]]]) -> list[tuple[float, float, float]]:
    """(x, mean, std) over the runs that have a value at x."""
    at: dict[float, list[float]] = {}
    for curve in curves:
        for x, y in curve:
            if not math.isnan(y):
                at.setdefault(x, []).append(y)
    return [(x, *mean_std(at[x])) for x in sorted(at)]


def _curve(axis: Axes, i: int, curves: list[list[tuple[float, float]]]) -> None:
    points = _over_seeds(curves)
    if not points:
        return
    x, mean, std = zip(*points)
    axis.plot(x, mean, marker="." if len(x) < 40 else None, **line_style(i))
    band = [0.0 if math.isnan(s) else s for s in std]
    low, high = zip(*((m - b, m + b) for m, b in zip(mean, band)))
    axis.fill_between(x, low, high, color=line_style(i)["color"], alpha=0.15, linewidth=0)


def _figure(
    figure: Figure,
    shown: list[Group],
    caption: str,
    groups: list[Group] | None = None,
    lines: str = "means over seeds, bands one standard deviation to each side",
) -> str:
    """The figure as HTML, with a legend of the groups shown (colours by their place in `groups`) and its conditions below."""
    groups = shown if groups is None else groups
    handles = [Line2D([], [], label=group.name, **line_style(groups.index(group))) for group in shown]
    if handles:
        figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5), frameon=False)
        seeds = "; ".join(
            f"{group.name}: {', '.join(str(run.config.seed) for run in group.runs)}" for group in shown
        )
        caption += f" Lines are {lines}. Seeds of {seeds}."
    return as_html(figure, caption)


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1150px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #ddd; padding: 4px 8px; text-align: right; vertical-align: top; }
th[scope=row], table td:first-child { text-align: left; } thead th { font-weight: 600; }
small, figcaption, .note { color: #555; } .note, figcaption { font-size: 13px; } .warnings { color: #a33; }
figure { margin: 2em 0; } svg { max-width: 100%; height: auto; } pre { font-size: 12px; }
{style}</style></head><body><h1>{heading}</h1>
{body}
</body></html>
"""
