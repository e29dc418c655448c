"""Losses that the methods share. All take the rows of a whole (global) batch, view-major: every first view, then every second view.

Shapes: n = views * images rows, K classes, d dimensions of the projection. Every loss is a mean and returns a 0-d tensor.
None of them looks at a value on the host: labelled rows are chosen by masks, never by a boolean index, which would sync a GPU.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F


def classification(logits: Tensor, label: Tensor, labelled: Tensor, temperature: float = 0.1) -> Tensor:
    """Cross-entropy of `logits` (n, K) / temperature against `label` (n,), mean over the labelled rows; 0 when there is none."""
    # Unlabelled rows become "ignored" targets: their true class may lie outside the K outputs, and nothing may learn from it.
    target = torch.where(labelled, label, -100)
    per_row = F.cross_entropy(logits / temperature, target, reduction="none", ignore_index=-100)
    return per_row.sum() / labelled.sum().clamp(min=1)


def info_nce(h: Tensor, temperature: float = 1.0) -> Tensor:
    """InfoNCE on unit-norm `h` (n, d): the positive of a row is the same image's other view, all other rows are negatives.

    Two draws of one image in a batch are negatives of each other, as in the published code.
    """
    n = _two_views(h)
    similarity = (h @ h.T / temperature).masked_fill(
        torch.eye(n, dtype=torch.bool, device=h.device), -math.inf
    )
    return F.cross_entropy(similarity, torch.arange(n, device=h.device).roll(n // 2))


def sup_con(h: Tensor, label: Tensor, labelled: Tensor, temperature: float = 0.07) -> Tensor:
    """SupCon on unit-norm `h` (n, d): anchors, positives and negatives are labelled rows; mean over positives, then over anchors."""
    return sup_con_of_similarities(h @ h.T / temperature, label, labelled)


def sup_con_of_similarities(similarity: Tensor, label: Tensor, labelled: Tensor) -> Tensor:
    """SupCon of rows whose `similarity` (n, n), divided by the temperature, is given; its diagonal is not looked at."""
    not_self = ~torch.eye(similarity.shape[0], dtype=torch.bool, device=similarity.device)
    others = labelled[:, None] & labelled[None, :] & not_self
    positives = others & (label[:, None] == label[None, :])
    # A row without any labelled row beside it would give logsumexp(-inf, ...) and NaN gradients; the lowest finite number gives a
    # finite value there, which the mask of positives then leaves out.
    normaliser = similarity.masked_fill(~others, torch.finfo(similarity.dtype).min).logsumexp(1, keepdim=True)
    log_probability = torch.where(positives, similarity - normaliser, 0.0)
    per_anchor = -log_probability.sum(1) / positives.sum(1).clamp(min=1)
    return per_anchor.sum() / labelled.sum().clamp(min=1)


def self_distillation(logits: Tensor, teacher_temperature: float, student_temperature: float = 0.1) -> Tensor:
    """Cross-entropy of each view's prediction against the other view's sharpened, detached prediction, mean over rows and directions."""
    other_view = F.softmax(logits.detach() / teacher_temperature, dim=1).roll(_two_views(logits) // 2, 0)
    return -(other_view * F.log_softmax(logits / student_temperature, dim=1)).sum(1).mean()


def teacher_temperature(epoch: int, start: float = 0.07, end: float = 0.04, warmup_epochs: int = 30) -> float:
    """linspace(start, end, warmup_epochs)[epoch], then `end`. `epoch` counts from 0."""
    if epoch >= warmup_epochs:
        return end
    return start + (end - start) * epoch / max(warmup_epochs - 1, 1)


def mean_entropy(logits: Tensor, temperature: float = 0.1) -> Tensor:
    """log K - H(mean prediction) >= 0: zero when the batch spreads evenly over the K classes (minimising it is "me-max")."""
    mean = F.softmax(logits / temperature, dim=1).mean(0)
    # p log p at p = 0: xlogy gives 0, and the clamp keeps the gradient of its second argument finite (0 / 0 otherwise).
    return math.log(logits.shape[1]) + torch.xlogy(mean, mean.clamp(min=torch.finfo(mean.dtype).tiny)).sum()


def proximal(z: Tensor, z_hat: Tensor, labelled: Tensor) -> Tensor:
    """The loss of which AGA is the gradient: half the mean of (z - z_hat)^2 over the N_l x D entries of labelled rows.

    Like the two distillation losses below it takes z (n, D), the reference model's z_hat (n, D), of which only labelled rows are looked
    at (the others may be NaN), and `labelled` (n,); it is 0 when no row is labelled. The paper writes a sum in place of the mean.
    """
    difference = torch.where(labelled[:, None], z - z_hat, 0.0)
    return difference.square().sum() / (2 * labelled.sum().clamp(min=1) * z.shape[1])


def gram_distillation(z: Tensor, z_hat: Tensor, labelled: Tensor) -> Tensor:
    """Mean squared difference of the cosine Gram matrices (N_l, N_l) of z and z_hat. The paper has no formula: this is our reading."""
    difference = _cosines(z, labelled) - _cosines(z_hat, labelled)
    return difference.square().sum() / labelled.sum().clamp(min=1).square()


def relation_distillation(z: Tensor, z_hat: Tensor, labelled: Tensor, temperature: float = 0.1) -> Tensor:
    """KL(q_i | p_i), mean over labelled rows i: p_i and q_i are softmax(cos(i, j) / temperature) over the other labelled rows j, of z and
    of z_hat (the teacher). The paper has no formula ("sample-level relation distillation based on neighbor distributions"): our reading.
    """
    others = labelled[:, None] & labelled[None, :] & ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    # The lowest finite number, not -inf: a row without others then has finite values, which the mask leaves out.
    log_p, log_q = (
        (_cosines(x, labelled) / temperature).masked_fill(~others, torch.finfo(x.dtype).min).log_softmax(1)
        for x in (z, z_hat)
    )
    return torch.where(others, log_q.exp() * (log_q - log_p), 0.0).sum() / labelled.sum().clamp(min=1)


def gather_rows(rows: Tensor, views: int) -> Tensor:
    """Rows of every rank, (views * b, ...) -> (views * b * world, ...), in the view-major order one process would have. Differentiable.

    Every rank then computes the loss of the global batch, so its gradient here is `world` times the global one, and DDP's average over
    ranks makes it the global one again. Without a process group the rows are returned as they are.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return rows
    world = dist.get_world_size()
    ranks = (
        _AllGather.apply(rows) if rows.is_floating_point() else _all_gather(rows)
    )  # (world, views * b, ...)
    return ranks.unflatten(1, (views, -1)).transpose(0, 1).reshape(world * rows.shape[0], *rows.shape[1:])


def _cosines(x: Tensor, labelled: Tensor) -> Tensor:
    """cos(x_i, x_j) (n, n); 0 in rows and columns that are not labelled, whatever x holds there."""
    unit = F.normalize(torch.where(labelled[:, None], x, 0.0), dim=1)
    return unit @ unit.T


def _two_views(rows: Tensor) -> int:
    if rows.shape[0] % 2:
        raise ValueError(
            f"this loss pairs the two views of every image, got {rows.shape[0]} rows; pass all first views, then all second"
        )
    return rows.shape[0]


def _all_gather(rows: Tensor) -> Tensor:
    out = [
        torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())
    ]
    dist.all_gather(out, rows.contiguous())
    return torch.stack(out)


class _AllGather(torch.autograd.Function):
    """forward: (b, ...) -> (world, b, ...); backward: the sum over ranks of the gradient of this rank's rows."""

    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        return _all_gather(rows)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient[dist.get_rank()]
