"""Times of whole epochs, loading included: with the trunk cache, without it, and as released.

The share of loading in each is measured beside it, and the reference model's epochs too. On a CPU all times
are CPU time: files and cached tokens come from memory (the system's page cache), and waiting for a disk does
not count.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eagc_ops.bench.loader import as_published, with_pixels
from eagc_ops.bench.measure import clock, interleave, ratio
from eagc_ops.bench.pixel_views import PixelViews
from eagc_ops.bench.steps import OURS, RELEASED_EAGC, VARIANTS, Setting, Step
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.config import resolve
from eagc_ops.training.data import Batch, GCDData, Images, ImageSubset, TrainLoader, train_loader
from eagc_ops.training.data.batches import batches
from eagc_ops.training.data.rows import rows_of
from eagc_ops.training.data.transforms import split_transform
from eagc_ops.training.data.trunk_cache import CachedViews, cache_bytes, trunk_cache
from eagc_ops.training.models.reference_model import train_reference

# Views per image in the cache: the fewest that a two-view method can use, so that the released way makes no
# view that is not used.
VIEWS = 2


def epoch_rows(setting: Setting, data: GCDData, batch_size: int, rounds: int) -> list[dict[str, Any]]:
    """One epoch of SimGCD + EAGC over the same views, three ways, and the loading of each by itself."""
    steps = {
        variant.name: Step(setting, variant) for variant in VARIANTS if variant.name in (RELEASED_EAGC, OURS)
    }
    encoder = steps[OURS].encoder

    def epoch(step: Step, loader: TrainLoader) -> None:
        for batch in loader.epoch(0):
            step(rows_of(batch, setting.device))

    def load(loader: TrainLoader) -> None:
        for batch in loader.epoch(0):
            rows_of(batch, setting.device)

    with tempfile.TemporaryDirectory() as folder:
        now = clock(setting.device)
        begin = now()
        cache = trunk_cache(Path(folder) / "cache", encoder, data, views=VIEWS, progress=False)
        build = now() - begin
        published = PixelViews(data, VIEWS)
        published.all, published.normalization = as_published(published.all), None
        fetched = {
            "as released": (RELEASED_EAGC, published),
            "here": (OURS, PixelViews(_cached(data, Path(folder) / "pixels"), VIEWS)),
            "here, trunk cache": (OURS, CachedViews(cache, data)),
        }
        runs, loads = {}, {}
        for name, (variant, fetch) in fetched.items():
            loader = train_loader(data, batch_size=batch_size, seed=0, fetch=fetch)
            runs[name] = partial(epoch, steps[variant], loader)
            loads[f"loading, {name}"] = partial(load, loader)
        timings = interleave(runs | loads, rounds, now)
    sizes = {"images": len(data.merged), "images_drawn": len(loader) * batch_size}
    built = {
        "cache_build_seconds": build,
        "cache_bytes": cache_bytes(encoder, data, views=VIEWS),
        "cache_views": VIEWS,
    }
    return [
        {
            "kind": "measured",
            "way": name,
            **sizes,
            "rounds": rounds,
            "seconds": timings[name].spread,
            "speed_up": ratio(timings["as released"], timings[name]),
            "loading_seconds": timings[f"loading, {name}"].spread,
            "loading_share": ratio(timings[f"loading, {name}"], timings[name]),
            **(built if "cache" in name else {}),
        }
        for name in runs
    ]


def _cached(data: GCDData, folder: Path) -> GCDData:
    """The data with a pixel cache of their images alone, if their transforms allow one."""
    if split_transform(data.train_transform) is None:
        return data
    all_images, positions = data.labelled.images, torch.cat([data.labelled.uq_idx, data.unlabelled.uq_idx])
    source = all_images.source
    images = replace(
        all_images,
        source=[source[i] for i in positions] if isinstance(source, list) else source[positions.numpy()],
        targets=all_images.targets[positions.numpy()],
    )
    first = len(data.labelled)
    labelled, unlabelled = torch.arange(len(positions)).tensor_split([first])
    parts = replace(
        data,
        labelled=_part(images, labelled, data.labelled.labels),
        unlabelled=_part(images, unlabelled, data.unlabelled.labels),
    )
    return with_pixels(parts, folder)


def reference_rows(setting: Setting, data: GCDData, rounds: int) -> list[dict[str, Any]]:
    """One epoch of the reference model on the labelled images: full block, CLS-only, with trunk cache."""
    images = len(data.labelled)
    switches: dict[str, Any] = {
        "reference_epochs": 1,
        "reference_batch_size": images,
        "batch_size": 2,
        "cache_views": VIEWS,
    }
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for name, cls_only, cached in (
            ("full last block", False, False),
            ("CLS-only", True, False),
            ("CLS-only, trunk cache", True, True),
        ):
            encoder = AnchoredEncoder(setting.vit, len(setting.vit.blocks) - 1, cls_only=cls_only)
            config = resolve(
                "simgcd",
                "cub",
                "paper",
                trunk_cache=str(Path(folder) / "cache") if cached else None,
                **switches,
            )
            loader = batches(
                data, config, encoder, weighting="simgcd", rank=0, world=1, main=False
            ).labelled_train
            runs[name] = partial(train_reference, encoder, loader, config, setting.known, progress=False)
        timings = interleave(runs, rounds, clock(setting.device))
    return [
        {
            "kind": "measured",
            "way": name,
            "labelled_images": images,
            "rounds": rounds,
            "epoch_seconds": timings[name].spread,
            "speed_up": ratio(timings["full last block"], timings[name]),
            "seconds_per_image": timings[name].median / images,
        }
        for name in runs
    ]


def first_of(data: GCDData, images: int) -> GCDData:
    """A smaller data set of `images` images: half from the labelled part, half from the unlabelled part."""

    def cut(part: ImageSubset) -> ImageSubset:
        return _part(part.images, part.uq_idx[: images // 2], part.labels[: images // 2])

    return replace(
        data,
        labelled=cut(data.labelled),
        unlabelled=cut(data.unlabelled),
        split_hash=f"{data.split_hash}, first {images}",
    )


def _part(images: Images, uq_idx: torch.Tensor, labels: torch.Tensor) -> ImageSubset:
    part = ImageSubset.__new__(ImageSubset)
    part.images, part.uq_idx, part.labels = images, uq_idx, labels
    return part


def first_images(loader: Iterable[Batch], rows: int) -> torch.Tensor:
    """(rows, C, H, W) of a loader's first batch: all first views, then all second views."""
    batch = next(iter(loader))
    return torch.cat([view[: rows // 2] for view in batch.views])
