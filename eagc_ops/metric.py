"""A metric learned from labels: a linear map after which classes scatter equally in all directions."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

import torch
from torch import Tensor
from torch.nn import functional as F

ROWS_AT_ONCE = 4096  # bounds the widened copy of the features
# Chosen over data sets (docs/benchmarks.md): how many directions N images can show, and the prior's weight.
ROWS_PER_DIRECTION, LEAST_DIRECTIONS, MOST_DIRECTIONS = 10, 32, 256
PRIOR_ROWS = 100.0
PRIOR_POWER = 0.5


class LabelMetric:
    """Features to points: unit norm, minus `mean` (D,), times `matrix` (D, d), unit norm again; both in fp32.

    `LabelMetric.fit` learns both from features, some of them labelled. In the directions of the d largest
    variances t_j of all rows, with the scatter S of the labelled rows about their class means and its n
    degrees of freedom (labelled rows minus their classes),

        W = (S + m T) / (n + m),   T = diag(t_j^p) with the trace of S / n,   matrix = directions W^(-1/2)

    W is the mean of an inverse-Wishart posterior whose prior counts as m rows. With few labels the metric
    whitens by a power of the variance, which needs no labels; with many, the labels decide.

    >>> features = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    >>> label = torch.arange(200) % 4
    >>> metric = LabelMetric.fit(features, torch.where(torch.arange(200) < 100, label, -1))
    >>> metric
    LabelMetric(8 -> 8, device=cpu)
    >>> metric(features).norm(dim=1).allclose(torch.ones(200))
    True
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, mean: Tensor, matrix: Tensor) -> None:
        _check_map(mean, matrix)
        self.mean = mean.detach().to(torch.float32, copy=True)
        self.matrix = matrix.detach().to(torch.float32, copy=True).contiguous()

    @classmethod
    def fit(
        cls,
        features: Tensor,
        label: Tensor,
        *,
        directions: int | None = None,
        prior_rows: float = PRIOR_ROWS,
        prior_power: float = PRIOR_POWER,
    ) -> LabelMetric:
        """The metric of these rows, on their device; sums and decompositions are in fp64.

        Args:
            features: (N, D) floating, N >= 2, labelled and unlabelled; rows are brought to unit norm here.
            label: (N,) integers, the class of a labelled row, -1 (or below) of an unlabelled one.
            directions: d, the number of directions to keep; fewer if the rows span fewer. Default: one
                per 10 rows, between 32 and 256.
            prior_rows: m >= 0, the weight of the prior in rows. 0 without labelled rows that share a class
                is an error.
            prior_power: p in [0, 1]. 0: the prior is a sphere; 1: it has the shape of all rows.
        """
        (metric,) = cls.fit_several(
            features, [label], directions=directions, prior_rows=prior_rows, prior_power=prior_power
        )
        return metric

    @classmethod
    def fit_several(
        cls,
        features: Tensor,
        labels: Sequence[Tensor],
        *,
        directions: int | None = None,
        prior_rows: float = PRIOR_ROWS,
        prior_power: float = PRIOR_POWER,
    ) -> list[LabelMetric]:
        """The metric for each of several labellings of the same rows, whose directions are computed once."""
        _check_features(features)
        for label in labels:
            _check_label(label, features)
        _check_number("prior_rows", prior_rows, 0.0, float("inf"), PRIOR_ROWS)
        _check_number("prior_power", prior_power, 0.0, 1.0, PRIOR_POWER)
        wanted = _directions(directions, len(features))
        with torch.autocast(features.device.type, enabled=False):
            mean, variances, basis = _principal(features, wanted)
            return [
                cls(
                    mean,
                    basis
                    @ _root_of_precision(features, label, mean, variances, basis, prior_rows, prior_power),
                )
                for label in labels
            ]

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def __call__(self, features: Tensor) -> Tensor:
        """Map features (N, D), on the metric's device, to points (N, d) of unit norm, fp32.

        A row without length, or without any in these directions, becomes the origin.
        """
        if features.ndim != 2 or features.shape[1] != len(self.mean) or not features.is_floating_point():
            raise ValueError(
                f"features must be floating (N, {len(self.mean)}), like those the metric was fitted to, got "
                f"{tuple(features.shape)} {features.dtype}"
            )
        if features.device != self.device:
            raise ValueError(
                f"features are on {features.device} but the metric is on {self.device}: move it with "
                f"metric.to(features.device)"
            )
        with torch.autocast(features.device.type, enabled=False):
            return torch.cat(
                [
                    F.normalize((F.normalize(rows.float(), dim=1) - self.mean) @ self.matrix, dim=1)
                    for rows in features.split(ROWS_AT_ONCE)
                ]
            )

    def to(self, device: torch.device | str) -> LabelMetric:
        """The metric on a device; itself if it is there already."""
        if self.device == torch.device(device):
            return self
        return type(self)(self.mean.to(device), self.matrix.to(device))

    def __repr__(self) -> str:
        return f"LabelMetric({self.matrix.shape[0]} -> {self.matrix.shape[1]}, device={self.device})"


