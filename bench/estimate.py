"""`eagc bench estimate`: the search for the number of classes as published, and with shared first centers.

Both are run with several seeds on the same features: those of digits, and planted ones, whose classes lie in
groups. The largest set has the size of a real one; there the published search is not run: it takes long.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.bench.measure import Spread
from eagc_ops.training.analysis.estimate_k import estimate_k
from eagc_ops.training.config import resolve
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.pretraining import with_encoder
from eagc_ops.training.models.features import pretrained_features

SEEDS, SEEDS_OF_LARGE = 5, 3


class Labelled(NamedTuple):
    """Features, of which some are labelled."""

    name: str
    features: Tensor  # (N, D)
    label: Tensor  # (N,) int64, -1 if unlabelled
    known: int
    classes: int
    large: bool = False  # the published search is not run


def estimate_rows(quick: bool) -> list[dict[str, Any]]:
    """One row per set and way. `quick`: two seeds on the small planted sets."""
    sets: list[Callable[[], Labelled]] = [
        lambda: planted("60 planted classes", 60, each=25, dim=64, spread=0.8, noise=1.4, uneven=True),
        lambda: planted("100 planted classes", 100, each=20, dim=96, spread=0.6, noise=1.0),
    ]
    if not quick:
        large: dict[str, Any] = {"each": 60, "dim": 384, "spread": 0.8, "noise": 2.2}
        sets = [digits, *sets, lambda: planted("345 planted classes", 345, **large)._replace(large=True)]
    return [row for made in sets for row in rows_of(made(), 2 if quick else SEEDS)]


def rows_of(data: Labelled, seeds: int) -> Iterator[dict[str, Any]]:
    seeds = min(seeds, SEEDS_OF_LARGE) if data.large else seeds
    for way in ("here",) if data.large else ("published", "here"):
        found, seconds = [], []
        for seed in range(seeds):
            begin = time.process_time()
            found.append(
                estimate_k(data.features, data.label, data.known, seed=seed, published=way == "published").k
            )
            seconds.append(time.process_time() - begin)
        yield {
            "kind": "measured",
            "data": data.name,
            "N": len(data.features),
            "D": data.features.shape[1],
            "known": data.known,
            "classes": data.classes,
            "way": way,
            "found": found,  # K, by seed
            "seconds": Spread.of(seconds),
        }


def digits() -> Labelled:
    """The features of the small ViT that is pretrained for digits."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(with_encoder(resolve("simgcd", "digits", device="cpu"), Path(folder)))
    data = experiment.data
    z, label = pretrained_features(experiment.student.encoder, experiment.batches, experiment.facts.images)
    return Labelled("digits", z, label, data.known, data.known + data.novel)


def planted(
    name: str, classes: int, *, each: int, dim: int, spread: float, noise: float, uneven: bool = False
) -> Labelled:
    """`classes` of about `each` rows, eight in a group; half of the rows of half of the classes are labelled.

    Args:
        spread: distance of a class from the center of its group, which has length 1.
        noise: distance of a row from the center of its class.
        uneven: sizes from 0.4 to 1.6 of `each`.
    """
    g = torch.Generator().manual_seed(0)

    def directions(count: int) -> Tensor:
        return F.normalize(torch.randn(count, dim, generator=g), dim=1)

    groups = classes // 8
    centers = directions(groups)[torch.arange(classes) % groups] + spread * directions(classes)
    sizes = torch.full((classes,), each)
    if uneven:
        sizes = (each * (0.4 + 1.2 * torch.rand(classes, generator=g))).long()
    y = torch.arange(classes).repeat_interleave(sizes)
    rows = F.normalize(centers, dim=1)[y] + noise * torch.randn(len(y), dim, generator=g) / dim**0.5
    labelled = (y < classes // 2) & (torch.rand(len(y), generator=g) < 0.5)
    return Labelled(name, rows, torch.where(labelled, y, -1), classes // 2, classes)
