"""Losses that hold labelled features to the reference model instead of the anchor term (ablations).

All take z (n, D), the reference model's z_ref (n, D), of which only labelled rows are used (the others may be
NaN), and `mask` (n,), True on labelled rows. They return a 0-d tensor, which is 0 when no row is labelled.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["ALIGNMENTS", "gram_distillation", "proximal", "relation_distillation"]


def proximal(z: Tensor, z_ref: Tensor, mask: Tensor) -> Tensor:
    """The loss whose gradient is AGA: half the mean of (z - z_ref)^2 over the entries of labelled rows.

    The paper writes a sum in place of the mean.
    """
    difference = torch.where(mask[:, None], z - z_ref, 0.0)
    return difference.square().sum() / (2 * mask.sum().clamp(min=1) * z.shape[1])


def gram_distillation(z: Tensor, z_ref: Tensor, mask: Tensor) -> Tensor:
    """Mean squared difference of the cosine Gram matrices (N_l, N_l) of z and z_ref.

    The paper gives no formula; this is our reading of its text.
    """
    difference = _cosines(z, mask) - _cosines(z_ref, mask)
    return difference.square().sum() / mask.sum().clamp(min=1).square()


def relation_distillation(z: Tensor, z_ref: Tensor, mask: Tensor, temperature: float = 0.1) -> Tensor:
    """KL(q_i | p_i), mean over labelled rows i.

    p_i and q_i are softmax(cos(i, j) / temperature) over the other labelled rows j, of z and of z_ref (the
    teacher). The paper gives no formula ("sample-level relation distillation based on neighbor
    distributions"); this is our reading of its text.
    """
    others = mask[:, None] & mask[None, :] & ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    # The lowest finite number, not -inf, keeps rows without others finite; the mask then leaves them out.
    log_p, log_q = (
        (_cosines(x, mask) / temperature).masked_fill(~others, torch.finfo(x.dtype).min).log_softmax(1)
        for x in (z, z_ref)
    )
    return torch.where(others, log_q.exp() * (log_q - log_p), 0.0).sum() / mask.sum().clamp(min=1)


# Keyed by the setting `alignment`, whose other value "gradient" is the anchor term itself
ALIGNMENTS = {"proximal": proximal, "gram": gram_distillation, "relation": relation_distillation}


def _cosines(x: Tensor, mask: Tensor) -> Tensor:
    """cos(x_i, x_j) (n, n); 0 in rows and columns that are not labelled, whatever x holds there."""
    unit = F.normalize(torch.where(mask[:, None], x, 0.0), dim=1)
    return unit @ unit.T
