"""Discover the categories in images nobody has labelled, given some labelled images of known categories.

>>> from eagc_ops.training import discover
>>> found = discover("photos/labelled", "photos/new", "found", holdout=0.2)  # doctest: +SKIP
>>> [entry["name"] for entry in found["categories"] if entry["kind"] == "new"]  # doctest: +SKIP
['new-1', 'new-2', 'new-3']

A discovery is an ordinary run on two folders, and its output is the folder of the run. No truth is needed and
none is used: the labels of unlabelled images do not exist. Called again, it goes on where it stopped.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eagc_ops.files import atomic_write
from eagc_ops.places import PlaceError, readable_file
from eagc_ops.training import runs
from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.analysis.categories import RULES, Found, find_categories
from eagc_ops.training.analysis.map_2d import map_2d
from eagc_ops.training.config import Config, ConfigError, resolve
from eagc_ops.training.config.places import check_links, check_two_folders
from eagc_ops.training.data.trunk_cache import cache_bytes
from eagc_ops.training.data.two_folders import TwoFolders, list_folders
from eagc_ops.training.engine.checkpoint import load_checkpoint, save_checkpoint, tensor_digest
from eagc_ops.training.engine.experiment import Experiment, device_of
from eagc_ops.training.engine.preconditions import check_begun, check_new_folder, check_run
from eagc_ops.training.engine.predictor import Predictor
from eagc_ops.training.engine.run_folder import CATEGORIES, IMAGES, TRUNK_CACHE, RunFolder, finite, writing
from eagc_ops.training.methods import METHODS
from eagc_ops.training.report.category_files import (
    ASSIGNMENTS,
    assignment_rows,
    category_entry,
    csv_text,
    sort_into,
    write_json,
    write_map,
)
from eagc_ops.training.report.discovered import page_size, write_page
from eagc_ops.training.scores import scores_text

__all__ = ["discover"]

VERSION = 1
LARGEST_BATCH, LEAST_STEPS = 128, 4  # images; steps of an epoch
DISK_SHARE = 0.5  # of the free space, which a trunk cache may take
LISTED = 20  # new categories that are printed
_FEATURES = "features.safetensors"


class Request(NamedTuple):
    """What to discover in, and what to write."""

    labelled: Path
    unlabelled: Path
    output: Path
    holdout: float = 0.2
    skip_unreadable: bool = False
    drop_duplicates: bool = False
    truth: Path | None = None
    sort_into: Path | None = None

    def check(self) -> None:
        """Check the places, before anything is listed."""
        check_two_folders(self.labelled, self.unlabelled, self.output)
        if self.truth is not None:
            readable_file("truth", self.truth, "name a .csv file with the columns path,class")
        if self.sort_into is not None:
            check_links(self.sort_into, self.labelled, self.unlabelled)

    @property
    def options(self) -> dict[str, Any]:
        """What decides which images are used."""
        return {name: getattr(self, name) for name in ("holdout", "skip_unreadable", "drop_duplicates")}


def discover(
    labelled: str | Path,
    unlabelled: str | Path,
    output: str | Path,
    *,
    holdout: float = 0.2,
    skip_unreadable: bool = False,
    drop_duplicates: bool = False,
    truth: str | Path | None = None,
    sort_into: str | Path | None = None,
    say: Callable[[str], None] = print,
    **settings: Any,
) -> dict[str, Any]:
    """Discover categories; returns the content of categories.json.

    Args:
        labelled: folder with one folder of images for each known class.
        unlabelled: folder of images, at any depth, or a text file with one path per line.
        output: folder of the run: run.json, checkpoints, and the files assignments.csv, map.csv,
            categories.json and discovered.html. A discovery that was begun there goes on; of a complete one
            the files are written again.
        holdout: share of the labelled images of every class that are not trained on. They give the one honest
            accuracy there is. 0: none. See `list_folders`.
        skip_unreadable: leave out images that cannot be read, instead of an error that names them.
        drop_duplicates: leave out unlabelled images that are labelled ones too.
        truth: .csv with the columns path,class of all unlabelled images, for those who know; it is compared
            with the result at the end, and nothing else.
        sort_into: folder in which links to the unlabelled images are made, in one folder for each category.
        say: prints a line.
        **settings: those of `Config`, such as k (default: estimated), method, epochs, backbone, weights.
    """
    places = (None if place is None else Path(place) for place in (truth, sort_into))
    paths = (Path(labelled).expanduser(), Path(unlabelled).expanduser(), Path(output).expanduser())
    request = Request(*paths, holdout, skip_unreadable, drop_duplicates, *places)
    request.check()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a discovery is started as one process: leave the launcher out")
    folders = _trained(request, say, settings)
    return _write(request, folders, say, settings)


# Training ---------------------------------------------------------------------------------------------------


def _trained(request: Request, say: Callable[[str], None], settings: dict[str, Any]) -> TwoFolders:
    """Train the run, or go on with it; returns its images."""
    if (request.output / "run.json").exists():
        folder = RunFolder.open(request.output)
        changes = _changes(folder, request, settings)
        folders = _listed(request)
        if folders is None:
            raise ConfigError(
                f"output {request.output} holds a discovery of other folders or options: choose a different "
                "folder"
            )
        _truth(request, folders)
        if folder.result() is None:
            say(f"going on with the discovery in {request.output}")
            runs.resume(request.output, **changes)
        else:
            say(f"{request.output} is trained: what was found is written again")
        return folders
    check_new_folder(request.output)
    folders = _listed(request)
    if folders is None:
        folders = list_folders(request.labelled, request.unlabelled, **request.options, progress=True)
        _truth(request, folders)
        with writing(request.output):
            # Tokens of other images
            shutil.rmtree(request.output / TRUNK_CACHE, ignore_errors=True)
            folders.write(request.output / IMAGES)
    else:
        _truth(request, folders)
    for line in _introduction(folders, request):
        say(line)
    config = _config(request, folders, say, settings)
    say(
        f"{config.method} {'with' if config.eagc else 'without'} EAGC, {config.epochs} epochs, "
        f"{config.batch_size} images per step, on {device_of(config)} -> {request.output}"
    )
    runs.train(config, request.output)
    return folders


def _listed(request: Request) -> TwoFolders | None:
    """The images that were listed before for the same request; None if there are none."""
    file = request.output / IMAGES
    if not file.exists():
        return None
    folders = TwoFolders.read(file)
    places = [os.path.abspath(place) for place in (request.labelled, request.unlabelled)]
    same = [folders.labelled, folders.unlabelled, folders.options] == [*places, request.options]
    return folders if same else None


def _changes(folder: RunFolder, request: Request, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the machine with which to go on."""
    places = {"root": request.labelled, "split_file": request.output / IMAGES}
    changes = check_begun(folder, settings)
    if "trunk_cache" not in settings and folder.config.trunk_cache is not None:
        places["trunk_cache"] = request.output / TRUNK_CACHE
    return {**changes, **{name: os.path.abspath(place) for name, place in places.items()}}


