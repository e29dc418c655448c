"""The first two parts of the algorithm: the reference model E_r, and the known-class subspace with its mean energy ratio.

Both are computed once and kept in a store. A fingerprint of everything they depend on decides whether a stored one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops import Subspace
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.config import Config
from eagc_ops.training.data import Batch, TrainLoader
from eagc_ops.training.engine.checkpoint import (
    CheckpointError,
    fingerprint,
    load_checkpoint,
    save_checkpoint,
    tensor_digest,
)
from eagc_ops.training.methods.base import Prototypes, cosine, decay_groups
from eagc_ops.training.progress import bar as progress_bar

TEMPERATURE = 0.1
MOMENTUM = 0.9


def reference_key(encoder: AnchoredEncoder, config: Config, split_hash: str, inputs: Any) -> dict[str, Any]:
    """Everything the reference model depends on. `inputs`: what identifies the pixels or tokens it is trained on."""
    return {
        "kind": "reference-1",
        "split": split_hash,
        "inputs": inputs,
        "trunk": encoder.trunk_fingerprint(),
        "tail": tensor_digest(encoder.tail_state()),
        "cls_only": encoder.cls_only,
        "blocks": config.blocks_of_reference,
        "seed": config.seed,
        "epochs": config.reference_epochs,
        "batch_size": config.reference_batch_size,
        "lr": config.reference_lr,
        "weight_decay": config.reference_weight_decay,
        "momentum": MOMENTUM,
        "temperature": TEMPERATURE,
    }


def train_reference(
    encoder: AnchoredEncoder, loader: TrainLoader, config: Config, known: int, progress: bool = True
) -> dict[str, Tensor]:
    """Train E on D_L with L_cls (cross-entropy of cosine logits / 0.1 over the known classes) to obtain E_r: the state of its tail.

    The student's tail is trained in place (its last `reference_blocks`) and then put back as it was. fp32, both views of an image, head
    thrown away.
    """
    device = next(encoder.parameters()).device
    start = encoder.tail_state()
    encoder.train_last(config.blocks_of_reference)
    head = Prototypes(encoder.vit.embed_dim, known).to(device)
    groups = decay_groups(
        [*encoder.tail.parameters(), *head.parameters()], config.reference_lr, config.reference_weight_decay
    )
    optimiser = torch.optim.SGD(groups, momentum=MOMENTUM)
    for epoch in (
        bar := progress_bar(
            range(config.reference_epochs), desc="reference model", unit="epoch", shown=progress
        )
    ):
        for group in optimiser.param_groups:
            group["lr"] = cosine(
                epoch, config.reference_epochs, config.reference_lr, 1e-3 * config.reference_lr
            )
        losses = []
        for batch in loader.epoch(epoch):
            z = encoder.student(encoder.trunk(torch.cat(batch.views).to(device, non_blocking=True)))
            label = batch.label.repeat(len(batch.views)).to(device, non_blocking=True)
            loss = F.cross_entropy(head(z) / TEMPERATURE, label)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean().item()
        bar.set_postfix(cross_entropy=f"{mean:.3f}")
        if mean != mean:
            raise FloatingPointError(
                f"the reference model diverged in epoch {epoch}; lower reference_lr (now {config.reference_lr})"
            )
    trained = {**encoder.tail_state(), "cross_entropy": torch.tensor(mean, dtype=torch.float64)}
    optimiser.zero_grad()  # or the first step of the student would add the last gradient of the reference
    encoder.load_tail(start)
    encoder.train_last(config.trainable_blocks)
    return trained


@torch.no_grad()
def known_subspace(encoder: AnchoredEncoder, batches: Iterable[Batch], config: Config) -> Subspace:
    """S^known and the mean energy ratio of labelled data, from Z_old = E_r(D_L) under the test transform. fp32, not centred."""
    device = next(encoder.parameters()).device
    features = (
        encoder.anchor(encoder.trunk(batch.views[0].to(device, non_blocking=True))) for batch in batches
    )
    return (
        Subspace.pca(features, config.pca_k)
        if config.subspace == "pca"
        else Subspace.conceptor(features, config.aperture)
    )


def stored(
    store: Path, key: dict[str, Any], make: Callable[[], dict[str, Tensor]], write: bool = True
) -> dict[str, Tensor]:
    """The tensors that `make` computes for `key`: from the store if it has them, else computed (and kept, if `write`)."""
    print_of_key = fingerprint(key)
    file = store / f"{key['kind']}-{print_of_key[:16]}.safetensors"
    if file.exists():
        tensors, state = load_checkpoint(file)
        if state != {"key": key}:  # the name is only an address
            raise CheckpointError(f"{file} holds something else than its name says; delete it")
        return tensors
    tensors = make()
    if write:
        store.mkdir(parents=True, exist_ok=True)
        save_checkpoint(file, tensors, {"key": key})
    return tensors
