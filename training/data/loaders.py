"""Loaders. Every random draw is keyed, so that workers, ranks and resuming cannot change it.

The images of an epoch are drawn by a generator seeded with (seed, epoch); view v of the draw at a position of
the epoch is augmented by one seeded with (seed, epoch, position, v). No draw depends on earlier draws,
and the global generators of the process are left as they were.
"""

from __future__ import annotations

import hashlib
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eagc_ops.app import interrupts
from eagc_ops.training.data.gcd import GCDData, Merged
from eagc_ops.training.data.image_files import ImageError
from eagc_ops.training.data.transforms import Normalization, split_transform

Weighting = Literal["simgcd", "selex"]  # of labelled against unlabelled images, see `sampler_weights`
TEST_BATCH = 256
GRACE = 30  # seconds that a data worker outlives SIGTERM: as long as Slurm waits before it kills


class Draw(NamedTuple):
    """The key of one random draw: item `index` of the merged set at `position` of `epoch`."""

    epoch: int
    position: int
    index: int  # type: ignore[assignment]  # a tuple's own `index` is not used


class Batch(NamedTuple):
    """B images on the CPU; `rows_of` in `rows.py` turns them into the rows of a step."""

    # The views as loaded: uint8 (B, C, H, W) with a normalization, float16 tokens, or as `views`
    stored: list[Tensor]
    label: Tensor  # (B,) int64, re-indexed
    uq_idx: Tensor  # (B,) int64
    mask: Tensor  # (B,) bool, True = labelled
    normalization: Normalization | None = None  # left to do on the device; None: nothing

    @property
    def views(self) -> list[Tensor]:
        """Each (B, C, H, W) float32, or (B, N, D) tokens of a trunk cache."""
        return self.views_on("cpu")

    def views_on(self, device: torch.device | str) -> list[Tensor]:
        """The views on a device. Bytes are normalized there, and float16 widened: less has to move."""
        moved = [view.to(device, non_blocking=True) for view in self.stored]
        return [view.float() if self.normalization is None else self.normalization(view) for view in moved]

    def select(self, images: Tensor | slice) -> Batch:
        """Some images of the batch."""
        stored = [view[images] for view in self.stored]
        label, uq_idx, mask = (column[images] for column in (self.label, self.uq_idx, self.mask))
        return Batch(stored, label, uq_idx, mask, self.normalization)


def train_loader(
    data: GCDData,
    *,
    batch_size: int,
    seed: int,
    views: int = 2,
    weighting: Weighting = "simgcd",
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
    fetch: Dataset | None = None,
) -> TrainLoader:
    """The merged set, drawn with replacement: |L| + |U| draws per epoch, without a last partial batch.

    `batch_size` counts the images of all ranks together: rank r of `world` gets images r*B/world to
    (r+1)*B/world of the global batch. `fetch` maps a `Draw` to (views, label, uq_idx, mask) and replaces
    decoding and augmenting (trunk cache); it then decides the number of views, and `views` is not used.

    >>> from eagc_ops.training.data import open_data
    >>> loader = train_loader(open_data("digits"), batch_size=128, seed=0)
    >>> batch = next(loader.epoch(0))
    >>> len(loader), len(batch.views), tuple(batch.views[0].shape), batch.mask.dtype
    (14, 2, (128, 1, 16, 16), torch.bool)
    """
    weights = sampler_weights(len(data.labelled), len(data.unlabelled), weighting)
    return TrainLoader(
        KeyedViews(data.merged, data.train_transform, views, seed) if fetch is None else fetch,
        lambda generator: torch.multinomial(weights, len(weights), replacement=True, generator=generator),
        size=len(weights),
        batch_size=batch_size,
        seed=seed,
        drop_last=True,
        workers=workers,
        rank=rank,
        world=world,
    )


