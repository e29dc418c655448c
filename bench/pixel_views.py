"""Pixels of the views that a trunk cache has as tokens: what a step on cached tokens is compared with."""

from __future__ import annotations

from torch import Tensor
from torch.utils.data import Dataset

from eagc_ops.training.data.gcd import GCDData
from eagc_ops.training.data.loaders import Draw, KeyedViews
from eagc_ops.training.data.trunk_cache import check_views, choose_views, key_of, rows_of_items

__all__ = ["PixelViews"]


class PixelViews(Dataset):
    """The views of `CachedViews` in pixels, for a run that is compared with a cached one."""

    def __init__(
        self, data: GCDData, available: int, *, seed: int = 0, views: int = 2, cache_seed: int = 0
    ) -> None:
        check_views(views, available)
        self.all = KeyedViews(data.in_order, data.train_transform, available, cache_seed)
        self.seed, self.views, self.rows = seed, views, rows_of_items(data)
        self.normalization = self.all.normalization

    def __getitem__(self, draw: Draw) -> tuple[list[Tensor], int, int, bool]:
        label, uq_idx, mask = self.rows[draw.index]
        pixels = self.all[key_of(uq_idx)][0]
        return (
            [pixels[v] for v in choose_views(self.seed, draw, len(pixels), self.views)],
            label,
            uq_idx,
            mask,
        )
