"""Train from the first answer to get further candidates.

The output folder has two runs: `training`, with all known classes, and `rehearsal`, with half the epochs.
They have the same images in the same order, so they can share a trunk cache. Several processes train like
those of `eagc train`; the others wait for what process 0 writes.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.discovery.answer_files import Answer, answer_of
from eagc_ops.discovery.beginning import Beginning
from eagc_ops.discovery.candidates import REHEARSAL_SHARE, Candidate, Rehearsal, found_together
from eagc_ops.discovery.frozen import TRAINED_FEATURES, Clustering, Features
from eagc_ops.discovery.launched import part_of, shared_first_answer
from eagc_ops.discovery.places import REHEARSAL, RESULTS, TRAINING, TRUNK_CACHE
from eagc_ops.discovery.predictor import run_predictor
from eagc_ops.training import runs
from eagc_ops.training.analysis.constrained_kmeans import mean_directions
from eagc_ops.training.analysis.processes import ALONE, Processes
from eagc_ops.training.config import Config, ConfigError
from eagc_ops.training.data.listing import Listing
from eagc_ops.training.data.trunk_cache import cache_bytes
from eagc_ops.training.engine.checkpoint import load_checkpoint, save_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods import METHODS

__all__ = ["TrainedFeatures", "trained_candidates"]

REHEARSED = "rehearsal-images.json"
DISK_SHARE = 0.5  # of the free space that a trunk cache may take


class TrainedFeatures(NamedTuple):
    """A trained network's features and probabilities for the images of its listing."""

    z: Tensor  # (M + N, D), labelled, then unlabelled images
    probabilities: Tensor  # (M + N, K)


def trained_candidates(
    output: Path,
    beginning: Beginning,
    listing: Listing,
    features: Features,
    first: Candidate,
    first_rows: Tensor,
    rehearsal: tuple[Rehearsal, Tensor] | None,
    say: Callable[[str], None],
    processes: Processes = ALONE,
) -> list[Candidate]:
    """Train, or continue; returns the trained network and the clustering of its features.

    Args:
        first, first_rows: the first answer, and its categories (M + N,).
        rehearsal: the classes that play novel, and the categories (M + N,) of the first answer's rehearsal.
    """
    start, number, main = time.perf_counter(), first.clustering, processes.rank == 0
    config = beginning.config.replace(k=number.k)
    if processes.told(_is_done(output, config)):
        say("training is done already; comparing its answers again")
        return _candidates(output, number, processes)
    config, sentence = processes.told(with_trunk_cache(config, output) if main else None)
    say(sentence)
    if processes.count > 1 and config.trunk_cache is not None:
        if main:  # it shows the bar; the others would not
            Experiment(config)
        processes.told(None)
    say(
        f"training: {config.method} {'with' if config.eagc else 'without'} EAGC, {config.epochs} epochs, "
        f"{config.batch_size} images per step, from the categories of the first answer"
    )
    folder = _run(config, output / TRAINING, first_rows, processes)
    rows = _looked_at(folder, config)
    held = _held_out(folder, config, [path for path, _ in listing.held_out], processes)
    rehearsed = _rehearsed(config, output, listing, rehearsal, number, say, processes)
    count = len(features.labelled)
    if main:
        theirs = dataclasses.replace(
            features,
            labelled=rows.z[:count],
            unlabelled=rows.z[count:],
            held_out=rows.z[:0] if held is None else held.z,
        )
        theirs.write(output / TRAINED_FEATURES)
        tensors = {
            "probabilities": rows.probabilities[count:],
            "held_out": rows.probabilities[:0] if held is None else held.probabilities,
        }
        state = {"rehearsed": rehearsed, "seconds": time.perf_counter() - start}
        save_checkpoint(output / RESULTS, tensors, state)
        if beginning.config.trunk_cache is None:
            shutil.rmtree(output / TRUNK_CACHE, ignore_errors=True)
    processes.told(None)
    return _candidates(output, number, processes)


