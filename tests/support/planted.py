"""Features of planted categories: what a clustering has to find is known."""

import torch
from torch import Tensor


def planted_categories(
    categories: int,
    known: int,
    *,
    each: int = 40,
    labelled: int = 16,
    dim: int = 48,
    spread: float = 0.45,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """(features (N, dim), label or -1 (N,), category (N,)): `each` rows of every category, in random order.

    The first `labelled` rows of each of the first `known` categories have their label. Noise is stronger in
    some directions than in others, as within classes of photographs.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.nn.functional.normalize(torch.randn(categories, dim, generator=generator), dim=1)
    category = torch.arange(categories).repeat_interleave(each)
    noise = torch.randn(len(category), dim, generator=generator) / dim**0.5
    features = centres[category] + spread * noise * torch.linspace(0.5, 2, dim)
    place = torch.arange(len(category)) % each
    label = torch.where((category < known) & (place < labelled), category, -1)
    order = torch.randperm(len(category), generator=generator)
    return features[order], label[order], category[order]


def unequal_categories() -> tuple[Tensor, Tensor, Tensor]:
    """Like `planted_categories`: eight categories of 400 to 12 rows; four are known by 10 rows each."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([400, 100, 12, 12, 100, 400, 12, 12])
    category = torch.arange(8).repeat_interleave(sizes)
    means = torch.randn(8, 24, generator=generator)
    features = means[category] + 0.9 * torch.randn(len(category), 24, generator=generator)
    place = torch.cat([torch.arange(int(size)) for size in sizes])
    return features, torch.where((category < 4) & (place < 10), category, -1), category
