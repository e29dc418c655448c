"""Decoded and resized images on disk: what every draw of an image has in common is done once.

An `ImageCache` of `pixels.bin`, uint8 (C, H, W) of one image after the other, and `sizes.bin`, for each image
its height, width and CRC-32. The name of its directory is the fingerprint of what it was made of, so caches
of different data sets, sizes or versions of a file lie side by side in one folder. It can be deleted at any
time.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL
import PIL.features
import torch
from PIL import Image
from torch import Tensor
from typing_extensions import Self

from eagc_ops.app.files import fingerprint
from eagc_ops.training.data.cache import Build, ImageCache
from eagc_ops.training.data.catalog import Images
from eagc_ops.training.data.transforms import pixels_of

__all__ = ["BUDGET", "LEAST", "PixelCache", "cache_bytes", "find_pixels", "fits", "pixel_cache"]

# What is cached without being asked for, in bytes. Below LEAST, decoding takes no time worth a file.
LEAST, BUDGET = 8_000_000, 16_000_000_000
_SAMPLE = 32  # images whose size is looked up before a build
_CHUNK = 128  # images between two records
_THREADS = min(8, os.cpu_count() or 1)  # PIL releases the interpreter's lock while it decodes and resizes

Fixed = Callable[[Image.Image], Image.Image]


def pixel_cache(folder: str | Path, images: Images, fixed: Fixed, *, progress: bool = True) -> PixelCache:
    """The cache of `fixed(image)` of all `images` below `folder`, after building any missing part of it.

    The build prints the size, then a progress bar. `fixed` is the resize of a transform; its repr names it.
    """
    return _of(Path(folder), images, fixed).complete(progress)


def find_pixels(folder: str | Path, images: Images, fixed: Fixed) -> PixelCache | None:
    """The complete cache of these images below `folder`; None if there is none."""
    cache = _of(Path(folder), images, fixed)
    return cache.opened() if cache.done() == len(cache) else None


def cache_bytes(images: Images, fixed: Fixed) -> int:
    """Size of the cache, in bytes, from up to 32 of the images."""
    chosen = sorted({len(images) * k // _SAMPLE for k in range(_SAMPLE)})
    pixels = [np.prod(fixed(Image.new("RGB", images.size(i))).size) for i in chosen]
    return round(float(np.mean(pixels)) * images.channels * len(images))


def fits(folder: Path, size: int) -> bool:
    """Whether a cache of `size` bytes is made without being asked for: it pays, and the disk has room."""
    while not folder.exists():
        folder = folder.parent
    return LEAST <= size <= min(BUDGET, shutil.disk_usage(folder).free // 2)


class PixelCache(ImageCache):
    """Resized images; `source` is needed to make those that are missing."""

    kind, data, index = "pixel cache", "pixels.bin", "sizes.bin"
    entry = np.dtype([("height", "<u4"), ("width", "<u4"), ("crc32", "<u4")])
    source: tuple[Images, Fixed]

    @property
    def fixed(self) -> str:
        """The repr of the resize."""
        return self.made_of["fixed"]

    def opened(self) -> Self:
        super().opened()
        # A private map, not a read-only one: torch has no tensors that cannot be written.
        size = int(self.places[-1])
        self._bytes = torch.from_file(str(self.path), shared=False, size=size, dtype=torch.uint8)
        return self

    def pixels(self, position: int) -> Tensor:
        """uint8 (C, H, W) of an image, in the map: not to be written to."""
        height, width, _ = self.entries[position].tolist()
        flat = self._bytes[self.places[position] : self.places[position + 1]]
        self.compare(position, flat.numpy(), f"image {position}")
        return flat.view(-1, height, width)

    def lengths(self, entries: np.ndarray) -> np.ndarray:
        return self.made_of["channels"] * entries["height"].astype(np.int64) * entries["width"]

    def missing(self, done: int) -> Build:
        images, fixed = self.source
        content, remedy = f"{len(images):,} images, resized = about", "switch it off (pixel_cache='off')"
        return Build(content, cache_bytes(images, fixed), remedy, self._parts(done))

    def _parts(self, done: int) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
        images, fixed = self.source
        with ThreadPoolExecutor(_THREADS) as pool:
            for first in range(done, len(images), _CHUNK):
                chunk = range(first, min(first + _CHUNK, len(images)))
                new = list(pool.map(lambda i: pixels_of(fixed(images.image(i))), chunk))
                entries = [(*pixels.shape[1:], zlib.crc32(pixels.data)) for pixels in new]
                yield new, np.array(entries, self.entry)


def _of(folder: Path, images: Images, fixed: Fixed) -> PixelCache:
    made_of = {
        "format": 1,
        "source": images.origin(),
        "fixed": repr(fixed),
        "channels": images.channels,
        "images": len(images),
        # Another version may round differently
        "pillow": PIL.__version__,
        "jpeg": PIL.features.version("jpg"),
    }
    cache = PixelCache(folder / fingerprint(made_of)[:16], made_of)
    cache.source = images, fixed
    return cache
