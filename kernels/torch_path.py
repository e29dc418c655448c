"""EAGC in plain torch: the CPU path, and the path of GPUs without Triton.

On a CPU the matrix products take most of the time, so this path leaves out those that do not change the
result: it multiplies unlabelled rows only; z S z^T needs the upper triangle of S (58 % of the products at D =
768; an energy in a basis needs all of them); rows with tau = 0 need no g S. `eagc bench operator` measures
the gain. On a GPU, selecting rows by a mask would make the host wait for the device, so there the formulas
run over all rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from . import formulas
from .panels import PANEL, upper_panels
from .records import Coordination, Inputs

# Bounds the temporaries; larger blocks fall out of the cache and were 5 % slower at 4,096 rows.
ROWS_AT_ONCE = 1024


def compute(g: Tensor, inputs: Inputs, settings: Coordination) -> Tensor:
    """The gradient of `formulas.coordinated`, computed in fp32 (fp64 for fp64 inputs), in g's dtype."""
    if g.device.type != "cpu":
        return dense(g, inputs, settings)
    dtype = _compute_dtype(inputs.z)
    out = g.to(dtype, copy=True, memory_format=torch.contiguous_format)
    if inputs.z_ref is not None:
        labelled = _blocks(inputs.mask)
        number = float(max(sum(rows.shape[0] for rows in labelled), 1))
        number = number if inputs.labelled is None else inputs.labelled.item()
        step = formulas.anchor_step(number, g.shape[1], settings)
        step = step if inputs.scale is None else step * inputs.scale.item()
        for rows in labelled:
            drift = _take(inputs.z, rows, dtype).sub_(_take(inputs.z_ref, rows, dtype))
            out.index_add_(0, rows, drift, alpha=step)
    if settings.lambda_p != 0:
        matrix = inputs.matrix.to(dtype)
        for rows, _, tau in _unlabelled_blocks(inputs, settings):
            active = tau.nonzero().view(-1)  # NaN counts as non-zero: a non-finite row is not skipped
            rows = rows.index_select(0, active)
            weighted = _take(g, rows, dtype).mul_(tau.index_select(0, active)[:, None])
            out.index_add_(0, rows, weighted @ matrix, alpha=-settings.lambda_p)
    return out.to(g.dtype)


def energies(inputs: Inputs, settings: Coordination) -> tuple[Tensor, Tensor]:
    """Energy ratio and tau of every row, (rows,) each, in fp32 or fp64; NaN on labelled rows."""
    if inputs.z.device.type != "cpu":
        return dense_energies(inputs, settings)
    energy = torch.full(inputs.z.shape[:1], torch.nan, dtype=_compute_dtype(inputs.z))
    tau = torch.full_like(energy, torch.nan)
    for rows, row_energy, row_tau in _unlabelled_blocks(inputs, settings):
        energy.index_copy_(0, rows, row_energy)
        tau.index_copy_(0, rows, row_tau)
    return energy, tau


def labelled_energy(inputs: Inputs) -> Tensor:
    """`formulas.labelled_energy` in fp32 (fp64 for fp64 inputs)."""
    z, dtype = inputs.z, _compute_dtype(inputs.z)
    if z.device.type != "cpu":
        return dense_labelled_energy(inputs)
    total = count = 0.0
    for rows in _blocks(inputs.mask):
        total += _energy(_take(z, rows, dtype), inputs).sum().item()
        count += rows.shape[0]
    return torch.tensor([total, count], dtype=dtype)


def dense(g: Tensor, inputs: Inputs, settings: Coordination) -> Tensor:
    """The formulas over all rows: more products than needed, but the host never waits for the device."""
    dtype = _compute_dtype(inputs.z)
    return formulas.coordinated(g.to(dtype), inputs.widened(dtype), settings).gradient.to(g.dtype)


def dense_energies(inputs: Inputs, settings: Coordination) -> tuple[Tensor, Tensor]:
    energy, tau = formulas.energy_and_tau(inputs.widened(_compute_dtype(inputs.z)), settings)
    return energy.masked_fill(inputs.mask, torch.nan), tau.masked_fill(inputs.mask, torch.nan)


def dense_labelled_energy(inputs: Inputs) -> Tensor:
    return formulas.labelled_energy(inputs.widened(_compute_dtype(inputs.z)))


def _unlabelled_blocks(inputs: Inputs, settings: Coordination) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The unlabelled rows in blocks: their indices, energy ratios and taus."""
    dtype, energy_ref = _compute_dtype(inputs.z), inputs.energy_ref.item()
    for rows in _blocks(~inputs.mask):
        if settings.tau == "uniform":
            energy = torch.full((rows.shape[0],), torch.nan, dtype=dtype)
            yield rows, energy, torch.ones_like(energy)
        else:
            energy = _energy(_take(inputs.z, rows, dtype), inputs)
            yield rows, energy, formulas.projection_weight(energy, energy_ref)


def _energy(z: Tensor, inputs: Inputs) -> Tensor:
    """E of some rows, which are in the dtype of the computation."""
    if inputs.basis is None or inputs.weights is None:
        return energy_ratio(z, inputs.matrix)
    return formulas.energy_in_basis(z, inputs.basis.to(z.dtype), inputs.weights.to(z.dtype))


def energy_ratio(z: Tensor, matrix: Tensor) -> Tensor:
    """`formulas.energy_ratio` for a symmetric matrix, from its upper triangle, in the dtype of z."""
    products = torch.empty_like(z)
    for panel, columns in zip(upper_panels(matrix, z.dtype), products.split(PANEL, 1)):
        torch.mm(z.narrow(1, 0, panel.shape[0]), panel, out=columns)
    total = torch.linalg.vector_norm(z, dim=1).square_()  # one pass; a vecdot would store the squares
    return formulas.clamped_ratio(products.mul_(z).sum(1), total)


def _compute_dtype(z: Tensor) -> torch.dtype:
    """Half inputs are computed in fp32; fp64 stays fp64."""
    return torch.float64 if z.dtype == torch.float64 else torch.float32


def _blocks(mask: Tensor) -> tuple[Tensor, ...]:
    """The indices of the rows where mask is True, at most ROWS_AT_ONCE at a time; () if there are none."""
    rows = mask.nonzero().view(-1)
    if rows.shape[0] <= ROWS_AT_ONCE:
        return (rows,) if rows.shape[0] else ()
    return rows.split(ROWS_AT_ONCE)


def _take(x: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """A fresh contiguous copy of some rows in the dtype of the computation."""
    taken = x.index_select(0, rows)
    return taken if taken.dtype == dtype else taken.to(dtype)
