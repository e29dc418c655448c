"""The waterfall: a bar for every step from the method's own recipe to that of EAGC."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from matplotlib.axes import Axes

from eagc_ops.evidence.waterfall.arms import EAGC, OWN, RATES, STEPS, WARM
from eagc_ops.evidence.waterfall.numbers import Numbers
from eagc_ops.training.report import drawing
from eagc_ops.training.report.measures import mean_std

__all__ = ["waterfall"]

# The arms at the edges of the bars, from the left; the two orders of AGA and EEP stand beside one another.
_PATH = (OWN, "head rate", WARM, "AGA", EAGC)
_OTHER = (WARM, "EEP", EAGC)
_CONTROLS = ("own recipe, longer", "own recipe, rate 0.03", *RATES[1:], "EAGC, rate 0.03")
_TITLES = {"all": "All", "own_name": "own name"}


def waterfall(runs: Mapping[str, Mapping[int, Numbers]]) -> drawing.Picture | None:
    """The figure over the replicates that have all steps; None if there is none."""
    steps = {*_PATH, *_OTHER}
    common = set.intersection(*(set(runs.get(arm, {})) for arm in steps))
    if not common:
        return None
    with drawing.style():
        figure, panels = drawing.axes(1, 2, height=4.2)
        for axis, measure in zip(panels, _TITLES):
            mean = {
                arm: mean_std(of[r][measure] for r in common)[0]
                for arm, of in runs.items()
                if common <= set(of)
            }
            _draw(axis, mean)
            axis.set(title=f"{_TITLES[measure]}, percent")
    n = len(common)
    return drawing.picture(
        figure,
        f"From the method's own recipe to that of EAGC, one switch at a time: means over {n} "
        f"replicate{'s' if n > 1 else ''}, with what a switch adds. AGA and EEP in both orders. Right of the "
        "line: controls.",
        [],
    )


def _draw(axis: Axes, mean: Mapping[str, float]) -> None:
    bars: list[tuple[str, float | None, float]] = [(OWN, None, mean[OWN])]
    names = {(base, of): name for name, base, of in STEPS}
    for path in (_PATH, _OTHER):
        bars += [(names[base, of], mean[base], mean[of]) for base, of in itertools.pairwise(path)]
    bars.append((EAGC, None, mean[EAGC]))
    first = len(bars)
    bars += [(arm, None, mean[arm]) for arm in _CONTROLS if arm in mean]
    values = [value for _, base, value in bars] + [base for _, base, _ in bars if base is not None]
    low = min(values) - 0.15 * (max(values) - min(values) + 1)
    for i, (_, base, value) in enumerate(bars):
        if base is None:  # a total
            start, colour, text = low, "0.6", f"{value:.1f}"
        else:
            start, text = base, f"{value - base:+.1f}"
            colour = drawing.COLOURS[2] if value >= base else drawing.COLOURS[1]
        axis.bar(i, value - start, bottom=start, color=colour, width=0.7)
        axis.annotate(text, (i, max(start, value)), ha="center", va="bottom", fontsize=7)
    axis.axvline(first - 0.5, color="0.3", linewidth=0.8)
    axis.set_ylim(bottom=low)
    axis.set_xticks(range(len(bars)), [name for name, *_ in bars], rotation=60, ha="right", fontsize=7)
