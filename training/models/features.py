"""Features z of whole sets, by the current student or by the pretrained encoder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from eagc_ops.app.console import progress_bar
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.data.batches import Batches
from eagc_ops.training.data.loaders import Batch
from eagc_ops.training.models.distributed import rank_and_world
from eagc_ops.training.models.student import Student

__all__ = ["StudentFeatures", "pretrained_features"]


class StudentFeatures:
    """z (N, D) float32 of whole sets. Processes share the work, and all of them get the result."""

    def __init__(self, student: Student, batches: Batches) -> None:
        self._student, self._batches = student, batches

    def labelled(self) -> tuple[Tensor, Tensor]:
        """(z, label) of the labelled images under the test transform."""
        return self.encode(self._batches.labelled())[:2]

    def unlabelled(self) -> tuple[Tensor, Tensor]:
        """(z, label) of the unlabelled images under the test transform."""
        return self.encode(self._batches.unlabelled())[:2]

    def augmented(self, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        """(z, label or -1, uq_idx) of labelled, then unlabelled images, from one augmented view each."""
        batches, main = self._batches.augmented, rank_and_world()[0] == 0
        with progress_bar(
            batches.epoch(epoch), "features", len(batches), leave=False, mininterval=1, shown=main
        ) as bar:
            z, label, uq_idx, mask = self.encode(bar)
        return z, label.where(mask, -1), uq_idx

    def encode(self, batches: Iterable[Batch]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(z, label, uq_idx, mask) of the first view of `batches`; see `_encode`."""
        return _encode(self._student.encoder, batches, self._student.method.inputs)


def pretrained_features(
    encoder: AnchoredEncoder,
    batches: Batches,
    images: int,
    progress: bool = False,
    *,
    unlabelled: bool = True,
) -> tuple[Tensor, Tensor]:
    """(z, label or -1) of labelled, then unlabelled images, `images` in all, under the test transform.

    The input is what the data set gives, whatever a method adds to it. `unlabelled=False`: labelled images
    alone.
    """
    with progress_bar(desc="features", total=images, unit="image", mininterval=1, shown=progress) as bar:

        def counted() -> Iterator[Batch]:
            for batch in itertools.chain(batches.labelled(), batches.unlabelled() if unlabelled else ()):
                yield batch
                bar.update(len(batch.label))

        z, label, _, mask = _encode(encoder, counted(), torch.cat)
    return z, label.where(mask, -1)


@torch.no_grad()
def _encode(
    encoder: AnchoredEncoder, batches: Iterable[Batch], inputs: Callable[[list[Tensor]], Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(z, label, uq_idx, mask) of the first view of `batches`, which must be the same in all processes.

    Process r of W encodes batches r, r + W, r + 2 W, ...
    """
    device = next(encoder.parameters()).device
    rank, world = rank_and_world()
    features, columns = [], []
    for i, batch in enumerate(batches):
        if i % world == rank:
            x = inputs(batch.views_on(device)[:1])
            features.append(encoder.student(encoder.trunk(x)).float())
        else:
            features.append(torch.zeros(len(batch.label), encoder.vit.embed_dim, device=device))
        columns.append((batch.label, batch.uq_idx, batch.mask))
    z = torch.cat(features)
    if world > 1:
        dist.all_reduce(z)  # a sum with zeros: exact
    label, uq_idx, mask = (torch.cat(column).to(device) for column in zip(*columns))
    return z, label, uq_idx, mask
