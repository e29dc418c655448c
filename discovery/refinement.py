"""`eagc refine` and the folders of `eagc open`: apply a person's corrections in a discovery's folder.

>>> from eagc_ops.discovery import refine
>>> found = refine("found", "edits.json")  # doctest: +SKIP
>>> found["changes"]["sentence"]  # doctest: +SKIP
'4 images were corrected and 1 category was named; 23 other images changed their category.'
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.app.places import PlaceError, readable_file
from eagc_ops.discovery.answer_files import Answer, Story, write_answer
from eagc_ops.discovery.beginning import Beginning
from eagc_ops.discovery.category_files import plain, quoted, sort_into
from eagc_ops.discovery.edits import EDITS, Edits, read_edits
from eagc_ops.discovery.frozen import Clustering, Features
from eagc_ops.discovery.page import page_size
from eagc_ops.discovery.places import CATEGORIES_JSON, IMAGES, check_links
from eagc_ops.discovery.refining import Present, Refined, changes_between, edited, refined
from eagc_ops.training.analysis.first_answer import probabilities_of
from eagc_ops.training.data.listing import Listing
from eagc_ops.training.engine.run_folder import writing

__all__ = ["refine", "sorted_folders"]

VERSION = 2  # of CATEGORIES_JSON


def refine(folder: str | Path, edits: str | Path, *, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Make a new answer from the corrections in the file `edits`; returns the content of categories.json.

    It trains nothing and encodes no image: it uses the features of the discovery.
    """
    folder, edits = Path(folder), Path(edits)
    with writing(folder):
        return _refine(folder, edits, say)


def _refine(folder: Path, file: Path, say: Callable[[str], None]) -> dict[str, Any]:
    begin = time.perf_counter()
    found = _found(folder)
    listing, kept = Listing.read(folder / IMAGES), Clustering.read(folder)
    paths = listing.unlabelled_images
    edits = read_edits(file, found, paths)
    if edits.empty:
        raise PlaceError(
            f"EDITS {file}: nothing was changed; change something on the page, and save it again"
        )
    features = Features.read(folder / kept.features)
    present = _present(folder, found, listing)
    start = edited(present, edits, paths, _points(kept, features), seed=kept.seed)
    answer = refined(features.rows, features.label, start, seed=kept.seed)
    number = found["round"] + 1
    changes = changes_between(present, start, answer, edits, paths, number)
    content = write_answer(
        folder,
        Beginning.read(folder),
        listing,
        features,
        _answer(answer, features),
        Clustering(
            kind="refined",
            features=kept.features,
            known=kept.known,
            k=len(answer.names),
            seed=kept.seed,
            k_estimated=False,
            k_range=None,
            k_text=f"{kept.k_text} Corrections of a person made it {len(answer.names):,}.",
            metric=answer.metric,
            centres=answer.centres,
        ),
        Story(
            _story(found, number),
            method=found["method"],
            eagc=found["eagc"],
            round=number,
            changes=changes,
            named={i: name for i, name in enumerate(answer.names) if i >= kept.known},
            corrected=start.fixed,
        ),
    )
    say(changes["sentence"])
    page = folder / "discovered.html"
    say(f"round {number}, in {time.perf_counter() - begin:.0f} s: {page} ({page_size(page)})")
    return content


def _answer(answer: Refined, features: Features) -> Answer:
    count = len(features.labelled)
    held_out = probabilities_of(answer.metric(features.held_out), answer.centres)
    return Answer(answer.points[count:], answer.probabilities[count:], answer.points[:count], held_out)


def _story(found: Mapping[str, Any], number: int) -> dict[str, Any]:
    after = "your corrections" if number == 1 else f"{number} rounds of your corrections"
    return {
        "kind": "refined",
        "training": found["answer"]["training"],
        "sentence": f"This is the answer after {after}: these hold, and the other images were sorted again.",
        "candidates": [],
    }


def _found(folder: Path) -> dict[str, Any]:
    file = folder / CATEGORIES_JSON
    readable_file("FOUND", file, "name the output folder of a complete `eagc discover`")
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PlaceError(f"FOUND {file} is damaged ({error}); run its `eagc discover` again") from error
    if found.get("version") != VERSION:
        raise PlaceError(
            f"FOUND {folder} was written by another version of this package; run `eagc discover` in a new "
            "folder"
        )
    return found


def _present(folder: Path, found: Mapping[str, Any], listing: Listing) -> Present:
    """The answer in a folder, with images in the order of the listing."""
    new = [category for category in found["categories"] if category["kind"] == "new"]
    names = [*listing.classes, *(category["name"] for category in new)]
    number = {name: i for i, name in enumerate(names)}
    # surrogateescape: a file name may be no text at all.
    with open(folder / "assignments.csv", newline="", encoding="utf-8", errors="surrogateescape") as lines:
        rows = {row["path"]: row for row in csv.DictReader(lines)}
    own = [rows[path] for path in listing.unlabelled_images]
    return Present(
        names,
        len(listing.classes),
        torch.tensor([number[plain(row["category"])] for row in own]),
        torch.tensor([row["status"] == "corrected" for row in own]),
        frozenset(category["name"] for category in new if category["named"]),
    )


def _points(kept: Clustering, features: Features) -> Tensor:
    """The points of the unlabelled images in the present answer."""
    if kept.metric is None:
        return F.normalize(features.unlabelled, dim=1)
    return kept.metric(features.unlabelled)


def sorted_folders(folder: Path, target: Path) -> str:
    """Make a folder of links for each category, by the answer and edits.json; returns the message."""
    found, listing = _found(folder), Listing.read(folder / IMAGES)
    paths, present = listing.unlabelled_images, _present(folder, found, listing)
    file = folder / EDITS
    same = (
        file.exists() and json.loads(file.read_text(encoding="utf-8")).get("discovery") == found["discovery"]
    )
    start = edited(present, read_edits(file, found, paths) if same else Edits(), paths)
    names = [
        present.names[before] if now < 0 else start.names[now]
        for before, now in zip(present.category.tolist(), start.category.tolist())
    ]
    check_links(target, Path(listing.labelled), Path(listing.unlabelled), folder)
    linked = sort_into(target, zip(paths, map(quoted, names)))
    return f"Folders of {'links' if linked else 'copies'}, one for each category: {target.absolute()}"
