"""The page of a waterfall: what was decided before the runs, and what the runs so far show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from eagc_ops.app.files import atomic_write
from eagc_ops.app.table import Row, Table
from eagc_ops.evidence.comparisons import holm
from eagc_ops.evidence.sets import conditions
from eagc_ops.evidence.waterfall.arms import (
    ARMS,
    CANDIDATES,
    CHOOSING,
    EAGC,
    OWN,
    RATES,
    REPLICATES,
    STEPS,
    WARM,
)
from eagc_ops.evidence.waterfall.numbers import COLUMNS, Numbers, finished, table
from eagc_ops.evidence.waterfall.picture import waterfall
from eagc_ops.evidence.waterfall.plan import TABLE, Plan, Problem
from eagc_ops.evidence.waterfall.question import TEXT, TITLE
from eagc_ops.training.analysis.paired import Paired, paired_difference
from eagc_ops.training.report.measures import plus_minus, signed

__all__ = ["PAGE", "Runs", "difference", "write_page"]

PAGE = "evidence.md"
OUTCOMES = ("all", "own_name")
Runs = Mapping[str, Mapping[int, Numbers]]  # recipe -> replicate -> measures, of finished runs

# Beside the steps of the waterfall: (name, from, to)
CONTROLS = (
    ("all steps: EAGC", OWN, EAGC),
    ("AGA and EEP at rate 0.03", RATES[1], "EAGC, rate 0.03"),
    ("AGA at rate 0.03", RATES[1], "AGA, rate 0.03"),
    ("rate 0.03, no operator", WARM, RATES[1]),
    ("rate 0.01, no operator", WARM, RATES[2]),
    ("EAGC with rate 0.03 instead of 0.1", EAGC, "EAGC, rate 0.03"),
    ("EAGC with rate 0.01 instead of 0.1", EAGC, "EAGC, rate 0.01"),
    ("own recipe, rate 0.03", OWN, "own recipe, rate 0.03"),
    ("own recipe, rate 0.01", OWN, "own recipe, rate 0.01"),
    ("own recipe, longer", OWN, "own recipe, longer"),
    ("null", WARM, "null"),
    ("whitened energy", EAGC, "whitened EAGC"),
)


def write_page(plan: Plan) -> Path:
    """Write evidence.md, runs.csv and the figures from the runs that are finished."""
    planned = plan.runs()
    numbers = finished(plan)
    atomic_write(plan.output / TABLE, table(planned, numbers))
    text = [f"# {TITLE}", f"{len(numbers)} of {len(planned)} planned runs are finished."]
    sections = []
    for problem in plan.problems:
        runs: dict[str, dict[int, Numbers]] = {}
        for run in planned:
            if run.problem == problem and run.folder.name in numbers:
                runs.setdefault(run.arm.name, {})[run.replicate] = numbers[run.folder.name][0]
        if runs:
            sections += _section(plan, problem, runs)
    text += [*sections, "## Decided before the runs", *TEXT]
    where = conditions()
    text.append(f"Written on {where['date']} on {where['machine']}, commit {where['commit'] or 'unknown'}.")
    atomic_write(plan.output / PAGE, "\n\n".join(text) + "\n")
    return plan.output / PAGE


def difference(
    runs: Runs, of: str, base: str, measure: str = "all", replicates: range = range(REPLICATES)
) -> Paired:
    """The paired differences of two recipes, in points, on the replicates that both have finished."""
    both = [r for r in replicates if r in runs.get(of, {}) and r in runs.get(base, {})]
    return paired_difference(*([runs[arm][r][measure] for r in both] for arm in (of, base)))


def _section(plan: Plan, problem: Problem, runs: Runs) -> list[str]:
    blocks = [f"## {problem}"]
    figure = f"figures/waterfall-{problem.key}.svg"
    drawn = waterfall(runs)
    if drawn is not None:
        (plan.output / figure).parent.mkdir(exist_ok=True)
        atomic_write(plan.output / figure, f"{drawn.svg.rstrip()}\n")
        blocks.append(f"![{drawn.caption}]({figure})\n\n{drawn.caption}")
    best = _best_rate(runs)
    main = [("**EAGC**", WARM, EAGC)]
    if best is not None:
        main.append((f"**EAGC, against the best of three rates** ({best})", best, EAGC))
    blocks += [_differences(runs, main, corrected=False).markdown()]
    blocks += ["The steps, one switch at a time, and the controls:"]
    blocks += [_differences(runs, [*STEPS, *CONTROLS], corrected=True).markdown()]
    blocks += ["Every recipe, mean ± standard deviation over the replicates that are finished:"]
    blocks += [_recipes(runs).markdown()]
    if (choice := _choice(runs)) is not None:
        blocks += [
            f"All of the candidates for the recommended recipe on replicates 0 to {CHOOSING - 1}, those that "
            "are finished in all of them:",
            choice.markdown(),
        ]
    return blocks


def _best_rate(runs: Runs) -> str | None:
    """The warm start of the highest mean All, of those that have all replicates that the first one has."""
    have = set(runs.get(WARM, {}))
    complete = [arm for arm in RATES if have and have <= set(runs.get(arm, {}))]
    if len(complete) < len(RATES):
        return None
    return max(complete, key=lambda arm: sum(runs[arm][r]["all"] for r in have))


def _planned(*arms: str) -> int:
    return min(ARMS[arm].replicates for arm in arms)


def _differences(runs: Runs, rows: Sequence[tuple[str, str, str]], corrected: bool) -> Table:
    """A row for every comparison; no p-value before it is complete."""
    found = []
    for name, base, of in rows:
        n = _planned(base, of)
        pairs = {measure: difference(runs, of, base, measure, range(n)) for measure in (*OUTCOMES, "old")}
        found.append((name, n, pairs))
    complete = [pairs["all"].p if pairs["all"].n == n else math.nan for _, n, pairs in found]
    shown = holm(complete) if corrected else complete
    lines = []
    for (name, n, pairs), p in zip(found, shown):
        replicates = str(n) if pairs["all"].n == n else f"{pairs['all'].n} of {n}"
        cells = [name, replicates]
        cells += [_interval(pairs[measure]) for measure in (*OUTCOMES, "old")]
        lines.append(Row([*cells, "-" if math.isnan(p) else f"{p:.3f}"]))
    title = "p of All, corrected" if corrected else "p of All"
    return Table(["step", "replicates", "All", "own name", "Old", title], lines)


def _interval(paired: Paired) -> str:
    if paired.n == 0:
        return "-"
    text = signed(paired.mean, 2)
    return text if paired.n == 1 else f"{text} ({signed(paired.low)} to {signed(paired.high)})"


def _recipes(runs: Runs) -> Table:
    rows = []
    for arm in ARMS:
        if arm in runs:
            values = runs[arm].values()
            cells = [plus_minus((v[name] for v in values), digits) for name, (_, digits) in COLUMNS.items()]
            rows.append(Row([arm, str(len(values)), *cells]))
    return Table(["recipe", "replicates", *(heading for heading, _ in COLUMNS.values())], rows)


def _choice(runs: Runs) -> Table | None:
    candidates = [arm for arm in CANDIDATES if arm in runs]
    common = [r for r in range(CHOOSING) if all(r in runs[arm] for arm in candidates)]
    if not common or len(candidates) < 2:
        return None
    rows = []
    for arm in candidates:
        values = [runs[arm][r] for r in common]
        cells = [plus_minus((v[name] for v in values), 1) for name in ("all", "old", "new", "own_name")]
        rows.append(Row([arm, str(len(common)), *cells]))
    return Table(["candidate", "replicates", "All", "Old", "New", "own name"], rows)
