"""`eagc bench discover`: how good are the categories that are found, on data sets x draws x ways?

A draw takes classes of a data set at random, makes some of them known, and labels images of these. Every way
gets the same frozen features and the same labels. All, Old and New are the published accuracy of the
unlabelled images. The number of categories, K, is the true one or the estimate of `estimate_categories`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops import metric
from eagc_ops.app.files import fingerprint
from eagc_ops.bench.discover_sets import SETS, DataSet, features_of
from eagc_ops.discovery import category_count
from eagc_ops.metric import LabelMetric
from eagc_ops.training.analysis import constrained_kmeans, first_answer, unequal_kmeans
from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.methods.clustering import semi_supervised_kmeans

__all__ = [
    "CONDITIONS",
    "SIMPLE",
    "WAYS",
    "Draw",
    "cells",
    "conditions_of",
    "draw",
    "estimates",
    "key",
    "make",
]

LEAST_SHARE = 0.1  # of the largest class in a long tail: sizes are uniform in the logarithm


OTHER_DRAWS = 3  # of the conditions beside the usual one


class Condition(NamedTuple):
    """What a draw changes of its data set; None: nothing."""

    labelled: int | None = None
    known: int | None = None
    tail: bool = False


CONDITIONS = {
    "usual": Condition(),
    "5 labels": Condition(labelled=5),
    "10 labels": Condition(labelled=10),
    "20 labels": Condition(labelled=20),
    "2 known": Condition(known=2),
    "3 known": Condition(known=3),
    "long tail": Condition(tail=True),
}


class Draw(NamedTuple):
    """Rows of a draw; the first classes are known."""

    features: Tensor  # (N, D)
    label: Tensor  # (N,) int64, -1 if unlabelled
    category: Tensor  # (N,) int64, the truth
    known: int
    classes: int


def draw(
    data: DataSet, features: Tensor, category: Tensor, number: int, condition: Condition = CONDITIONS["usual"]
) -> Draw:
    """Draw `number` of a data set, all images of which are given: the same on every machine."""
    generator = np.random.default_rng([number, *data.name.encode()])
    known = condition.known or data.known
    rows: list[int] = []
    label: list[int] = []
    truth: list[int] = []
    for i, c in enumerate(generator.permutation(int(category.max()) + 1)[: data.classes]):
        places = generator.permutation(np.flatnonzero(category.numpy() == c))
        fixed, free = np.split(places, [data.labelled if i < known else 0])
        # With fewer labels the unlabelled images are the same.
        fixed, free = fixed[: condition.labelled], free[: data.unlabelled]
        if condition.tail:
            free = free[: max(3, round(len(free) * LEAST_SHARE ** generator.random()))]
        rows += [*fixed, *free]
        label += [i] * len(fixed) + [-1] * len(free)
        truth += [i] * (len(fixed) + len(free))
    return Draw(features[rows].float(), torch.tensor(label), torch.tensor(truth), known, data.classes)


def _published(draw: Draw, k: int, seed: int) -> Tensor:
    """Semi-supervised k-means of unit features: ten restarts."""
    generator = torch.Generator().manual_seed(seed)
    points = F.normalize(draw.features, dim=1)
    return semi_supervised_kmeans(
        points, draw.label, k, generator=generator, restarts=10, iterations=50
    ).labels


def _whitened(draw: Draw, k: int, seed: int) -> Tensor:
    """Principal directions, each divided by the square root of its deviation, unit norm, k-means."""
    points = LabelMetric.fit(draw.features, torch.full_like(draw.label, -1))(draw.features)
    return constrained_kmeans.constrained_kmeans(points, draw.label, k, draw.known, seed=seed).labels


def _metric(draw: Draw, k: int, seed: int) -> Tensor:
    """The metric from the labels, k-means."""
    points = LabelMetric.fit(draw.features, draw.label)(draw.features)
    return constrained_kmeans.constrained_kmeans(points, draw.label, k, draw.known, seed=seed).labels


def _metric_and_neighbours(draw: Draw, k: int, seed: int) -> Tensor:
    """The same, points drawn towards their neighbours."""
    points = first_answer.smoothed(LabelMetric.fit(draw.features, draw.label)(draw.features))
    return constrained_kmeans.constrained_kmeans(points, draw.label, k, draw.known, seed=seed).labels


def _first_answer(draw: Draw, k: int, seed: int) -> Tensor:
    return first_answer.first_answer(draw.features, draw.label, k, draw.known, seed=seed).assignment


WAYS: dict[str, Callable[[Draw, int, int], Tensor]] = {
    "published k-means": _published,
    "whitened k-means": _whitened,
    "metric, k-means": _metric,
    "metric and neighbours, k-means": _metric_and_neighbours,
    "first answer": _first_answer,
}
SIMPLE = tuple(way for way in WAYS if way != "first answer")

# Results of other rules than the present ones are made again.
RULES = fingerprint(
    [
        Path(str(module.__file__)).read_text()
        for module in (metric, constrained_kmeans, unequal_kmeans, first_answer)
    ]
)
RULES_OF_K = fingerprint([RULES, Path(str(category_count.__file__)).read_text()])


def estimates(
    data: DataSet, images: tuple[Tensor, Tensor], draws: Iterable[int], known: dict[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The record of the estimated K of each draw that is not `known` (`key`), as soon as it is there."""
    for number in draws:
        named = {"data": data.name, "draw": number, "rules": RULES_OF_K}
        if key(named) not in known:
            drawn = draw(data, *images, number)
            begin = time.process_time()
            found = category_count.estimate_categories(drawn.features, drawn.label, drawn.known, seed=number)
            yield {
                **named,
                "rows": len(drawn.label),
                "known": drawn.known,
                "classes": drawn.classes,
                "found": [found.k, found.low, found.high],
                "given": found.given,
                "seconds": round(time.process_time() - begin, 3),
            }


