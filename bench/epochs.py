"""Times of whole epochs, loading included: with the trunk cache, without it, and as released.

The reference model's epochs are measured too. On a CPU all times are CPU time: the cached tokens come from
memory (the system's page cache), and waiting for a disk does not count.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eagc_ops.bench.measure import clock, interleave, ratio
from eagc_ops.bench.steps import OURS, RELEASED_EAGC, VARIANTS, Setting, Step
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.config import resolve
from eagc_ops.training.data import Batch, GCDData, Images, ImageSubset, train_loader
from eagc_ops.training.data.batches import batches
from eagc_ops.training.data.rows import rows_of
from eagc_ops.training.data.transforms import protocol_transforms
from eagc_ops.training.data.trunk_cache import CachedViews, PixelViews, cache_bytes, trunk_cache
from eagc_ops.training.models.reference_model import train_reference

# Views per image in the cache: the fewest that a two-view method can use, so that the released way makes no
# view that is not used.
VIEWS = 2


def synthetic_data(images: int, image_size: int = 224, known: int = 100, classes: int = 200) -> GCDData:
    """Noise of 256 x 256 pixels in memory (nothing is decoded); half of the images are labelled."""
    random = np.random.RandomState(0)
    pixels = random.randint(0, 256, (images, 256, 256, 3), dtype=np.uint8)
    targets = np.arange(images) % known  # known classes only, so that any image may be labelled
    source, labels = Images(pixels, targets), np.arange(classes)
    positions = np.arange(images)
    parts = (
        ImageSubset(source, positions[: images // 2], labels),
        ImageSubset(source, positions[images // 2 :], labels),
    )
    return GCDData(
        "synthetic",
        known,
        classes - known,
        *parts,
        *protocol_transforms(image_size),
        image_size,
        3,
        f"synthetic-{images}",
        (),
    )


def epoch_rows(setting: Setting, data: GCDData, batch_size: int, rounds: int) -> list[dict[str, Any]]:
    """One epoch of SimGCD + EAGC over the same views, three ways."""
    steps = {
        variant.name: Step(setting, variant) for variant in VARIANTS if variant.name in (RELEASED_EAGC, OURS)
    }
    encoder = steps[OURS].encoder

    def epoch(step: Step, loader) -> None:
        for batch in loader.epoch(0):
            step(rows_of(batch, setting.device))

    with tempfile.TemporaryDirectory() as folder:
        now = clock(setting.device)
        begin = now()
        cache = trunk_cache(Path(folder) / "cache", encoder, data, views=VIEWS, progress=False)
        build = now() - begin
        pixels = train_loader(data, batch_size=batch_size, seed=0, fetch=PixelViews(data, VIEWS))
        tokens = train_loader(data, batch_size=batch_size, seed=0, fetch=CachedViews(cache, data))
        runs = {
            "as released": lambda: epoch(steps[RELEASED_EAGC], pixels),
            "here": lambda: epoch(steps[OURS], pixels),
            "here, trunk cache": lambda: epoch(steps[OURS], tokens),
        }
        timings = interleave(runs, rounds, now)
    sizes = {"images": len(data.merged), "images_drawn": len(pixels) * batch_size}
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
            **(built if "cache" in name else {}),
        }
        for name in runs
    ]


def reference_rows(setting: Setting, data: GCDData, rounds: int) -> list[dict[str, Any]]:
    """One epoch of the reference model on the labelled images: full block, CLS-only, with trunk cache."""
    images = len(data.labelled)
    switches = {"reference_epochs": 1, "reference_batch_size": images, "batch_size": 2, "cache_views": VIEWS}
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
            runs[name] = lambda e=encoder, c=config, l=loader: train_reference(
                e, l, c, setting.known, progress=False
            )
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
        smaller = ImageSubset.__new__(ImageSubset)
        smaller.images, smaller.uq_idx, smaller.labels = (
            part.images,
            part.uq_idx[: images // 2],
            part.labels[: images // 2],
        )
        return smaller

    return replace(
        data,
        labelled=cut(data.labelled),
        unlabelled=cut(data.unlabelled),
        split_hash=f"{data.split_hash}, first {images}",
    )


def first_images(loader: Iterable[Batch], rows: int) -> torch.Tensor:
    """(rows, C, H, W) of a loader's first batch: all first views, then all second views."""
    batch = next(iter(loader))
    return torch.cat([view[: rows // 2] for view in batch.views])
