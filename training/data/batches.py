"""The batches of a run: images that are decoded and augmented, or tokens of a trunk cache.

Both kinds are iterated in the same way, so training need not know which one it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.config import Config, ConfigError
from eagc_ops.training.data.gcd import GCDData
from eagc_ops.training.data.loaders import (
    Batch,
    KeyedViews,
    TrainLoader,
    draw_key,
    evaluation_loader,
    labelled_loader,
    train_loader,
)
from eagc_ops.training.data.pixel_cache import LEAST, cache_bytes, find_pixels, fits, pixel_cache
from eagc_ops.training.data.transforms import split_transform
from eagc_ops.training.data.trunk_cache import CachedViews, TrunkCache, trunk_cache

VIEWS = 2
TEST_BATCH = 256


class Batches(NamedTuple):
    """The five passes over the data. A batch holds views (B, C, H, W), or (B, N, D) tokens."""

    train: TrainLoader  # all images, two augmented views; the share of this process in a global batch
    labelled_train: TrainLoader  # labelled images, two augmented views: for the reference model
    labelled: Callable[[], Iterable[Batch]]  # test view, in order
    unlabelled: Callable[[], Iterable[Batch]]  # test view, in order
    augmented: TrainLoader  # labelled, then unlabelled images in order, one augmented view
    identity: dict[str, Any]  # the origin of the views, JSON-ready


class AutomaticPixels(NamedTuple):
    """Where resized pixels are kept if the setting `pixel_cache` is "auto"."""

    folder: Path
    build: bool = True  # False: use a cache that is there, and make none

    @classmethod
    def beside(cls, run: Path, build: bool = True) -> AutomaticPixels:
        """The runs of a folder share resized pixels, as they share reference models."""
        return cls(run.absolute().parent / "pixels", build)


def batches(
    data: GCDData,
    config: Config,
    encoder: AnchoredEncoder,
    *,
    weighting: str,
    rank: int,
    world: int,
    main: bool,
    automatic: AutomaticPixels | None = None,
) -> Batches:
    """The batches of process `rank` of `world`.

    `main`: show a bar while a cache is built. `automatic`: the place of an automatic pixel cache; None: none.
    """
    data = _with_pixels(data, config, automatic, main)
    draws = _Draws(data, config, weighting, rank, world)
    if config.trunk_cache is None:
        return _from_pixels(draws)
    cache = trunk_cache(
        Path(config.trunk_cache),
        encoder,
        data,
        views=config.cache_views,
        half=config.cache_half,
        progress=main,
    )
    return _from_tokens(draws, cache)


def _with_pixels(data: GCDData, config: Config, automatic: AutomaticPixels | None, main: bool) -> GCDData:
    """The data with their pixel cache, if the settings ask for one, or if one pays and fits."""
    splits = [split_transform(transform) for transform in (data.train_transform, data.test_transform)]
    images, fixed = data.labelled.images, splits[0] and splits[0].fixed
    asked = config.pixel_cache not in ("auto", "off")
    if fixed is None or data.unlabelled.images is not images:
        if asked:
            raise ConfigError(
                f"pixel_cache={config.pixel_cache!r}: the transforms of {data.name} change every pixel at "
                "every draw, so that nothing can be cached; leave it out"
            )
        return data
    if asked:
        return replace(data, cache=pixel_cache(config.pixel_cache, images, fixed, progress=main))
    # A trunk cache reads every image once.
    if config.pixel_cache == "off" or automatic is None or config.trunk_cache is not None:
        return data
    folder, size = automatic.folder, cache_bytes(images, fixed)
    if size < LEAST:
        return data
    cache = find_pixels(folder, images, fixed)
    if cache is None and automatic.build and fits(folder, size):
        cache = pixel_cache(folder, images, fixed, progress=main)
    return replace(data, cache=cache)


class _Draws:
    """Seeds and sizes that both kinds of batches share."""

    def __init__(self, data: GCDData, config: Config, weighting: str, rank: int, world: int) -> None:
        self.data, self.config, self.weighting, self.rank, self.world = data, config, weighting, rank, world
        # The reference model and the clustering have their own random draws.
        self.reference_seed, self.clustering_seed = (draw_key(config.seed, -1, i) for i in (0, 4))

    def train(self, fetch: Dataset | None = None) -> TrainLoader:
        return train_loader(
            self.data,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            views=VIEWS,
            weighting=self.weighting,
            workers=self.config.workers,
            rank=self.rank,
            world=self.world,
            fetch=fetch,
        )

    def in_order(self, fetch: Dataset, first: int, last: int, seed: int) -> TrainLoader:
        """Images `first` to `last` - 1 of the merged set, in order."""
        order = torch.arange(first, last)
        return TrainLoader(
            fetch,
            lambda _: order,
            size=len(order),
            batch_size=TEST_BATCH,
            seed=seed,
            drop_last=False,
            workers=self.config.workers,
        )


def _from_pixels(draws: _Draws) -> Batches:
    data, workers = draws.data, draws.config.workers
    labelled = labelled_loader(data, batch_size=TEST_BATCH, train=False, workers=workers)
    unlabelled = evaluation_loader(data, batch_size=TEST_BATCH, workers=workers)
    one_view = KeyedViews(data.merged, data.train_transform, 1, draws.clustering_seed)
    return Batches(
        train=draws.train(),
        labelled_train=labelled_loader(
            data,
            batch_size=draws.config.reference_batch_size,
            train=True,
            seed=draws.reference_seed,
            views=VIEWS,
            workers=workers,
        ),
        labelled=lambda: labelled,
        unlabelled=lambda: unlabelled,
        augmented=draws.in_order(one_view, 0, len(data.merged), draws.clustering_seed),
        identity={"pixels": data.image_size},
    )


def _from_tokens(draws: _Draws, cache: TrunkCache) -> Batches:
    data, config = draws.data, draws.config
    count, test_view = len(data.labelled), CachedViews(cache, data, views=None)
    labelled = draws.in_order(test_view, 0, count, config.seed)
    unlabelled = draws.in_order(test_view, count, len(data.merged), config.seed)
    one_view = CachedViews(cache, data, seed=draws.clustering_seed, views=1)
    return Batches(
        train=draws.train(CachedViews(cache, data, seed=config.seed, views=VIEWS)),
        labelled_train=TrainLoader(
            CachedViews(cache, data, seed=draws.reference_seed, views=VIEWS),
            lambda generator: torch.randperm(count, generator=generator),
            size=count,
            batch_size=config.reference_batch_size,
            seed=draws.reference_seed,
            drop_last=False,
            workers=config.workers,
        ),
        labelled=lambda: labelled.epoch(0),
        unlabelled=lambda: unlabelled.epoch(0),
        augmented=draws.in_order(one_view, 0, len(data.merged), draws.clustering_seed),
        identity={"tokens": cache.made_of},
    )
