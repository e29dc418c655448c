"""The student, in the paper's order: encode, coordinate (EAGC), heads, loss.

It is one module with one forward, so that DDP sees all trained parameters at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from eagc_ops import EAGC
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.kernels import without_autocast
from eagc_ops.training.data.batches import VIEWS
from eagc_ops.training.data.rows import Rows
from eagc_ops.training.models.distributed import gather_rows
from eagc_ops.training.models.method import Loss, Method

__all__ = ["Alignment", "Student", "gather"]

Alignment = Callable[[Tensor, Tensor, Tensor], Tensor]  # a loss of (z, z_ref, mask), a 0-d tensor


class Student(nn.Module):
    """Encoder, coordinator (None: the plain method) and method.

    `alignment`, if set, is a loss of (z, z_ref, mask) with weight lambda_a that replaces the anchor term.
    """

    def __init__(self, encoder: AnchoredEncoder, method: Method, eagc: EAGC | None = None) -> None:
        super().__init__()
        self.encoder, self.method, self.eagc = encoder, method, eagc
        self.alignment: Alignment | None = None

    def forward(self, rows: Rows) -> tuple[Loss, Tensor | None]:
        """The loss of the global batch, and the scale token to add to it (None where EAGC does not act)."""
        z, z_ref = self.encode(rows)
        coordinated, token = self.coordinate(z, z_ref, rows)
        h = self.heads(coordinated)
        return self.loss(h, z, z_ref, rows), token

    def encode(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """z = E(x) (n, D), and z_ref = E_r(x) on labelled rows (None without a reference model)."""
        # No name is bound to the joined views, so the trunk can free this second copy of the pixels early.
        tokens = self.encoder.trunk(self.method.inputs(rows.views, rows.position), pixel_grad=None)
        z = self.encoder.student(tokens)
        return z, None if self.encoder.reference is None else self.encoder.anchor(tokens, rows.labelled_rows)

    def coordinate(self, z: Tensor, z_ref: Tensor | None, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """EAGC, between encoder and heads: z, whose gradient is coordinated in backward; and the scale token.

        labelled rows:      g + lambda_a (z - z_ref)
        unlabelled rows:    g - lambda_p tau (g S_known)
        """
        if self.eagc is None or not self.method.coordinated(rows.position):
            return z, None
        return self.eagc(z, z_ref if self.alignment is None else None, rows.mask, return_token=True)

    def heads(self, z: Tensor) -> tuple[Tensor, ...]:
        """h = phi(z) in fp32, of the rows of all processes."""
        h = self.method(z)
        with without_autocast(z.device):
            return tuple(gather_rows(output.float(), VIEWS) for output in h)

    def loss(self, h: tuple[Tensor, ...], z: Tensor, z_ref: Tensor | None, rows: Rows) -> Loss:
        """L_GCD of the global batch, in fp32; an alignment loss is added to its supervised part."""
        global_rows = gather(rows)
        with without_autocast(z.device):
            loss = self.method.loss(h, global_rows)
            if self.alignment is None:
                return loss
            value = torch.zeros((), device=z.device)
            if self.method.coordinated(rows.position):
                assert z_ref is not None  # an alignment needs the reference model
                ours, theirs = (gather_rows(x.float(), VIEWS) for x in (z, z_ref))
                value = self.alignment(ours, theirs, global_rows.mask)
        supervised = loss.supervised + self.method.config.lambda_a * value
        return loss._replace(supervised=supervised, terms={**loss.terms, "alignment": value})

    def state(self) -> dict[str, Tensor]:
        """All tensors that training changes, by name: not the frozen trunk, nor the reference model."""
        parts = {"encoder": self.encoder.tail_state(), "method": self.method.state_dict()}
        if self.eagc is not None:
            parts["eagc"] = self.eagc.state_dict()
        return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a `state()`. The coordinator's part is ignored without a coordinator (evaluation)."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {
                name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
            }

        self.encoder.load_tail(part("encoder."))
        self.method.load_state_dict(part("method."))
        if self.eagc is not None:
            self.eagc.load_state_dict(part("eagc."))


def gather(rows: Rows) -> Rows:
    """The rows of all processes, without views."""
    label, mask, uq_idx = (gather_rows(column, VIEWS) for column in (rows.label, rows.mask, rows.uq_idx))
    return Rows(label, mask, uq_idx, rows.epoch, rows.position)
