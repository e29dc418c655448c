"""A small encoder and 50 images of `digits`, for tests of the trunk cache and of the processes they kill."""

import dataclasses

import torch

from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.data import ImageSubset, open_data
from eagc_ops.training.models.backbones import load_backbone


def make_encoder(seed=0, grad_from_block=3):
    torch.manual_seed(seed)
    return AnchoredEncoder(load_backbone("vit_digits", image_size=16, channels=1), grad_from_block)


def first(subset, count):
    part = ImageSubset.__new__(ImageSubset)
    part.images, part.uq_idx, part.labels = subset.images, subset.uq_idx[:count], subset.labels[:count]
    return part


def make_data(labelled=20, unlabelled=30):
    data = open_data("digits")
    return dataclasses.replace(
        data, labelled=first(data.labelled, labelled), unlabelled=first(data.unlabelled, unlabelled)
    )
