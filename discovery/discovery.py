"""Discover the categories in unlabelled images, given labelled images of some of them.

>>> from eagc_ops.discovery import discover
>>> found = discover("photos/labelled", "photos/new", "found", holdout=0.2)  # doctest: +SKIP
>>> [entry["name"] for entry in found["categories"] if entry["kind"] == "new"]  # doctest: +SKIP
['new-1', 'new-2', 'new-3']

The features of all images are computed once. Clustering them gives the first answer, with files and page. No
truth is needed or used: unlabelled images have no labels. Called again, it continues where it stopped.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.app.files import removed_if_refused
from eagc_ops.app.places import PlaceError, readable_file
from eagc_ops.discovery.answer_files import Story, answer_of, write_answer
from eagc_ops.discovery.beginning import BEGINNING, Beginning
from eagc_ops.discovery.candidates import (
    LEAST_KNOWN,
    REHEARSAL_SHARE,
    Candidate,
    Rehearsal,
    found_together,
    hidden_classes,
    keep,
    kept_line,
    rehearsal_of,
)
from eagc_ops.discovery.edits import EDITS
from eagc_ops.discovery.encoder import with_encoder
from eagc_ops.discovery.encoding import Passes, encoder_fingerprint, pretrained, rows_of_files, speed
from eagc_ops.discovery.frozen import FEATURES, Clustering, Features
from eagc_ops.discovery.launched import launched, part_of, shared_first_answer
from eagc_ops.discovery.number import Asked, asked_for, collapsed
from eagc_ops.discovery.page import PAGE, page_size
from eagc_ops.discovery.places import ANSWER, CATEGORIES_JSON, IMAGES, RESULTS, check_links, check_two_folders
from eagc_ops.discovery.predictor import check_same_encoder
from eagc_ops.discovery.two_folders import list_folders
from eagc_ops.discovery.verdict import accuracy_text
from eagc_ops.training.analysis.processes import ALONE, Processes
from eagc_ops.training.config import SPECS, Config, ConfigError, Sizes, resolve
from eagc_ops.training.config.datasets import channels_of
from eagc_ops.training.data.listing import Listing
from eagc_ops.training.data.precision import fast_precision
from eagc_ops.training.engine.experiment import check_shares, device_of
from eagc_ops.training.engine.preconditions import check_new_folder, check_run
from eagc_ops.training.engine.run_folder import scores_text, writing

__all__ = ["answers", "discover"]

LARGEST_BATCH, LEAST_STEPS = 128, 4  # images; steps of an epoch
# What a training step costs per view, in passes through a ViT of 12 blocks with the last one trained
TAIL_COST = 0.03
LEAST_DIFFERENCE = 1e-5  # of features of unit norm: less is rounding
LISTED = 20  # new categories that are printed
FIRST = "This is the first answer: a clustering of the pretrained encoder's features. "
SENTENCES = {  # about the first answer
    "to come": "If training finds a better one, it replaces this page.",
    "none": "Without --fast, training tries to find a better one.",
    "nothing to compare": "Nothing is trained, because nothing could tell whether that helps: it takes three "
    "known categories and held-out images.",
}
_KEPT_ROWS = "features.rows"  # features of a process that has not finished


class Request(NamedTuple):
    """The inputs of a discovery, and where to write."""

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
            check_links(self.sort_into, self.labelled, self.unlabelled, self.output)

    @property
    def options(self) -> dict[str, Any]:
        """The options that decide which images are used."""
        return {name: getattr(self, name) for name in ("holdout", "skip_unreadable", "drop_duplicates")}


def discover(
    labelled: str | Path,
    unlabelled: str | Path,
    output: str | Path,
    *,
    k: int | str | tuple[int, int] | None = None,
    holdout: float = 0.2,
    skip_unreadable: bool = False,
    drop_duplicates: bool = False,
    truth: str | Path | None = None,
    sort_into: str | Path | None = None,
    train: bool | None = None,
    say: Callable[[str], None] = print,
    **settings: Any,
) -> dict[str, Any]:
    """Discover categories; returns the content of categories.json.

    Args:
        labelled: folder with one folder of images for each known class.
        unlabelled: folder of images, at any depth, or a text file with one path per line.
        output: folder for features, assignments.csv, map.csv, categories.json and discovered.html. A
            discovery that was begun there continues; for a complete one the files are written again.
        k: number of categories, known and new together; "8-15" or (8, 15): estimate it within these bounds.
            None: estimate it.
        holdout: share of the labelled images of every class to hold out. Nothing is fitted to them, so they
            measure the accuracy. 0: none. See `list_folders`.
        skip_unreadable: leave out images that cannot be read, instead of an error that names them.
        drop_duplicates: leave out unlabelled images that are also among the labelled ones.
        truth: .csv with the columns path,class of all unlabelled images, if you know them; compared with
            the result at the end and used for nothing else.
        sort_into: folder for links to the unlabelled images, with one folder per category.
        train: train from the first answer, and let labelled images that no answer has seen decide which one
            to keep (see `candidates`). None: train if there are such images.
        say: prints a line.
        **settings: any of `Config`, such as backbone, weights, image_size and seed.
    """
    places = (None if place is None else Path(place) for place in (truth, sort_into))
    paths = (Path(labelled).expanduser(), Path(unlabelled).expanduser(), Path(output).expanduser())
    request = Request(*paths, holdout, skip_unreadable, drop_duplicates, *places)
    request.check()
    asked = asked_for(k)
    config = _config_now(request, settings)
    with launched(config) as processes:
        if train is not False and "batch_size" in settings:
            check_shares(config, processes.count)
        return _discovered(request, asked, train, say, settings, processes)


def _discovered(
    request: Request,
    asked: Asked,
    wanted: bool | None,
    say: Callable[[str], None],
    settings: dict[str, Any],
    processes: Processes,
) -> dict[str, Any]:
    """The work of one process; process 0 lists, says and writes."""
    begun, main = None, processes.rank == 0
    if main:
        begun = _begun(request, asked, say, settings, processes.count)
    processes.told(None)  # the others find what it has begun
    if begun is None:
        say = _silent
        begun = _gone_on(request, asked, say, settings)
    truth_of = _truth(request, begun.listing)
    comparable = len(begun.listing.classes) >= LEAST_KNOWN and bool(begun.listing.held_out)
    train = comparable if wanted is None else wanted
    if train and not (request.output / RESULTS).exists():
        check_shares(begun.beginning.config, processes.count)

    def written(found: Sequence[Candidate], state: str) -> dict[str, Any]:
        return processes.told(_written(request, begun, found, state, truth_of, say) if main else None)

    with writing(request.output):
        features = _features(request, begun, train, say, processes)
        first = _first(begun, features, asked, train, say, processes)
        if not (train and processes.told((request.output / RESULTS).exists())):
            state = "to come" if train else "none" if comparable else "nothing to compare"
            content = written([first.candidate], state)
        if not train:
            return content
        try:
            found, state = _trained(request, begun, features, first, say, processes)
        except KeyboardInterrupt:
            say(f"the first answer stays: {request.output / PAGE}")
            raise
        if processes.told(_corrected(request.output)):
            folder = shlex.quote(str(request.output))
            say(
                f"the page stays as it is, because you have corrected it meanwhile: eagc refine {folder} "
                f"{folder}/{EDITS} makes an answer from that. To see what training found instead, move that "
                "file away and run the same command again."
            )
            found_before: dict[str, Any] = _read_json(request.output / CATEGORIES_JSON)
            return found_before
        return written(found, state)


def _corrected(output: Path) -> bool:
    """Whether edits.json changes the present answer: a new answer would lose these changes."""
    try:
        content, found = (_read_json(output / name) for name in (EDITS, CATEGORIES_JSON))
        changed = any(part for name, part in content.items() if name not in ("version", "discovery"))
        return changed and content["discovery"] == found["discovery"]
    except (OSError, ValueError, KeyError, AttributeError):  # no such file, or not of this answer
        return False


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _silent(line: str) -> None:
    """The `say` of all processes but one."""


def answers(
    labelled: str | Path,
    unlabelled: str | Path,
    output: str | Path,
    *,
    k: int | str | tuple[int, int] | None = None,
    train: bool = True,
    holdout: float = 0.2,
    say: Callable[[str], None] = print,
    **settings: Any,
) -> tuple[list[Candidate], Candidate]:
    """The answers that `discover` compares, and the one it keeps; writes no page.

    The rows of `Candidate.assignment` are the unlabelled images, in the order of `output`/images.json. The
    arguments are as in `discover`.
    """
    paths = (Path(labelled).expanduser(), Path(unlabelled).expanduser(), Path(output).expanduser())
    request = Request(*paths, holdout)
    request.check()
    asked = asked_for(k)
    begun = _begun(request, asked, say, settings)
    with writing(request.output):
        features = _features(request, begun, train, say)
        first = _first(begun, features, asked, train, say)
        found = _trained(request, begun, features, first, say)[0] if train else [first.candidate]
    return found, keep(found)


# Images and their features ----------------------------------------------------------------------------------


class Begun(NamedTuple):
    """A discovery whose images are listed and whose encoder is known."""

    beginning: Beginning
    listing: Listing
    passes: Passes | None  # of the encoder, if it is built


def _begun(
    request: Request, asked: Asked, say: Callable[[str], None], settings: dict[str, Any], world: int = 1
) -> Begun:
    """Begin a discovery of `world` processes, or continue the one in the output folder. An error leaves
    nothing there.
    """
    if (request.output / BEGINNING).exists():
        return _gone_on(request, asked, say, settings)
    check_new_folder(request.output, (IMAGES,))
    _config(request, settings)  # a wrong value is refused before files are read
    listing = list_folders(request.labelled, request.unlabelled, **request.options, progress=True)
    # The images of classes that play novel in a rehearsal come last: it can share a trunk cache then.
    hidden = hidden_classes(len(listing.classes))
    listing = replace(listing, training=sorted(listing.training, key=lambda entry: entry[1] in hidden))
    count = len(listing.training) + len(listing.unlabelled_images)
    asked.check(len(listing.classes), count)
    _truth(request, listing)
    config = _config(request, with_encoder(settings, say))  # after the images, as it may ask the hub
    config = config.replace(**_for_so_many(config, count, settings, world))
    spec = SPECS[config.dataset]
    pixels = spec.image_size if config.image_size is None else config.image_size
    sizes = Sizes(known=len(listing.classes), images=count, labelled=len(listing.training), pixels=pixels)
    channels = channels_of(config.dataset, config.channels)
    kept = request.output / IMAGES, request.output / BEGINNING
    with removed_if_refused(*kept, unless=kept[1]), writing(request.output):
        listing.write(kept[0])
        check_run(config)
        encoder, passes = pretrained(config, sizes, channels)
        beginning = Beginning(
            config=config.anywhere(),
            known=len(listing.classes),
            images=count,
            labelled=len(listing.training),
            pixels=pixels,
            channels=channels,
            encoder=encoder_fingerprint(encoder),
        )
        beginning.write(request.output)
    for line in _introduction(listing, request):
        say(line)
    return Begun(beginning, listing, passes)


def _gone_on(request: Request, asked: Asked, say: Callable[[str], None], settings: dict[str, Any]) -> Begun:
    beginning, passes = Beginning.read(request.output), None
    places = {"root": str(request.labelled), "split_file": str(request.output / IMAGES)}
    config = beginning.with_changes(request.output, {**settings, **places}).anywhere()
    listing = Listing.read(request.output / IMAGES)
    folders = [os.path.abspath(place) for place in (request.labelled, request.unlabelled)]
    if [listing.labelled, listing.unlabelled, listing.options] != [*folders, request.options]:
        raise ConfigError(
            f"output {request.output} holds a discovery of other folders or options: choose a different "
            "folder",
            "output",
        )
    asked.check(beginning.known, beginning.images)
    if (request.output / ANSWER).exists() and Clustering.read(request.output).kind == "refined":
        raise ConfigError(
            f"output {request.output} holds an answer that was corrected by hand, which would be lost: "
            "go on with `eagc refine`, or choose a different folder",
            "output",
        )
    if config.weights != beginning.config.weights:
        encoder, passes = pretrained(config, beginning.sizes, beginning.channels)
        check_same_encoder(request.output, beginning, encoder)
    say(f"continuing the discovery in {request.output}")
    return Begun(replace(beginning, config=config), listing, passes)


def _config_now(request: Request, settings: dict[str, Any]) -> Config:
    """The settings as far as they are known before anything is listed."""
    if (request.output / BEGINNING).exists():
        return Beginning.read(request.output).with_changes(request.output, settings)
    return _config(request, settings)


def _config(request: Request, settings: dict[str, Any]) -> Config:
    return resolve(
        **{
            "method": "simgcd",
            "preset": "recommended",
            **settings,
            "dataset": "discover",
            "k": "estimate",
            "root": os.path.abspath(request.labelled),
            "split_file": os.path.abspath(request.output / IMAGES),
        }
    )


def _for_so_many(config: Config, images: int, settings: dict[str, Any], world: int) -> dict[str, Any]:
    """Settings that follow from the images, the epochs, the device and the processes, unless the user chose
    them.
    """
    batch, parts = min(LARGEST_BATCH, max(2, images // LEAST_STEPS)), world * config.accumulation
    follow: dict[str, Any] = {
        "batch_size": max(parts, batch - batch % parts),
        "precision": fast_precision(torch.device(device_of(config))),
    }
    if hasattr(config, "teacher_temp_epochs"):  # a warm-up that ends with the training, at the latest
        follow["teacher_temp_epochs"] = min(config.teacher_temp_epochs, config.epochs)
    return {name: value for name, value in follow.items() if name not in settings}


def _introduction(listing: Listing, request: Request) -> list[str]:
    held = (
        f"; {len(listing.held_out):,} more are held out ({request.holdout:.0%} of every class, at least 1 "
        "if it has 3 or more) to measure how well known classes are recognized"
        if listing.held_out
        else "; none is held out, so there will be no accuracy"
    )
    return [
        f"labelled: {len(listing.training):,} images of {len(listing.classes)} classes{held}",
        f"unlabelled: {len(listing.unlabelled_images):,} images",
        *(f"note: {note}" for note in listing.notes),
    ]


def _features(
    request: Request,
    begun: Begun,
    train: bool,
    say: Callable[[str], None],
    processes: Processes = ALONE,
) -> Features:
    """The pretrained features of all images: computed once and kept in the folder."""
    beginning, listing, passes = begun
    of_part = f".{processes.rank}-of-{processes.count}" if processes.count > 1 else ""
    file, rows_file = request.output / FEATURES, request.output / f"{_KEPT_ROWS}{of_part}"
    if processes.told(file.exists()):
        return Features.read(file)
    if passes is None:
        encoder, passes = pretrained(beginning.config, beginning.sizes, beginning.channels)
        check_same_encoder(request.output, beginning, encoder)
    labelled, held_out = [[path for path, _ in part] for part in (listing.training, listing.held_out)]
    paths = [*labelled, *held_out, *listing.unlabelled_images]
    if len(paths) < processes.count:
        raise ConfigError(f"{processes.count} processes for {len(paths)} images: start fewer")
    seconds = speed(passes, paths) / processes.count
    more = duration(seconds * _passes(beginning, processes.count))
    later = f"; then training: about {more} more" if train else ""
    these = duration(seconds * len(paths))
    say(f"features of {len(paths):,} images: about {these}; then the first page{later}")
    mine = rows_of_files(passes, part_of(paths, processes), rows_file, "features", processes.rank == 0)
    rows = processes.joined(mine)
    if _alike(rows):
        rows_file.unlink()
        for made in (BEGINNING, IMAGES) if processes.rank == 0 else ():
            (request.output / made).unlink()
        raise ConfigError(
            f"backbone {beginning.config.backbone!r} gives all {len(rows):,} images the same features: it "
            "does not look at pictures, its weights are damaged, or all pictures are equal; nothing was kept",
            "backbone",
        )
    known, kept_aside, others = rows.split([len(labelled), len(held_out), len(listing.unlabelled_images)])
    labelled_class, held_out_class = (
        torch.tensor([c for _, c in part], dtype=torch.int64) for part in (listing.training, listing.held_out)
    )
    features = Features(known, kept_aside, others, labelled_class, held_out_class, beginning.encoder)
    if processes.rank == 0:
        features.write(file)
    processes.told(None)  # it is written
    rows_file.unlink()
    return features


def _alike(rows: Tensor) -> bool:
    unit = F.normalize(rows, dim=1)
    return bool((unit - unit[0]).abs().max() < LEAST_DIFFERENCE)


def _passes(beginning: Beginning, world: int) -> float:
    """The rough cost of a training with its rehearsal, in passes of an image through the encoder.

    The epochs are shared; one process makes the trunk cache and the reference model, and the others wait.
    """
    config = beginning.config
    shared = TAIL_COST * 2 * config.epochs * (1 + 1 / REHEARSAL_SHARE)
    alone = config.cache_views + 1 + TAIL_COST * 2 * config.reference_epochs
    return beginning.images * (alone * world + shared)


# Answers ----------------------------------------------------------------------------------------------------


class First(NamedTuple):
    """The first answer, and where a training starts."""

    candidate: Candidate
    categories: Tensor  # (M + N,) of labelled, then unlabelled images
    rehearsal: tuple[Rehearsal, Tensor] | None  # classes that play novel, and the categories without them


def _first(
    begun: Begun,
    features: Features,
    asked: Asked,
    rehearse: bool,
    say: Callable[[str], None],
    processes: Processes = ALONE,
) -> First:
    """The first answer; with `rehearse` also the rehearsal's, to compare it with a training."""
    known, seed = begun.beginning.known, begun.beginning.config.seed
    start = time.perf_counter()
    number = processes.told(asked.of(features, known, seed) if processes.rank == 0 else None)
    if number.estimated:
        say(number.text)
    found = shared_first_answer(
        features.rows, features.label, number.k, known, seed=seed, processes=processes
    )
    clustering = Clustering(
        kind="first",
        features=FEATURES,
        known=known,
        k=number.k,
        seed=seed,
        k_estimated=number.estimated,
        k_range=number.range,
        k_text=number.text,
        metric=found.metric,
        centres=found.centres,
        sampled=found.sampled,
        shares=found.shares,
    )
    seconds = time.perf_counter() - start
    answer = answer_of(found, features)
    holdout, rehearsed, counted = None, None, None
    if len(features.held_out_class):
        right = int((answer.held_out.argmax(1) == features.held_out_class).sum())
        holdout = right, len(features.held_out_class)
    if rehearse and (rehearsal := rehearsal_of(features, known)) is not None:
        visible = len(rehearsal.visible)
        without = shared_first_answer(
            features.rows, rehearsal.label, number.k, visible, seed=seed, processes=processes
        )
        rehearsed, counted = (rehearsal, without.assignment), found_together(without.assignment, rehearsal)
    candidate = Candidate("first", answer, clustering, features, seconds, holdout, counted)
    return First(candidate, found.assignment, rehearsed)


