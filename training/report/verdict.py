"""The verdict of a report: what EAGC changes, as paired differences to the fair baseline.

The fair baseline of a configuration has the same settings with EAGC off; a pair of runs shares seed and data.
"Better" takes a p-value below 0.05 and a difference above the noise floor: the largest difference of a null
run, one with EAGC of almost no strength, to the same baseline. Otherwise it is "higher in these seeds".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from eagc_ops.training.analysis.paired import CONFIDENCE, Paired, paired_difference, smallest_p
from eagc_ops.training.engine.run_folder import SCORES
from eagc_ops.training.report.drawing import Picture, axes, line_style, of_run, picture
from eagc_ops.training.report.measures import BEST, has_scores, measures, signed
from eagc_ops.training.report.runs import RunGroup, RunRecord, recipe

# Settings that change nothing in a run without the operator, or nothing in any run.
OF_THE_OPERATOR = (
    "eagc",
    "lambda_a",
    "lambda_p",
    "subspace",
    "aperture",
    "pca_k",
    "anchor",
    "alignment",
    "tau",
    "energy",
    "energy_momentum",
)
NAMES_ONLY = ("preset", "headline")
LEVEL = 0.05  # of a p-value
_OFF = 1e-3  # a strength below it changes little but roundings
_FAIR = "its fair baseline (the same settings with EAGC off)"


class Comparison(NamedTuple):
    """A configuration with EAGC against its fair baseline."""

    ours: RunGroup
    base: RunGroup
    seeds: tuple[int, ...]
    last: dict[str, Paired]  # by score, in points of percent
    best: dict[str, Paired] | None  # of the best epochs; None unless the configuration reports these

    @property
    def strengths(self) -> tuple[bool, bool]:
        """Whether AGA and EEP are on. Neither: a null run."""
        config = _first(self.ours).config
        return config.lambda_a > _OFF, config.lambda_p > _OFF


def comparisons(groups: Sequence[RunGroup]) -> list[Comparison]:
    """Every configuration with EAGC whose fair baseline is among the groups, with at least one pair."""
    found = []
    for ours in groups:
        if not _first(ours).config.has_operator:
            continue
        for base in groups:
            pairs = _pairs(ours, base) if _is_fair(ours, base) else []
            if pairs:
                values = [tuple(measures(run) for run in pair) for pair in pairs]
                reports_best = _first(ours).config.headline == "best"
                seeds = tuple(one.config.seed for one, _ in pairs)
                last, best = _differences(values, ""), _differences(values, "best_")
                found.append(Comparison(ours, base, seeds, last, best if reports_best else None))
                break
    return found


def sentences(groups: Sequence[RunGroup], found: Sequence[Comparison]) -> list[str]:
    """The verdict in words, or what is needed for one."""
    if not any(has_scores(run) for group in groups for run in group.runs):
        return ["No verdict: these runs have no true labels, so there is no accuracy to compare."]
    coordinated = [group for group in groups if _first(group).config.has_operator]
    if not coordinated:
        return ["No verdict: no run here uses EAGC. Add runs with the same settings and seeds, and --eagc."]
    null = [one for one in found if not any(one.strengths)]
    main = [one for one in found if all(one.strengths)]
    beside = [one for one in found if one.strengths.count(True) == 1]
    lines = []
    for one in main:
        name = f"{one.ours.name} against {one.base.name}"
        lines.append(f"{name}: {_in_words(one.last['all'], 'last epoch', _floor(one, null))}")
        if one.best is not None:
            lines.append(f"{name}: {_in_words(one.best['all'], BEST, _floor(one, null, best=True))}")
    if beside:
        parts = "; ".join(
            f"{one.ours.name} against {one.base.name}, {_judgment(one.last['all'], _floor(one, null))} (All "
            f"{signed(one.last['all'].mean)}, p = {one.last['all'].p:.2g})"
            for one in beside
        )
        lines.append(f"Parts of EAGC, last epoch: {parts}.")
    for one in null:
        lines.append(
            f"Noise floor: rounding alone moved All of single runs by up to {_largest(one):.1f} points "
            f"({one.ours.name} against {one.base.name})."
        )
    compared = [comparison.ours for comparison in found]
    lines += [_what_is_missing(group, groups) for group in coordinated if group not in compared]
    return lines


def verdict_figure(groups: Sequence[RunGroup], found: Sequence[Comparison]) -> Picture | None:
    """The differences of all comparisons: mean, interval, and a dot for each seed."""
    rows = [
        (f"{one.ours.name} - {one.base.name}{note}", one, values)
        for one in found
        for note, values in (("", one.last), (f"\n{BEST}", one.best))
        if values is not None
    ]
    if not rows:
        return None
    figure, panels = axes(1, 3, height=1.0 + 0.42 * len(rows))
    for axis, score in zip(panels, SCORES):
        axis.axvline(0, color="0.35", linewidth=1, zorder=0)
        for row, (_, comparison, values) in enumerate(rows):
            _draw_difference(axis, row, groups.index(comparison.ours), values[score])
        axis.set(
            title=score.capitalize(), xlabel="difference, points of percent", ylim=(len(rows) - 0.4, -0.6)
        )
        axis.set_yticks(range(len(rows)), [name for name, *_ in rows] if axis is panels[0] else [])
    # One scale for all panels, so that lengths compare.
    reach = 1.08 * max(abs(limit) for axis in panels for limit in axis.get_xlim())
    for axis in panels:
        axis.set_xlim(-reach, reach)
    seeds = {", ".join(map(str, one.seeds)) for one in found}
    return picture(
        figure,
        "Accuracy with EAGC minus accuracy of the fair baseline.",
        [
            "The fair baseline has the same settings with EAGC off. A pair shares seed, data and draws.",
            f"Small dots above: one pair each. Large dot: their mean. Bar: Student's t-interval of the mean, "
            f"{CONFIDENCE:.0%}; it needs two pairs.",
            f"Seeds: {'; '.join(seeds)}.",
            f"{len(found)} comparisons; their intervals are not corrected for this."
            if len(found) > 1
            else "",
        ],
    )


def _first(group: RunGroup) -> RunRecord:
    return group.runs[0]


def _is_fair(ours: RunGroup, base: RunGroup) -> bool:
    a, b = _first(ours), _first(base)
    return not b.config.eagc and a.facts.trunk == b.facts.trunk and _without_eagc(a) == _without_eagc(b)


def _without_eagc(run: RunRecord) -> dict[str, Any]:
    """The settings that decide the numbers of a run without the operator."""
    unused = {*OF_THE_OPERATOR, *NAMES_ONLY}
    if not run.config.warm_start:  # then only the operator uses the reference model
        unused |= {name for name in recipe(run) if name.startswith("reference_")}
    return {name: value for name, value in recipe(run).items() if name not in unused}


def _pairs(ours: RunGroup, base: RunGroup) -> list[tuple[RunRecord, RunRecord]]:
    """Finished runs with accuracies, of the same seed and the same start, in the order of the seeds."""
    found: dict[int, tuple[RunRecord, RunRecord]] = {}
    for a in filter(has_scores, ours.finished):
        for b in filter(has_scores, base.finished):
            if a.config.seed == b.config.seed and a.facts.start == b.facts.start:
                found.setdefault(a.config.seed, (a, b))
    return [found[seed] for seed in sorted(found)]


def _differences(values: Sequence[tuple[dict[str, float], ...]], prefix: str) -> dict[str, Paired]:
    columns = {name: [[of[prefix + name] for of in pair] for pair in values] for name in SCORES}
    return {name: paired_difference(*zip(*pairs)) for name, pairs in columns.items()}


def _floor(one: Comparison, null: Sequence[Comparison], best: bool = False) -> float | None:
    """The noise floor of a comparison, in points of All; None if no null run has the same baseline."""
    floors = [_largest(other, best) for other in null if other.base == one.base]
    return max(floors, default=None)


def _largest(one: Comparison, best: bool = False) -> float:
    """The largest difference of a pair; of the best epochs if these are asked for and reported."""
    values = one.best if best and one.best is not None else one.last
    return max(abs(difference) for difference in values["all"].differences)


def _judgment(paired: Paired, floor: float | None) -> str:
    if paired.n == 1 or not paired.clear:
        return "no clear difference"
    in_these = f"{'higher' if paired.mean > 0 else 'lower'} in these seeds"
    if paired.p >= LEVEL:
        return f"{in_these}, which are too few to say more"
    if floor is None:
        return f"{in_these} (a null run, `eagc train --null`, would show how much of it is rounding)"
    if abs(paired.mean) <= floor:
        return "no more than rounding does"
    return "better" if paired.mean > 0 else "worse"


def _in_words(paired: Paired, epoch: str, floor: float | None) -> str:
    change = f"All {signed(paired.mean)} points ({epoch})"
    if paired.n == 1:
        return f"{change}, from one seed. One pair has no interval: train more seeds of both."
    bound = f", the least that {paired.n} seeds can give" if paired.p <= smallest_p(paired.n) else ""
    return (
        f"{_judgment(paired, floor)}. {change}, {CONFIDENCE:.0%} interval {signed(paired.low)} to "
        f"{signed(paired.high)}, {paired.n} seeds, sign-flip p = {paired.p:.2g}{bound}."
    )


def _what_is_missing(group: RunGroup, groups: Sequence[RunGroup]) -> str:
    fair = [base for base in groups if _is_fair(group, base)]
    seeds = ", ".join(str(seed) for seed in sorted(run.config.seed for run in group.runs))
    if not fair:
        return (
            f"{group.name}: no verdict, because {_FAIR} is missing. Train its settings again with --no-eagc "
            f"and the same seeds ({seeds}), and pass these runs to `eagc report` too."
        )
    return (
        f"{group.name}: no verdict, because no seed of it is finished both here and in {_FAIR}, "
        f"{fair[0].name}. Seeds of {group.name}: {seeds}."
    )


def _draw_difference(axis: Axes, row: int, number: int, paired: Paired) -> None:
    color = line_style(number)["color"]
    dots = axis.scatter(
        paired.differences, [row - 0.22] * paired.n, s=13, color=color, alpha=0.6, linewidths=0
    )
    artists: list[Any] = [dots]
    if paired.n > 1:
        artists += axis.plot([paired.low, paired.high], [row, row], color=color, linewidth=2.2)
    if paired.n:
        artists += axis.plot([paired.mean], [row], marker="o", markersize=6.5, color=color)
    of_run(number, artists)
