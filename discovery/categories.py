"""The result for unlabelled images: the category of every image, how sure it is, and its neighbours.

An image belongs to the category with the highest probability. The center of a category is the mean direction
of its images' features, labelled images included. The images themselves decide how far from the center an
image may be.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.training.engine.checkpoint import load_checkpoint, save_checkpoint

__all__ = [
    "RULES",
    "Categories",
    "Category",
    "Found",
    "Placed",
    "find_categories",
    "place",
    "read_categories",
]

LEAST_MARGIN = 0.2
FENCE = 3.0  # interquartile ranges above the third quartile: "far out" in Tukey's words
ENOUGH = 20  # images before quartiles mean something
LEAST_SIZE = 3
# How far apart the centers of two parts of one category are, in mean distances of its images: in a metric of
# many directions, images are far from their own center, and other categories not much farther.
NEAR = 0.5
EXAMPLES = 12

RULES = {
    "doubtful": "an image is doubtful if its category is less than "
    f"{LEAST_MARGIN:g} more likely than the second one",
    "nowhere": f"an image fits nowhere if it is farther from the center of its category than {FENCE:g} "
    "interquartile ranges above the third quartile of the distances of the category's images (of all "
    f"images, for a category with fewer than {ENOUGH})",
    "doubtful_category": f"a category is doubtful if it is new and has fewer than {LEAST_SIZE} images, if "
    "fewer than half of its images are clear, or if it is new and its center is at most half as far from "
    "that of a known category as the images of that category are on average",
}
CLEAR, DOUBTFUL, NOWHERE, CORRECTED = "clear", "doubtful", "nowhere", "corrected"
SURE = (CLEAR, CORRECTED)


class Categories(NamedTuple):
    """K categories, in the order of the classes and clusters of the run."""

    names: list[str]  # of known classes, or new-1, new-2, ... by size, largest first
    known: int  # the first categories are known
    centers: Tensor  # (K, D) float32, unit norm; 0 for an empty category
    limits: Tensor  # (K,) float32: images beyond this distance fit nowhere

    def write(self, file: Path) -> None:
        """Write them, to place other images later."""
        tensors = {"centers": self.centers, "limits": self.limits}
        save_checkpoint(file, tensors, {"names": self.names, "known": self.known})


class Placed(NamedTuple):
    """N images, placed in categories."""

    category: Tensor  # (N,) int64
    confidence: Tensor  # (N,) probability of the category
    margin: Tensor  # (N,) confidence minus the probability of the second
    distance: Tensor  # (N,) cosine distance to the center of the category
    status: list[str]  # clear, doubtful, nowhere, or corrected by a person


class Category(NamedTuple):
    """A category with at least one image, or a known one. Images are positions among the unlabelled ones."""

    name: str
    kind: str  # known or new
    size: int  # unlabelled images
    labelled: int  # images with this label, corrected ones included; held-out ones are not
    doubtful: bool
    why: str  # it is doubtful
    confidence: float  # mean over images; 0 without any
    nearest_known: tuple[str, float] | None  # another known category, and the cosine of the centers
    typical: list[int]  # nearest to the center first
    doubtful_images: list[int]  # least margin first
    named: bool  # whether a person gave a new category its name


class Found(NamedTuple):
    """All results for the unlabelled images."""

    placed: Placed
    categories: Categories
    listed: list[Category]  # known ones, then new ones by size


def read_categories(file: Path) -> Categories:
    """Read what `Categories.write` wrote."""
    tensors, state = load_checkpoint(file)
    return Categories(**{**state, **tensors})


def find_categories(
    z: Tensor,
    probabilities: Tensor,
    labelled_z: Tensor,
    label: Tensor,
    known_names: Sequence[str],
    *,
    named: Mapping[int, str] | None = None,
    corrected: Tensor | None = None,
) -> Found:
    """Place unlabelled images, and describe their categories.

    Args:
        z, probabilities: (N, D) and (N, K) of the unlabelled images.
        labelled_z, label: (M, D) and (M,) of the labelled training images.
        known_names: names of the known classes; the other K - known classes are new.
        named: names that new categories have already, by their number. A name like new-3 was not given by a
            person.
        corrected: (N,) bool, the images whose category a person has chosen.
    """
    known, named = len(known_names), dict(named or {})
    category = probabilities.argmax(1)
    rows, members = torch.cat([labelled_z, z]), torch.cat([label, category])
    sizes = category.bincount(minlength=probabilities.shape[1])
    order = sorted(range(known, len(sizes)), key=lambda k: (-int(sizes[k]), k))
    names = [*known_names, *[""] * len(order)]
    free = (name for i in itertools.count(1) if (name := f"new-{i}") not in named.values())
    for k in order:
        names[k] = named.get(k) or next(free)
    centers = _centers(rows, members, len(sizes))
    distance = 1 - (F.normalize(rows, dim=1) * centers[members]).sum(1)
    found = Categories(names, known, centers, _limits(distance, members, len(sizes)))
    placed = place(found, z, probabilities)
    labels = label
    if corrected is not None:
        labels = torch.cat([label, category[corrected]])
        status = [CORRECTED if by else own for by, own in zip(corrected.tolist(), placed.status)]
        placed = placed._replace(status=status)
    count = labels.bincount(minlength=len(sizes)).tolist()
    listed = [
        _describe(found, placed, k, distance, members, count[k], _by_person(named.get(k)))
        for k in (*range(known), *order)
    ]
    return Found(placed, found, [entry for entry in listed if entry.kind == "known" or entry.size])


def _by_person(name: str | None) -> bool:
    return name is not None and re.fullmatch(r"new-[0-9]+", name) is None


def place(found: Categories, z: Tensor, probabilities: Tensor) -> Placed:
    """Place images of features z (N, D) and probabilities (N, K)."""
    best, category = probabilities.max(1)
    others = probabilities.scatter(1, category[:, None], -1.0)
    margin = best - others.amax(1).clamp(min=0)
    distance = 1 - (F.normalize(z, dim=1) * found.centers[category]).sum(1)
    far, unsure = distance > found.limits[category], margin < LEAST_MARGIN
    status = [NOWHERE if a else DOUBTFUL if b else CLEAR for a, b in zip(far.tolist(), unsure.tolist())]
    return Placed(category, best, margin, distance, status)


def _centers(rows: Tensor, members: Tensor, k: int) -> Tensor:
    """Mean directions (k, D) of the rows of each category."""
    member = F.one_hot(members, k).to(rows.dtype)
    return F.normalize(member.T @ F.normalize(rows, dim=1), dim=1)


def _limits(distance: Tensor, members: Tensor, k: int) -> Tensor:
    own = [distance[members == i] for i in range(k)]
    return torch.stack([_fence(part if len(part) >= ENOUGH else distance) for part in own])


def _fence(distance: Tensor) -> Tensor:
    # On equal images the quartiles agree, and rounding must not put one of them beyond the fence.
    first, third = distance.double().quantile(torch.tensor([0.25, 0.75], dtype=torch.float64))
    return (third + FENCE * (third - first) + 1e-6).float()


def _describe(
    found: Categories,
    placed: Placed,
    k: int,
    distance: Tensor,
    members: Tensor,
    labelled: int,
    named: bool,
) -> Category:
    own = (placed.category == k).nonzero().flatten()
    kind = "known" if k < found.known else "new"
    nearest = _nearest_known(found, k) if len(own) or kind == "known" else None
    status = [placed.status[i] for i in own.tolist()]
    near_first = own[placed.distance[own].argsort(stable=True)].tolist()
    unsure_first = own[placed.margin[own].argsort(stable=True)].tolist()
    why = []
    if len(own) < LEAST_SIZE and kind == "new":
        why.append(f"it has only {len(own)} image{'s' * (len(own) != 1)}")
    sure = status.count(CLEAR) + status.count(CORRECTED)
    if 2 * sure < len(own):
        why.append(f"{len(own) - sure} of its {len(own)} images are not clear")
    if kind == "new" and nearest is not None:
        theirs = distance[members == found.names.index(nearest[0])]
        if len(theirs) and 1 - nearest[1] <= NEAR * theirs.mean():
            why.append(f"its center is so near to that of {nearest[0]} that it may be a part of it")
    return Category(
        name=found.names[k],
        kind=kind,
        size=len(own),
        labelled=labelled,
        doubtful=bool(why),
        why="; ".join(why),
        confidence=float(placed.confidence[own].mean()) if len(own) else 0.0,
        nearest_known=nearest,
        typical=[i for i in near_first if placed.status[i] in SURE][:EXAMPLES] or near_first[:EXAMPLES],
        doubtful_images=[i for i in unsure_first if placed.status[i] not in SURE][:EXAMPLES],
        named=named,
    )


def _nearest_known(found: Categories, k: int) -> tuple[str, float] | None:
    cosines = found.centers[: found.known] @ found.centers[k]
    if k < found.known:
        cosines[k] = -torch.inf
        if found.known == 1:
            return None
    nearest = int(cosines.argmax())
    return found.names[nearest], float(cosines[nearest])
