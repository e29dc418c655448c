"""`eagc bench refine`: what do a person's corrections give the images that the person has not touched?

A simulated person looks at the page of a discovery. They give each new category without a name that of most
of its images, and then put right `FIXED` wrong images of one random half of the unlabelled images, drawn at
random; then `refined` gives another answer. Five rounds of this. Counted is the other half, which nobody
touches: an image is right if its category bears the name of its class.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eagc_ops.app.table import Table
from eagc_ops.bench.discover import Draw, draw
from eagc_ops.bench.discover_sets import SETS, features_of
from eagc_ops.discovery.category_count import estimate_categories
from eagc_ops.discovery.edits import Edits
from eagc_ops.discovery.refining import Present, edited, refined
from eagc_ops.training.analysis.first_answer import first_answer

__all__ = ["FIXED", "ROUNDS", "make", "rounds", "table"]

ROUNDS, FIXED = 5, 10  # images put right in a round
PARTS = ("all", "old", "new")


def make(folder: Path, name: str, draws: int) -> list[dict[str, Any]]:
    """The records of the draws of a data set, with K estimated and true."""
    features, category = features_of(SETS[name], folder)
    return [
        {"data": name, "K": k, "draw": number, **record}
        for k in ("estimated", "true")
        for number in range(draws)
        for record in rounds(draw(SETS[name], features, category, number), number, k == "estimated")
    ]


def rounds(drawn: Draw, seed: int, estimated: bool = True) -> Iterator[dict[str, Any]]:
    """One record for each round; that of round 0 is the first answer, its new categories named.

    `all`, `old` and `new` are shares of the half that nobody touches, in percent.
    """
    free = drawn.label < 0
    truth, known = drawn.category[free], drawn.known
    generator = np.random.default_rng(seed)
    untouched = torch.from_numpy(generator.permutation(len(truth)) < len(truth) // 2)
    paths = [str(i) for i in range(len(truth))]
    k = drawn.classes
    if estimated:
        k = estimate_categories(drawn.features, drawn.label, known, seed=seed).k
    first = first_answer(drawn.features, drawn.label, k, known, seed=seed).assignment[free]
    names = [f"class {c}" for c in range(known)] + [f"new-{i + 1}" for i in range(k - known)]
    present = Present(names, known, first, torch.zeros(len(truth), dtype=torch.bool))
    yield _record(0, _named(present, truth, known), truth, untouched, known, 0.0)
    for number in range(1, ROUNDS + 1):
        edits = _edits(present, truth, untouched, paths, generator)
        start = time.process_time()
        wanted = edited(present, edits, paths)
        answer = refined(drawn.features, drawn.label, wanted, seed=seed)
        seconds = time.process_time() - start
        named = wanted.named & {*answer.names}
        present = Present(answer.names, known, answer.category, wanted.fixed, frozenset(named))
        yield _record(number, _named(present, truth, known), truth, untouched, known, seconds)


def _names(present: Present, truth: Tensor) -> dict[str, str]:
    """The names that the person gives: that of most images, for each new category that nobody has named."""
    given = {}
    for c, name in enumerate(present.names):
        own = truth[present.category == c]
        if c >= present.known and name not in present.named and len(own):
            given[name] = f"class {int(own.bincount().argmax())}"
    return given


def _edits(
    present: Present, truth: Tensor, untouched: Tensor, paths: list[str], generator: np.random.Generator
) -> Edits:
    given = _names(present, truth)
    right = _right(present, given, truth)
    wrong = (~right & ~untouched & ~present.corrected).nonzero().flatten()
    chosen = wrong[torch.from_numpy(generator.permutation(len(wrong)))][:FIXED]
    return Edits(names=given, move={paths[i]: f"class {int(truth[i])}" for i in chosen.tolist()})


def _right(present: Present, given: dict[str, str], truth: Tensor) -> Tensor:
    """Whether the category of each image bears the name of its class."""
    title = [given.get(name, name) for name in present.names]
    number = torch.tensor(
        [int(name.removeprefix("class ")) if name.startswith("class ") else -1 for name in title]
    )
    return number[present.category] == truth


def _named(present: Present, truth: Tensor, known: int) -> Tensor:
    return _right(present, _names(present, truth), truth)


def _record(
    number: int, right: Tensor, truth: Tensor, untouched: Tensor, known: int, seconds: float
) -> dict[str, Any]:
    new = truth >= known
    parts = {"all": untouched, "old": untouched & ~new, "new": untouched & new}
    shares = {name: 100 * right[part].double().mean().item() for name, part in parts.items()}
    return {"round": number, **shares, "images": int(untouched.sum()), "seconds": seconds}


def table(rows: list[dict[str, Any]]) -> Table:
    """One line for each data set, K and part of the images: the mean over draws after each round."""
    lines = []
    for data, k in dict.fromkeys((row["data"], row["K"]) for row in rows):
        of = [row for row in rows if (row["data"], row["K"]) == (data, k)]
        last = [row["seconds"] for row in of if row["round"]]
        for part in PARTS:
            means = [
                statistics.mean(row[part] for row in of if row["round"] == number)
                for number in range(ROUNDS + 1)
            ]
            lines.append(
                {
                    "data": data,
                    "K": k,
                    "images": part,
                    "first answer": f"{means[0]:.1f}",
                    **{f"round {i}": f"{mean:.1f}" for i, mean in enumerate(means) if i},
                    "least gain": f"{min(b - a for a, b in itertools.pairwise(means)):+.1f}",
                    "CPU s": f"{statistics.mean(last):.1f}",
                }
            )
    return Table.of(lines, headings=3)
