"""A new answer from a person's corrections: these hold, and the other images are sorted again.

`edited` turns the edits of an answer into a start: the present categories, the category of each image,
and which images a person has placed. `refined` sorts the other images again. The categories of the start
keep their places and names, so nothing has to be matched. A category that a person named is never lost:
its most typical images stay, and teach the metric as labelled ones do.

>>> nothing = torch.zeros(4, dtype=torch.bool)
>>> present = Present(["cat", "new-1", "new-2"], 1, torch.tensor([0, 1, 1, 2]), nothing)
>>> edits = Edits(names={"new-2": "heron"}, move={"b.jpg": "cat"})
>>> start = edited(present, edits, ["a.jpg", "b.jpg", "c.jpg", "d.jpg"])
>>> start.names, start.category.tolist(), start.fixed.tolist()
(['cat', 'new-1', 'heron'], [0, 0, 1, 2], [False, True, False, False])
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.app.places import PlaceError
from eagc_ops.discovery.edits import Edits, same_name
from eagc_ops.metric import LabelMetric, usual_directions
from eagc_ops.training.analysis.constrained_kmeans import constrained_kmeans, lloyd, mean_directions
from eagc_ops.training.analysis.first_answer import (
    NEIGHBOURS,
    SHARES_OF_DIRECTIONS,
    probabilities_of,
    sample_of_rows,
    smoothed,
)

__all__ = ["Present", "Refined", "Start", "changes_between", "edited", "refined"]

STAYS = 0.1  # bonus for the present category, so that few images move without a reason
TYPICAL = 5  # images of a named category that count as labelled, so that it is not lost


class Present(NamedTuple):
    """The answer that was edited."""

    names: list[str]  # of all categories; the known ones come first
    known: int
    category: Tensor  # (N,) int64 of the unlabelled images
    corrected: Tensor  # (N,) bool: a person has put the image there
    named: frozenset[str] = frozenset()  # the new categories that a person has named


class Start(NamedTuple):
    """The state after the edits."""

    names: list[str]  # K of them, the known ones first
    known: int
    category: Tensor  # (N,) int64; -1 of an image whose category was dissolved
    fixed: Tensor  # (N,) bool: a person has put the image there, now or before
    named: frozenset[str]
    called: list[str]  # the present names of the earlier categories
    changes: dict[str, Any]  # the part of `changes` in categories.json that the edits decide


class Refined(NamedTuple):
    """The answer to a start, with the rows of the features."""

    names: list[str]  # of the categories that are left
    category: Tensor  # (N,) int64 of the unlabelled images
    probabilities: Tensor  # (M + N, K) fp32; 1 for what is labelled or fixed
    points: Tensor  # (M + N, d) fp32, unit norm: the rows under the metric
    metric: LabelMetric
    centres: Tensor  # (K, d), unit norm


# What the edits ask for -------------------------------------------------------------------------------------


def edited(
    present: Present, edits: Edits, paths: Sequence[str], points: Tensor | None = None, seed: int = 0
) -> Start:
    """Apply checked `edits` to the present answer.

    Args:
        paths: the N unlabelled images.
        points: (N, d) of unit norm, which decide how to split a category; None: no category is split.
    """
    present = _with_made(present, edits)
    gone = {present.names.index(name) for name in edits.not_one_category}
    names: list[str] = []
    named, merged = set(), []
    number = torch.full((len(present.names),), -1)
    called = list(present.names)
    for members in _groups(present, edits):
        if members[0] in gone:
            continue
        name, by_person = _name(present, edits, members)
        number[members] = len(names)
        names.append(name)
        if by_person:
            named.add(name)
        if len(members) > 1:
            merged.append([name, *(called[i] for i in members if called[i] != name)])
        for i in members:
            called[i] = name
    category = number[present.category]
    fixed = present.corrected & (category >= 0)  # corrections to a dissolved category do not count
    place = {same_name(name): i for i, name in enumerate(names)}
    place |= {same_name(name): int(number[i]) for i, name in enumerate(present.names) if number[i] >= 0}
    index, confirmed = {path: i for i, path in enumerate(paths)}, 0
    for path, to in edits.move.items():
        i, there = index[path], place[same_name(to)]
        confirmed += int(category[i] == there)
        category[i], fixed[i] = there, True
    split = {}
    for name, parts in edits.split.items():
        whole, fresh = place[same_name(name)], _fresh_names([*names, *present.names], parts - 1)
        if points is not None:
            _split(category, fixed, points, whole, parts, len(names), seed)
            names += fresh
        split[name] = [names[whole], *fresh]
    changes = {
        "names": {old: _clean(new) for old, new in edits.names.items()},
        "merged": merged,
        "split": split,
        "dissolved": list(edits.not_one_category),
        "corrected": len(edits.move) - confirmed,
        "confirmed": confirmed,
    }
    return Start(names, present.known, category, fixed, frozenset(named), called, changes)


def _clean(name: str) -> str:
    return " ".join(name.split())


def _with_made(present: Present, edits: Edits) -> Present:
    """The present answer plus the categories, still empty, that moves to new names create."""
    there = {same_name(name) for name in (*present.names, *edits.names.values())}
    made = {same_name(to): _clean(to) for to in reversed(edits.move.values()) if same_name(to) not in there}
    fresh = list(reversed(made.values()))
    return present._replace(names=[*present.names, *fresh], named=present.named | {*fresh})


def _groups(present: Present, edits: Edits) -> list[list[int]]:
    """Groups of merged categories, known ones first; every other category is its own group."""
    number = {same_name(name): i for i, name in enumerate(present.names)}
    together: list[set[int]] = [{i} for i in range(len(present.names))]

    def join(some: set[int]) -> None:
        nonlocal together
        touched = [group for group in together if group & some]
        together = [group for group in together if not group & some] + [set().union(*touched)]

    for group in edits.merge:
        join({number[same_name(name)] for name in group})
    titles: dict[str, int] = {}
    for i, name in enumerate(present.names):
        title = same_name(edits.names.get(name, name))
        join({i, titles.setdefault(title, i)})
    for members in together:
        if len(known := sorted(present.names[i] for i in members if i < present.known)) > 1:
            raise PlaceError(
                f"edits.json, merge: {known[0]!r} and {known[1]!r} are known categories and stay two; merge "
                "their folders and start a new discovery"
            )
    return sorted(sorted(members) for members in together)


def _name(present: Present, edits: Edits, members: Sequence[int]) -> tuple[str, bool]:
    """The name of a group, and whether a person named this new category."""
    if members[0] < present.known:
        return present.names[members[0]], False
    own = [present.names[i] for i in members]
    for name in own:
        if name in edits.names:
            return " ".join(edits.names[name].split()), True
    of_person = [name for name in own if name in present.named]
    if of_person:
        first = next((group[0] for group in edits.merge if group[0] in of_person), of_person[0])
        return first, True
    return next((group[0] for group in edits.merge if group[0] in own), own[0]), False


def _fresh_names(taken: Sequence[str], count: int) -> list[str]:
    used = {same_name(name) for name in taken}
    return list(itertools.islice((n for i in itertools.count(1) if (n := f"new-{i}") not in used), count))


def _split(
    category: Tensor, fixed: Tensor, points: Tensor, whole: int, parts: int, first: int, seed: int
) -> None:
    """Put the images of a category into parts, in place: `whole`, `first`, `first` + 1, ...

    Images that a person put there stay; if there are none, the largest part stays.
    """
    own = (category == whole).nonzero().flatten()
    parts = min(parts, len(own))
    if parts < 2:
        return
    kept = fixed[own]
    label = torch.where(kept, 0, -1)
    found = constrained_kmeans(points[own], label, parts, known=int(kept.any()), seed=seed).labels
    order = found.bincount(minlength=parts).argsort(descending=True, stable=True).tolist()
    if kept.any():
        order.remove(0)
        order.insert(0, 0)
    for place, part in enumerate(order[1:]):
        category[own[found == part]] = first + place


# The answer to it -------------------------------------------------------------------------------------------


@torch.no_grad()
def refined(
    features: Tensor,
    label: Tensor,
    start: Start,
    *,
    seed: int = 0,
) -> Refined:
    """Sort the images again that no person has placed.

    As in `first_answer`, several views of the rows are clustered, here from the categories of the start. The
    mean of their probabilities decides, with a small bonus for the category of the start. Unnamed categories
    that lose all images are left out.

    Args:
        features: (M + N, D) of labelled, then unlabelled images.
        label: (M + N,) int64, the class of a labelled row, -1 for an unlabelled row.
    """
    k, free = len(start.names), label < 0
    own = label.clone()
    own[free] = torch.where(start.fixed, start.category, -1)
    now = label.clone()
    now[free] = start.category
    taught = _with_typical(LabelMetric.fit(features, own)(features), own, now, start)
    chosen = sample_of_rows(taught, seed)
    rows, kept, before = features[chosen], taught[chosen], now[chosen]
    sizes = [max(1, round(share * usual_directions(len(rows)))) for share in SHARES_OF_DIRECTIONS]
    views = [LabelMetric.fit(rows, kept, directions=directions) for directions in sizes]
    metric, shares = views[0], torch.zeros(len(chosen), k)
    for view in views:
        for neighbours in (NEIGHBOURS, 0):
            points = smoothed(view(rows), neighbours)
            clusters = lloyd(points, kept, mean_directions(points, before, k)[0])
            shares += probabilities_of(points, clusters.centres) / (2 * len(views))
    there = before >= 0
    shares[there] += STAYS * F.one_hot(before[there], k)
    shares /= shares.sum(1, keepdim=True)
    points = metric(features)
    fixed = kept >= 0
    shares[fixed] = F.one_hot(kept[fixed], k).to(shares.dtype)
    centres = F.normalize(F.one_hot(shares.argmax(1), k).to(points.dtype).T @ points[chosen], dim=1)
    probabilities = probabilities_of(points, centres)
    probabilities[chosen] = shares
    probabilities[own >= 0] = F.one_hot(own[own >= 0], k).to(shares.dtype)
    category = probabilities.argmax(1)
    left = category.bincount(minlength=k) > 0
    left[: start.known] = True
    if not left.all():  # the others share what it had
        probabilities = F.normalize(probabilities[:, left], p=1, dim=1)
        centres, category = centres[left], probabilities.argmax(1)
    names = [name for name, stays in zip(start.names, left.tolist()) if stays]
    return Refined(names, category[free], probabilities, points, metric, centres)


def _with_typical(points: Tensor, own: Tensor, now: Tensor, start: Start) -> Tensor:
    """`own` plus the most typical images of named categories, which a person has seen under that name."""
    taught = own.clone()
    centres, _ = mean_directions(points, now, len(start.names))
    for k, name in enumerate(start.names):
        if name in start.named:
            others = ((now == k) & (own < 0)).nonzero().flatten()
            nearest = (points[others] @ centres[k]).argsort(descending=True, stable=True)[:TYPICAL]
            taught[others[nearest]] = k
    return taught


# What changed -----------------------------------------------------------------------------------------------


def changes_between(
    present: Present, start: Start, after: Refined, edits: Edits, paths: Sequence[str], round_: int
) -> dict[str, Any]:
    """`changes` of categories.json (docs/discover.md)."""
    before = [start.called[c] for c in present.category.tolist()]
    now = [after.names[c] for c in after.category.tolist()]
    moved = [
        {"path": path, "from": was, "to": to, "by": "person" if path in edits.move else "answer"}
        for path, was, to in zip(paths, before, now)
        if was != to
    ]
    sizes = {name: [before.count(name), now.count(name)] for name in after.names}
    changes = {"round": round_, "sentence": "", **start.changes, "moved": moved, "sizes": sizes}
    changes["sentence"] = _sentence(changes)
    return changes


def _sentence(changes: Mapping[str, Any]) -> str:
    """What changed, in one sentence."""
    parts = []

    def count(number: int, one: str, many: str, done: str) -> None:
        if number:
            verb = "was" if number == 1 else "were"
            parts.append(f"{number:,} {one if number == 1 else many} {verb} {done}")

    count(changes["corrected"], "image", "images", "corrected")
    count(changes["confirmed"], "image", "images", "confirmed")
    count(len(changes["names"]), "category", "categories", "named")
    count(sum(len(group) for group in changes["merged"]), "category", "categories", "merged")
    count(len(changes["split"]), "category", "categories", "split")
    count(len(changes["dissolved"]), "category", "categories", "dissolved")
    others = sum(move["by"] == "answer" for move in changes["moved"])
    told = f"{others:,} other {'image' if others == 1 else 'images'} changed " + (
        "its category" if others == 1 else "their category"
    )
    said = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)
    return f"{said}; {told}." if said else f"{told}."
