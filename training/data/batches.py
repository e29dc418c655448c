"""Where the loop's batches come from: images that are decoded and augmented, or tokens of a trunk cache. The loop sees no difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.config import Config
from eagc_ops.training.data import (
    Batch,
    GCDData,
    KeyedViews,
    TrainLoader,
    draw_key,
    evaluation_loader,
    labelled_loader,
    train_loader,
)
from eagc_ops.training.data.trunk_cache import CachedViews, trunk_cache

VIEWS = 2
TEST_BATCH = 256


class Batches(NamedTuple):
    """The five ways through the data. A batch holds views (B, C, H, W), or (B, N, D) tokens."""

    train: TrainLoader  # labelled and unlabelled images, two augmented views; this process's share of a global batch
    labelled_train: TrainLoader  # labelled images, two augmented views: the reference model
    labelled: Callable[[], Iterable[Batch]]  # test view, in order
    unlabelled: Callable[[], Iterable[Batch]]  # test view, in order
    augmented: TrainLoader  # labelled, then unlabelled images in order, one augmented view
    identity: dict[str, Any]  # what the views are made of


def batches(
    data: GCDData,
    config: Config,
    encoder: AnchoredEncoder,
    *,
    weighting: str,
    rank: int,
    world: int,
    main: bool,
) -> Batches:
    """The batches a configuration asks for."""
    seed, workers = config.seed, config.workers
    reference_seed, clustering_seed = (draw_key(seed, -1, i) for i in (0, 4))  # draws of their own
    everything = torch.arange(len(data.merged))

    def augmented(fetch: Dataset) -> TrainLoader:
        settings = {
            "size": len(everything),
            "batch_size": TEST_BATCH,
            "seed": clustering_seed,
            "drop_last": False,
            "workers": workers,
        }
        return TrainLoader(fetch, lambda _: everything, **settings)

    shares = {"batch_size": config.batch_size, "seed": seed, "workers": workers, "rank": rank, "world": world}
    if config.trunk_cache is None:
        labelled = labelled_loader(data, batch_size=TEST_BATCH, train=False, workers=workers)
        unlabelled = evaluation_loader(data, batch_size=TEST_BATCH, workers=workers)
        return Batches(
            train_loader(data, views=VIEWS, weighting=weighting, **shares),
            labelled_loader(
                data,
                batch_size=config.reference_batch_size,
                train=True,
                seed=reference_seed,
                views=VIEWS,
                workers=workers,
            ),
            lambda: labelled,
            lambda: unlabelled,
            augmented(KeyedViews(data.merged, data.train_transform, 1, clustering_seed)),
            {"pixels": data.image_size},
        )
    cache = trunk_cache(
        Path(config.trunk_cache),
        encoder,
        data,
        views=config.cache_views,
        half=config.cache_half,
        progress=main,
    )
    n, test_view = len(data.labelled), CachedViews(cache, data, views=None)

    def in_order(first: int, last: int) -> TrainLoader:
        size, order = last - first, torch.arange(first, last)
        return TrainLoader(
            test_view,
            lambda _: order,
            size=size,
            batch_size=TEST_BATCH,
            seed=seed,
            drop_last=False,
            workers=workers,
        )

    labelled, unlabelled = in_order(0, n), in_order(n, len(data.merged))
    return Batches(
        train_loader(data, views=VIEWS, weighting=weighting, fetch=CachedViews(cache, data, seed=seed, views=VIEWS), **shares),
        TrainLoader(
            CachedViews(cache, data, seed=reference_seed, views=VIEWS), lambda generator: torch.randperm(n, generator=generator),
            size=n, batch_size=config.reference_batch_size, seed=reference_seed, drop_last=False, workers=workers,
        ),
        lambda: labelled.epoch(0),
        lambda: unlabelled.epoch(0),
        augmented(CachedViews(cache, data, seed=clustering_seed, views=1)),
        {"tokens": cache.made_of},
    )  # fmt: skip
