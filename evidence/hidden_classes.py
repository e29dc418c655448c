"""Known classes that play novel: their labels are hidden, so that the truth of "novel" rows is known.

A choice hides a fifth of the classes. Of the others, some images are kept from what is fitted: in a run, no
unlabelled image is in the fit. A choice leaves fewer known classes than there are, so a number is measured
with all classes that are left and with half of them, and extrapolated to all of them along a straight line in
the logarithm of their count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from eagc_ops.training.data import draw_key

__all__ = ["CHOICES", "HELD_OUT", "Choice", "checked", "choices_of", "left", "on_the_line"]

CHOICES = 10
LEFT_OUT, HELD_OUT = 5, 5  # one of 5 classes plays novel, one of 5 images of the others is kept from the fit


class Choice(NamedTuple):
    """One choice of the classes that play novel: positions of rows, int64 each."""

    fit: Tensor
    known: Tensor  # rows of the classes of `fit` that are not in it
    novel: Tensor


def choices_of(label: Tensor, count: int, seed: int) -> Iterator[tuple[Choice, Choice]]:
    """`count` choices of the classes that play novel, each with all remaining classes and with half of them.

    label: (N,) int64. The rows of the novel classes are the same in both. One of 5 images of each known
    class, or one if it has fewer, is not in the fit.
    """
    classes = label.unique()
    left_out, rounds = _left_out(len(classes)), len(classes) // _left_out(len(classes))
    for i in range(count):
        generator = torch.Generator().manual_seed(draw_key(seed, i))
        if i % rounds == 0:
            order = classes[torch.randperm(len(classes), generator=generator)]
        begin = i % rounds * left_out
        novel, remaining = (
            order[begin : begin + left_out],
            torch.cat([order[:begin], order[begin + left_out :]]),
        )
        half = remaining[torch.randperm(len(remaining), generator=generator)][: left(len(classes))[1]]
        held = torch.cat([_held_out(label, c, generator) for c in remaining])
        is_held = torch.zeros(len(label), dtype=torch.bool).index_fill_(0, held, True)
        whole, halved = (
            Choice(
                fit=(torch.isin(label, known) & ~is_held).nonzero()[:, 0],
                known=(torch.isin(label, known) & is_held).nonzero()[:, 0],
                novel=torch.isin(label, novel).nonzero()[:, 0],
            )
            for known in (remaining, half)
        )
        yield whole, halved


def checked(features: Tensor, labels: Tensor, choices: int) -> Tensor:
    """The labels on the CPU; an error in one line if a probe is impossible."""
    if not isinstance(features, Tensor) or features.ndim != 2 or not features.is_floating_point():
        got = f"{tuple(features.shape)} {features.dtype}" if isinstance(features, Tensor) else type(features)
        raise ValueError(f"features must be a floating tensor (N, D), got {got}")
    if not isinstance(labels, Tensor) or labels.shape != features.shape[:1] or labels.is_floating_point():
        got = f"{tuple(labels.shape)} {labels.dtype}" if isinstance(labels, Tensor) else type(labels)
        raise ValueError(f"labels must be an integer tensor ({len(features)},), one per row, got {got}")
    if not isinstance(choices, Integral) or choices < 1:
        raise ValueError(f"choices must be a whole number >= 1, got {choices!r}")
    bad = int((~features.isfinite()).any(1).sum())
    if bad:
        raise ValueError(
            f"features must be finite, but {bad} of {len(features)} rows hold NaN or infinite values: check "
            "the encoder, or drop those rows"
        )
    classes, counts = labels.cpu().unique(return_counts=True)
    if len(classes) < 3:
        raise ValueError(
            f"labels must have at least 3 known classes, got {len(classes)}: one plays novel, and two are "
            "needed beside it"
        )
    single = classes[counts < 2]
    if len(single):
        raise ValueError(
            f"labels must have at least 2 images of every class, but {len(single)} have one, the first is "
            f"class {single[0].item()}: label another image, or leave these classes out"
        )
    return labels.cpu()


def on_the_line(
    at_most: Sequence[float], at_half: Sequence[float], most: int, half: int, known: int
) -> list[float]:
    """The numbers at `known` classes, on the lines through those at `most` and `half` over log(classes).

    All are shares and stay in [0, 1]. If `half` equals `most`, there is no line: those at `most`.

    >>> [round(number, 3) for number in on_the_line([0.8], [0.9], most=16, half=8, known=32)]
    [0.7]
    """
    step = 0.0 if half == most else math.log(known / most) / math.log(most / half)
    return [min(max(a + step * (a - b), 0.0), 1.0) for a, b in zip(at_most, at_half)]


def left(known: int) -> tuple[int, int]:
    """The number of known classes that a choice leaves, and half of it.

    Fewer than 4 are not halved: one class alone has no classifier.

    >>> left(10), left(5), left(3)
    ((8, 4), (4, 2), (2, 2))
    """
    most = known - _left_out(known)
    return most, most // 2 if most >= 4 else most


def _left_out(classes: int) -> int:
    """A fifth of the classes, or one."""
    return max(1, classes // LEFT_OUT)


def _held_out(label: Tensor, c: Tensor, generator: torch.Generator) -> Tensor:
    rows = (label == c).nonzero()[:, 0]
    return rows[torch.randperm(len(rows), generator=generator)][: max(1, len(rows) // HELD_OUT)]
