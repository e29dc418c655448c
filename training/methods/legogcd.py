"""LegoGCD: SimGCD with an entropy term on confident known-class predictions, and a KL term between views.

    L_GCD = L_SimGCD + (1 - w) L_DKL + 2 L_LER

Three unexpected details of the published code are kept: the pseudo-label of L_LER carries gradients, L_DKL
takes a softmax of probabilities, and the marginal estimate is a mean of softmax(c) at temperature 1, which is
almost flat for cosines.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.training.config import LegoGCDConfig
from eagc_ops.training.data.rows import Rows
from eagc_ops.training.methods.registry import register
from eagc_ops.training.methods.simgcd import SimGCD
from eagc_ops.training.models.method import Loss, Problem

# Hard-coded in the published code
LER_WEIGHT = 2.0
LER_TEMPERATURE = 0.05
MARGIN = 0.4  # weight of log qhat
QHAT_MOMENTUM = 0.999


@register("legogcd")
class LegoGCD(SimGCD):
    """SimGCD's heads, and the buffer qhat (K,), the running mean prediction."""

    Config = LegoGCDConfig
    config: LegoGCDConfig
    qhat: Tensor

    def __init__(self, config: LegoGCDConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.register_buffer("qhat", torch.full((problem.classes,), 1 / problem.classes))

    def loss(self, outputs: tuple[Tensor, Tensor], rows: Rows) -> Loss:
        config, logits = self.config, outputs[0]
        supervised, unsupervised, terms = super().loss(outputs, rows)
        known = confident_known(logits, rows.mask, self.problem.known, config.threshold, config.student_temp)
        terms |= {"ler": local_entropy(logits, known, self.qhat), "ler_rows": known.float().mean()}
        # Not weighted by w or 1 - w, and active from the first step
        unsupervised = unsupervised + LER_WEIGHT * terms["ler"]
        if config.dual_view_kl:
            terms["dkl"] = dual_view_kl(logits, config.student_temp)
            unsupervised = unsupervised + (1 - config.sup_weight) * terms["dkl"]
        if self.training:
            self._update_qhat(logits)
        return Loss(supervised, unsupervised, terms)

    @torch.no_grad()
    def _update_qhat(self, logits: Tensor) -> None:
        """qhat <- 0.999 qhat + 0.001 mean softmax(c) over all rows, after qhat was used in the loss."""
        self.qhat.mul_(QHAT_MOMENTUM).add_(F.softmax(logits, dim=1).mean(0), alpha=1 - QHAT_MOMENTUM)


def confident_known(
    logits: Tensor, mask: Tensor, known: int, threshold: float, temperature: float = 0.1
) -> Tensor:
    """(n,) bool: unlabelled rows whose most likely class is known and has probability `threshold` or more."""
    confidence, most_likely = F.softmax(logits.detach() / temperature, dim=1).max(1)
    return ~mask & (confidence >= threshold) & (most_likely < known)


def local_entropy(logits: Tensor, selected: Tensor, qhat: Tensor) -> Tensor:
    """LER: cross-entropy of softmax(c / t) against softmax(c / t + 0.4 log qhat), t = 0.05.

    It is taken on the `selected` rows (n,) of `logits` (n, K). The mean is over all n rows, so the term
    weighs more if more rows are selected. Both factors carry gradients: with a uniform qhat the term is the
    entropy, and minimising it sharpens the prediction.
    """
    sharp = logits / LER_TEMPERATURE
    per_row = -(F.softmax(sharp, dim=1) * F.log_softmax(sharp + MARGIN * qhat.log(), dim=1)).sum(1)
    return torch.where(selected, per_row, 0.0).mean()


def dual_view_kl(logits: Tensor, temperature: float = 0.1) -> Tensor:
    """DKL: sum_k p1 (log softmax(p1) - log softmax(p2)), mean over images; p = softmax(c / t) of a view."""
    first, second = F.softmax(logits / temperature, dim=1).chunk(2)
    return (first * (F.log_softmax(first, dim=1) - F.log_softmax(second, dim=1))).sum(1).mean()
