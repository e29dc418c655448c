"""A map of features: every image as a point in the plane, images with similar features side by side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["PERPLEXITY", "SEED", "Map", "map_2d", "tsne"]

MOST = 5000  # images of a t-SNE, which takes about a minute for them
DIRECTIONS, PERPLEXITY, SEED, NEIGHBOURS = 50, 30, 0, 3


class Map(NamedTuple):
    """Points of N images, and how they were found."""

    points: Tensor  # (N, 2) float32
    text: str


def map_2d(z: Tensor) -> Map:
    """The map of features z (N, D), of which only the directions are used. The same z gives the same map.

    >>> map_2d(torch.eye(3)).points.shape
    torch.Size([3, 2])
    """
    from sklearn.decomposition import PCA  # takes a second to import
    from sklearn.neighbors import KNeighborsRegressor

    if len(z) == 1:
        return Map(torch.zeros(1, 2), "one image")
    chosen = np.arange(len(z))
    if len(z) > MOST:
        chosen = np.sort(np.random.RandomState(SEED).permutation(len(z))[:MOST])
    unit = F.normalize(z[chosen].double(), dim=1).numpy()
    directions = min(DIRECTIONS, *unit.shape)
    pca = PCA(directions, random_state=SEED)
    reduced = pca.fit_transform(unit)
    if len(unit) < 6:  # too few for neighbourhoods
        flat = np.zeros((len(unit), 2))
        flat[:, : min(2, directions)] = reduced[:, :2]
        return Map(torch.from_numpy(flat).float(), "the two leading principal components of the features")
    text = f"t-SNE of the {directions} leading principal components of the features"
    points = tsne(reduced)
    if len(chosen) == len(z):
        return Map(torch.from_numpy(points).float(), text)
    places = KNeighborsRegressor(NEIGHBOURS, weights="distance").fit(reduced, points)
    text = (
        f"{text}, computed for {len(chosen):,} of the {len(z):,} images; the others lie between their "
        f"{NEIGHBOURS} nearest ones"
    )
    # In parts: of many images only their points are held
    parts = [
        places.predict(pca.transform(F.normalize(rows.double(), dim=1).numpy())) for rows in z.split(MOST)
    ]
    return Map(torch.from_numpy(np.concatenate(parts)).float(), text)


def tsne(points: np.ndarray) -> np.ndarray:
    """t-SNE (n, 2) of points (n, D)."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    return TSNE(2, perplexity=perplexity, init="pca", random_state=SEED).fit_transform(points)
