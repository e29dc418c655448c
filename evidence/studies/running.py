"""Train the runs of the study that are left, cell by cell."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from eagc_ops.app.files import atomic_write
from eagc_ops.evidence.frozen_features import probe_once
from eagc_ops.evidence.jobs import unfinished
from eagc_ops.evidence.late_energies import late_energies
from eagc_ops.evidence.sets import jobs_of, left_of, train_jobs
from eagc_ops.evidence.slurm import Slurm
from eagc_ops.evidence.studies.earlier import earlier_part
from eagc_ops.evidence.studies.evidence import write_evidence
from eagc_ops.evidence.studies.plan import study_plan
from eagc_ops.evidence.studies.study import FULL, METHOD, Cell, Study, StudyRun, begin_study

__all__ = ["run_study", "runs_of"]


def run_study(
    study: Study,
    now: Collection[Cell],
    at_a_time: int,
    say: Callable[[str], None],
    slurm: Slurm | None = None,
) -> int:
    """Train the runs of the cells `now` that are left, and write the evidence after every cell.

    `slurm`: each run is one of its jobs. With `at_a_time` 0 nothing is trained or measured.
    Cells that are complete in the evidence that was taken over are not trained. The evidence is that of
    the whole study, and what it shows is said at the end. Returns the number of runs that failed, or
    could not be measured; the same command tries them again.
    """
    begin_study(study)
    torch.set_num_threads(1)  # as in every process of `run_jobs`
    earlier = earlier_part(study)
    if at_a_time == 0:
        for line in write_evidence(study):
            say(line)
        return 0
    if earlier.sections:
        say(
            f"{len(earlier.sections)} parts are complete in earlier evidence: only their probes are made here"
        )
    for cell in earlier.sections:
        _probe(study, cell, trunk_cache=None)  # nothing else needs the tokens
    failed, shown = 0, None
    cells = [cell for cell in now if cell not in earlier.sections]
    if slurm is not None:
        failed += train_jobs(left_of(runs_of(study, cells)), at_a_time, say, slurm)
    for cell in cells:
        if slurm is None:
            failed += _train(study, cell, at_a_time, say)
        else:
            _probe(study, cell)
        failed += _measure(study, cell, say)
        shown = write_evidence(study)
    for line in write_evidence(study) if shown is None else shown:
        say(line)
    return failed


def runs_of(study: Study, cells: Collection[Cell]) -> list[StudyRun]:
    """The runs of some cells, after those that they start from."""
    starts = [run for cell in cells for run in study.starts(cell)]
    return [*starts, *(run for run in study.runs() if run.cell in cells)]


def _train(study: Study, cell: Cell, at_a_time: int, say: Callable[[str], None]) -> int:
    """Train what is left of a cell, after the runs that it starts from. Returns how many failed."""
    runs = [run for run in study.runs() if run.cell == cell]
    jobs, starts = jobs_of(runs_of(study, [cell])), {run.folder for run in study.starts(cell)}
    left = unfinished(jobs)
    first = sum(job.folder in starts for job in left)
    text = f"{cell}: {len(runs)} runs, {len(runs) - len(left) + first} of them finished before"
    say(text + (f"; first {first} runs of {METHOD}, from which they start" if first else ""))
    _probe(study, cell)
    failed = 0
    if left and not any(run.folder.joinpath("result.json").exists() for run in study.runs()):
        failed += train_jobs(left[:1], 1, say)
        say(f"After the first run:\n{study_plan(study, earlier_part(study))}")
        left = left[1:]
    return failed + train_jobs(left, at_a_time, say)


def _probe(study: Study, cell: Cell, **settings: None) -> None:
    config = next(run.config for run in study.runs() if run.cell == cell).replace(**settings)
    probe_once(study.probe_folder(cell.regime), config, study.output / "features")


def _measure(study: Study, cell: Cell, say: Callable[[str], None]) -> int:
    """Measure energies at the end of the runs with EAGC.

    Returns for how many runs this failed.
    """
    failed = 0
    for run in study.runs():
        if run.cell != cell or not (run.folder / "result.json").exists():
            continue
        try:
            if run.arm == FULL and run.config.warm_start:
                _once(
                    study.late_file(run),
                    run.folder,
                    lambda folder: [energy._asdict() for energy in late_energies(folder)],
                )
        except Exception as error:  # whatever is wrong with one run: the others go on
            failed += 1
            say(f"{run.folder.name} could not be measured: {type(error).__name__}: {error}")
    return failed


def _once(file: Path, run: Path, measure: Callable[[Path], Any]) -> None:
    """Measure a finished run, unless `file` has what was measured since it finished."""
    if file.exists() and file.stat().st_mtime_ns >= (run / "result.json").stat().st_mtime_ns:
        return
    file.unlink(missing_ok=True)  # of a run that has been trained again
    found = measure(run)
    file.parent.mkdir(exist_ok=True)
    atomic_write(file, json.dumps(found, indent=1) + "\n")
