"""The student: z = E(x), EAGC, heads, loss. One module with one forward, so that DDP sees everything that is trained as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from eagc_ops import EAGC
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.data import Batch
from eagc_ops.training.data.batches import VIEWS, Batches
from eagc_ops.training.methods import Loss, Method, Rows
from eagc_ops.training.methods.losses import gather_rows
from eagc_ops.training.progress import bar as progress_bar


class StudentBatch(NamedTuple):
    """The arguments of `Student`, on its device. n rows, view-major: all first views, then all second views."""

    views: list[Tensor]  # each (B, C, H, W), or (B, N, D) tokens of a trunk cache
    rows: Rows
    labelled_rows: Tensor  # int64 numbers of the labelled rows, made from the loader's CPU mask: a boolean index would sync a GPU


class Student(nn.Module):
    """Encoder, coordinator (None: plain method) and method. `alignment`, a loss of (z, z_hat, labelled), takes the anchor term's place."""

    def __init__(self, encoder: AnchoredEncoder, method: Method, eagc: EAGC | None = None) -> None:
        super().__init__()
        self.encoder, self.method, self.eagc = encoder, method, eagc
        self.alignment: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def forward(self, views: list[Tensor], rows: Rows, labelled_rows: Tensor) -> tuple[Loss, Tensor | None]:
        """The loss of the global batch, and the scale token to add to it (None without EAGC)."""
        z, z_hat = self.encode(views, rows, labelled_rows)
        h, token = self.heads(z, z_hat, rows)
        return self.loss(h, z, z_hat, rows), token

    def encode(self, views: list[Tensor], rows: Rows, labelled_rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """z = E(x) (n, D), and z_hat = E_r(x) on labelled rows (None without a reference)."""
        # The joined views are handed over, not kept: the trunk frees this second copy of the pixels once they are patches.
        tokens = self.encoder.trunk(self.method.inputs(views, rows.position), pixel_grad=None)
        return self.encoder.student(tokens), None if self.encoder.reference is None else self.encoder.anchor(
            tokens, labelled_rows
        )

    def heads(self, z: Tensor, z_hat: Tensor | None, rows: Rows) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """h = phi(z) in fp32 of the rows of all processes, EAGC in its graph; and the scale token."""
        token = None
        if self.eagc is not None and self.method.coordinated(rows.position):
            # in backward: + mask lambda_a (z - z_hat)  and  - (1 - mask) lambda_p tau (grad_z L) S_known
            z, token = self.eagc(
                z, z_hat if self.alignment is None else None, rows.labelled, return_token=True
            )
        h = self.method(z)
        with torch.autocast(z.device.type, enabled=False):
            return tuple(gather_rows(output.float(), VIEWS) for output in h), token

    def loss(self, h: tuple[Tensor, ...], z: Tensor, z_hat: Tensor | None, rows: Rows) -> Loss:
        """L_GCD of the global batch, in fp32. A loss that stands in for the anchor term joins its supervised part."""
        everywhere = gather(rows)
        with torch.autocast(z.device.type, enabled=False):
            loss = self.method.loss(h, everywhere)
            if self.alignment is None:
                return loss
            value = torch.zeros((), device=z.device)
            if self.method.coordinated(rows.position):
                value = self.alignment(
                    *(gather_rows(x.float(), VIEWS) for x in (z, z_hat)), everywhere.labelled
                )
        supervised = loss.supervised + self.method.config.lambda_a * value
        return loss._replace(supervised=supervised, terms={**loss.terms, "alignment": value})

    def state(self) -> dict[str, Tensor]:
        """All that changes in training. The frozen trunk and the reference are not among it."""
        parts = {"encoder": self.encoder.tail_state(), "method": self.method.state_dict()}
        if self.eagc is not None:
            parts["eagc"] = self.eagc.state_dict()
        return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave. The coordinator's part is left out where there is none (evaluation)."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {
                name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
            }

        self.encoder.load_tail(part("encoder."))
        self.method.load_state_dict(part("method."))
        if self.eagc is not None:
            self.eagc.load_state_dict(part("eagc."))


def gather(rows: Rows) -> Rows:
    """The rows of all processes."""
    label, labelled, uq_idx = (
        gather_rows(column, VIEWS) for column in (rows.label, rows.labelled, rows.uq_idx)
    )
    return rows._replace(label=label, labelled=labelled, uq_idx=uq_idx)


class StudentFeatures:
    """z of whole sets by the student as it is now. Processes share the work and all get the result."""

    def __init__(self, student: Student, batches: Batches) -> None:
        self._student, self._batches = student, batches

    def labelled(self) -> tuple[Tensor, Tensor]:
        return self.encode(self._batches.labelled())[:2]

    def unlabelled(self) -> tuple[Tensor, Tensor]:
        return self.encode(self._batches.unlabelled())[:2]

    def augmented(self, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        main, batches = not dist.is_initialized() or dist.get_rank() == 0, self._batches.augmented
        with progress_bar(
            batches.epoch(epoch), "features", len(batches), leave=False, mininterval=1, shown=main
        ) as bar:
            z, label, uq_idx, labelled = self.encode(bar)
        return z, label.where(labelled, -1), uq_idx

    @torch.no_grad()
    def encode(self, batches: Iterable[Batch]) -> tuple[Tensor, ...]:
        """z, label, uq_idx, labelled of batches that are the same in all processes; process r encodes every world-th, from the r-th on."""
        encoder, inputs = self._student.encoder, self._student.method.inputs
        device = next(encoder.parameters()).device
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        features, columns = [], []
        for i, batch in enumerate(batches):
            if i % world == rank:
                x = inputs([batch.views[0].to(device, non_blocking=True)])
                features.append(encoder.student(encoder.trunk(x)).float())
            else:
                features.append(torch.zeros(len(batch.label), encoder.vit.embed_dim, device=device))
            columns.append((batch.label, batch.uq_idx, batch.labelled))
        z = torch.cat(features)
        if world > 1:
            dist.all_reduce(z)  # a sum with zeros: exact
        return z, *(torch.cat(column).to(device) for column in zip(*columns))
