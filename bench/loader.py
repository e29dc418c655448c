"""`eagc bench loader`: CPU time of loading an image, as published and from cached pixels.

The published way decodes an image and then runs the whole transform for each of its views: resize, crop,
flip, division, normalization. Here the first part, which is the same in every epoch, is read from a pixel
cache; the last can be left to the device, and does not count if the device is a GPU. All ways give the same
bits. The photographs are synthetic JPEG files of 500 x 375 pixels; they come from memory (the system's page
cache), so waiting for a disk does not count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from eagc_ops.bench.measure import Timing, interleave, ratio
from eagc_ops.training.data import GCDData, Images, ImageSubset, KeyedViews, TrainLoader
from eagc_ops.training.data.pixel_cache import pixel_cache
from eagc_ops.training.data.transforms import protocol_transforms, split_transform

SIZE = (500, 375)  # width, height
QUALITY = 90  # of the JPEG files
BATCH = 16
PUBLISHED = "as published"
RESIZED_ONCE = "here, without a cache"
ON_CPU = "here, cached pixels, all of the transform on the CPU"
ON_DEVICE = "here, cached pixels, normalized on the device"


def photographs(
    folder: Path, images: int, image_size: int = 224, known: int = 100, classes: int = 200
) -> GCDData:
    """JPEG files of noise of several scales; half are labelled.

    They are about as large as the photographs of CUB, of whose archive an image takes 98 kB.
    """
    random, width, height = np.random.RandomState(0), *SIZE
    paths = []
    for i in range(images):
        pixels = np.full((height, width, 3), 128.0)
        for cells, contrast in ((3, 0.4), (9, 0.4), (27, 0.4), (81, 0.4), (243, 0.34)):
            noise = random.randint(0, 256, (cells, cells, 3)).astype(np.uint8)
            resized = Image.fromarray(noise).resize(SIZE, Image.Resampling.BICUBIC)
            pixels += (np.asarray(resized, np.float64) - 128) * contrast
        path = folder / f"{i:05}.jpg"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=QUALITY)
        paths.append(str(path))
    source = Images(paths, np.arange(images) % known, home=str(folder))
    labels, positions = np.arange(classes), np.arange(images)
    parts = (
        ImageSubset(source, positions[: images // 2], labels),
        ImageSubset(source, positions[images // 2 :], labels),
    )
    transforms = protocol_transforms(image_size)
    name = f"photographs-{images}"
    return GCDData("photographs", known, classes - known, *parts, *transforms, image_size, 3, name, ())


def as_published(views: KeyedViews) -> KeyedViews:
    """The same draws by the whole transform, view by view."""
    views.split = views.normalization = None
    return views


def with_pixels(data: GCDData, folder: Path) -> GCDData:
    """The data with their pixel cache in `folder`."""
    split = split_transform(data.train_transform)
    assert split is not None, "every transform of these data can be split"
    return replace(data, cache=pixel_cache(folder, data.labelled.images, split.fixed, progress=False))


def loader_tables(rounds: int, images: int) -> dict[str, Any]:
    """Settings, times of a training pass (two views) and of an evaluation pass (one), the cache, the bars."""
    with tempfile.TemporaryDirectory() as folder:
        data = photographs(Path(folder), images)
        paths = data.labelled.images.source
        begin = time.process_time()
        cached = with_pixels(data, Path(folder) / "pixels")
        build = time.process_time() - begin
        rows = [
            *_rows("training, two views", data, cached, data.train_transform, 2, rounds),
            *_rows("evaluation, one view", data, cached, data.test_transform, 1, rounds),
        ]
        file_bytes = sum(Path(path).stat().st_size for path in paths)
        assert cached.cache is not None  # `with_pixels`
        cache_bytes = cached.cache.path.stat().st_size
    return {
        "settings": {
            "images": images,
            "width": SIZE[0],
            "height": SIZE[1],
            "image_size": data.image_size,
            "rounds": rounds,
        },
        "loader": rows,
        "cache": {
            "build_seconds_per_image": build / images,
            "bytes_per_image": cache_bytes / images,
            "file_bytes_per_image": file_bytes / images,
        },
        "bars": bars(rows),
    }


def _rows(
    name: str, data: GCDData, cached: GCDData, transform: Callable, views: int, rounds: int
) -> list[dict[str, Any]]:
    def loader(data: GCDData, change: Callable[[KeyedViews], KeyedViews] = lambda views: views):
        fetch = change(KeyedViews(data.merged, transform, views, seed=0))
        return TrainLoader(
            fetch,
            lambda generator: torch.randperm(len(data.merged), generator=generator),
            size=len(data.merged),
            batch_size=BATCH,
            seed=0,
            drop_last=False,
        )

    published, once, here = loader(data, as_published), loader(data), loader(cached)
    for batches in zip(published.epoch(0), once.epoch(0), here.epoch(0), strict=True):
        for expected, *found in zip(*(batch.views for batch in batches), strict=True):
            if not all(torch.equal(expected, view) for view in found):
                raise RuntimeError("all ways must give the same bits, but a view of a cached image differs")

    def load(loader: TrainLoader, part: str) -> None:
        for batch in loader.epoch(0):
            getattr(batch, part)

    runs = {
        PUBLISHED: partial(load, published, "views"),
        RESIZED_ONCE: partial(load, once, "views"),
        ON_CPU: partial(load, here, "views"),
        ON_DEVICE: partial(load, here, "stored"),
    }
    timings = interleave(runs, rounds)
    return [
        {
            "kind": "measured",
            "pass": name,
            "way": way,
            "rounds": rounds,
            "seconds_per_image": _per_image(timings[way], len(data.merged)).spread,
            "speed_up": ratio(timings[PUBLISHED], timings[way]),
        }
        for way in runs
    ]


def bars(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The limits that the package promises for two views of a photograph on a CPU, and their verdicts."""
    speed_up = {row["way"]: row["speed_up"] for row in rows if row["pass"].startswith("training")}
    promises = ((ON_CPU, 7.0), (ON_DEVICE, 40.0))
    return [
        {
            "bar": f"{way}: speed-up over the published way",
            "limit": f">= {limit}",
            "value": speed_up[way],
            "met": speed_up[way].median >= limit,
        }
        for way, limit in promises
    ]


def _per_image(timing: Timing, images: int) -> Timing:
    return Timing([seconds / images for seconds in timing.seconds], timing.faults)
