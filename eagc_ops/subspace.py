"""The known-class subspace: a conceptor or a PCA projection, with the mean energy ratio of its features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from numbers import Integral, Real

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from eagc_ops.kernels import formulas

APERTURE = 2.0  # the paper's value for every dataset
ROWS_AT_ONCE = 4096  # bounds the widened copy of the features


class Subspace:
    """A symmetric matrix S (D, D) with eigenvalues in [0, 1], and the mean energy ratio Ebar, both in fp32.

    `Subspace.conceptor` and `Subspace.pca` fit one to labelled features; `Subspace(matrix, energy_ref)` takes
    your own (any floating dtype, converted to fp32). `energy_ref` is a number or a 0-d tensor in (0, 1].

    >>> features = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    >>> subspace = Subspace.conceptor(features, aperture=2.0)
    >>> subspace
    Subspace(dim=8, rank 6.3 of 8, energy_ref=0.808, device=cpu)
    >>> subspace.energy(features).shape
    torch.Size([100])
    """

    matrix: Tensor
    energy_ref: Tensor

    def __init__(self, matrix: Tensor, energy_ref: Tensor | float):
        _check_matrix(matrix)
        scalar = energy_ref.ndim == 0 if isinstance(energy_ref, Tensor) else isinstance(energy_ref, Real)
        if not scalar or not 0 < energy_ref <= 1 + 1e-6:
            raise ValueError(
                "energy_ref, the mean energy ratio of labelled features, must be one number in (0, 1], got "
                f"{energy_ref!r}"
            )
        self.matrix = matrix.detach().to(torch.float32, copy=True).contiguous()
        self.energy_ref = torch.as_tensor(energy_ref).detach().to(matrix.device, torch.float32, copy=True)

    @classmethod
    def conceptor(
        cls,
        features: Tensor | Iterable[Tensor],
        aperture: float = APERTURE,
        *,
        dtype: torch.dtype = torch.float64,
        process_group: dist.ProcessGroup | None = None,
    ) -> Subspace:
        """S = R (R + aperture^-2 I)^-1 with R = Z^T Z / N, on the features' device.

        Args:
            features: (N, D) floating, un-normalised, un-centred; or an iterable of such batches, read once
                (memory D x D).
            aperture: > 0; a larger one captures more of each direction. It is not scale-free: it acts on the
                features' own scale.
            dtype: the dtype of the sums and of the solve: float64, or float32 where fp64 is slow. A float32
                fit whose eigenvalues leave [0, 1] raises an error. That check takes two Cholesky
                factorisations in fp64, 2/3 D^3 operations for any N: in fp32 their rounding, up to D x 6e-8,
                could exceed the violation.
            process_group: each rank passes its share of the features; all ranks get the same subspace.
        """
        aperture = _check_aperture(aperture)
        _check_dtype(dtype)
        if (
            isinstance(features, Tensor)
            and process_group is None
            and features.ndim == 2
            and 0 < features.shape[0] < features.shape[1]
        ):
            _check_features(features)
            wide = features.detach().to(dtype)
            if not torch.isfinite(wide).all():
                raise ValueError(_NON_FINITE)
            with torch.autocast(wide.device.type, enabled=False):
                matrix = solve_woodbury(wide, wide.shape[0], aperture)
                energy_ref = formulas.energy_ratio(wide, matrix).mean()
        else:
            correlation, directions = _moments(features, dtype, process_group)
            matrix = solve_conceptor(correlation, aperture)
            energy_ref = (matrix * directions).sum()  # trace(S M)
        if dtype == torch.float32 and _outside(matrix.double()):
            raise ValueError(
                f"dtype=torch.float32 does not resolve this conceptor (aperture={aperture}, features of this "
                "scale): its eigenvalues leave [0, 1]; use dtype=torch.float64"
            )
        return cls._fitted(matrix, energy_ref)

    @classmethod
    def pca(
        cls,
        features: Tensor | Iterable[Tensor],
        k: int = 16,
        *,
        dtype: torch.dtype = torch.float64,
        process_group: dist.ProcessGroup | None = None,
    ) -> Subspace:
        """S = U_k U_k^T of the k leading eigenvectors of R = Z^T Z / N: the hard subspace of the ablation.

        The features are not centred, as for the conceptor. The arguments are those of `conceptor`.
        """
        _check_dtype(dtype)
        correlation, directions = _moments(features, dtype, process_group)
        if not isinstance(k, Integral) or not 1 <= k <= correlation.shape[0]:
            raise ValueError(f"k must be a whole number between 1 and D={correlation.shape[0]}, got {k!r}")
        leading = torch.linalg.eigh(correlation).eigenvectors[:, -k:]
        with torch.autocast(leading.device.type, enabled=False):
            matrix = leading @ leading.T
        return cls._fitted(matrix, (matrix * directions).sum())

    @classmethod
    def _fitted(cls, matrix: Tensor, energy_ref: Tensor) -> Subspace:
        """A subspace of a valid matrix, without the two factorisations that check a user's own."""
        subspace = cls.__new__(cls)
        subspace.matrix = matrix.to(torch.float32).contiguous()
        subspace.energy_ref = energy_ref.to(torch.float32)
        return subspace

    @property
    def dim(self) -> int:
        return self.matrix.shape[0]

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def energy(self, z: Tensor) -> Tensor:
        """Energy ratio of each row: z (..., D) -> (...), in fp32 or wider."""
        if not isinstance(z, Tensor) or not z.is_floating_point() or z.ndim == 0 or z.shape[-1] != self.dim:
            raise ValueError(
                f"z must be a floating tensor (..., {self.dim}), got {_describe(z)}: pass features of the "
                "layer that the subspace was fitted to"
            )
        if z.device != self.device:
            raise ValueError(
                f"z is on {z.device} but the subspace is on {self.device}: move it with subspace.to(z.device)"
            )
        wide = torch.promote_types(z.dtype, torch.float32)
        with torch.autocast(z.device.type, enabled=False):
            return formulas.energy_ratio(z.to(wide), self.matrix.to(wide))

    def to(self, device: torch.device | str) -> Subspace:
        """The subspace on a device; itself if it is there already."""
        if self.device == torch.device(device):
            return self
        return type(self)._fitted(self.matrix.to(device), self.energy_ref.to(device))

    def __repr__(self) -> str:
        # The trace of a conceptor is its soft rank: each direction counts by its captured share.
        if self.matrix.is_meta:  # shapes without values
            return f"Subspace(dim={self.dim}, device=meta)"
        rank, energy_ref = self.matrix.trace().item(), self.energy_ref.item()
        values = f"rank {rank:.1f} of {self.dim}, energy_ref={energy_ref:.3f}"
        return f"Subspace(dim={self.dim}, {values}, device={self.device})"


