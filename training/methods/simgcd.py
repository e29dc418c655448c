"""SimGCD: a cosine classifier trained by self-distillation between views and by contrastive learning.

L_GCD = (1 - w) (L_dist + eps L_me + L_con) + w (L_cls + L_supcon),      w = sup_weight
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.training.config import SimGCDConfig
from eagc_ops.training.data.rows import Rows
from eagc_ops.training.methods.losses import (
    classification,
    info_nce,
    mean_entropy,
    self_distillation,
    sup_con,
    teacher_temperature,
)
from eagc_ops.training.methods.registry import register
from eagc_ops.training.models.features import StudentFeatures
from eagc_ops.training.models.heads import Prototypes, projector
from eagc_ops.training.models.method import Loss, Method, Problem


@register("simgcd")
class SimGCD(Method):
    """Heads: K prototypes on the feature, and a projector to 256 dimensions for the contrastive terms."""

    Config = SimGCDConfig
    config: SimGCDConfig

    def __init__(self, config: SimGCDConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.classifier = Prototypes(problem.dim, problem.classes)
        self.projector = projector(problem.dim, config.projector_width)

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
            "cls": classification(logits, rows.label, rows.mask, config.student_temp),
            "supcon": sup_con(h, rows.label, rows.mask, config.supcon_temp),
            "dist": self_distillation(logits, teacher, config.student_temp),
            "memax": mean_entropy(logits, config.student_temp),
            "con": info_nce(h, config.contrastive_temp),
        }
        supervised = config.sup_weight * (terms["cls"] + terms["supcon"])
        unsupervised = (1 - config.sup_weight) * (
            terms["dist"] + config.memax_weight * terms["memax"] + terms["con"]
        )
        return Loss(supervised, unsupervised, terms)

    def predict(self, features: StudentFeatures) -> Tensor:
        z, _ = features.unlabelled()
        return torch.cat([self.scores(chunk, {}).argmax(1) for chunk in z.split(4096)])

    def scores(self, z: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        """Cosine logits."""
        return self.classifier(self.mlp_head(z))

    @property
    def score_temperature(self) -> float:
        return self.config.student_temp
