"""Losses that the methods share, on the rows of a global batch: all first views, then all second views.

Shapes: n = views * images rows, K classes, d dimensions of the projection; `mask` (n,) is True on labelled
rows. Every loss is a mean and returns a 0-d tensor. No loss reads a value on the host: labelled rows are
chosen by masks, never by a boolean index, which would wait for a GPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def classification(logits: Tensor, label: Tensor, mask: Tensor, temperature: float = 0.1) -> Tensor:
    """Cross-entropy of `logits` (n, K) / temperature, mean over labelled rows; 0 if there are none."""
    # Unlabelled rows become ignored targets: no loss may see their class, which may lie beyond the K outputs.
    target = torch.where(mask, label, -100)
    per_row = F.cross_entropy(logits / temperature, target, reduction="none", ignore_index=-100)
    return per_row.sum() / mask.sum().clamp(min=1)


def info_nce(h: Tensor, temperature: float = 1.0) -> Tensor:
    """InfoNCE on unit-norm `h` (n, d): a row's positive is its image's other view, all others are negatives.

    Two draws of one image in a batch are negatives of each other, as in the published code.
    """
    n = _two_views(h)
    similarity = (h @ h.T / temperature).masked_fill(
        torch.eye(n, dtype=torch.bool, device=h.device), -math.inf
    )
    return F.cross_entropy(similarity, torch.arange(n, device=h.device).roll(n // 2))


def sup_con(h: Tensor, label: Tensor, mask: Tensor, temperature: float = 0.07) -> Tensor:
    """SupCon on unit-norm `h` (n, d) among the labelled rows; mean over positives, then over anchors."""
    return sup_con_of_similarities(h @ h.T / temperature, label, mask)


def sup_con_of_similarities(similarity: Tensor, label: Tensor, mask: Tensor) -> Tensor:
    """SupCon from a `similarity` (n, n) already divided by the temperature; its diagonal is not used."""
    not_self = ~torch.eye(similarity.shape[0], dtype=torch.bool, device=similarity.device)
    others = mask[:, None] & mask[None, :] & not_self
    positives = others & (label[:, None] == label[None, :])
    # A row without others would give logsumexp(-inf, ...) and NaN gradients. The lowest finite number gives a
    # finite value there, which the mask of positives then leaves out.
    normaliser = similarity.masked_fill(~others, torch.finfo(similarity.dtype).min).logsumexp(1, keepdim=True)
    log_probability = torch.where(positives, similarity - normaliser, 0.0)
    per_anchor = -log_probability.sum(1) / positives.sum(1).clamp(min=1)
    return per_anchor.sum() / mask.sum().clamp(min=1)


def self_distillation(logits: Tensor, teacher_temperature: float, student_temperature: float = 0.1) -> Tensor:
    """Cross-entropy of a view against the other view, sharpened and detached; mean over rows."""
    other_view = F.softmax(logits.detach() / teacher_temperature, dim=1).roll(_two_views(logits) // 2, 0)
    return -(other_view * F.log_softmax(logits / student_temperature, dim=1)).sum(1).mean()


def teacher_temperature(epoch: int, start: float = 0.07, end: float = 0.04, warmup_epochs: int = 30) -> float:
    """linspace(start, end, warmup_epochs)[epoch], then `end`. `epoch` counts from 0."""
    if epoch >= warmup_epochs:
        return end
    return start + (end - start) * epoch / max(warmup_epochs - 1, 1)


def mean_entropy(logits: Tensor, temperature: float = 0.1) -> Tensor:
    """log K - H(mean prediction) >= 0, the "me-max" term: zero if a batch spreads evenly over the classes."""
    mean = F.softmax(logits / temperature, dim=1).mean(0)
    # At p = 0, xlogy gives 0, and the clamp keeps the gradient of its second argument finite (0 / 0).
    return math.log(logits.shape[1]) + torch.xlogy(mean, mean.clamp(min=torch.finfo(mean.dtype).tiny)).sum()


def _two_views(rows: Tensor) -> int:
    if rows.shape[0] % 2:
        raise ValueError(
            f"this loss pairs the two views of every image, got {rows.shape[0]} rows; "
            "pass all first views, then all second views"
        )
    return rows.shape[0]
