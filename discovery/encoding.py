"""Encode image files, one upright view each; after a kill, the next process continues."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from eagc_ops.app.console import progress_bar
from eagc_ops.app.files import fingerprint, naming_full_disks
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.config import SPECS, Config, Sizes
from eagc_ops.training.data.image_files import read_image
from eagc_ops.training.data.loaders import Draw, TrainLoader
from eagc_ops.training.data.precision import autocast
from eagc_ops.training.data.transforms import TRANSFORMS
from eagc_ops.training.engine.checkpoint import tensor_digest
from eagc_ops.training.engine.experiment import device_of, encoder_of
from eagc_ops.training.engine.memory import keep_freed_memory

__all__ = ["Passes", "encoder_fingerprint", "passes_of", "pretrained", "rows_of_files", "speed"]

BATCH = 64
_PROBE = (2, 8)  # images to warm the encoder up, and images to time


class Passes(NamedTuple):
    """A network on its device, and the transform to its input."""

    network: Callable[[Tensor], Tensor]  # images (B, C, H, W) -> rows (B, D)
    transform: Any  # PIL image -> (C, H, W), the test transform
    channels: int
    device: torch.device
    precision: str
    workers: int

    @torch.no_grad()
    def __call__(self, paths: Sequence[str], batch: int = BATCH) -> Iterator[Tensor]:
        """Rows (b, D) float32 on the CPU, in the order of the files."""
        views = TrainLoader(
            _TestViews(paths, self.transform, self.channels),
            lambda _: torch.arange(len(paths)),
            size=len(paths),
            batch_size=batch,
            seed=0,
            drop_last=False,
            workers=self.workers,
        )
        for part in views.epoch(0):
            with autocast(self.device, self.precision):
                rows = self.network(part.views[0].to(self.device, non_blocking=True))
            yield rows.float().cpu()


def passes_of(network: Callable[[Tensor], Tensor], config: Config, pixels: int, channels: int) -> Passes:
    """The passes of a network whose input is prepared by these settings."""
    spec = SPECS[config.dataset]
    transform = TRANSFORMS[spec.transforms](pixels, spec.flip, channels)[1]
    device = torch.device(device_of(config))
    keep_freed_memory(device)
    return Passes(network, transform, channels, device, config.precision, config.workers)


def pretrained(config: Config, sizes: Sizes, channels: int) -> tuple[AnchoredEncoder, Passes]:
    """The pretrained encoder, frozen on its device, and its passes to features."""
    encoder = encoder_of(config, sizes, channels).to(device_of(config)).eval()
    encoder.requires_grad_(False)
    assert sizes.pixels is not None
    return encoder, passes_of(lambda x: encoder.student(encoder.trunk(x)), config, sizes.pixels, channels)


def encoder_fingerprint(encoder: AnchoredEncoder) -> str:
    """A fingerprint of all weights, frozen or not."""
    return fingerprint([encoder.trunk_fingerprint(), tensor_digest(encoder.tail_state())])


def speed(passes: Passes, paths: Sequence[str]) -> float:
    """Seconds per image, measured on a few of them."""
    warm, timed = _PROBE
    list(passes(paths[:warm], warm))
    chosen = paths[:timed]
    start = time.perf_counter()
    list(passes(chosen, len(chosen)))
    return (time.perf_counter() - start) / len(chosen)


def rows_of_files(passes: Passes, paths: Sequence[str], kept: Path, text: str, shown: bool = True) -> Tensor:
    """Rows (N, D) of all files, with a bar. Finished rows are in the file `kept` and are not computed again.

    The caller removes that file once the rows are stored elsewhere.
    """
    dim = next(passes(paths[:1])).shape[1]
    size = 4 * dim
    done = kept.stat().st_size // size if kept.exists() else 0
    with (
        open(kept, "r+b" if kept.exists() else "x+b") as file,
        progress_bar(
            total=len(paths), initial=done, desc=text, unit="image", mininterval=1, shown=shown
        ) as bar,
    ):
        file.truncate(done * size)  # a killed process may have left half a row
        file.seek(0, os.SEEK_END)
        if done < len(paths):
            for rows in passes(paths[done:]):
                if not rows.isfinite().all():
                    raise FloatingPointError(
                        f"features of images {done + 1:,} to {done + len(rows):,} are not finite: check the "
                        "weights of the encoder, or try --precision no"
                    )
                with naming_full_disks(kept, (len(paths) - done) * size):
                    file.write(rows.numpy().astype("<f4").tobytes())
                    file.flush()
                done += len(rows)
                bar.update(len(rows))
    whole = np.fromfile(kept, "<f4").reshape(-1, dim)
    return torch.from_numpy(whole[: len(paths)].astype(np.float32))


class _TestViews(Dataset):
    """Maps a `Draw` to the test view of an image file, as a loader's item without a label."""

    def __init__(self, paths: Sequence[str], transform: Any, channels: int) -> None:
        self.paths, self.transform, self.mode = paths, transform, "L" if channels == 1 else "RGB"

    def __getitem__(self, draw: Draw) -> tuple[list[Tensor], int, int, bool]:
        image = read_image(self.paths[draw.index], upright=True)
        return [self.transform(image.convert(self.mode))], -1, draw.index, False