def labelled_loader(
    data: GCDData, *, batch_size: int, seed: int = 0, workers: int = 0, fetch: Dataset | None = None
) -> TrainLoader:
    """The labelled set, for the reference model: shuffled, augmented, the last partial batch kept.

    `fetch`: as for `train_loader`.
    """
    size = len(data.labelled)
    return TrainLoader(
        KeyedViews(data.merged, data.train_transform, 2, seed) if fetch is None else fetch,
        lambda generator: torch.randperm(size, generator=generator),
        size=size,
        batch_size=batch_size,
        seed=seed,
        drop_last=False,
        workers=workers,
    )


def evaluation_loader(
    data: GCDData,
    *,
    labelled: bool = False,
    batch_size: int = TEST_BATCH,
    workers: int = 0,
    fetch: Dataset | None = None,
) -> InOrder:
    """The unlabelled set in order, or the labelled one: one view by the test transform.

    `fetch`: as for `train_loader`.
    """
    first = len(data.labelled)
    part = range(first) if labelled else range(first, len(data.merged))
    test_views = KeyedViews(data.merged, data.test_transform, 1, 0) if fetch is None else fetch
    return InOrder(test_views, part, batch_size, workers)


def sampler_weights(labelled: int, unlabelled: int, weighting: Weighting = "simgcd") -> Tensor:
    """Weights of the draws, float64 (|L| + |U|,): 1 for a labelled image.

    An unlabelled image has |L| / |U| (simgcd: half of a batch is labelled on average) or |L| / (|L| + |U|)
    (selex: more than half of a batch is labelled).

    >>> sampler_weights(1, 4).tolist()
    [1.0, 0.25, 0.25, 0.25, 0.25]
    """
    if weighting not in ("simgcd", "selex"):
        raise ValueError(f"weighting must be one of 'simgcd', 'selex', got {weighting!r}")
    share = labelled / max(unlabelled if weighting == "simgcd" else labelled + unlabelled, 1)
    return torch.cat(
        [torch.ones(labelled, dtype=torch.float64), torch.full((unlabelled,), share, dtype=torch.float64)]
    )


def draw_key(*numbers: int) -> int:
    """Hash integers to a 63-bit seed: torch's CPU generator uses only the low 32 bits of a seed."""
    digest = hashlib.blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Make draws inside depend on `key` alone; the process's generator is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(draw_key(*key))
        yield


class KeyedViews(Dataset):
    """Maps a `Draw` to (views, label, uq_idx, mask).

    A transform that can be split resizes an image once for all views, and leaves `normalization` to the
    batch: the views are uint8. Those of any other transform are what it returns.
    """

    def __init__(self, merged: Merged, transform: Callable, views: int, seed: int) -> None:
        if views < 1:
            raise ValueError(f"views must be >= 1, got {views}")
        self.merged, self.transform, self.views, self.seed = merged, transform, views, seed
        self.split = split_transform(transform)
        self.normalization = None if self.split is None else self.split.normalization

    def __getitem__(self, draw: Draw) -> tuple[list[Tensor], int, int, bool]:
        image, label, uq_idx, mask = self.image(draw.index)
        return self.views_of(image, draw), label, uq_idx, mask

    def image(self, index: int) -> tuple[Any, int, int, bool]:
        """What the views are made of, a PIL image or resized pixels; label, uq_idx, mask."""
        return self.merged[index] if self.split is None else self.merged.pixels(index, self.split)

    def views_of(self, image: Any, draw: Draw) -> list[Tensor]:
        """The views of an image that `image` returned."""
        transform, views = self.transform if self.split is None else self.split.drawn, []
        with torch.random.fork_rng(devices=[]):
            for v in range(self.views):
                torch.default_generator.manual_seed(draw_key(self.seed, draw.epoch, draw.position, v))
                views.append(transform(image))
        return views


