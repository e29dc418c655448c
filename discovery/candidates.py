"""The answers to compare, and the rule that keeps one of them. It never sees the truth.

Two counts judge an answer: how many held-out labelled images it recognizes, and a rehearsal. There a third of
the known classes plays novel, hidden from the clustering and from a shorter training, and we count how many
of their images end up together. That is only some dozens of images, so a small difference means little.
In the benchmark (`eagc bench discover --train`) the clustering of the trained features is the best answer
nearly everywhere. It is kept, unless the counts favour another by more than their standard error. An answer
that leaves more than one of 20 categories empty, and more than the first one, is a collapse and never kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from eagc_ops.discovery.answer_files import Answer
from eagc_ops.discovery.frozen import Clustering, Features
from eagc_ops.discovery.number import collapsed

__all__ = [
    "LEAST_KNOWN",
    "REHEARSAL_SHARE",
    "Candidate",
    "Rehearsal",
    "found_together",
    "hidden_classes",
    "keep",
    "kept_line",
    "rehearsal_of",
]

LEAST_KNOWN = 3  # classes: one plays novel and two stay
SHARE = 3  # one of so many known classes plays novel
REHEARSAL_SHARE = 2  # the rehearsal trains for one epoch in so many
USUAL = "trained-metric"
NAMES = {
    "first": "first answer",
    "trained": "trained network",
    "trained-metric": "clustering of the trained features",
}

Count = tuple[int, int]  # right, images


class Candidate(NamedTuple):
    """An answer with its counts."""

    kind: str  # first, trained or trained-metric
    answer: Answer
    clustering: Clustering
    features: Features  # that it was made of
    seconds: float
    holdout: Count | None
    rehearsal: Count | None

    @property
    def assignment(self) -> Tensor:
        """The category (N,) of every unlabelled image."""
        return self.answer.probabilities.argmax(1)

    @property
    def empty(self) -> int:
        """Categories without any image, labelled or not."""
        members = torch.cat([self.features.labelled_class, self.assignment])
        return int((members.bincount(minlength=self.clustering.k) == 0).sum())

    @property
    def score(self) -> float | None:
        """The mean of both shares; None if one of them does not exist."""
        if self.holdout is None or self.rehearsal is None:
            return None
        return sum(right / images for right, images in (self.holdout, self.rehearsal)) / 2

    @property
    def variance(self) -> float:
        """The variance of the score, as of two binomial shares."""
        shares = [(right / images, images) for right, images in filter(None, (self.holdout, self.rehearsal))]
        return sum(p * (1 - p) / images for p, images in shares) / 4

    def record(self, kept: bool) -> dict[str, Any]:
        """The entry of categories.json."""
        counts = {
            name: count and {"right": count[0], "images": count[1]}
            for name, count in (("holdout", self.holdout), ("rehearsal", self.rehearsal))
        }
        score = self.score
        return {
            "kind": self.kind,
            "name": NAMES[self.kind],
            "kept": kept,
            "seconds": round(self.seconds, 1),
            "empty": self.empty,
            **counts,
            "score": None if score is None else round(score, 4),
        }


class Rehearsal(NamedTuple):
    """Known classes that play novel. The labelled images of hidden classes come last in the listing."""

    visible: list[int]  # classes, in the order of their new numbers
    hidden: list[int]
    count: int  # type: ignore[assignment]  # labelled images of visible classes: the first ones
    label: Tensor  # (M + N,) int64: new numbers of the visible ones, -1 of all others
    truth: Tensor  # (M,) int64: the class of a labelled image


def hidden_classes(known: int) -> list[int]:
    """The classes that play novel, always the same ones; none if there are too few."""
    if known < LEAST_KNOWN:
        return []
    order = torch.randperm(known, generator=torch.Generator().manual_seed(0)).tolist()
    return sorted(order[: known // SHARE])


def rehearsal_of(features: Features, known: int) -> Rehearsal | None:
    """The rehearsal of these images; None if there are too few known classes."""
    hidden = hidden_classes(known)
    if not hidden:
        return None
    visible = [c for c in range(known) if c not in hidden]
    number = torch.full((known,), -1)
    number[visible] = torch.arange(len(visible))
    label = torch.cat([number[features.labelled_class], torch.full((len(features.unlabelled),), -1)])
    count = int((number[features.labelled_class] >= 0).sum())
    if not (label[:count] >= 0).all():
        raise ValueError("the labelled images of classes that play novel must come last in the listing")
    return Rehearsal(visible, hidden, count, label, features.labelled_class)


def found_together(assignment: Tensor, rehearsal: Rehearsal) -> Count:
    """How many images of hidden classes are in the cluster of their class: (right, images).

    `assignment` (M, ) or longer has the categories of the labelled images. Every hidden class is matched to
    one category, never to a visible class's.

    >>> truth = torch.tensor([0, 1, 1, 2, 2])
    >>> rehearsal = Rehearsal([0], [1, 2], 1, torch.tensor([0, -1, -1, -1, -1]), truth)
    >>> found_together(torch.tensor([0, 4, 4, 4, 0]), rehearsal)
    (2, 4)
    """
    rows = slice(rehearsal.count, len(rehearsal.truth))
    category, truth = assignment[rows], rehearsal.truth[rows]
    first, classes = len(rehearsal.visible), rehearsal.hidden
    size = max(int(category.max()) + 1 - first, len(classes), 1)
    counts = torch.zeros(len(classes), size, dtype=torch.int64)
    for row, c in enumerate(classes):
        own = category[truth == c] - first
        counts[row] = own[own >= 0].bincount(minlength=size)
    chosen = linear_sum_assignment(-counts.numpy())
    return int(counts.numpy()[chosen].sum()), len(truth)


def keep(candidates: Sequence[Candidate]) -> Candidate:
    """The answer to keep, by the rule above; the first one, if nothing can be compared."""
    first = candidates[0]
    able = [one for one in candidates if one.score is not None and not _collapsed(one, first)]
    if first not in able:
        return first
    usual = next((one for one in able if one.kind == USUAL), first)
    better = [one for one in able if _score(one) > _score(usual) + (one.variance + usual.variance) ** 0.5]
    return max(better, key=_score, default=usual)


def _collapsed(candidate: Candidate, first: Candidate) -> bool:
    return candidate.empty > first.empty and collapsed(candidate.empty, candidate.clustering.k)


def _score(candidate: Candidate) -> float:
    assert candidate.score is not None
    return candidate.score


def kept_line(candidates: Sequence[Candidate], kept: Candidate) -> str:
    """What was kept and why, with the numbers of all candidates."""
    parts = []
    for candidate in candidates:
        facts = []
        if candidate.holdout:
            facts.append(f"{candidate.holdout[0]} of {candidate.holdout[1]} held-out images recognized")
        if candidate.rehearsal:
            facts.append(
                f"{candidate.rehearsal[0]} of {candidate.rehearsal[1]} images of hidden categories found "
                "together"
            )
        if candidate.empty:
            facts.append(f"{candidate.empty} of {candidate.clustering.k} categories empty")
        parts.append(f"{NAMES[candidate.kind]}: {', '.join(facts) or 'nothing to compare'}")
    first = candidates[0]
    if kept.kind == USUAL:
        why = "it is usually the best, and the labels hidden from all answers do not contradict that"
    elif kept is not first:
        why = "it is clearly better on labels hidden from all answers"
    elif len(candidates) == 1:
        why = "training ended without a result"
    elif any(_collapsed(other, first) for other in candidates[1:]):
        why = "training left categories empty, which is a collapse"
    elif first.score is None:
        why = "there are too few labelled images to tell whether training helps"
    else:
        why = "training is clearly worse on labels hidden from all answers"
    return f"kept: the {NAMES[kept.kind]}, because {why} ({'; '.join(parts)})"
