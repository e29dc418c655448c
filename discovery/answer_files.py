"""Writing an answer: assignments.csv, map.csv, categories.json, the page, and what places other images.

`eagc discover` and `eagc refine` both end here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eagc_ops.app.files import atomic_write, fingerprint
from eagc_ops.discovery.beginning import Beginning
from eagc_ops.discovery.categories import RULES, Found, find_categories
from eagc_ops.discovery.category_files import (
    ASSIGNMENTS,
    assignment_rows,
    category_entry,
    csv_text,
    sort_into,
    write_json,
    write_map,
)
from eagc_ops.discovery.frozen import Clustering, Features
from eagc_ops.discovery.page import write_page
from eagc_ops.discovery.places import ANSWER, CATEGORIES, CATEGORIES_JSON
from eagc_ops.training.analysis.accuracy import accuracy, wilson
from eagc_ops.training.analysis.first_answer import FirstAnswer, spread
from eagc_ops.training.analysis.map_2d import map_2d
from eagc_ops.training.config import Config
from eagc_ops.training.data.listing import Listing
from eagc_ops.training.engine.checkpoint import load_checkpoint, save_checkpoint, tensor_digest
from eagc_ops.training.engine.run_folder import finite

__all__ = ["Answer", "Story", "answer_of", "write_answer"]

VERSION = 2
_MAP = "map.safetensors"


class Answer(NamedTuple):
    """The category of every image in an answer."""

    points: Tensor  # (N, d) of the unlabelled images: under the metric, or features of a trained network
    probabilities: Tensor  # (N, K) of them
    labelled: Tensor  # (M, d), points of the labelled images
    held_out: Tensor  # (H, K), probabilities of the held-out images


class Story(NamedTuple):
    """What categories.json says about an answer, apart from its images."""

    answer: dict[str, Any]
    method: str | None = None  # of the training behind this answer
    eagc: bool | None = None
    round: int = 0
    changes: dict[str, Any] | None = None
    named: Mapping[int, str] | None = None  # as for `find_categories`
    corrected: Tensor | None = None


def answer_of(found: FirstAnswer, features: Features) -> Answer:
    """The answer that follows from a clustering of `features.rows`."""
    count = len(features.labelled)
    held_out = spread(found.metric(features.held_out), found.sampled, found.shares)
    return Answer(found.points[count:], found.probabilities[count:], found.points[:count], held_out)


def write_answer(
    output: Path,
    beginning: Beginning,
    listing: Listing,
    features: Features,
    answer: Answer,
    kept: Clustering,
    story: Story,
    *,
    truth: Sequence[str] | None = None,
    links: Path | None = None,
) -> dict[str, Any]:
    """Write all files of an answer; returns the content of categories.json.

    Args:
        features: the features behind the answer.
        kept: the record that `eagc predict` and `eagc refine` read.
        truth: the true classes of the unlabelled images, if known.
        links: folder for links to the images, with one folder per category.
    """
    paths = listing.unlabelled_images
    found = find_categories(
        answer.points,
        answer.probabilities,
        answer.labelled,
        features.labelled_class,
        listing.classes,
        named=story.named,
        corrected=story.corrected,
    )
    rows = assignment_rows(paths, found.placed, found.categories)
    places, map_text = _map(output, answer.points, stays=story.round > 0)
    kept.write(output / ANSWER)
    found.categories.write(output / CATEGORIES)
    atomic_write(output / "assignments.csv", csv_text(ASSIGNMENTS, rows))
    write_map(output / "map.csv", paths, places)
    taken = torch.cat([features.labelled_class, found.placed.category]).bincount(minlength=kept.k)
    holdout = _holdout(answer, features)
    content = {
        "version": VERSION,
        "discovery": fingerprint([found.categories.names, found.placed.category.tolist(), story.round])[:16],
        "labelled": listing.labelled,
        "unlabelled": listing.unlabelled,
        "backbone": beginning.config.backbone,
        "weights": _weights(beginning.config),
        "method": story.method,
        "eagc": story.eagc,
        "k": kept.k,
        "k_estimated": kept.k_estimated,
        "k_range": kept.k_range and list(kept.k_range),
        "k_text": kept.k_text,
        "answer": story.answer,
        "images": {
            "labelled": len(listing.training),
            "held_out": len(listing.held_out),
            "unlabelled": len(paths),
            **{status: found.placed.status.count(status) for status in ("doubtful", "nowhere")},
        },
        "empty": int((taken == 0).sum()),
        "warnings": [],
        "holdout": holdout,
        "rules": RULES,
        "map": map_text,
        "truth": _scores(truth, listing, found),
        "round": story.round,
        "changes": story.changes,
        "categories": [category_entry(entry, paths) for entry in found.listed],
    }
    content["warnings"] = _warnings(content, features, kept)
    write_json(output / CATEGORIES_JSON, content)
    write_page(output, progress=True)
    if links is not None:
        sort_into(links, rows)
    return content


def _map(output: Path, points: Tensor, stays: bool) -> tuple[Tensor, str]:
    """The map of the points. It is stored, because it takes longer than an answer.

    If it `stays`, use the stored one: after corrections, people find every image where it was.
    """
    file, digest = output / _MAP, tensor_digest({"points": points})
    if file.exists():
        tensors, state = load_checkpoint(file)
        if stays or state["of"] == digest:
            return tensors["map"], state["text"]
    places = map_2d(points)
    save_checkpoint(file, {"map": places.points}, {"of": digest, "text": places.text})
    return places.points, places.text


def _holdout(answer: Answer, features: Features) -> dict[str, Any] | None:
    label = features.held_out_class
    if not len(label):
        return None
    right = int((answer.held_out.argmax(1) == label).sum())
    return {"images": len(label), "right": right, "accuracy": right / len(label)}


def _scores(truth: Sequence[str] | None, listing: Listing, found: Found) -> dict[str, float | None] | None:
    """All, Old and New, if the truth is known."""
    if truth is None:
        return None
    new = sorted({*truth} - {*listing.classes})
    label = {name: i for i, name in enumerate((*listing.classes, *new))}
    classes = torch.tensor([label[name] for name in truth])
    return finite(accuracy(found.placed.category, classes, len(listing.classes))._asdict())


def _weights(config: Config) -> str:
    return "own" if ":" in config.backbone and config.weights == "pretrained" else config.weights


def _warnings(content: Mapping[str, Any], features: Features, kept: Clustering) -> list[str]:
    """What the page must warn about. Empty categories are its headline."""
    said = []
    if content["weights"] == "random":
        said.append("The encoder has random weights, so the categories mean nothing. Use trained weights.")
    holdout = content["holdout"]
    if holdout is not None:
        chance = features.labelled_class.bincount().max().item() / len(features.labelled_class)
        low, _ = wilson(holdout["right"], holdout["images"])
        if low <= chance:
            said.append(
                f"The features hardly tell your own categories apart: only {holdout['right']} of "
                f"{holdout['images']} held-out labelled images are recognized, and guessing gives "
                f"{chance:.0%}. This backbone may not suit such pictures."
            )
    if kept.k_estimated and kept.k_range is None:
        said.append(
            f"The number of categories, {kept.k}, is only a guess: the features do not show how many there "
            "are. If you know it, pass --k."
        )
    return said
