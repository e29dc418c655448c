"""The facts about the backbones are those of the models that are built."""

import pytest
import torch

from eagc_ops.training.config.backbones import BACKBONES
from eagc_ops.training.models.backbones import random_backbone


@pytest.mark.parametrize("name", BACKBONES)
def test_facts_are_those_of_the_model(name):
    facts, size = BACKBONES[name], 16 if name == "vit_digits" else 224
    with torch.device("meta"):  # shapes without memory
        vit = random_backbone(name, image_size=size, channels=3)
    assert (len(vit.blocks), vit.embed_dim) == (facts.blocks, facts.dim)
    # lite0: pixels of a place of its last map
    patch = size // vit.shapes[-1][1] if name == "lite0" else vit.patch_embed.patch_size[0]
    assert facts.multiple == (size // patch if name == "vit_digits" else patch)
    for wrong in (size + 1, size - 2):
        with pytest.raises(ValueError, match=f"image_size must be a multiple of {facts.multiple} for {name}"):
            random_backbone(name, image_size=wrong)