def usual_directions(rows: int) -> int:
    """How many directions `LabelMetric.fit` keeps for that many rows.

    >>> usual_directions(100), usual_directions(1000), usual_directions(100_000)
    (32, 100, 256)
    """
    return max(LEAST_DIRECTIONS, min(MOST_DIRECTIONS, rows // ROWS_PER_DIRECTION))


def _directions(asked: int | None, rows: int) -> int:
    if asked is None:
        return usual_directions(rows)
    if not isinstance(asked, Integral) or asked < 1:
        raise ValueError(
            f"directions must be a whole number >= 1, got {asked!r}; leave it out for the default"
        )
    return int(asked)


def _principal(features: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The mean (D,) of unit rows, and their largest variances (d,) with the directions (D, d), in fp64."""
    count, dim = features.shape
    if count < dim:
        unit = F.normalize(features.double(), dim=1)
        mean = unit.mean(0)
        _, singular, basis = torch.linalg.svd(unit - mean, full_matrices=False)
        variances, basis = singular.square() / count, basis.T
    else:
        total = torch.zeros(dim, dtype=torch.float64, device=features.device)
        square = torch.zeros(dim, dim, dtype=torch.float64, device=features.device)
        for rows in features.split(ROWS_AT_ONCE):
            unit = F.normalize(rows.double(), dim=1)
            total += unit.sum(0)
            square += unit.T @ unit
        mean = total / count
        variances, basis = torch.linalg.eigh(square / count - mean.outer(mean))
        variances, basis = variances.flip(0), basis.flip(1)
    kept = variances[:most] > max(variances[0].item() * 1e-6, 1e-12)
    if not kept.any():
        raise ValueError(
            "features must differ from row to row, but all have one direction: check the backbone "
            "and its input"
        )
    return mean, variances[:most][kept], basis[:, :most][:, kept]


def _root_of_precision(
    features: Tensor,
    label: Tensor,
    mean: Tensor,
    variances: Tensor,
    basis: Tensor,
    prior_rows: float,
    prior_power: float,
) -> Tensor:
    """W^(-1/2) (d, d) in the basis."""
    scatter, freedom = _within(features, label, mean, basis)
    prior = variances**prior_power
    if freedom == 0 and prior_rows == 0:
        raise ValueError(
            "prior_rows=0 needs labelled rows that share a class, and label has none: use "
            f"prior_rows={PRIOR_ROWS:g}"
        )
    if freedom:
        prior = prior * (scatter.trace() / freedom / prior.sum())
    pooled = (scatter + prior_rows * torch.diag(prior)) / (freedom + prior_rows)
    scales, axes = torch.linalg.eigh(pooled)
    if not scales[-1] > 0:  # labelled rows that are all alike, and no prior
        return torch.eye(len(scales), dtype=scales.dtype, device=scales.device)
    # A direction in which labelled rows do not vary at all must not outweigh all others.
    return (axes * scales.clamp_min(scales[-1] * 1e-6).rsqrt()) @ axes.T


def _within(features: Tensor, label: Tensor, mean: Tensor, directions: Tensor) -> tuple[Tensor, int]:
    """The scatter (d, d) of labelled rows about their class means, and its degrees of freedom."""
    chosen = label >= 0
    if not chosen.any():
        return torch.zeros(2 * directions.shape[1:], dtype=torch.float64, device=features.device), 0
    points = (F.normalize(features[chosen].double(), dim=1) - mean) @ directions
    classes, index = label[chosen].unique(return_inverse=True)
    # Matrix products: scattered additions have no fixed order on a GPU.
    member = F.one_hot(index, len(classes)).to(points.dtype)
    means = (member.T @ points) / member.sum(0)[:, None]
    residuals = points - means[index]
    return residuals.T @ residuals, len(points) - len(classes)


def _check_features(features: Tensor) -> None:
    if (
        not isinstance(features, Tensor)
        or features.ndim != 2
        or not features.is_floating_point()
        or len(features) < 2
        or features.shape[1] == 0
    ):
        what = f"{tuple(features.shape)} {features.dtype}" if isinstance(features, Tensor) else features
        raise ValueError(f"features must be a floating tensor (N, D) with N >= 2, got {what}")
    if not torch.isfinite(features).all():
        raise ValueError("features must be finite, but hold NaN or infinite values: drop those rows")


def _check_label(label: Tensor, features: Tensor) -> None:
    if (
        not isinstance(label, Tensor)
        or label.shape != features.shape[:1]
        or label.dtype.is_floating_point
        or label.dtype == torch.bool
        or label.device != features.device
    ):
        what = f"{tuple(label.shape)} {label.dtype} on {label.device}" if isinstance(label, Tensor) else label
        raise ValueError(
            f"label must hold a class, or -1, for each of {len(features)} rows, on {features.device}, "
            f"got {what}"
        )


def _check_map(mean: Tensor, matrix: Tensor) -> None:
    for name, x, ndim in (("mean", mean, 1), ("matrix", matrix, 2)):
        if not isinstance(x, Tensor) or x.ndim != ndim or not x.is_floating_point() or not x.numel():
            shape = "(D,)" if ndim == 1 else "(D, d)"
            raise ValueError(
                f"{name} must be a floating tensor {shape}; LabelMetric.fit(features, label) makes it"
            )
        if not torch.isfinite(x).all():
            raise ValueError(
                f"{name} holds NaN or infinite values; LabelMetric.fit(features, label) makes it"
            )
    if len(mean) != len(matrix) or mean.device != matrix.device:
        raise ValueError(
            f"mean and matrix must have one D and one device, got {len(mean)} on {mean.device} and "
            f"{len(matrix)} on {matrix.device}"
        )


def _check_number(name: str, value: float, least: float, most: float, usual: float) -> None:
    if not isinstance(value, Real) or not least <= value <= most or value == float("inf"):
        raise ValueError(
            f"{name} must be a number in [{least:g}, {most:g}], got {value!r}; usual is {usual:g}"
        )
