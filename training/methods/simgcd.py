"""SimGCD: a parametric cosine classifier trained by self-distillation between views, with contrastive learning beside it.

L_GCD = (1 - w) (L_dist + eps L_me + L_con) + w (L_cls + L_supcon),      w = sup_weight
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagc_ops.training.config import SimGCDConfig
from eagc_ops.training.methods.base import Features, Loss, Method, Problem, Prototypes, Rows, register
from eagc_ops.training.methods.losses import (
    classification,
    info_nce,
    mean_entropy,
    self_distillation,
    sup_con,
    teacher_temperature,
)


@register("simgcd")
class SimGCD(Method):
    """Heads: K prototypes on the feature itself, and a projector to 256 dimensions for the contrastive terms."""

    Config = SimGCDConfig

    def __init__(self, config: SimGCDConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.classifier = Prototypes(problem.dim, problem.classes)
        self.projector = projector(problem.dim)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(n, D) -> cosine logits (n, K), projections (n, 256)."""
        x = self.mlp_head(z)
        return self.classifier(x), self.projector(x)

    def loss(self, outputs: tuple[Tensor, Tensor], rows: Rows) -> Loss:
        config, (logits, h) = self.config, outputs
        h = F.normalize(h, dim=1)
        teacher = teacher_temperature(
            rows.epoch, config.teacher_temp_start, config.teacher_temp, config.teacher_temp_epochs
        )
        terms = {
            "cls": classification(logits, rows.label, rows.labelled, config.student_temp),
            "supcon": sup_con(h, rows.label, rows.labelled, config.supcon_temp),
            "dist": self_distillation(logits, teacher, config.student_temp),
            "memax": mean_entropy(logits, config.student_temp),
            "con": info_nce(h, config.contrastive_temp),
        }
        supervised = config.sup_weight * (terms["cls"] + terms["supcon"])
        unsupervised = (1 - config.sup_weight) * (
            terms["dist"] + config.memax_weight * terms["memax"] + terms["con"]
        )
        return Loss(supervised, unsupervised, terms)

    def predict(self, features: Features) -> Tensor:
        z, _ = features.unlabelled()
        return torch.cat([self.classifier(self.mlp_head(chunk)).argmax(1) for chunk in z.split(4096)])


def projector(dim: int, hidden: int = 2048, out: int = 256) -> nn.Sequential:
    """D -> 2048 -> 2048 -> 256 with GELU after the first two layers; weights truncated normal (0.02), biases 0; output not normalised."""
    layers = nn.Sequential(
        nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, out)
    )
    for layer in layers[::2]:
        nn.init.trunc_normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
    return layers