def _is_done(output: Path, config: Config) -> bool:
    """Whether there are results of a complete training; one with other settings is refused."""
    if (output / TRAINING / "run.json").exists():
        _check(RunFolder.open(output / TRAINING), config)
    return (output / RESULTS).exists()


def _check(folder: RunFolder, config: Config) -> None:
    views = {"cache_half": folder.config.cache_half}  # decided by the disk
    if differs := folder.differences(config.replace(**views)):
        raise ConfigError(
            f"output {folder.path.parent} holds a training with other settings ({'; '.join(differs[:3])}): "
            "choose a different folder",
            "output",
        )


def _candidates(output: Path, number: Clustering, processes: Processes) -> list[Candidate]:
    """The trained network, and the clustering of its features."""
    features = Features.read(output / TRAINED_FEATURES)
    tensors, state = load_checkpoint(output / RESULTS)
    clustered = shared_first_answer(
        features.rows, features.label, number.k, number.known, seed=number.seed, processes=processes
    )
    network = Answer(features.unlabelled, tensors["probabilities"], features.labelled, tensors["held_out"])
    found = []
    for kind, answer in (("trained", network), ("trained-metric", answer_of(clustered, features))):
        places: dict[str, Any] = dict.fromkeys(("metric", "centres", "sampled", "shares"))
        if kind == "trained-metric":
            places = {name: getattr(clustered, name) for name in places}
        clustering = dataclasses.replace(number, kind=kind, features=TRAINED_FEATURES, **places)
        label = features.held_out_class
        holdout = (int((answer.held_out.argmax(1) == label).sum()), len(label)) if len(label) else None
        counted = state["rehearsed"].get(kind)
        found.append(
            Candidate(
                kind, answer, clustering, features, state["seconds"], holdout, counted and tuple(counted)
            )
        )
    return found


