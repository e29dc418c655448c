"""The first two parts of the algorithm: the reference model E_r, and the known-class subspace."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops import Subspace
from eagc_ops.app.console import progress_bar
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.config import Config
from eagc_ops.training.data.batches import Batches
from eagc_ops.training.data.loaders import Batch, TrainLoader
from eagc_ops.training.models.heads import Prototypes
from eagc_ops.training.models.optimization import cosine, decay_groups, sgd

__all__ = ["MOMENTUM", "TEMPERATURE", "ReferenceModel", "known_subspace", "train_reference"]

TEMPERATURE = 0.1
MOMENTUM = 0.9


class ReferenceModel(NamedTuple):
    """A trained reference model."""

    tail: dict[str, Tensor]  # `AnchoredEncoder.tail_state()`
    cross_entropy: float  # mean over its last epoch


def train_reference(
    encoder: AnchoredEncoder, loader: TrainLoader, config: Config, known: int, progress: bool = True
) -> ReferenceModel:
    """Train E on D_L with L_cls to obtain E_r.

    L_cls is the cross-entropy of cosine logits / 0.1 over the known classes. The student's tail (its last
    `reference_blocks` blocks) is trained in place and then restored. Training uses fp32 and both views of an
    image; the head is discarded.
    """
    device = next(encoder.parameters()).device
    start = encoder.tail_state()
    encoder.train_last(config.blocks_of_reference)
    head = Prototypes(encoder.vit.embed_dim, known).to(device)
    optimizer = sgd(
        decay_groups(
            [*encoder.tail.parameters(), *head.parameters()],
            config.reference_lr,
            config.reference_weight_decay,
        ),
        momentum=MOMENTUM,
    )
    epochs = config.reference_epochs
    for epoch in (bar := progress_bar(range(epochs), desc="reference model", unit="epoch", shown=progress)):
        for group in optimizer.param_groups:
            group["lr"] = cosine(epoch, epochs, config.reference_lr, 1e-3 * config.reference_lr)
        losses = []
        for batch in loader.epoch(epoch):
            z = encoder.student(encoder.trunk(torch.cat(batch.views_on(device))))
            label = batch.label.repeat(len(batch.stored)).to(device, non_blocking=True)
            loss = F.cross_entropy(head(z) / TEMPERATURE, label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean().item()
        bar.set_postfix(cross_entropy=f"{mean:.3f}")
        if math.isnan(mean):
            raise FloatingPointError(
                f"the reference model diverged in epoch {epoch}; "
                f"lower reference_lr (now {config.reference_lr})"
            )
    tail = encoder.tail_state()
    # Otherwise the student's first step would include the reference model's last gradient.
    optimizer.zero_grad()
    encoder.load_tail(start)
    encoder.train_last(config.trainable_blocks)
    return ReferenceModel(tail, mean)


@torch.no_grad()
def known_subspace(encoder: AnchoredEncoder, batches: Batches, config: Config) -> Subspace:
    """S_known and the mean energy ratio of labelled data, from Z_old = E_r(D_L) under the test transform.

    The features are fp32 and not centred; the encoder must have its reference tail. A whitened energy is
    fitted to E_r(D_L) and E_r(D_U).
    """
    device = next(encoder.parameters()).device

    def features(part: Iterable[Batch]) -> Iterator[Tensor]:
        return (encoder.anchor(encoder.trunk(batch.views_on(device)[0])) for batch in part)

    if config.energy == "whitened":
        labelled = list(features(batches.labelled()))
        unlabelled = features(progress_bar(batches.unlabelled(), desc="whitened energy", unit="batch"))
        return Subspace.whitened(labelled, itertools.chain(labelled, unlabelled), config.aperture)
    if config.subspace == "pca":
        return Subspace.pca(features(batches.labelled()), config.pca_k)
    return Subspace.conceptor(features(batches.labelled()), config.aperture)
