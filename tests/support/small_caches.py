"""A small encoder and 50 images of `digits`, for tests of the trunk cache and of the processes they kill."""

import dataclasses

import numpy as np
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
    data, count = open_data("digits"), labelled + unlabelled
    images = dataclasses.replace(
        data.images, source=data.images.source[:count], targets=data.images.targets[:count]
    )
    order = np.random.RandomState(0).permutation(count)
    parts = (np.sort(order[:labelled]), np.sort(order[labelled:]))
    return dataclasses.replace(
        data,
        **{
            name: ImageSubset(images, part, np.arange(10))
            for name, part in zip(("labelled", "unlabelled"), parts)
        },
    )
