"""Trunk tokens of V augmented views and the test view of every image, on disk.

Training on them never runs the trunk.

A directory holds `tokens.bin`, an array (images, V + 1, N, D) in the order of the data set whose last view is
the test view; `checksums.bin`, CRC-32 (images, V + 1) of each view's tokens; and the record of
`cache_files.py`, with which a killed build goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from eagc_ops import interrupts
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.files import naming_full_disks
from eagc_ops.training.data.cache_files import AGAIN, CacheFiles, write_at
from eagc_ops.training.data.gcd import GCDData
from eagc_ops.training.data.loaders import Draw, KeyedViews, draw_key
from eagc_ops.training.progress import bar as progress_bar

__all__ = ["CachedViews", "PixelViews", "TrunkCache", "cache_bytes", "choose_views", "trunk_cache"]

_CHECKSUM = np.dtype("<u4")


def trunk_cache(
    directory: str | Path,
    encoder: AnchoredEncoder,
    data: GCDData,
    *,
    views: int,
    half: bool = False,
    seed: int = 0,
    batch_size: int = 32,
    workers: int = 0,
    progress: bool = True,
) -> TrunkCache:
    """Open the cache in `directory`, after building any missing part of it.

    The build prints the size, then a progress bar.

    View v of image i, its uq_idx, is drawn with the key (seed, -1, i, v): no epoch of training has number -1.
    Runs of different seeds and of different splits can share a cache. One made of different weights,
    transforms, images or settings is refused.

    Args:
        views: V, the augmented views of every image.
        half: store float16; the tokens are read back as float32.
        batch_size: images, of V + 1 views each, that go through the trunk at a time.
        progress: show the bar.
    """
    files = _files(Path(directory), _made_of(encoder, data, views, half, seed))
    files.complete(lambda done: _build(files, encoder, data, done, batch_size, workers, progress))
    return TrunkCache(files.directory, files.made_of)


def cache_bytes(encoder: AnchoredEncoder, data: GCDData, *, views: int, half: bool = False) -> int:
    """Size of the cache on disk, in bytes."""
    tokens, width = encoder.token_shape
    return len(data.images) * (views + 1) * tokens * width * (2 if half else 4)


class TrunkCache:
    """Reads a complete cache. `made_of` must equal the origin in its record.

    The first time that a process reads a view, its checksum is compared: nothing damaged is trained on.
    """

    def __init__(self, directory: Path, made_of: dict[str, str | int]) -> None:
        done = _files(directory, made_of).done()
        shape = (made_of["images"], made_of["views"] + 1, made_of["tokens"], made_of["width"])
        path, dtype = directory / "tokens.bin", np.dtype(made_of["dtype"])
        size = path.stat().st_size if path.exists() else 0
        if done < shape[0]:
            raise ValueError(
                f"trunk cache {directory} is not complete: {done} of {shape[0]} images; "
                "build it with trunk_cache()"
            )
        if size != (need := int(np.prod(shape)) * dtype.itemsize):
            raise ValueError(f"{path} is damaged: it has {size} of {need} bytes; {AGAIN}")
        self.directory, self.made_of = directory, made_of
        self._array = np.memmap(path, dtype, mode="r", shape=shape)
        self._checksums = _read_checksums(directory, shape[:2])
        self._compared = np.zeros(shape[:2], bool)

    @property
    def views(self) -> int:
        return self.made_of["views"]

    def __len__(self) -> int:
        return self.made_of["images"]

    def tokens(self, index: int, view: int | None = None) -> Tensor:
        """float32 (N, D): `encoder.trunk` of a view (None: test view) of the image with uq_idx `index`."""
        if not 0 <= index < len(self) or not (view is None or 0 <= view < self.views):
            raise IndexError(
                f"index={index}, view={view}: the cache holds images 0..{len(self) - 1}, "
                f"views 0..{self.views - 1} and None"
            )
        place = index, self.views if view is None else view
        tokens = self._array[place]
        if self._checksums is not None and not self._compared[place]:
            if zlib.crc32(tokens) != self._checksums[place]:
                raise ValueError(
                    f"{self.directory / 'tokens.bin'} is damaged: view {place[1]} of image {index} does not "
                    f"match its checksum; {AGAIN}"
                )
            self._compared[place] = True
        return torch.from_numpy(tokens.astype(np.float32))

    def __reduce__(self):
        # A worker process maps the file again instead of receiving its content.
        return TrunkCache, (self.directory, self.made_of)


def choose_views(seed: int, draw: Draw, available: int, views: int = 2) -> list[int]:
    """Different view numbers below `available` for a draw, keyed by (seed, epoch, position).

    >>> choose_views(0, Draw(epoch=3, position=17, index=5), available=8)
    [1, 3]
    """
    generator = torch.Generator().manual_seed(draw_key(seed, draw.epoch, draw.position))
    return torch.randperm(available, generator=generator)[:views].tolist()


class CachedViews(Dataset):
    """`fetch` of a loader: maps a `Draw` to (tokens of `views` different cached views, label, uq_idx, mask).

    `views=None` gives the test view alone.
    """

    def __init__(self, cache: TrunkCache, data: GCDData, *, seed: int = 0, views: int | None = 2) -> None:
        _check_views(views, cache.views)
        self.cache, self.seed, self.views, self.rows = cache, seed, views, _rows(data)

    def __getitem__(self, draw: Draw) -> tuple[list[Tensor], int, int, bool]:
        chosen = [None] if self.views is None else choose_views(self.seed, draw, self.cache.views, self.views)
        label, uq_idx, mask = self.rows[draw.index]
        return [self.cache.tokens(uq_idx, v) for v in chosen], label, uq_idx, mask


class PixelViews(Dataset):
    """The views of `CachedViews` in pixels, for a run that is compared with a cached one."""

    def __init__(
        self, data: GCDData, available: int, *, seed: int = 0, views: int = 2, cache_seed: int = 0
    ) -> None:
        _check_views(views, available)
        self.all = KeyedViews(data.in_order, data.train_transform, available, cache_seed)
        self.seed, self.views, self.rows = seed, views, _rows(data)
        self.normalization = self.all.normalization

    def __getitem__(self, draw: Draw) -> tuple[list[Tensor], int, int, bool]:
        label, uq_idx, mask = self.rows[draw.index]
        pixels = self.all[_key_of(uq_idx)][0]
        return (
            [pixels[v] for v in choose_views(self.seed, draw, len(pixels), self.views)],
            label,
            uq_idx,
            mask,
        )


def _rows(data: GCDData) -> list[tuple[int, int, bool]]:
    """(label, uq_idx, mask) of every item of `data.merged`."""
    return [
        (label, uq_idx, mask)
        for part, mask in ((data.labelled, True), (data.unlabelled, False))
        for label, uq_idx in zip(part.labels.tolist(), part.uq_idx.tolist())
    ]


def _key_of(index: int) -> Draw:
    return Draw(epoch=-1, position=index, index=index)


def _check_views(views: int | None, available: int) -> None:
    if views is not None and not 1 <= views <= available:
        raise ValueError(
            f"views must be in 1 .. {available}, the number of cached views, got {views}; "
            "build a cache with more"
        )


def _made_of(
    encoder: AnchoredEncoder, data: GCDData, views: int, half: bool, seed: int
) -> dict[str, str | int]:
    """Everything the tokens depend on."""
    if views < 1:
        raise ValueError(f"views must be >= 1, got {views}; training draws two different views of an image")
    tokens, width = encoder.token_shape
    transforms = {"train transform": repr(data.train_transform), "test transform": repr(data.test_transform)}
    for name, text in transforms.items():
        if " at 0x" in text:
            raise ValueError(
                f"the {name} has the repr {text}, which does not identify it: "
                "give it a __repr__ with its parameters"
            )
    images = len(data.images)
    # A sample of images tells data sets of equal counts apart.
    sample = hashlib.sha256()
    for i in sorted({images * k // 64 for k in range(64)}):
        image = data.images.image(i)
        sample.update(f"{image.mode} {image.size}".encode() + image.tobytes())
    return {
        "format": 2,
        "weights": encoder.trunk_fingerprint(),
        "grad_from_block": encoder.grad_from_block,
        **transforms,
        "sampled images": sample.hexdigest(),
        "images": images,
        "views": views,
        "seed": seed,
        "tokens": tokens,
        "width": width,
        "dtype": "float16" if half else "float32",
    }


def _files(directory: Path, made_of: dict[str, str | int]) -> CacheFiles:
    return CacheFiles("trunk cache", directory, "tokens.bin", made_of)


def _read_checksums(directory: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    path = directory / "checksums.bin"
    if not path.exists():
        warnings.warn(
            f"trunk cache {directory} was built without checksums: damage would not be noticed; {AGAIN}",
            stacklevel=4,
        )
        return None
    checksums = np.fromfile(path, _CHECKSUM)
    if checksums.size != np.prod(shape):
        raise ValueError(f"{path} is damaged: it has {checksums.size} of {np.prod(shape)} entries; {AGAIN}")
    return checksums.reshape(shape)


class _AllViews(Dataset):
    """Item i: the V augmented views and the test view of image i, (V + 1, C, H, W).

    `normalization`: left to the device; None: nothing is.
    """

    def __init__(self, data: GCDData, views: int, seed: int) -> None:
        self.train = KeyedViews(data.in_order, data.train_transform, views, seed)
        self.test = KeyedViews(data.in_order, data.test_transform, 1, seed)
        splits = [views.split for views in (self.train, self.test)]
        alike = None not in splits and len({(s.name, s.normalization) for s in splits}) == 1
        self.normalization = self.train.normalization if alike else None

    def __getitem__(self, i: int) -> Tensor:
        key = _key_of(i)
        if self.normalization is not None:  # an image is decoded and resized once for all its views
            image = self.train.image(i)[0]
            return torch.stack(self.train.views_of(image, key) + self.test.views_of(image, key))
        return torch.stack(_ready(self.train, key) + _ready(self.test, key))


def _ready(views: KeyedViews, key: Draw) -> list[Tensor]:
    normalize = views.normalization or (lambda view: view)
    return [normalize(view) for view in views[key][0]]


def _build(
    files: CacheFiles,
    encoder: AnchoredEncoder,
    data: GCDData,
    done: int,
    batch_size: int,
    workers: int,
    progress: bool,
) -> None:
    directory, made_of = files.directory, files.made_of
    images, views, tokens, width = (made_of[key] for key in ("images", "views", "tokens", "width"))
    dtype = getattr(torch, made_of["dtype"])
    image_bytes = (views + 1) * tokens * width * dtype.itemsize
    directory.mkdir(parents=True, exist_ok=True)
    path, checksums = files.path, directory / "checksums.bin"
    if done and (not path.exists() or path.stat().st_size < done * image_bytes):
        raise ValueError(f"{path} is shorter than its record says ({done} images); {AGAIN}")
    files.announce(
        f"{images} images x ({views} + 1) views x {tokens} x {width} {made_of['dtype']}",
        images * image_bytes,
        (images - done) * image_bytes,
        "store half precision or fewer views",
    )
    if not done:
        files.record(0)
    all_views = _AllViews(data, views, made_of["seed"])
    loader = DataLoader(
        Subset(all_views, range(done, images)),
        batch_size,
        num_workers=workers,
        generator=torch.Generator(),  # without one the loader draws a base seed from the global generator
    )
    device = next(encoder.parameters()).device
    path.touch()
    if not done:
        checksums.touch()
    with (
        path.open("r+b") as file,
        # A cache of an earlier version is continued without checksums.
        checksums.open("r+b") if checksums.exists() else contextlib.nullcontext() as sums,
        progress_bar(total=images, initial=done, unit="image", desc="trunk cache", shown=progress) as bar,
    ):
        with interrupts.unaware_children():
            batches = iter(loader)
        for batch in batches:
            pixels = batch.flatten(0, 1).to(device)
            if all_views.normalization is not None:
                pixels = all_views.normalization(pixels)
            out = encoder.trunk(pixels).detach().to(dtype)
            if out.shape[1:] != (tokens, width):
                raise ValueError(
                    f"the trunk gives tokens {tuple(out.shape[1:])}, not {(tokens, width)}: "
                    "the images do not have the backbone's image size"
                )
            if not out.isfinite().all():
                raise ValueError(
                    f"tokens of images {done}..{done + len(batch) - 1} are not finite in {made_of['dtype']}"
                )
            new = out.cpu().numpy()
            with naming_full_disks(path, (images - done) * image_bytes):
                write_at(file, done * image_bytes, new.tobytes())
                if sums is not None:
                    found = np.array([zlib.crc32(view) for view in new], _CHECKSUM)
                    write_at(sums, done * (views + 1) * _CHECKSUM.itemsize, found.tobytes())
            done += len(batch)
            files.record(done)
            bar.update(len(batch))