def solve_conceptor(correlation: Tensor, aperture: float) -> Tensor:
    """R (R + a^-2 I)^-1 = I - a^-2 (R + a^-2 I)^-1 for symmetric R (D, D), in R's dtype.

    Only the lower triangle of R is read. It takes one Cholesky factorisation and a symmetric inverse, half
    the work of a general inverse. The result is symmetric to the bit and more accurate.
    """
    ridge = aperture**-2
    shifted = correlation.clone()
    shifted.diagonal().add_(ridge)
    # cholesky_ex does not make the host wait for an error code.
    inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(shifted).L)
    inverse.mul_(-ridge).diagonal().add_(1)
    return inverse


def solve_woodbury(features: Tensor, count: int | Tensor, aperture: float) -> Tensor:
    """The same S from Z (N, D) with N < D: Z^T (Z Z^T + N a^-2 I)^-1 Z.

    Rows of zeros change nothing; `count` is N without them.
    """
    gram = features @ features.T
    ridge = count * aperture**-2 * torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(gram + ridge).L, features, upper=False)
    return whitened.T @ whitened


def estimate_from_batch(z_ref: Tensor, mask: Tensor, aperture: float = APERTURE) -> tuple[Tensor, Tensor]:
    """S and Ebar from the labelled rows of one batch: z_ref (B, D), mask (B,).

    The number of labelled rows stays on the device.
    """
    features = torch.where(mask[:, None], z_ref.detach(), 0).to(torch.float64)
    count = mask.sum().clamp_min(1)
    if features.shape[0] < features.shape[1]:
        matrix = solve_woodbury(features, count, aperture)
    else:
        matrix = solve_conceptor(features.T @ features / count, aperture)
    # Unlabelled rows were set to zero, so their energy is 0.
    energy_ref = formulas.energy_ratio(features, matrix).sum() / count
    return matrix.to(torch.float32), energy_ref.to(torch.float32)


