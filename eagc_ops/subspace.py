"""The known-class subspace: a conceptor or a PCA projection, with the mean energy ratio of its features."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral, Real

import torch
import torch.distributed as dist
from torch import Tensor

from . import hints
from .kernels import formulas

APERTURE = 2.0  # the paper's value for every dataset
# Of the whitened energy: these rank best on the glyphs data set (docs/probe.md).
RIDGE = 0.01
ENERGY_APERTURE = 1.0
ROWS_AT_ONCE = 4096  # bounds the widened copy of the features


class Subspace:
    """A symmetric matrix S (D, D) with eigenvalues in [0, 1], and the mean energy ratio Ebar, both in fp32.

    `Subspace.conceptor` and `Subspace.pca` fit one to labelled features; `Subspace(matrix, energy_ref)` takes
    your own (any floating dtype, converted to fp32). `energy_ref` is a number or a 0-d tensor in (0, 1].

    The energy ratio is z S z^T / |z|^2. `Subspace.whitened` fits a different one, a ratio of two quadratic
    forms (`kernels.formulas`). For your own, pass `basis` (D, D), invertible, and `weights` (D,) in [0, 1]:
    E = sum_j weights_j (z basis)_j^2 / |z basis|^2. The projection still uses S.

    >>> features = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    >>> subspace = Subspace.conceptor(features, aperture=2.0)
    >>> subspace
    Subspace(dim=8, rank 6.3 of 8, energy_ref=0.808, device=cpu)
    >>> subspace.energy(features).shape
    torch.Size([100])
    """

    matrix: Tensor
    energy_ref: Tensor
    basis: Tensor | None = None
    weights: Tensor | None = None

    def __init__(
        self,
        matrix: Tensor,
        energy_ref: Tensor | float,
        *,
        basis: Tensor | None = None,
        weights: Tensor | None = None,
    ):
        _check_matrix(matrix)
        _check_basis(basis, weights, matrix)
        scalar = energy_ref.ndim == 0 if isinstance(energy_ref, Tensor) else isinstance(energy_ref, Real)
        if not scalar or not 0 < energy_ref <= 1 + 1e-6:
            raise ValueError(
                "energy_ref, the mean energy ratio of labelled features, must be one number in (0, 1], got "
                f"{energy_ref!r}"
            )
        self.matrix = matrix.detach().to(torch.float32, copy=True).contiguous()
        self.energy_ref = torch.as_tensor(energy_ref).detach().to(matrix.device, torch.float32, copy=True)
        if basis is not None and weights is not None:
            self.basis = _unit_scale(basis.detach()).to(torch.float32, copy=True).contiguous()
            self.weights = weights.detach().to(torch.float32, copy=True).contiguous()

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
            aperture: > 0; a larger one captures more of each direction. It depends on the features' scale.
            dtype: the dtype of the sums and the solve: float64, or float32 if fp64 is slow. A float32
                fit whose eigenvalues leave [0, 1] raises an error. That check takes two Cholesky
                factorisations in fp64, 2/3 D^3 operations for any N; in fp32 their rounding, up to D x 6e-8,
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
                raise ValueError(_NON_FINITE.format("features"))
            with torch.autocast(wide.device.type, enabled=False):
                matrix = solve_woodbury(wide, wide.shape[0], aperture)
                energy_ref = formulas.energy_ratio(wide, matrix).mean()
                mean_square = wide.square().sum() / wide.shape[0]
        else:
            correlation, directions = _moments(features, dtype, process_group)
            matrix = solve_conceptor(correlation, aperture)
            energy_ref = (matrix * directions).sum()  # trace(S M)
            mean_square = correlation.trace()
        if dtype == torch.float32 and _outside(matrix.double()):
            raise ValueError(
                f"dtype=torch.float32 does not resolve this conceptor (aperture={aperture}, features of this "
                "scale): its eigenvalues leave [0, 1]; use dtype=torch.float64"
            )
        hints.about_fit(matrix, energy_ref, mean_square, aperture)
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

        The features are not centred. The arguments are as in `conceptor`.
        """
        _check_dtype(dtype)
        correlation, directions = _moments(features, dtype, process_group)
        if not isinstance(k, Integral) or not 1 <= k <= correlation.shape[0]:
            raise ValueError(f"k must be a whole number between 1 and D={correlation.shape[0]}, got {k!r}")
        leading = torch.linalg.eigh(correlation).eigenvectors[:, -k:]
        with torch.autocast(leading.device.type, enabled=False):
            matrix = leading @ leading.T
        hints.about_empty(correlation.trace())
        return cls._fitted(matrix, (matrix * directions).sum())

    @classmethod
    def whitened(
        cls,
        features: Tensor | Iterable[Tensor],
        all_features: Tensor | Iterable[Tensor],
        aperture: float = APERTURE,
        *,
        ridge: float = RIDGE,
        energy_aperture: float = ENERGY_APERTURE,
        process_group: dist.ProcessGroup | None = None,
    ) -> Subspace:
        """The conceptor S of `features`, with the energy of whitened features. The fit is in fp64.

        With C the covariance of all features, W = (C + ridge * mean variance * I)^(-1/2), and S_w the
        conceptor of the labelled rows z W:

            E = (z W) S_w (z W)^T / |z W|^2

        Directions in which all features vary most, whatever their class, count less. With ridge 0, E does
        not change if you multiply all features by an invertible matrix.

        Args:
            features: the labelled features, as in `conceptor`. All of them stay in memory during the fit,
                because the mean of E reads them a second time.
            all_features: labelled and unlabelled features, in the same form; labels are not used. An
                iterable is read once (memory D x D).
            aperture: aperture of S, for the projection.
            ridge: >= 0; 0 needs features that vary in every direction.
            energy_aperture: aperture of S_w. Whitened features have unit variance, so it depends on no scale.
            process_group: each rank passes its share of both; all ranks get the same subspace.

        On frozen features of many known classes, this energy tells novel from known better than the plain
        one, but not on every data set; `eagc probe --energies` compares them on yours. It has not been shown
        to give a better trained model.

        >>> draw = torch.Generator().manual_seed(0)
        >>> labelled, unlabelled = torch.randn(100, 8, generator=draw), torch.randn(300, 8, generator=draw)
        >>> Subspace.whitened(labelled, torch.cat([labelled, unlabelled]))
        Subspace(dim=8, rank 6.3 of 8, energy_ref=0.511 in a basis, device=cpu)
        """
        if not isinstance(ridge, Real) or not 0 <= ridge < float("inf"):
            raise ValueError(f"ridge must be a number >= 0, got {ridge!r}; the default is {RIDGE}")
        aperture = _check_aperture(aperture)
        energy_aperture = _check_aperture(
            energy_aperture, "energy_aperture", f"the default is {ENERGY_APERTURE}"
        )
        features = list(_batches(features, "features"))
        (correlation,) = _means(features, (_wide_gram,), torch.float64, process_group)
        basis, weights = _whitened_form(correlation, all_features, ridge, energy_aperture, process_group)

        def energies(rows: Tensor) -> Tensor:
            return formulas.energy_in_basis(rows.double(), basis, weights).sum()

        (energy_ref,) = _means(features, (energies,), torch.float64, process_group)
        matrix = solve_conceptor(correlation, aperture)
        # Of S itself, whose scale is that of the features, the share of their energy that it captures.
        captured = (matrix * correlation).sum() / correlation.trace()
        hints.about_fit(matrix, captured, correlation.trace(), aperture)
        return cls._fitted(matrix, energy_ref, basis, weights)

    @classmethod
    def _fitted(
        cls, matrix: Tensor, energy_ref: Tensor, basis: Tensor | None = None, weights: Tensor | None = None
    ) -> Subspace:
        """A subspace from valid tensors, without the factorisations that check a user's tensors."""
        subspace = cls.__new__(cls)
        subspace.matrix = matrix.to(torch.float32).contiguous()
        subspace.energy_ref = energy_ref.to(torch.float32)
        subspace.basis = None if basis is None else basis.to(torch.float32).contiguous()
        subspace.weights = None if weights is None else weights.to(torch.float32)
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
            if self.basis is None or self.weights is None:
                return formulas.energy_ratio(z.to(wide), self.matrix.to(wide))
            return formulas.energy_in_basis(z.to(wide), self.basis.to(wide), self.weights.to(wide))

    def to(self, device: torch.device | str) -> Subspace:
        """The subspace on a device; itself if it is there already."""
        if self.device == torch.device(device):
            return self
        basis = None if self.basis is None else self.basis.to(device)
        weights = None if self.weights is None else self.weights.to(device)
        return type(self)._fitted(self.matrix.to(device), self.energy_ref.to(device), basis, weights)

    def __repr__(self) -> str:
        # The trace of a conceptor is its soft rank: each direction counts by its captured share.
        if self.matrix.is_meta:  # shapes without values
            return f"Subspace(dim={self.dim}, device=meta)"
        rank, energy_ref = self.matrix.trace().item(), self.energy_ref.item()
        values = f"rank {rank:.1f} of {self.dim}, energy_ref={energy_ref:.3f}"
        values += "" if self.basis is None else " in a basis"
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
    takes fp32 products, in half the time; its sums over blocks of rows are in `dtype`.
    """

    def directions(rows: Tensor) -> Tensor:
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return _gram((rows / norms.clamp_min(formulas.NORM_FLOOR**0.5)).to(torch.float32))

    terms = (lambda rows: _gram(rows.to(dtype)), directions)
    correlation, mean_directions = _means(features, terms, dtype, process_group)
    return correlation, mean_directions


def _whitened_form(
    correlation: Tensor,
    all_features: Tensor | Iterable[Tensor],
    ridge: float,
    aperture: float,
    process_group: dist.ProcessGroup | None,
) -> tuple[Tensor, Tensor]:
    """The basis (D, D) and the weights (D,) of the whitened energy; `correlation`: R of labelled features."""
    terms = (_wide_gram, lambda rows: rows.double().sum(0))
    square, mean = _means(all_features, terms, torch.float64, process_group, "all_features")
    if square.shape != correlation.shape:
        raise ValueError(
            f"all_features has D={len(square)} but features has D={len(correlation)}: pass features of one "
            "layer of one model"
        )
    variances, vectors = torch.linalg.eigh(square - mean.outer(mean))
    raised = variances.clamp_min(0) + ridge * variances.mean()
    # The smallest eigenvalue that fp64 tells from 0, as torch.linalg.matrix_rank has it.
    if not raised.min() > raised.max() * len(raised) * torch.finfo(torch.float64).eps:
        raise ValueError(
            f"all_features do not vary in every direction, and ridge={ridge} does not make up for it: use "
            f"ridge={RIDGE}, and features that are not all the same"
        )
    whiten = vectors * raised.rsqrt() @ vectors.T
    values, axes = torch.linalg.eigh(whiten @ correlation @ whiten)
    weights = values.clamp_min(0) / (values.clamp_min(0) + aperture**-2)
    basis = whiten @ axes
    # No ratio depends on its scale. Like an orthogonal matrix it has columns of norm 1, in the mean square.
    return basis * (len(basis) ** 0.5 / torch.linalg.matrix_norm(basis)), weights


def _means(
    features: Tensor | Iterable[Tensor],
    terms: Sequence[Callable[[Tensor], Tensor]],
    dtype: torch.dtype,
    process_group: dist.ProcessGroup | None,
    name: str = "features",
) -> list[Tensor]:
    """The means over all rows of `terms`, functions of (n, D) that return a sum over n rows, in `dtype`."""
    sums: list[Tensor] = []
    count, dim = 0, None
    for batch in _batches(features, name):
        batch = batch.detach()
        if dim not in (None, batch.shape[1]):
            raise ValueError(
                f"{name} must have the same D in every batch, got a batch with D={batch.shape[1]} after "
                f"one with D={dim}: pass features of one layer of one model"
            )
        dim = batch.shape[1]
        with torch.autocast(batch.device.type, enabled=False):
            for rows in batch.split(ROWS_AT_ONCE):
                parts = [term(rows) for term in terms]
                sums = sums or [torch.zeros_like(part, dtype=dtype) for part in parts]
                for summed, part in zip(sums, parts):
                    summed += part
        count += batch.shape[0]
    remedy = (
        "pass the labelled features that the subspace is fitted to"
        if name == "features"
        else "pass labelled and unlabelled features"
    )
    if not sums or (count == 0 and process_group is None):
        raise ValueError(f"{name} has no rows: {remedy}")
    total = torch.tensor(float(count), dtype=dtype, device=sums[0].device)
    if process_group is not None:
        for summed in (*sums, total):
            dist.all_reduce(summed, group=process_group)
        if total == 0:
            raise ValueError(f"{name} has no rows on any rank: {remedy}")
    if not torch.isfinite(sums[0]).all():
        raise ValueError(_NON_FINITE.format(name))
    return [summed.div_(total) for summed in sums]


def _wide_gram(rows: Tensor) -> Tensor:
    return _gram(rows.double())


def _gram(rows: Tensor) -> Tensor:
    """rows^T rows (D, D).

    The product is symmetric, and a CPU multiplies only one triangle: NumPy sees that both factors are the
    same array and calls its BLAS's syrk, which torch does not offer. Without NumPy, torch multiplies both
    triangles.
    """
    if rows.device.type != "cpu":
        return rows.T @ rows
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # non-finite values are refused later, on all ranks together
            array = rows.numpy()
            return torch.from_numpy(array.T @ array)
    except (RuntimeError, FloatingPointError):  # no NumPy; or np.seterr(all="raise")
        return rows.T @ rows


_NON_FINITE = (
    "{} must be finite, but hold NaN or infinite values: drop those rows, or check the reference model"
)


def _batches(features: Tensor | Iterable[Tensor], name: str) -> Iterator[Tensor]:
    if isinstance(features, Tensor):
        _check_features(features, name)
        yield features
        return
    if not isinstance(features, Iterable):
        raise TypeError(
            f"{name} must be a tensor (N, D) or an iterable of such batches, got {type(features).__name__}"
        )
    for batch in features:
        _check_features(batch, name)
        yield batch


def _check_features(features: Tensor, name: str = "features") -> None:
    if (
        not isinstance(features, Tensor)
        or features.ndim != 2
        or features.layout != torch.strided
        or not features.is_floating_point()
        or features.shape[1] == 0
    ):
        raise ValueError(
            f"{name} must be a floating tensor (N, D) or an iterable of such batches, got "
            f"{_describe(features)}"
        )


def _check_aperture(
    aperture: float, name: str = "aperture", usual: str = f"the paper uses {APERTURE}"
) -> float:
    if not isinstance(aperture, Real) or not 0 < aperture < float("inf"):
        raise ValueError(f"{name} must be a positive number, got {aperture!r}; {usual}")
    return float(aperture)


def _unit_scale(basis: Tensor) -> Tensor:
    """The basis times a power of two, so that its columns have norm 1 up to sqrt(2), in the mean square.

    No ratio depends on the scale, but the floor of the denominator and the range of 16 bits do. A power of
    two rounds nothing, and applying it again changes nothing.
    """
    size = torch.linalg.matrix_norm(basis.double()) / len(basis) ** 0.5
    return basis.double() * torch.exp2(-torch.log2(size).round())


def _check_basis(basis: Tensor | None, weights: Tensor | None, matrix: Tensor) -> None:
    """Require both or none, and a basis that is not singular in fp32, where a row might vanish."""
    if (basis is None) != (weights is None):
        given, missing = ("basis", "weights") if weights is None else ("weights", "basis")
        raise ValueError(f"{given} is given but {missing} is None: pass both, or none for the energy of S")
    if basis is None or weights is None:
        return
    for name, x, shape in (("basis", basis, matrix.shape), ("weights", weights, matrix.shape[:1])):
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.shape != shape:
            raise ValueError(
                f"{name} must be a floating tensor {tuple(shape)} for this matrix, got {_describe(x)}"
            )
        if x.device != matrix.device:
            raise ValueError(
                f"{name} is on {x.device} but matrix is on {matrix.device}: move it with "
                f"{name}.to(matrix.device)"
            )
    if not ((weights >= 0) & (weights <= 1 + 1e-6)).all():
        raise ValueError(
            f"weights must be in [0, 1], got {weights.min().item():.3g} to {weights.max().item():.3g}: an "
            "energy ratio is a share, so divide them by the largest"
        )
    wide = basis.detach().to(torch.float64)
    if not torch.isfinite(wide).all():
        raise ValueError("basis holds NaN or infinite values; Subspace.whitened(...) makes a valid one")
    values = torch.linalg.svdvals(wide)
    if not values.min() > values.max() * torch.finfo(torch.float32).eps:
        raise ValueError(
            f"basis must be invertible, but has singular values from {values.min().item():.1e} to "
            f"{values.max().item():.1e}: basis @ basis.T, the form in the denominator, must be definite"
        )


def _check_matrix(matrix: Tensor) -> None:
    if (
        not isinstance(matrix, Tensor)
        or matrix.ndim != 2
        or matrix.layout != torch.strided
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
    if not isinstance(x, Tensor):
        return type(x).__name__
    layout = "" if x.layout == torch.strided else f" of layout {x.layout}, which .to_dense() makes plain"
    return f"{tuple(x.shape)} {x.dtype}{layout}"
