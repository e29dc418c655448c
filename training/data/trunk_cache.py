"""Trunk tokens of V augmented views and the test view of every image, on disk.

Training on them never runs the trunk. An `ImageCache` of `tokens.bin`, an array (images, V + 1, N, D) in the
order of the data set whose last view is the test view, and `checksums.bin`, CRC-32 of each view's tokens.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset
from typing_extensions import Self

from eagc_ops.app import interrupts
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.data.cache import Build, ImageCache
from eagc_ops.training.data.gcd import GCDData
from eagc_ops.training.data.loaders import Draw, KeyedViews, draw_key, end_after_the_step
from eagc_ops.training.data.precision import autocast

__all__ = ["CachedViews", "TrunkCache", "cache_bytes", "choose_views", "trunk_cache"]


def trunk_cache(
    directory: str | Path,
    encoder: AnchoredEncoder,
    data: GCDData,
    *,
    views: int,
    half: bool = False,
    precision: str = "no",
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
        half: store float16.
        precision: "bf16" or "fp16": the trunk runs in it (autocast), as it does in a run without a cache.
        batch_size: images, of V + 1 views each, that go through the trunk at a time.
        progress: show the bar.
    """
    cache = TrunkCache(Path(directory), _made_of(encoder, data, views, half, precision, seed))
    cache.source = _Source(encoder, data, batch_size, workers)
    return cache.complete(progress)


def cache_bytes(encoder: AnchoredEncoder, data: GCDData, *, views: int, half: bool = False) -> int:
    """Size of the cache on disk, in bytes."""
    tokens, width = encoder.token_shape
    return len(data.images) * (views + 1) * tokens * width * (2 if half else 4)


class _Source(NamedTuple):
    """What the tokens are made of, and how."""

    encoder: AnchoredEncoder
    data: GCDData
    batch_size: int
    workers: int


