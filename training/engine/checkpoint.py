"""Checkpoints: one safetensors file with tensors, JSON and a checksum.

Loading a checkpoint runs no code from the file. The sha256 of its content, stored inside, reveals damage.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from eagc_ops.app.files import atomic_write

__all__ = ["CheckpointError", "check_if_ours", "load_checkpoint", "save_checkpoint", "tensor_digest"]

FORMAT = "eagc-checkpoint-1"


class CheckpointError(RuntimeError):
    """A checkpoint is missing or damaged, or belongs to something else."""


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write `tensors` and JSON-ready `state` to `path`; an old file stays until the new one is complete."""
    # Cloned, because safetensors refuses tensors that share storage.
    stored = {name: tensors[name].detach().cpu().contiguous().clone() for name in sorted(tensors)}
    text = json.dumps(state, sort_keys=True, allow_nan=False)
    metadata = {"format": FORMAT, "state": text, "sha256": _digest(stored, text)}
    atomic_write(path, to_safetensors(stored, metadata))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors on the CPU, state) of a checkpoint. A damaged file is a `CheckpointError`."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged or not a checkpoint ({error}); delete it or restore a copy"
        ) from error
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of this package "
            f"(format {metadata.get('format')!r}, expected {FORMAT!r})"
        )
    if metadata.get("sha256") != _digest(tensors, metadata.get("state", "")):
        raise CheckpointError(
            f"{path} is damaged: its content does not match its sha256; delete it or restore a copy"
        )
    return tensors, json.loads(metadata["state"])


def check_if_ours(path: Path) -> None:
    """Compare the checksum of a weight file that this package wrote; other files have none."""
    ours = False
    with contextlib.suppress(SafetensorError, OSError), safe_open(path, framework="pt") as file:
        ours = (file.metadata() or {}).get("format") == FORMAT
    if ours:
        load_checkpoint(path)


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """The sha256 of names, types, shapes and bytes of tensors."""
    return _digest({name: tensors[name].detach().cpu() for name in sorted(tensors)}, "")


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
