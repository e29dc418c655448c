"""Runs from a configuration to a result: experiment, loop and analysis combined.

>>> from eagc_ops.training.config import resolve
>>> config = resolve("simgcd", "digits", "paper", epochs=1)
>>> result = train(config, "runs/first")  # doctest: +SKIP
>>> evaluate("runs/first", "last")  # doctest: +SKIP
Accuracy(all=..., old=..., new=...)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast

from eagc_ops.training.analysis.accuracy import Accuracy, accuracy
from eagc_ops.training.analysis.diagnosis import Diagnose
from eagc_ops.training.analysis.estimate_k import estimate_k
from eagc_ops.training.config import Config, ConfigError
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.jobs import Job
from eagc_ops.training.engine.loop import Callback, Evaluation, Loop
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.models.features import pretrained_features

__all__ = ["evaluate", "resume", "run_job", "train"]


def train(config: Config, output: str | Path, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
    """Train a new run in the folder `output`; reference models are kept in `references` beside it.

    Returns the content of result.json: {"headline": "last" | "best", "last": {"epoch", "all", "old", "new"},
    "best": {...}, "warnings": [...], "reference_cross_entropy": float | None}.
    """
    output = Path(output)
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ConfigError(
            f"{output} is not an empty folder: resume the run in it, or choose a different folder"
        )
    config, estimate = _with_estimated_k(config)
    experiment = Experiment(config)
    start = experiment.starting_point  # read now: one that does not fit must fail before a folder is made
    facts = experiment.facts.replace(k_estimate=estimate, start=start and start.record)
    experiment.accelerator.wait_for_everyone()  # every process must see an empty folder before one writes
    folder = RunFolder.create(output, config, facts, experiment.main)
    return _fit(experiment, folder, callbacks)


def resume(output: str | Path, callbacks: Sequence[Callback] = (), **changes: Any) -> dict[str, Any]:
    """Continue a run from its last checkpoint, or from the start if it has none yet.

    `changes` may only touch settings of the machine. A complete run returns its result at once.
    """
    folder = RunFolder.open(output)
    config = _changed(folder.config, changes)
    if (result := folder.result()) is not None:
        return result
    experiment = Experiment(config)
    _check_images(experiment, folder)
    folder.main = experiment.main
    return _fit(experiment, folder, callbacks)


def evaluate(output: str | Path, which: str = "last", **changes: Any) -> Accuracy:
    """All / Old / New on the unlabelled set with a run's "last" or "best" weights.

    `changes` may only touch settings of the machine.
    """
    folder = RunFolder.open(output)
    if which not in ("last", "best"):
        raise ConfigError(f"which must be one of last, best, got {which!r}")
    experiment = Experiment(_changed(folder.config, changes))
    _check_images(experiment, folder)
    tensors, _ = experiment.read_checkpoint(folder.last if which == "last" else folder.best)
    experiment.student.load(tensors)
    return Accuracy(**_evaluation(experiment).scores)


def run_job(job: Job) -> dict[str, Any]:
    """Train the run of a job, or continue it. Spawned processes can import this function."""
    config, folder = job.config, job.folder
    if (folder / "run.json").exists():
        return resume(folder, **{name: getattr(config, name) for name in config.machine_settings()})
    for partial in folder.glob("*.partial"):  # a kill while run.json was written: training had not begun
        partial.unlink()
    return train(config, folder)


def _fit(experiment: Experiment, folder: RunFolder, callbacks: Sequence[Callback]) -> dict[str, Any]:
    diagnose = experiment.config.diagnose
    diagnosis = [] if diagnose is None else [Diagnose(diagnose)]
    return Loop(experiment, folder, _evaluation, [*diagnosis, *callbacks]).fit()


def _check_images(experiment: Experiment, folder: RunFolder) -> None:
    """Refuse to go on with other images than those that the run began with."""
    ours, theirs = experiment.facts.split_hash, folder.facts.split_hash
    if ours != theirs:
        raise ConfigError(
            f"{folder.path} belongs to a different split of the images (split_hash {theirs[:8]} there, "
            f"{ours[:8]} here): root, split_file and skip_unreadable must hold what they held at its start"
        )


def _evaluation(experiment: Experiment) -> Evaluation:
    """All / Old / New of the current student on the unlabelled set."""
    student, data = experiment.student, experiment.data
    student.eval()
    with torch.no_grad(), experiment.accelerator.autocast():
        predictions = student.method.predict(experiment.features).cpu()
    scores = accuracy(predictions, data.unlabelled.labels, data.known)
    return Evaluation(scores._asdict(), len(predictions.unique()))


def _with_estimated_k(config: Config) -> tuple[Config, dict[str, Any] | None]:
    """The configuration with a number in place of k="estimate", and a record of the search."""
    if config.k != "estimate":
        return config, None
    experiment = Experiment(config.replace(k=None))
    features, label = pretrained_features(
        experiment.student.encoder, experiment.batches, experiment.facts.images, experiment.main
    )
    # The search has a seed of its own, so that runs with different seeds train for the same K.
    estimate = estimate_k(features, label, experiment.data.known, progress=experiment.main)
    # Processes may round differently, so all use the main one's number.
    k = int(broadcast(torch.tensor(estimate.k, device=experiment.device)))
    return config.replace(k=k), estimate._asdict()


def _changed(config: Config, changes: dict[str, Any]) -> Config:
    """The configuration of an existing run with `changes`, which must not affect its numbers."""
    unknown = [name for name in changes if name not in config.help_texts()]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)} is not a setting of {config.method}")
    free = config.machine_settings()
    fixed = [name for name, value in changes.items() if name not in free and value != getattr(config, name)]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)} cannot change in an existing run (only {', '.join(free)} can): "
            "start a new run"
        )
    return config.replace(**changes)
