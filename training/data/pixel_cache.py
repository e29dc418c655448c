"""Decoded and resized images on disk: what every draw of an image has in common is done once.

A directory holds `pixels.bin`, uint8 (C, H, W) of one image after the other in the order of the data set;
`sizes.bin`, for each image its height, width and CRC-32; and the record of `cache_files.py`, with which a
killed build goes on. Its name is the fingerprint of what it was made of, so caches of different data sets,
sizes or versions of a file lie side by side in one folder. It can be deleted at any time.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL
import PIL.features
import torch
from PIL import Image
from torch import Tensor

from eagc_ops.files import fingerprint, naming_full_disks
from eagc_ops.training.data.cache_files import AGAIN, CacheFiles, write_at
from eagc_ops.training.data.catalog import Images
from eagc_ops.training.data.transforms import pixels_of
from eagc_ops.training.progress import bar as progress_bar

__all__ = ["BUDGET", "LEAST", "PixelCache", "cache_bytes", "find_pixels", "fits", "pixel_cache"]

# What is cached without being asked for, in bytes. Below LEAST, decoding takes no time worth a file.
LEAST, BUDGET = 8_000_000, 16_000_000_000
_SIZE = np.dtype([("height", "<u4"), ("width", "<u4"), ("crc32", "<u4")])
_SAMPLE = 32  # images whose size is looked up before a build
_CHUNK = 128  # images between two records
_THREADS = min(8, os.cpu_count() or 1)  # PIL releases the interpreter's lock while it decodes and resizes

Fixed = Callable[[Image.Image], Image.Image]


def pixel_cache(folder: str | Path, images: Images, fixed: Fixed, *, progress: bool = True) -> PixelCache:
    """The cache of `fixed(image)` of all `images` below `folder`, after building any missing part of it.

    The build prints the size, then a progress bar. `fixed` is the resize of a transform; its repr names it.
    """
    files = _files(Path(folder), images, fixed)
    files.complete(lambda done: _build(files, images, fixed, done, progress))
    return PixelCache(files)


def find_pixels(folder: str | Path, images: Images, fixed: Fixed) -> PixelCache | None:
    """The complete cache of these images below `folder`; None if there is none."""
    files = _files(Path(folder), images, fixed)
    return PixelCache(files) if files.done() == files.images else None


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


class PixelCache:
    """Reads a complete cache. The first time that a process reads an image, its checksum is compared."""

    def __init__(self, files: CacheFiles) -> None:
        done, size = files.done(), files.path.stat().st_size if files.path.exists() else 0
        if done < files.images:
            raise ValueError(f"{files} is not complete: {done} of {files.images} images; build it first")
        sizes = _read_sizes(files, done)
        channels = files.made_of["channels"]
        lengths = channels * sizes["height"].astype(np.int64) * sizes["width"]
        if size != (need := int(lengths.sum())):
            raise ValueError(f"{files.path} is damaged: it has {size} of {need} bytes; {AGAIN}")
        self.files, self.fixed = files, files.made_of["fixed"]
        # A private map, not a read-only one: torch has no tensors that cannot be written.
        self._bytes = torch.from_file(str(files.path), shared=False, size=need, dtype=torch.uint8)
        self._places = np.concatenate([[0], np.cumsum(lengths)])
        self._sizes, self._compared = sizes, np.zeros(done, bool)

    def __len__(self) -> int:
        return len(self._sizes)

    def pixels(self, position: int) -> Tensor:
        """uint8 (C, H, W) of an image, in the map: not to be written to."""
        height, width, crc32 = self._sizes[position].tolist()
        flat = self._bytes[self._places[position] : self._places[position + 1]]
        if not self._compared[position]:
            if zlib.crc32(flat.numpy()) != crc32:
                raise ValueError(
                    f"{self.files.path} is damaged: image {position} does not match its checksum; {AGAIN}"
                )
            self._compared[position] = True
        return flat.view(-1, height, width)

    def __reduce__(self):
        # A worker process maps the file again instead of receiving its content.
        return PixelCache, (self.files,)


def _files(folder: Path, images: Images, fixed: Fixed) -> CacheFiles:
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
    return CacheFiles("pixel cache", folder / fingerprint(made_of)[:16], "pixels.bin", made_of)


def _read_sizes(files: CacheFiles, done: int) -> np.ndarray:
    path = files.directory / "sizes.bin"
    sizes = np.fromfile(path, _SIZE) if path.exists() else np.empty(0, _SIZE)
    if len(sizes) < done:
        raise ValueError(f"{path} is damaged: it has {len(sizes)} of {done} entries; {AGAIN}")
    return sizes[:done]


def _build(files: CacheFiles, images: Images, fixed: Fixed, done: int, progress: bool) -> None:
    files.directory.mkdir(parents=True, exist_ok=True)
    sizes, channels = _read_sizes(files, done), files.made_of["channels"]
    place = int((channels * sizes["height"].astype(np.int64) * sizes["width"]).sum())
    if (files.path.stat().st_size if files.path.exists() else 0) < place:
        raise ValueError(f"{files.path} is shorter than its record says ({done} images); {AGAIN}")
    size = max(cache_bytes(images, fixed), place)
    files.announce(
        f"{len(images):,} images, resized", size, size - place, "switch it off (pixel_cache='off')", "about "
    )
    if not done:
        files.record(0)
    sizes_path = files.directory / "sizes.bin"
    files.path.touch()
    sizes_path.touch()
    with (
        files.path.open("r+b") as file,
        sizes_path.open("r+b") as table,
        ThreadPoolExecutor(_THREADS) as pool,
        progress_bar(
            total=len(images), initial=done, unit="image", desc="pixel cache", mininterval=1, shown=progress
        ) as bar,
    ):
        file.truncate(place)  # what a killed build wrote beyond its record
        while done < len(images):
            chunk = range(done, min(done + _CHUNK, len(images)))
            new = list(pool.map(lambda i: pixels_of(fixed(images.image(i))), chunk))
            entries = np.array([(*pixels.shape[1:], zlib.crc32(pixels)) for pixels in new], _SIZE)
            with naming_full_disks(files.path, max(size - place, 1)):
                write_at(file, place, b"".join(pixels.data for pixels in new))
                write_at(table, done * _SIZE.itemsize, entries.tobytes())
            place += sum(pixels.size for pixels in new)
            done += len(new)
            files.record(done)
            bar.update(len(new))
