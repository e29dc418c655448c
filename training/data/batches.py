"""The batches of a run: images that are decoded and augmented, or tokens of a trunk cache.

Both kinds are iterated in the same way, so training need not know which one it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.config import Config, ConfigError
from eagc_ops.training.data.gcd import GCDData
from eagc_ops.training.data.loaders import (
    Batch,
    InOrder,
    KeyedViews,
    TrainLoader,
    Weighting,
    draw_key,
    evaluation_loader,
    labelled_loader,
    train_loader,
)
from eagc_ops.training.data.pixel_cache import LEAST, cache_bytes, find_pixels, fits, pixel_cache
from eagc_ops.training.data.transforms import split_transform
from eagc_ops.training.data.trunk_cache import CachedViews, trunk_cache

VIEWS = 2


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
    weighting: Weighting,
    rank: int,
    world: int,
    main: bool,
    automatic: AutomaticPixels | None = None,
) -> Batches:
    """The batches of process `rank` of `world`.

    `main`: show a bar while a cache is built. `automatic`: the place of an automatic pixel cache; None: none.
    """
    data = _with_pixels(data, config, automatic, main)
    workers = config.workers
    cache = None
    if config.trunk_cache is not None:
        cache = trunk_cache(
            Path(config.trunk_cache),
            encoder,
            data,
            views=config.cache_views,
            half=config.cache_half,
            precision=config.precision,
            progress=main,
        )

    def cached(seed: int, views: int | None) -> CachedViews | None:
        """So many augmented views, or (None) the test view, of a trunk cache; None: images are decoded."""
        return None if cache is None else CachedViews(cache, data, seed=seed, views=views)

    # The reference model and the clustering have their own random draws.
    reference_seed, clustering_seed = (draw_key(config.seed, -1, i) for i in (0, 4))
    augmented = cached(clustering_seed, 1) or KeyedViews(
        data.merged, data.train_transform, 1, clustering_seed
    )
    labelled, unlabelled = (
        evaluation_loader(data, labelled=part, workers=workers, fetch=cached(config.seed, None))
        for part in (True, False)
    )
    return Batches(
        train=train_loader(
            data,
            batch_size=config.batch_size,
            seed=config.seed,
            weighting=weighting,
            workers=workers,
            rank=rank,
            world=world,
            fetch=cached(config.seed, VIEWS),
        ),
        labelled_train=labelled_loader(
            data,
            batch_size=config.reference_batch_size,
            seed=reference_seed,
            workers=workers,
            fetch=cached(reference_seed, VIEWS),
        ),
        labelled=lambda: labelled.epoch(0),
        unlabelled=lambda: unlabelled.epoch(0),
        augmented=InOrder(augmented, range(len(data.merged)), workers=workers),
        identity={"pixels": data.image_size} if cache is None else {"tokens": cache.made_of},
    )


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