def _introduction(folders: TwoFolders, request: Request) -> list[str]:
    held = (
        f"; {len(folders.held_out):,} more are held out ({request.holdout:.0%} of every class, at least 1 "
        "where it has 3 images or more) and tell how well known classes are recognized"
        if folders.held_out
        else "; none is held out, so no accuracy will be known"
    )
    return [
        f"labelled: {len(folders.training):,} images of {len(folders.classes)} classes{held}",
        f"unlabelled: {len(folders.unlabelled_images):,} images",
        *(f"note: {note}" for note in folders.notes),
    ]


def _config(
    request: Request, folders: TwoFolders, say: Callable[[str], None], settings: dict[str, Any]
) -> Config:
    images = len(folders.training) + len(folders.unlabelled_images)
    values = {
        "method": "simgcd",
        "preset": "paper",
        "batch_size": min(LARGEST_BATCH, max(2, images // LEAST_STEPS)),
        **settings,
        "dataset": "discover",
        "root": os.path.abspath(request.labelled),
        "split_file": os.path.abspath(request.output / IMAGES),
    }
    config = resolve(**values)
    check_run(config, request.output)
    if "trunk_cache" in settings:
        return config
    changes, sentence = _trunk_cache(config, request.output)
    say(sentence)
    return config.replace(**changes)


def _trunk_cache(config: Config, output: Path) -> tuple[dict[str, Any], str]:
    """Whether to train from a trunk cache, as settings and as a sentence with the reason."""
    if METHODS[config.method].alternating:
        return {}, "trunk cache: no, the prompts of the method change the input of the trunk"
    passes, instead = 2 * config.epochs + 1, config.cache_views + 1
    if passes <= instead:
        return (
            {},
            f"trunk cache: no, {config.epochs} epochs need no more passes over the images than it would",
        )
    # Everything that is wrong with the settings shows here, before anything is computed.
    experiment = Experiment(config.replace(k=None))
    folder = Path(os.path.abspath(output / TRUNK_CACHE))
    there = sum(file.stat().st_size for file in folder.glob("*")) if folder.is_dir() else 0
    budget = DISK_SHARE * (shutil.disk_usage(_existing(folder)).free + there)
    for half in sorted({config.cache_half, True}):
        size = cache_bytes(experiment.student.encoder, experiment.data, views=config.cache_views, half=half)
        if size <= budget:
            return {"trunk_cache": str(folder), "cache_half": half}, (
                f"trunk cache: yes, {size / 1e9:.2g} GB{' in half precision' if half else ''} in {folder} "
                "until the discovery is complete: the frozen part of the encoder sees every image "
                f"{instead} times instead of {passes}"
            )
    return {}, (
        f"trunk cache: no, it would need {size / 1e9:.2g} GB, more than half of what is free on the disk; "
        f"every image passes the encoder {passes} times"
    )


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


# What was found ---------------------------------------------------------------------------------------------


class Features(NamedTuple):
    """Features and probabilities of the images of a discovery, under its last weights."""

    z: Tensor  # (N, D) of the unlabelled images
    probabilities: Tensor  # (N, K)
    labelled_z: Tensor  # (M, D) of the labelled images that were trained on
    held_out: Tensor  # (H, K) probabilities of the held-out images
    map: Tensor  # (N, 2) of the unlabelled images
    map_text: str  # how it was made


def _write(
    request: Request, folders: TwoFolders, say: Callable[[str], None], settings: dict[str, Any]
) -> dict[str, Any]:
    folder = RunFolder.open(request.output)
    with writing(request.output):
        features = _features(folder, folders, _changes(folder, request, settings))
        label = torch.tensor([c for _, c in folders.training])
        found = find_categories(
            features.z, features.probabilities, features.labelled_z, label, folders.classes
        )
        content = outputs(request, folders, folder, features, found)
        if "trunk_cache" not in settings:
            shutil.rmtree(request.output / TRUNK_CACHE, ignore_errors=True)
    for line in _summary(content, request):
        say(line)
    return content


def outputs(
    request: Request, folders: TwoFolders, folder: RunFolder, features: Features, found: Found
) -> dict[str, Any]:
    """Write the files of the discovery; returns the content of categories.json."""
    output, paths = request.output, folders.unlabelled_images
    found.categories.write(output / CATEGORIES)
    rows = assignment_rows(paths, found.placed, found.categories)
    atomic_write(output / "assignments.csv", csv_text(ASSIGNMENTS, rows))
    write_map(output / "map.csv", paths, features.map)
    content = {
        "version": VERSION,
        "labelled": folders.labelled,
        "unlabelled": folders.unlabelled,
        "method": folder.config.method,
        "eagc": folder.config.has_operator,
        "k": folder.facts.classes,
        "k_estimated": folder.facts.k_estimate is not None,
        "images": {
            "labelled": len(folders.training),
            "held_out": len(folders.held_out),
            "unlabelled": len(paths),
            **{status: found.placed.status.count(status) for status in ("doubtful", "nowhere")},
        },
        "rules": RULES,
        "map": features.map_text,
        "holdout": _holdout(folders, features),
        "truth": _scores(request, folders, found),
        "categories": [category_entry(entry, paths) for entry in found.listed],
    }
    write_json(output / "categories.json", content)
    write_page(output, progress=True)
    if request.sort_into is not None:
        sort_into(request.sort_into, rows)
    return content


def _features(folder: RunFolder, folders: TwoFolders, changes: dict[str, Any]) -> Features:
    """The features under the last weights, and their map; they are computed once and kept in the folder."""
    file, state = folder.path / _FEATURES, {"weights": tensor_digest(load_checkpoint(folder.last)[0])}
    tensors, kept = load_checkpoint(file) if file.exists() else ({}, {})
    if kept.get("weights") != state["weights"]:
        tensors, kept = _encoded(folder, folders, changes), state
        save_checkpoint(file, tensors, state)  # now, as the map takes its time too
    if "map" not in tensors:
        places = map_2d(tensors["z"])
        tensors, kept = {**tensors, "map": places.points}, {**state, "map_text": places.text}
        save_checkpoint(file, tensors, kept)
    return Features(**tensors, map_text=kept["map_text"])


def _encoded(folder: RunFolder, folders: TwoFolders, changes: dict[str, Any]) -> dict[str, Tensor]:
    predictor = Predictor(folder.path, **changes)
    unlabelled = predictor(folders.unlabelled_images, "unlabelled images")
    training = predictor([path for path, _ in folders.training], "labelled images")
    held_out = unlabelled.probabilities[:0]
    if folders.held_out:
        held_out = predictor([path for path, _ in folders.held_out], "held-out images").probabilities
    return {
        "z": unlabelled.z,
        "probabilities": unlabelled.probabilities,
        "labelled_z": training.z,
        "held_out": held_out,
    }


def _holdout(folders: TwoFolders, features: Features) -> dict[str, Any] | None:
    if not folders.held_out:
        return None
    label = torch.tensor([c for _, c in folders.held_out])
    right = (features.held_out.argmax(1) == label).double().mean()
    return {"images": len(label), "accuracy": float(right)}


def _scores(request: Request, folders: TwoFolders, found: Found) -> dict[str, float | None] | None:
    """All, Old and New where the truth is known."""
    classes = _truth(request, folders)
    if classes is None:
        return None
    new = sorted({*classes} - {*folders.classes})
    label = {name: i for i, name in enumerate((*folders.classes, *new))}
    truth = torch.tensor([label[name] for name in classes])
    return finite(accuracy(found.placed.category, truth, len(folders.classes))._asdict())


def _truth(request: Request, folders: TwoFolders) -> list[str] | None:
    """The true classes of the unlabelled images, in their order, if there is a file with them."""
    file = request.truth
    if file is None:
        return None
    home = folders.unlabelled if os.path.isdir(folders.unlabelled) else os.path.dirname(folders.unlabelled)
    try:
        with file.open(encoding="utf-8", errors="surrogateescape", newline="") as opened:
            rows = csv.DictReader(opened)
            if not {"path", "class"} <= {*(rows.fieldnames or ())}:
                raise PlaceError(f"truth {file} must begin with the line path,class")
            classes = {os.path.normpath(os.path.join(home, row["path"])): row["class"] for row in rows}
    except (csv.Error, TypeError) as error:
        raise PlaceError(f"truth {file} is no .csv file with the columns path,class ({error})") from error
    missing = [path for path in folders.unlabelled_images if not classes.get(os.path.normpath(path))]
    if missing:
        raise PlaceError(
            f"truth {file} has no class for {len(missing):,} of {len(folders.unlabelled_images):,} "
            f"unlabelled images, the first is {missing[0]}; paths are absolute, or relative to {home}"
        )
    return [classes[os.path.normpath(path)] for path in folders.unlabelled_images]


def _summary(content: dict[str, Any], request: Request) -> list[str]:
    """What was found, in lines."""
    entries, images = content["categories"], content["images"]
    new = [entry for entry in entries if entry["kind"] == "new"]
    doubtful = sum(entry["doubtful"] for entry in new)
    how = "estimated" if content["k_estimated"] else "given"
    word = "category" if len(new) == 1 else "categories"
    shares = [images[status] / images["unlabelled"] for status in ("doubtful", "nowhere")]
    lines = [
        f"found {len(new)} new {word} beside {len(entries) - len(new)} known ones (K = {content['k']}, "
        f"{how}), {doubtful} of them doubtful; of the {images['unlabelled']:,} images {shares[0]:.1%} are "
        f"doubtful, {shares[1]:.1%} fit nowhere"
    ]
    for entry in new[:LISTED]:
        near = entry["nearest_known"]
        lines.append(
            f"  {entry['name']:8} {entry['size']:6,} images, nearest to {near['name']} "
            f"({near['similarity']:.2f})" + (f"; doubtful: {entry['why']}" if entry["doubtful"] else "")
        )
    if len(new) > LISTED:
        lines.append(f"  ... and {len(new) - LISTED} more")
    if content["holdout"]:
        lines.append(
            f"accuracy on the {content['holdout']['images']:,} held-out images of known classes: "
            f"{content['holdout']['accuracy']:.1%}"
        )
    if content["truth"]:
        lines.append(f"with the truth of {request.truth}: {scores_text(content['truth'])}")
    page = request.output / "discovered.html"
    return [*lines, f"page: {page} ({page_size(page)})    (eagc predict {request.output} IMAGES)"]