class TrunkCache(ImageCache):
    """Tokens of views; `source` is needed to make those that are missing."""

    kind, data, index = "trunk cache", "tokens.bin", "checksums.bin"
    source: _Source

    @property
    def entry(self) -> np.dtype:
        return np.dtype([("crc32", "<u4", (self.views + 1,))])

    @property
    def views(self) -> int:
        return self.made_of["views"]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(V + 1, N, D): of an image."""
        return self.views + 1, self.made_of["tokens"], self.made_of["width"]

    def opened(self) -> Self:
        super().opened()
        shape = (len(self), *self.shape)
        self._array = np.memmap(self.path, self.made_of["dtype"], mode="r", shape=shape)
        return self

    def tokens(self, index: int, view: int | None = None) -> Tensor:
        """(N, D) as stored: `encoder.trunk` of a view (None: test view) of the image with uq_idx `index`."""
        if not 0 <= index < len(self) or not (view is None or 0 <= view < self.views):
            raise IndexError(
                f"index={index}, view={view}: the cache holds images 0..{len(self) - 1}, "
                f"views 0..{self.views - 1} and None"
            )
        place = index, self.views if view is None else view
        tokens = self._array[place]
        self.compare(place, tokens, f"view {place[1]} of image {index}")
        return torch.from_numpy(tokens.copy())

    def lengths(self, entries: np.ndarray) -> np.ndarray:
        size = int(np.prod(self.shape)) * np.dtype(self.made_of["dtype"]).itemsize
        return np.full(len(entries), size, np.int64)

    def missing(self, done: int) -> Build:
        views, tokens, width = self.shape
        dtype = self.made_of["dtype"]
        content = f"{len(self)} images x ({views - 1} + 1) views x {tokens} x {width} {dtype} ="
        size = len(self) * int(self.lengths(np.zeros(1))[0])
        return Build(content, size, "store half precision or fewer views", self._parts(done))

    def _parts(self, done: int) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
        encoder, data, batch_size, workers = self.source
        dtype, device = self.made_of["dtype"], next(encoder.parameters()).device
        all_views = _AllViews(data, self.views, self.made_of["seed"])
        loader = DataLoader(
            Subset(all_views, range(done, len(self))),
            batch_size,
            num_workers=workers,
            worker_init_fn=end_after_the_step,
            generator=torch.Generator(),  # without one the loader draws a base seed from the global generator
        )
        with interrupts.unaware_children():
            batches = iter(loader)
        for batch in batches:
            pixels = batch.flatten(0, 1).to(device)
            if all_views.normalization is not None:
                pixels = all_views.normalization(pixels)
            with autocast(device, self.made_of.get("precision", "no")):
                out = encoder.trunk(pixels).detach().to(getattr(torch, dtype))
            if out.shape[1:] != self.shape[1:]:
                raise ValueError(
                    f"the trunk gives tokens {tuple(out.shape[1:])}, not {self.shape[1:]}: "
                    "the images do not have the backbone's image size"
                )
            if not out.isfinite().all():
                raise ValueError(
                    f"tokens of images {done}..{done + len(batch) - 1} are not finite in {dtype}"
                )
            new = out.cpu().numpy()
            sums = np.array([zlib.crc32(view) for view in new], "<u4").reshape(len(batch), -1)
            yield [new], sums.view(self.entry)[:, 0]
            done += len(batch)


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
        check_views(views, cache.views)
        self.cache, self.seed, self.views, self.rows = cache, seed, views, rows_of_items(data)

    def __getitem__(self, draw: Draw) -> tuple[list[Tensor], int, int, bool]:
        chosen = [None] if self.views is None else choose_views(self.seed, draw, self.cache.views, self.views)
        label, uq_idx, mask = self.rows[draw.index]
        return [self.cache.tokens(uq_idx, v) for v in chosen], label, uq_idx, mask


def rows_of_items(data: GCDData) -> list[tuple[int, int, bool]]:
    """(label, uq_idx, mask) of every item of `data.merged`."""
    return [
        (label, uq_idx, mask)
        for part, mask in ((data.labelled, True), (data.unlabelled, False))
        for label, uq_idx in zip(part.labels.tolist(), part.uq_idx.tolist())
    ]


def key_of(index: int) -> Draw:
    return Draw(epoch=-1, position=index, index=index)


def check_views(views: int | None, available: int) -> None:
    if views is not None and not 1 <= views <= available:
        raise ValueError(
            f"views must be in 1 .. {available}, the number of cached views, got {views}; "
            "build a cache with more"
        )


def _made_of(
    encoder: AnchoredEncoder, data: GCDData, views: int, half: bool, precision: str, seed: int
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
        # Caches of fp32 trunks have no such entry, and stay what they are.
        **({} if precision == "no" else {"precision": precision}),
    }


class _AllViews(Dataset):
    """Item i: the V augmented views and the test view of image i, (V + 1, C, H, W).

    `normalization`: left to the device; None: nothing is.
    """

    def __init__(self, data: GCDData, views: int, seed: int) -> None:
        self.train = KeyedViews(data.in_order, data.train_transform, views, seed)
        self.test = KeyedViews(data.in_order, data.test_transform, 1, seed)
        splits = [views.split for views in (self.train, self.test)]
        alike = len({s and (s.name, s.normalization) for s in splits}) == 1  # None: of no transform
        self.normalization = self.train.normalization if alike else None

    def __getitem__(self, i: int) -> Tensor:
        key = key_of(i)
        if self.normalization is not None:  # an image is decoded and resized once for all its views
            image = self.train.image(i)[0]
            return torch.stack(self.train.views_of(image, key) + self.test.views_of(image, key))
        return torch.stack(_ready(self.train, key) + _ready(self.test, key))


def _ready(views: KeyedViews, key: Draw) -> list[Tensor]:
    normalize = views.normalization or (lambda view: view)
    return [normalize(view) for view in views[key][0]]