def _trained(
    request: Request,
    begun: Begun,
    features: Features,
    first: First,
    say: Callable[[str], None],
    processes: Processes = ALONE,
) -> tuple[list[Candidate], str]:
    """All candidates after a training, and whether it is "done" or "stopped" without a result."""
    from eagc_ops.discovery.training import trained_candidates  # what no first answer needs

    try:
        others = trained_candidates(
            request.output, begun.beginning, begun.listing, features, first.candidate, first.categories,
            first.rehearsal, say, processes,
        )  # fmt: skip
    except FloatingPointError as error:  # it diverged
        say(f"training stopped: {error}")
        return [first.candidate], "stopped"
    return [first.candidate, *others], "done"


def _written(
    request: Request,
    begun: Begun,
    candidates: Sequence[Candidate],
    training: str,
    truth: list[str] | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Write the candidate that is kept. `training`: done, stopped, or a key of `SENTENCES`."""
    kept = keep(candidates)
    trained = kept.kind != "first"
    if training in SENTENCES:
        sentence = FIRST + SENTENCES[training]
    else:
        sentence = kept_line(candidates, kept)
        sentence = f"{sentence[0].upper()}{sentence[1:]}."
    story = {
        "kind": kept.kind,
        "training": training if training in ("done", "stopped", "to come") else "none",
        "sentence": sentence,
        "candidates": [candidate.record(candidate is kept) for candidate in candidates],
    }
    config = begun.beginning.config
    content = write_answer(
        request.output,
        begun.beginning,
        begun.listing,
        kept.features,
        kept.answer,
        kept.clustering,
        Story(story, config.method if trained else None, config.has_operator if trained else None),
        truth=truth,
        links=request.sort_into,
    )
    for line in _summary(content, request):
        say(line)
    return content


def duration(seconds: float) -> str:
    """A time in words, in whole units.

    >>> duration(0.2), duration(44), duration(250), duration(5000)
    ('1 s', '44 s', '4 min', '1 h 23 min')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _truth(request: Request, listing: Listing) -> list[str] | None:
    """The true classes of the unlabelled images, in their order, if there is a file."""
    file = request.truth
    if file is None:
        return None
    home = listing.unlabelled if os.path.isdir(listing.unlabelled) else os.path.dirname(listing.unlabelled)
    try:
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as opened:
            rows = csv.DictReader(opened)
            if not {"path", "class"} <= {*(rows.fieldnames or ())}:
                raise PlaceError(f"truth {file} must begin with the line path,class", "truth")
            classes = {os.path.normpath(os.path.join(home, row["path"])): row["class"] for row in rows}
    except (csv.Error, TypeError) as error:
        raise PlaceError(
            f"truth {file} is no .csv file with the columns path,class ({error})", "truth"
        ) from error
    missing = [path for path in listing.unlabelled_images if not classes.get(os.path.normpath(path))]
    if missing:
        raise PlaceError(
            f"truth {file} has no class for {len(missing):,} of {len(listing.unlabelled_images):,} "
            f"unlabelled images, the first is {missing[0]}; paths are absolute, or relative to {home}",
            "truth",
        )
    return [classes[os.path.normpath(path)] for path in listing.unlabelled_images]


def _summary(content: dict[str, Any], request: Request) -> list[str]:
    """The result, in lines."""
    entries, images = content["categories"], content["images"]
    new = [entry for entry in entries if entry["kind"] == "new"]
    doubtful = sum(entry["doubtful"] for entry in new)
    how = "estimated" if content["k_estimated"] else "given"
    if content["k_range"]:
        how += f", between {content['k_range'][0]} and {content['k_range'][1]}"
    word = "category" if len(new) == 1 else "categories"
    shares = [images[status] / images["unlabelled"] for status in ("doubtful", "nowhere")]
    lines = [content["answer"]["sentence"]]
    if content["empty"]:
        trust = ": do not trust this answer" if collapsed(content["empty"], content["k"]) else ""
        lines.append(f"{content['empty']} of the {content['k']} categories stayed empty{trust}")
    lines += [f"warning: {said}" for said in content["warnings"]]
    lines.append(
        f"found {len(new)} new {word} ({doubtful} doubtful) beside {len(entries) - len(new)} known ones; K = "
        f"{content['k']}, {how}. Of the {images['unlabelled']:,} images, {shares[0]:.1%} are doubtful and "
        f"{shares[1]:.1%} fit nowhere"
    )
    for entry in new[:LISTED]:
        near = entry["nearest_known"]
        lines.append(
            f"  {entry['name']:8} {entry['size']:6,} images, nearest to {near['name']} "
            f"({near['similarity']:.2f})" + (f"; doubtful: {entry['why']}" if entry["doubtful"] else "")
        )
    if len(new) > LISTED:
        lines.append(f"  ... and {len(new) - LISTED} more")
    if content["holdout"]:
        said = accuracy_text(content["holdout"])
        lines.append(
            f"accuracy on known categories: {said['share']} ({said['of']}; 95 % confidence interval: "
            f"{said['interval']})"
        )
    if content["truth"]:
        lines.append(f"compared with {request.truth}: {scores_text(content['truth'])}")
    page, folder = request.output / PAGE, shlex.quote(str(request.output))
    return [
        *lines,
        f"page: {page} ({page_size(page)})",
        f"look at it and correct it:  eagc open {folder}",
        f"sort other images:          eagc predict {folder} IMAGES",
    ]