class TrainLoader:
    """`len(loader)` steps per epoch; `loader.epoch(e, start=k)` iterates from batch k of epoch e on.

    Worker processes live as long as the loader, so with workers only the newest epoch can be iterated.
    """

    def __init__(
        self,
        fetch: Dataset,
        order: Callable[[torch.Generator], Tensor],
        *,
        size: int,
        batch_size: int,
        seed: int,
        drop_last: bool,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"rank must be in 0 .. world - 1, got rank={rank}, world={world}")
        if batch_size < 1 or batch_size % world:
            raise ValueError(
                "batch_size counts the images of all ranks and must be a positive multiple of "
                f"world={world}, got {batch_size}"
            )
        if drop_last and size < batch_size:
            raise ValueError(
                f"batch_size={batch_size} is larger than the {size} images of an epoch; choose a smaller one"
            )
        self._order, self._batch_size, self._seed = order, batch_size, seed
        self._rank, self._world = rank, world
        self._steps = size // batch_size if drop_last else -(-size // batch_size)
        self._sampler = _Sampler()
        self._loader = DataLoader(
            fetch,
            batch_sampler=self._sampler,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=partial(_collate, getattr(fetch, "normalization", None)),
            worker_init_fn=end_after_the_step,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # without one the loader draws a base seed from the global generator
        )

    def __len__(self) -> int:
        return self._steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        return self._iterate(self.draws(epoch, start))

    def draws(self, epoch: int, start: int = 0) -> list[list[Draw]]:
        """The draws of this rank, batch by batch, from batch `start` on."""
        if epoch < 0 or not 0 <= start <= len(self):
            raise ValueError(
                f"epoch must be >= 0 and start in 0 .. {len(self)}, got epoch={epoch}, start={start}"
            )
        order = self._order(torch.Generator().manual_seed(draw_key(self._seed, epoch))).tolist()
        share = self._batch_size // self._world
        firsts = [b * self._batch_size + self._rank * share for b in range(start, len(self))]
        return [
            [Draw(epoch, p, order[p]) for p in range(first, min(first + share, len(order)))]
            for first in firsts
        ]

    def _iterate(self, draws: list[list[Draw]]) -> Iterator[Batch]:
        self._sampler.draws = draws
        with interrupts.unaware_children():
            batches = iter(self._loader)
        for _ in draws:
            if self._loader.num_workers and self._sampler.draws is not draws:
                raise RuntimeError(
                    "a new epoch of this loader was started; with workers only the newest one can be iterated"
                )
            try:
                batch = next(batches)
            except ImageError as error:
                # From a worker, the message arrives inside of a traceback.
                raise ImageError(str(error).rpartition("ImageError: ")[2].strip()) from None
            yield batch


class InOrder(TrainLoader):
    """The items `part` of the merged set in order, as `fetch` maps them; can be iterated repeatedly."""

    def __init__(self, fetch: Dataset, part: range, batch_size: int = TEST_BATCH, workers: int = 0) -> None:
        super().__init__(
            fetch,
            lambda _: torch.tensor(part),
            size=len(part),
            batch_size=batch_size,
            seed=0,
            drop_last=False,
            workers=workers,
        )

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)


class _Sampler:
    """Hands the draws of the current epoch to the DataLoader."""

    def __init__(self) -> None:
        self.draws: list[list[Draw]] = []

    def __iter__(self) -> Iterator[list[Draw]]:
        return iter(self.draws)


def end_after_the_step(_: int) -> None:
    """SIGTERM to all processes, as Slurm sends it, does not take its images from the step under way.

    A data worker ends with its loader; if it does not, SIGTERM still ends it, a moment later.
    """

    def later(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        signal.alarm(GRACE)

    signal.signal(signal.SIGTERM, later if hasattr(signal, "alarm") else signal.SIG_DFL)


def _collate(normalization: Normalization | None, items: list[tuple[list[Tensor], int, int, bool]]) -> Batch:
    views, label, uq_idx, mask = zip(*items)
    return Batch(
        [torch.stack(v) for v in zip(*views)],
        torch.tensor(label),
        torch.tensor(uq_idx),
        torch.tensor(mask),
        normalization,
    )
