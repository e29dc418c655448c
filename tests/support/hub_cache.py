"""A cache of the Hugging Face hub, laid out as its client does, with the weights of a small ViT."""

import hashlib
from pathlib import Path

import timm
import torch
from safetensors.torch import save

NAME = "vit_tiny_patch16_224"
REPOSITORY = f"timm/{NAME}.augreg_in21k_ft_in1k"
REVISION = "0123456789abcdef0123456789abcdef01234567"


def write_hub(home: Path, repository: str = REPOSITORY, name: str = NAME) -> str:
    """Write random weights of `name`, with a classifier, below HF_HOME=`home`. Returns their sha256."""
    torch.manual_seed(5)
    vit = timm.create_model(name)
    content = save(vit.state_dict())
    sha256 = hashlib.sha256(content).hexdigest()
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    for part in ("refs", "blobs", f"snapshots/{REVISION}"):
        (folder / part).mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION)
    (folder / "blobs" / sha256).write_bytes(content)
    (folder / "snapshots" / REVISION / "model.safetensors").symlink_to(f"../../blobs/{sha256}")
    return sha256