def _moments(
    features: Tensor | Iterable[Tensor], dtype: torch.dtype, process_group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """R = mean of z z^T, and M = mean of z z^T / |z|^2, both (D, D) in `dtype`.

    The mean energy ratio is trace(S M), so one pass over the features suffices. Ebar is an fp32 number, so M
    is made of fp32 products, which take half the time; its sums over blocks of rows are in `dtype`.
    """
    correlation: Tensor | None = None
    count = 0
    for batch in _batches(features):
        batch = batch.detach()
        if correlation is None:
            shape = (2, batch.shape[1], batch.shape[1])
            correlation, directions = torch.zeros(shape, dtype=dtype, device=batch.device)
        elif len(correlation) != batch.shape[1]:
            raise ValueError(
                f"features must have the same D in every batch, got a batch with D={batch.shape[1]} after "
                f"one with D={len(correlation)}: pass features of one layer of one model"
            )
        with torch.autocast(batch.device.type, enabled=False):
            for rows in batch.split(ROWS_AT_ONCE):
                correlation += _gram(rows.to(dtype))
                rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
                norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
                directions += _gram((rows / norms.clamp_min(formulas.NORM_FLOOR**0.5)).to(torch.float32))
        count += batch.shape[0]
    if correlation is None or (count == 0 and process_group is None):
        raise ValueError("features has no rows: pass the labelled features that the subspace is fitted to")
    total = torch.tensor(float(count), dtype=dtype, device=correlation.device)
    if process_group is not None:
        for summed in (correlation, directions, total):
            dist.all_reduce(summed, group=process_group)
        if total == 0:
            raise ValueError(
                "features has no rows on any rank: pass the labelled features that the subspace is fitted to"
            )
    if not torch.isfinite(correlation).all():
        raise ValueError(_NON_FINITE)
    return correlation.div_(total), directions.div_(total)


def _gram(rows: Tensor) -> Tensor:
    """rows^T rows (D, D).

    It is symmetric, and on a CPU only one of its triangles is multiplied: NumPy sees that both factors are
    one array and calls syrk of its BLAS, which torch does not offer.
    """
    if rows.device.type != "cpu":
        return rows.T @ rows
    array = rows.numpy()
    with np.errstate(all="ignore"):  # values that are not finite are refused later, on all ranks together
        return torch.from_numpy(array.T @ array)


_NON_FINITE = (
    "features must be finite, but hold NaN or infinite values: drop those rows, or check the reference model"
)


def _batches(features: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    if isinstance(features, Tensor):
        _check_features(features)
        yield features
        return
    if not isinstance(features, Iterable):
        raise TypeError(
            f"features must be a tensor (N, D) or an iterable of such batches, got {type(features).__name__}"
        )
    for batch in features:
        _check_features(batch)
        yield batch


def _check_features(features: Tensor) -> None:
    if (
        not isinstance(features, Tensor)
        or features.ndim != 2
        or not features.is_floating_point()
        or features.shape[1] == 0
    ):
        raise ValueError(
            "features must be a floating tensor (N, D) or an iterable of such batches, got "
            f"{_describe(features)}"
        )


def _check_aperture(aperture: float) -> float:
    if not isinstance(aperture, Real) or not 0 < aperture < float("inf"):
        raise ValueError(f"aperture must be a positive number, got {aperture!r}; the paper uses {APERTURE}")
    return float(aperture)


def _check_matrix(matrix: Tensor) -> None:
    if (
        not isinstance(matrix, Tensor)
        or matrix.ndim != 2
        or len(set(matrix.shape)) != 1
        or not matrix.is_floating_point()
        or not len(matrix)
    ):
        raise ValueError(
            f"matrix must be a floating tensor (D, D), got {_describe(matrix)}; Subspace.conceptor(features) "
            "makes one"
        )
    wide = matrix.detach().to(torch.float64)
    if not torch.isfinite(wide).all():
        raise ValueError(
            "matrix holds NaN or infinite values; Subspace.conceptor(features) makes a valid one, and "
            "refuses such features"
        )
    asymmetry = (wide - wide.T).abs().max()
    if asymmetry > 1e-6:
        raise ValueError(
            f"matrix must be symmetric; it differs from its transpose by up to {asymmetry:.1e}: pass (matrix "
            "+ matrix.T) / 2"
        )
    side = _outside(wide)
    if side:
        raise ValueError(
            f"matrix must have its eigenvalues in [0, 1], but has one {side}; Subspace.conceptor makes a "
            "valid one"
        )


def _outside(wide: Tensor) -> str | None:
    """The side on which an eigenvalue of a symmetric fp64 matrix leaves [0, 1] by more than 2e-6, or None.

    In that case, and only then, a Cholesky factorisation fails.
    """
    identity = torch.eye(wide.shape[0], dtype=wide.dtype, device=wide.device)
    for shifted, side in ((wide + 2e-6 * identity, "negative"), ((1 + 2e-6) * identity - wide, "above 1")):
        if torch.linalg.cholesky_ex(shifted).info != 0:
            return side
    return None


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in (torch.float64, torch.float32):
        raise ValueError(f"dtype must be torch.float64 or torch.float32, got {dtype}")


def _describe(x: object) -> str:
    return f"{tuple(x.shape)} {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
