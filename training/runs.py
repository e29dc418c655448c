"""Runs from a configuration to a result: experiment, loop and analysis combined.

>>> from eagc_ops.training.config import resolve
>>> config = resolve("simgcd", "digits", "paper", epochs=1)
>>> result = train(config, "runs/first")  # doctest: +SKIP
>>> evaluate("runs/first", "last")  # doctest: +SKIP
Accuracy(all=..., old=..., new=...)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast
from torch import Tensor

from eagc_ops.training.analysis.accuracy import Accuracy, accuracy, class_accuracy, naming
from eagc_ops.training.analysis.diagnosis import Diagnose
from eagc_ops.training.analysis.estimate_k import estimate_k
from eagc_ops.training.config import SPECS, Config, ConfigError
from eagc_ops.training.data.batches import AutomaticPixels
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.loop import Callback, Evaluation, Loop
from eagc_ops.training.engine.preconditions import changed, check_run
from eagc_ops.training.engine.ranks import attended
from eagc_ops.training.engine.run_folder import RunFolder, writing
from eagc_ops.training.models.features import pretrained_features

__all__ = ["evaluate", "resume", "train", "trained"]


def train(
    config: Config,
    output: str | Path,
    callbacks: Sequence[Callback] = (),
    *,
    say: Callable[[str], object] | None = None,
    begin: Callable[[Experiment], None] | None = None,
    beforehand: Collection[str] = (),
) -> dict[str, Any]:
    """Train a new run in the folder `output`; reference models are kept in `references` beside it, resized
    pixels in `pixels` (setting `pixel_cache`). `say` is told what the data set leaves out, and similar notes.
    `begin` is called once with the prepared experiment, before its first step, and may set weights.
    `beforehand`: names in `output` that may exist already, because the run reads them.

    Returns the content of result.json: {"headline": "last" | "best", "last": {"epoch", "all", "old", "new"},
    "best": {...}, "warnings": [...], "reference_cross_entropy": float | None}, and "best_start": {...} if the
    run also scores the clusters at the start of every epoch (`start_accuracy`).
    """
    output = Path(output)
    check_run(config, output, beforehand=beforehand)
    with writing(output), attended():
        pixels = AutomaticPixels.beside(output)
        config, estimate = _with_estimated_k(config, pixels)
        experiment = Experiment(config, pixels)
        start = experiment.starting_point  # read now: one that does not fit must fail before run.json is made
        facts = replace(experiment.facts, k_estimate=estimate, start=start and start.record)
        experiment.accelerator.wait_for_everyone()  # every process must see an empty folder before one writes
        folder = RunFolder.create(output, config, facts, experiment.main)
        return _fit(experiment, folder, callbacks, say, begin)


def resume(
    output: str | Path,
    callbacks: Sequence[Callback] = (),
    *,
    say: Callable[[str], object] | None = None,
    begin: Callable[[Experiment], None] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Continue a run from its last checkpoint, or from the start if it has none yet.

    `changes` may only touch settings of the machine. A complete run returns its result at once. `say` and
    `begin`: as for `train`; a run that has a checkpoint has begun.
    """
    folder = RunFolder.open(output)
    config = changed(folder.config, changes)
    if (result := folder.result()) is not None:
        return result
    check_run(config)
    with writing(folder.path), attended():
        experiment = Experiment(config, AutomaticPixels.beside(folder.path))
        folder.check(experiment.facts)
        folder.main = experiment.main
        return _fit(experiment, folder, callbacks, say, begin)


def evaluate(output: str | Path, which: str = "last", **changes: Any) -> Accuracy:
    """All / Old / New on the unlabelled set with a run's "last" or "best" weights.

    `changes` may only touch settings of the machine.
    """
    scores = _evaluation(trained(output, which, **changes)).scores
    assert scores is not None  # `trained` refuses a run without a truth
    return Accuracy(**scores)


def trained(output: str | Path, which: str = "last", **changes: Any) -> Experiment:
    """The experiment of a run with its "last" or "best" weights, in eval mode.

    `changes` may only touch settings of the machine.
    """
    folder = RunFolder.open(output)
    if which not in ("last", "best"):
        raise ConfigError(f"which must be one of last, best, got {which!r}")
    if not SPECS[folder.config.dataset].truth:
        raise ConfigError(
            f"{output} is a discovery: nobody knows the truth of its images, so there is no accuracy to "
            f"compute; see {Path(output) / 'categories.json'}"
        )
    # One pass over the data does not pay for a cache.
    pixels = AutomaticPixels.beside(folder.path, build=False)
    experiment = Experiment(changed(folder.config, changes), pixels)
    folder.check(experiment.facts)
    tensors, _ = experiment.read_checkpoint(folder.last if which == "last" else folder.best)
    experiment.student.load(tensors)
    experiment.student.eval()
    return experiment


def _fit(
    experiment: Experiment,
    folder: RunFolder,
    callbacks: Sequence[Callback],
    say: Callable[[str], object] | None,
    begin: Callable[[Experiment], None] | None = None,
) -> dict[str, Any]:
    if say is not None:
        for note in experiment.facts.notes:
            say(f"note: {note}")
    return Loop(experiment, folder, _evaluation, [Diagnose(), *callbacks], begin).fit()


def _evaluation(experiment: Experiment) -> Evaluation:
    """All / Old / New of the current student on the unlabelled set, and of the clusters of its epoch."""
    data, predictions = experiment.data, _predictions(experiment)
    if not data.truth:
        return Evaluation(None, len(predictions.unique()))
    truth = data.unlabelled.labels
    clusters = experiment.student.method.clusters_of_epoch(data.unlabelled.uq_idx)
    named = naming(predictions, truth, data.known)._asdict()
    by_class = (
        class_accuracy(predictions, truth, data.known)._asdict() if experiment.config.spec.long_tailed else {}
    )
    return Evaluation(
        accuracy(predictions, truth, data.known)._asdict(),
        len(predictions.unique()),
        None if clusters is None else accuracy(clusters.cpu(), truth, data.known)._asdict(),
        {f"name_{name}": value for name, value in named.items()}
        | {f"class_{name}": value for name, value in by_class.items()},
    )


def _predictions(experiment: Experiment) -> Tensor:
    """The clusters (N,) of the unlabelled images, by the current student."""
    experiment.student.eval()
    with torch.no_grad(), experiment.autocast():
        return experiment.student.method.predict(experiment.features).cpu()


def _with_estimated_k(config: Config, pixels: AutomaticPixels) -> tuple[Config, dict[str, Any] | None]:
    """The configuration with a number in place of k="estimate", and a record of the search."""
    if config.k != "estimate":
        return config, None
    experiment = Experiment(config.replace(k=None), pixels)
    features, label = pretrained_features(
        experiment.student.encoder, experiment.batches, experiment.facts.images, experiment.main
    )
    # The search has a seed of its own, so that runs with different seeds train for the same K.
    estimate = estimate_k(features, label, experiment.data.known, progress=experiment.main)
    # Processes may round differently, so all use the main one's number.
    k = int(broadcast(torch.tensor(estimate.k, device=experiment.device)))
    return config.replace(k=k), estimate._asdict()