def _rehearsed(
    config: Config,
    output: Path,
    listing: Listing,
    rehearsal: tuple[Rehearsal, Tensor] | None,
    number: Clustering,
    say: Callable[[str], None],
    processes: Processes,
) -> dict[str, tuple[int, int]]:
    """The rehearsal of both candidates, by kind: a shorter training without the hidden labels."""
    if rehearsal is None:
        return {}
    hidden, first_rows = rehearsal
    known, count = len(hidden.visible), hidden.count
    names = {c: i for i, c in enumerate(hidden.visible)}
    rehearsed = dataclasses.replace(
        listing,
        classes=tuple(listing.classes[c] for c in hidden.visible),
        training=[(path, names[c]) for path, c in listing.training[:count]],
        held_out=[],
        unlabelled_images=[path for path, _ in listing.training[count:]] + listing.unlabelled_images,
    )
    if processes.rank == 0:
        rehearsed.write(output / REHEARSED)
    processes.told(None)
    epochs = max(1, config.epochs // REHEARSAL_SHARE)
    say(
        f"rehearsal: {epochs} epochs in which {len(hidden.hidden)} of your {len(listing.classes)} categories "
        "play unknown ones"
    )
    shorter = config.replace(epochs=epochs, split_file=os.path.abspath(output / REHEARSED))
    folder = _run(shorter, output / REHEARSAL, first_rows, processes)
    rows = _looked_at(folder, shorter)
    clustered = shared_first_answer(
        rows.z, hidden.label, number.k, known, seed=number.seed, processes=processes
    )
    return {
        "trained": found_together(rows.probabilities.argmax(1), hidden),
        "trained-metric": found_together(clustered.assignment, hidden),
    }


def _run(config: Config, path: Path, categories: Tensor, processes: Processes) -> RunFolder:
    """Train a run that starts from `categories` (M + N,), or continue it."""

    def begin(experiment: Experiment) -> None:
        _start_prototypes(experiment, categories)

    if processes.told((path / "run.json").exists()):
        _check(RunFolder.open(path), config)
        runs.resume(path, begin=begin, **_machine(config))
    else:
        runs.train(config, path, begin=begin)
    processes.told(None)  # process 0 has written the last weights
    return RunFolder.open(path)


def _machine(config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.machine_settings()}


@torch.no_grad()
def _start_prototypes(experiment: Experiment, categories: Tensor) -> None:
    """Start the classifier from the mean directions of the categories, in the warm start's features.

    Their length stays that of a random start, because the size of a step depends on it.
    """
    method = experiment.student.method
    classifier = getattr(method, "classifier", None)
    if classifier is None or len(list(method.mlp_head.parameters())):
        return
    experiment.student.eval()
    z = torch.cat([experiment.features.labelled()[0], experiment.features.unlabelled()[0]])
    unit, own = F.normalize(z, dim=1), categories.to(z.device)
    directions, empty = mean_directions(unit, own, len(classifier.weight))
    length = classifier.weight.norm(dim=1, keepdim=True)
    classifier.weight.copy_(torch.where(empty[:, None], classifier.weight, directions * length))


@torch.no_grad()
def _looked_at(folder: RunFolder, config: Config) -> TrainedFeatures:
    """Features and probabilities for all images of a complete run's listing."""
    experiment = Experiment(config)
    tensors, _ = experiment.read_checkpoint(folder.last)
    student = experiment.student
    student.load(tensors)
    student.eval()
    with experiment.autocast():
        z = torch.cat([experiment.features.labelled()[0], experiment.features.unlabelled()[0]])
        fitted = student.method.fit_scores(experiment.features)
        scores = torch.cat([student.method.scores(part, fitted).float() for part in z.split(4096)])
    probabilities = (scores / student.method.score_temperature).softmax(1)
    return TrainedFeatures(z.cpu(), probabilities.cpu())


def _held_out(
    folder: RunFolder, config: Config, paths: list[str], processes: Processes
) -> TrainedFeatures | None:
    """The same of image files (H,) that are not in the listing; None if there are none."""
    if not paths:
        return None
    mine = part_of(paths, processes)
    predictor = run_predictor(folder.path, **_machine(config))
    # A process without a part looks at one image all the same, and so knows the shape of its empty part.
    found = predictor(mine or paths[:1], "held-out images" if processes.rank == 0 else None)
    rows = (processes.joined(part[: len(mine)]) for part in (found.points, found.probabilities))
    return TrainedFeatures(*rows)


def with_trunk_cache(config: Config, output: Path) -> tuple[Config, str]:
    """The configuration, with a trunk cache if that pays and fits, and a sentence with the reason."""
    if config.trunk_cache is not None:
        return config, f"trunk cache: {config.trunk_cache}, as asked for"
    if METHODS[config.method].alternating:
        return config, "trunk cache: no, the prompts of the method change the input of the trunk"
    epochs = config.epochs + max(1, config.epochs // REHEARSAL_SHARE)
    passes, instead = 2 * epochs + 2, config.cache_views + 1
    if passes <= instead:
        return config, f"trunk cache: no, {epochs} epochs need no more passes over the images than it would"
    experiment = Experiment(config)
    folder = Path(os.path.abspath(output / TRUNK_CACHE))
    there = sum(file.stat().st_size for file in folder.glob("*")) if folder.is_dir() else 0
    budget = DISK_SHARE * (shutil.disk_usage(output).free + there)
    for half in sorted({config.cache_half, True}):
        size = cache_bytes(experiment.student.encoder, experiment.data, views=config.cache_views, half=half)
        if size <= budget:
            return config.replace(trunk_cache=str(folder), cache_half=half), (
                f"trunk cache: yes, {size / 1e9:.2g} GB{' in half precision' if half else ''} in {folder} "
                "until training is complete: the frozen part of the encoder sees every image "
                f"{instead} times instead of {passes}"
            )
    return config, (
        f"trunk cache: no, it would need {size / 1e9:.2g} GB, more than half of what is free on the disk; "
        f"every image passes the encoder {passes} times"
    )
