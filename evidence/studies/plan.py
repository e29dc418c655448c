"""The plan of a study: its runs, how many are finished, and the time of the others."""

from __future__ import annotations

from eagc_ops.evidence.progress import duration, epochs_done, seconds_per_step
from eagc_ops.evidence.studies.earlier import Earlier
from eagc_ops.evidence.studies.study import LEVEL, METHOD, Study, can_decide
from eagc_ops.training.analysis.paired import smallest_p

__all__ = ["study_plan"]


def study_plan(study: Study, earlier: Earlier) -> str:
    """The runs of every cell, how many are finished here or in `earlier`, and the time of the others.

    A time is that of steps of finished runs of the same cell, or, if it has none, of all finished runs.
    """
    runs, taken = study.runs(), earlier.sections
    epochs = {run.folder: epochs_done(run.folder) for run in runs}  # None: complete
    general = seconds_per_step(folder for folder, done in epochs.items() if done is None)
    lines, finished, more, total = [], 0, 0, 0.0
    for cell in study.cells:
        own = [run for run in runs if run.cell == cell]
        # Runs from which this cell's start are made again, if those of an earlier machine are not here.
        starts = [run for run in study.starts(cell) if run.cell in taken and epochs[run.folder] is not None]
        text = f"  {cell!s:48} {len(cell.arms)} arms x {cell.regime.seeds} seeds = {len(own)} runs, "
        open_runs = [] if cell in taken else [run for run in own if epochs[run.folder] is not None]
        finished += len(own) - len(open_runs)
        text += "complete in earlier evidence" if cell in taken else f"{len(own) - len(open_runs)} finished"
        if open_runs:
            open_runs += starts
            steps = sum(
                (run.config.epochs - (epochs[run.folder] or 0))
                * (cell.regime.images // run.config.batch_size)
                for run in open_runs
            )
            each = seconds_per_step(run.folder for run in own if epochs[run.folder] is None) or general
            time = f"about {duration([steps * each])}" if each else "no time: the first run gives it"
            text += f"; left: {steps:,} steps, {time}"
            if starts:
                text += f" (with {len(starts)} runs of {METHOD} from which they start)"
            more, total = more + len(open_runs), total + steps * (each or 0.0)
        lines.append(text)
    text = f"  {len(runs)} runs, {finished} finished"
    if more:
        time = f"about {duration([total])} for {more} runs, one at a time" if general else "no time yet"
        text += f"; left: {time} (steps with their diagnoses: reference models and evaluations come on top)"
    lines.append(text)
    tests = len(study.tested)
    for seeds in sorted({cell.regime.seeds for cell in study.cells}):
        least = smallest_p(seeds)
        if least >= LEVEL:
            lines.append(f"  with {seeds} seeds, p cannot be below {least:.2g}: too few to show anything")
        else:
            too_few = "" if can_decide(seeds, tests) else ": too few to show anything"
            corrected = f"or {tests * least:.2g} after the correction for {tests} comparisons"
            lines.append(f"  with {seeds} seeds, p cannot be below {least:.2g}, {corrected}{too_few}")
    return "\n".join(lines)