def cells(
    data: DataSet,
    images: tuple[Tensor, Tensor],
    draws: Iterable[int],
    conditions: Iterable[str],
    known: dict[str, dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """The record of each draw, condition, way and K that is not `known` (`key`), as soon as it is there.

    With the estimated K, which `known` has, is the usual condition alone; of the other conditions there are
    fewer draws, without the published k-means.
    """
    for number, condition in itertools.product(draws, conditions):
        usual = condition == "usual"
        if not usual and number >= OTHER_DRAWS:
            continue
        drawn = draw(data, *images, number, CONDITIONS[condition])
        numbers, ways = (("true", "estimated"), list(WAYS)) if usual else (("true",), list(WAYS)[1:])
        for k, way in itertools.product(numbers, ways):
            named = {
                "data": data.name,
                "condition": condition,
                "draw": number,
                "way": way,
                "K": k,
                "rules": RULES if k == "true" else RULES_OF_K,
            }
            if key(named) in known:
                continue
            estimate = {"data": data.name, "draw": number, "rules": RULES_OF_K}
            categories = drawn.classes if k == "true" else known[key(estimate)]["found"][0]
            begin = time.process_time()
            labels = WAYS[way](drawn, categories, number)
            seconds = time.process_time() - begin
            free = drawn.label < 0
            found = accuracy(labels[free].numpy(), drawn.category[free].numpy(), drawn.known)
            yield {
                **named,
                "rows": len(drawn.label),
                "categories": categories,
                "accuracy": [round(100 * share, 2) for share in found],
                "seconds": round(seconds, 3),
            }


def make(
    folder: Path,
    names: Iterable[str],
    draws: int,
    k_draws: int,
    records: dict[str, dict[str, Any]],
    keep: Callable[[], None],
) -> None:
    """Fill `records` (`key`) with what they lack; `keep` is called after each of them."""
    for data in (SETS[name] for name in names):
        images = features_of(data, folder)
        made = itertools.chain(
            estimates(data, images, range(max(draws, k_draws)), records),
            cells(data, images, range(draws), conditions_of(data), records),
        )
        for record in made:
            records[key(record)] = record
            keep()


def key(record: dict[str, Any]) -> str:
    """What tells records apart: those with another key of the same rules are made again."""
    return "/".join(str(record.get(part, "")) for part in ("data", "condition", "draw", "way", "K", "rules"))


def conditions_of(data: DataSet) -> list[str]:
    """Those that change something: fewer labels than the data set has, few known classes of ten."""
    return [
        name
        for name, condition in CONDITIONS.items()
        if (condition.labelled or 0) < data.labelled and (condition.known is None or data.classes <= 10)
    ]
