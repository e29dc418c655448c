"""Figures from run folders: accuracy, sweeps, gradient entanglement, energies and tau, losses.

A figure takes the groups of one problem and returns a `Picture`, or None if the groups have no values for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from eagc_ops.training.analysis.diagnosis import MEASURES
from eagc_ops.training.engine.metrics import BINS
from eagc_ops.training.engine.run_folder import SCORES
from eagc_ops.training.report.drawing import Picture, axes, line_style, of_run, picture
from eagc_ops.training.report.measures import (
    explanations,
    has_scores,
    mean_std,
    measured,
    measures,
    number,
)
from eagc_ops.training.report.runs import RunGroup, Sweep, sweeps

Curve = list[tuple[float, float]]  # (x, y) of a run


def accuracy_figure(groups: Sequence[RunGroup]) -> Picture | None:
    if not any(has_scores(run) for group in groups for run in group.runs):
        return None
    figure, panels = axes(1, 3)
    for axis, name in zip(panels, SCORES):
        for i, group in enumerate(groups):
            curves = _curves(group, "epoch", lambda line: line["epoch"] + 1, name, scale=100)
            _draw_mean(axis, i, curves)
        axis.set(title=name.capitalize(), xlabel="epoch", ylabel="accuracy, %")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, groups, groups)
    return picture(
        figure,
        "Accuracy on the unlabelled training images after every evaluated epoch.",
        [
            "All three panels use one optimal matching of clusters to classes.",
            "Lines are means over seeds, bands one standard deviation to each side.",
            _seeds(groups),
        ],
    )


def sweep_figure(groups: Sequence[RunGroup]) -> Picture | None:
    shown = sweeps(groups) if any(has_scores(run) for group in groups for run in group.runs) else []
    if not shown:
        return None
    columns = min(len(shown), 3)
    figure, panels = axes(math.ceil(len(shown) / columns), columns)
    for axis, sweep in zip(panels, shown):
        _draw_sweep(axis, sweep)
    for axis in panels[len(shown) :]:
        axis.remove()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    settings = "; ".join(f"{sweep.setting} ({_help(sweep)})" for sweep in shown)
    drawn = [group for sweep in shown for _, group in sweep.points]
    counts = " or ".join(map(str, sorted({len(group.finished) for group in drawn})))
    others = [group.name for group in groups if group not in drawn]
    centre = shown[0].centre
    same = "All other settings are the same along a curve."
    if centre is not None:
        same = f"All other settings are those of configuration {centre.name}; vertical lines mark its values."
    return picture(
        figure,
        f"Accuracy against {settings}.",
        [
            same,
            f"Points are means over the seeds of finished runs ({counts} per point); bars are one sample "
            "standard deviation to each side (none for one seed).",
            f"Not in these curves: {', '.join(others)}." if others else "",
        ],
    )


def measure_figure(groups: Sequence[RunGroup]) -> Picture | None:
    diagnosed = [group for group in groups if any(run.lines["diagnosis"] for run in group.runs)]
    if not diagnosed:
        return None
    kinds = (("gdc", "soc"), "rho", "cos")
    rows = [[name for name in measured(groups) if name.startswith(kind)] for kind in kinds]
    rows = [names for names in rows if names]
    figure, panels = axes(len(rows), 4)
    for row, names in enumerate(rows):
        here = panels[4 * row : 4 * row + 4]
        for axis, name in zip(here, names):
            if name.startswith("cos") and axis is not here[0]:  # cosines are compared with one another
                axis.sharey(here[0])
            for i, group in enumerate(groups):
                _draw_mean(axis, i, _curves(group, "diagnosis", _step, name))
            if name == "rho_grad":
                axis.axhline(_share_of_known_rows(groups), color="0.5", linewidth=1, zorder=0)
            axis.set(title=MEASURES[name], xlabel="optimizer step")
        for axis in here[len(names) :]:
            axis.remove()
    _legend(figure, diagnosed, groups)
    return picture(
        figure,
        "Gradient entanglement during training.",
        [
            *explanations(diagnosed),
            "Lines are means over seeds, bands one standard deviation to each side.",
            _seeds(diagnosed),
        ],
    )


def quantile_figure(groups: Sequence[RunGroup]) -> Picture | None:
    coordinated = _with_operator(groups)
    if not coordinated:
        return None
    figure, panels = axes(1, 2)
    for axis, (name, title) in zip(
        panels, {"energy": "energy ratio E", "tau": "projection weight tau"}.items()
    ):
        for i, group in enumerate(groups):
            low, middle, high = (
                _over_seeds(_curves(group, "step", _step, f"{name}_q{q}")) for q in (10, 50, 90)
            )
            if not middle:
                continue
            steps = [x for x, _, _ in middle]
            line = axis.plot(steps, [y for _, y, _ in middle], **line_style(i))
            below, above = ([y for _, y, _ in curve] for curve in (low, high))
            area = axis.fill_between(
                steps, below, above, color=line_style(i)["color"], alpha=0.2, linewidth=0
            )
            of_run(i, [*line, area])
        axis.set(title=title, xlabel="optimizer step", ylim=(-0.02, 1.02))
    _legend(figure, coordinated, groups)
    return picture(
        figure,
        "Energy ratio and projection weight of the unlabelled rows of the logged training batches.",
        [
            "tau = clamp(1 - E / Ebar, 0, 1), where Ebar is the mean E of labelled rows.",
            "EEP removes the share lambda_p tau of a row's gradient inside the known-class subspace. A run "
            "with lambda_p = 0 does not use its tau.",
            "Lines are medians, bands reach from the 10 % to the 90 % quantile; all are means over seeds.",
            _seeds(coordinated),
        ],
    )


def histogram_figure(groups: Sequence[RunGroup]) -> Picture | None:
    coordinated = _with_operator(groups)
    if not coordinated:
        return None
    figure, panels = axes(len(coordinated), 2, height=2.0)
    for row, group in enumerate(coordinated):
        colour = line_style(groups.index(group))["color"]
        for axis, name in zip(panels[2 * row : 2 * row + 2], ("energy", "tau")):
            _draw_histograms(axis, group, f"{name}_histogram", colour)
            axis.set(title=f"{group.name}: {name}", xlim=(0, 1), xlabel=name, ylabel="share of rows")
            if axis.patches:
                axis.legend(fontsize=7)
            of_run(groups.index(group), [axis])
    return picture(
        figure,
        "Energy ratio and tau of the unlabelled rows of two training batches per seed: the first logged one "
        "(outline) and the last (filled).",
        ["If tau is 0 on almost every row, EEP does nothing."],
    )


def loss_figure(groups: Sequence[RunGroup]) -> Picture:
    figure, panels = axes(1, 3)
    titles = {"loss": "whole loss", "supervised": "supervised", "unsupervised": "unsupervised"}
    for axis, (name, title) in zip(panels, titles.items()):
        for i, group in enumerate(groups):
            _draw_mean(axis, i, _curves(group, "step", _step, name))
        axis.set(title=title, xlabel="optimizer step", ylabel="loss")
    _legend(figure, groups, groups)
    return picture(
        figure,
        "Training loss, averaged between log lines.",
        [
            "Both parts are shown with their weights. EAGC changes gradients, not the loss itself.",
            "Lines are means over seeds, bands one standard deviation to each side.",
            _seeds(groups),
        ],
    )


Draw = Callable[[Sequence[RunGroup]], Picture | None]
RESULTS: tuple[Draw, ...] = (accuracy_figure, sweep_figure)  # in the order of the page
DIAGNOSTICS: tuple[Draw, ...] = (  # folded away below them
    measure_figure,
    quantile_figure,
    histogram_figure,
    loss_figure,
)


def _draw_sweep(axis: Axes, sweep: Sweep) -> None:
    for i, name in enumerate(SCORES):
        scores = [mean_std(measures(run)[name] for run in group.finished) for _, group in sweep.points]
        bars = [0.0 if math.isnan(std) else std for _, std in scores]
        axis.errorbar(
            [value for value, _ in sweep.points],
            [mean for mean, _ in scores],
            bars,
            marker="os^"[i],
            markersize=4,
            capsize=3,
            label=name.capitalize(),
            **line_style(i),
        )
    if sweep.centre is not None:
        middle = next(value for value, group in sweep.points if group is sweep.centre)
        axis.axvline(middle, color="0.5", linewidth=0.8, zorder=0)
    axis.set(title=sweep.setting, xlabel=sweep.setting, ylabel="accuracy, last epoch, %")
    values = [value for value, _ in sweep.points]
    if values[0] > 0 and values[-1] >= 10 * values[0]:
        axis.set_xscale("log")
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()


def _help(sweep: Sweep) -> str:
    return sweep.points[0][1].runs[0].config.help_texts()[sweep.setting]


def _draw_histograms(axis: Axes, group: RunGroup, name: str, colour: str) -> None:
    """The shares of rows in the first and in the last logged batch of every run of the group."""
    logged = [[line[name] for line in run.lines["step"] if name in line] for run in group.runs]
    edges = [i / BINS for i in range(BINS + 1)]
    for which, label, settings in (
        (0, "first", {"fill": False}),
        (-1, "last", {"fill": True, "alpha": 0.5}),
    ):
        counts = [sum(column) for column in zip(*(lines[which] for lines in logged if lines))]
        if counts:  # a uniform tau needs no energy, and none is logged
            shares = [count / max(sum(counts), 1) for count in counts]
            axis.stairs(shares, edges, color=colour, label=label, **settings)


def _draw_mean(axis: Axes, i: int, curves: Sequence[Curve]) -> None:
    points = _over_seeds(curves)
    if not points:
        return
    x, mean, std = zip(*points)
    line = axis.plot(x, mean, marker="." if len(x) < 40 else None, **line_style(i))
    band = [0.0 if math.isnan(s) else s for s in std]
    low, high = zip(*((m - b, m + b) for m, b in zip(mean, band)))
    area = axis.fill_between(x, low, high, color=line_style(i)["color"], alpha=0.15, linewidth=0)
    of_run(i, [*line, area])


def _curves(
    group: RunGroup, kind: str, x: Callable[[dict[str, Any]], float], name: str, scale: float = 1.0
) -> list[Curve]:
    """The value `name` of the log lines of a kind, a curve for each run."""
    return [[(x(line), number(line.get(name), scale)) for line in run.lines[kind]] for run in group.runs]


def _step(line: dict[str, Any]) -> float:
    return line["step"]


def _over_seeds(curves: Sequence[Curve]) -> list[tuple[float, float, float]]:
    """(x, mean, std) over the runs that have a value at x."""
    at: dict[float, list[float]] = {}
    for curve in curves:
        for x, y in curve:
            if not math.isnan(y):
                at.setdefault(x, []).append(y)
    return [(x, *mean_std(at[x])) for x in sorted(at)]


def _with_operator(groups: Sequence[RunGroup]) -> list[RunGroup]:
    return [
        group
        for group in groups
        if any("tau_histogram" in line for run in group.runs for line in run.lines["step"])
    ]


def _share_of_known_rows(groups: Sequence[RunGroup]) -> float:
    lines = [line for group in groups for run in group.runs for line in run.lines["diagnosis"]]
    return mean_std(number(line.get("known_rows")) for line in lines)[0]


def _legend(figure: Figure, shown: Sequence[RunGroup], groups: Sequence[RunGroup]) -> None:
    """A legend of the groups shown; the place in `groups` decides the colour."""
    handles = [Line2D([], [], label=group.name, **line_style(groups.index(group))) for group in shown]
    legend = figure.legend(
        handles=handles, loc="outside upper center", ncols=min(len(handles), 5), frameon=False
    )
    for group, line, text in zip(shown, legend.get_lines(), legend.get_texts()):
        of_run(groups.index(group), [line, text])


def _seeds(groups: Sequence[RunGroup]) -> str:
    seeds = (f"{group.name}: {', '.join(str(run.config.seed) for run in group.runs)}" for group in groups)
    return f"Seeds of {'; '.join(seeds)}."
