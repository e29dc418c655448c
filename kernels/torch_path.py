"""EAGC in plain torch: the CPU path, and the path of GPUs without Triton.

On a CPU the time is in the matrix products, so the path does fewer of them than the formulas suggest, exactly:
only unlabelled rows are multiplied; the quadratic form z S z^T takes the upper triangle of S (58 % of the products at D = 768);
rows with tau = 0 skip g S. Measured in `bench/operator.py`. On a GPU a gather by mask would make the host wait for the
device, so there the dense formulas of `reference` run as they stand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import formulas
from .copies import as_dtype, derived

ROWS_AT_ONCE = (
    1024  # bounds the temporaries; larger blocks fall out of the cache and were 5 % slower at 4,096 rows
)
PANEL = (
    128  # columns of the triangle at a time: wider wastes products, narrower makes them too small to be fast
)


def coordinate(
    g: Tensor,
    z: Tensor,
    z_ref: Tensor | None,
    mask: Tensor,
    matrix: Tensor,
    energy_ref: Tensor,
    *,
    lambda_a: float,
    lambda_p: float,
    anchor: str,
    tau: str,
    scale: Tensor | None = None,
    count: Tensor | None = None,
    record: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """As `formulas.coordinate`, in fp32 (fp64 for fp64 inputs), the gradient in g's dtype; energy and tau of labelled rows are NaN.

    Without `record` the CPU path does not collect energy and tau: None.
    """
    if g.device.type != "cpu":
        options = {
            "lambda_a": lambda_a,
            "lambda_p": lambda_p,
            "anchor": anchor,
            "tau": tau,
            "scale": scale,
            "count": count,
        }
        return dense(g, z, z_ref, mask, matrix, energy_ref, **options)
    dtype = compute_dtype(z)
    energy_mean = energy_ref.item()
    wide = as_dtype(matrix, dtype)
    out = g.to(dtype, copy=True, memory_format=torch.contiguous_format)
    energy, weight = torch.full((2, g.shape[0]), torch.nan, dtype=dtype) if record else (None, None)
    if z_ref is not None:
        labelled = blocks(mask)
        number = max(sum(rows.shape[0] for rows in labelled), 1) if count is None else count.item()
        loss_scale = None if scale is None else scale.item()
        step = formulas.anchor_scale(number, g.shape[1], lambda_a=lambda_a, anchor=anchor, scale=loss_scale)
        for rows in labelled:
            out.index_add_(0, rows, take(z, rows, dtype).sub_(take(z_ref, rows, dtype)), alpha=step)
    for rows in blocks(~mask):
        if tau == "uniform":
            row_weight = torch.ones(rows.shape[0], dtype=dtype)
        else:
            row_energy = energy_ratio(take(z, rows, dtype), matrix)
            row_weight = formulas.projection_weight(row_energy, energy_mean)
            if energy is not None:
                energy.index_copy_(0, rows, row_energy)
        if weight is not None:
            weight.index_copy_(0, rows, row_weight)
        if lambda_p == 0:
            continue
        active = row_weight.nonzero().view(-1)  # NaN counts as non-zero: a non-finite row is not skipped
        rows = rows.index_select(0, active)
        weighted = take(g, rows, dtype).mul_(row_weight.index_select(0, active)[:, None])
        out.index_add_(0, rows, weighted @ wide, alpha=-lambda_p)
    return out.to(g.dtype), energy, weight


def dense(
    g: Tensor, z: Tensor, z_ref: Tensor | None, mask: Tensor, matrix: Tensor, energy_ref: Tensor, **options
):
    """The formulas over all rows, in the compute dtype: more products than needed, but the host never waits for the device."""
    dtype = compute_dtype(z)
    wide_ref = None if z_ref is None else z_ref.to(dtype)
    wide = g.to(dtype), z.to(dtype), wide_ref, mask, matrix.to(dtype), energy_ref.to(dtype)
    out, energy, weight = formulas.coordinate(*wide, **options)
    return out.to(g.dtype), energy.masked_fill(mask, torch.nan), weight.masked_fill(mask, torch.nan)


def labelled_energy(z: Tensor, mask: Tensor, matrix: Tensor) -> Tensor:
    """As `formulas.labelled_energy`, in fp32 (fp64 for fp64 inputs)."""
    if z.device.type != "cpu":
        return dense_labelled_energy(z, mask, matrix)
    dtype = compute_dtype(z)
    total = count = 0.0
    for rows in blocks(mask):
        total += energy_ratio(take(z, rows, dtype), matrix).sum().item()
        count += rows.shape[0]
    return torch.tensor([total, count], dtype=dtype)


def dense_labelled_energy(z: Tensor, mask: Tensor, matrix: Tensor) -> Tensor:
    return formulas.labelled_energy(z.to(compute_dtype(z)), mask, matrix.to(compute_dtype(z)))


def energy_ratio(z: Tensor, matrix: Tensor) -> Tensor:
    """`formulas.energy_ratio` for a symmetric matrix, from its upper triangle, in the dtype of z."""
    products = torch.empty_like(z)
    panels = derived(matrix, ("panels", z.dtype), lambda matrix: upper_panels(matrix.to(z.dtype)))
    for panel, columns in zip(panels, products.split(PANEL, 1)):
        torch.mm(z.narrow(1, 0, panel.shape[0]), panel, out=columns)
    total = torch.linalg.vector_norm(z, dim=1).square_()  # one pass; a vecdot would write the squares out
    return formulas.clamped_ratio(products.mul_(z).sum(1), total)


def upper_panels(matrix: Tensor) -> list[Tensor]:
    """Column panels of S down to the diagonal block, what lies above it doubled: it stands for its mirror image too.

    A copy: doubling the columns of z instead, panel by panel, was measured and costs more than it saves.
    """
    panels = []
    for start in range(0, matrix.shape[0], PANEL):
        panel = matrix[: start + PANEL, start : start + PANEL].clone()
        panel[:start] *= 2
        panels.append(panel)
    return panels


def compute_dtype(z: Tensor) -> torch.dtype:
    """Half types are computed in fp32, fp64 stays."""
    return torch.float64 if z.dtype == torch.float64 else torch.float32


def blocks(mask: Tensor) -> tuple[Tensor, ...]:
    """The indices of the rows where mask is True, at most ROWS_AT_ONCE at a time; none for no rows."""
    rows = mask.nonzero().view(-1)
    return (
        () if rows.shape[0] == 0 else (rows,) if rows.shape[0] <= ROWS_AT_ONCE else rows.split(ROWS_AT_ONCE)
    )


def take(x: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """A fresh contiguous copy of some rows in the dtype of the computation."""
    taken = x.index_select(0, rows)
    return taken if taken.dtype == dtype else taken.to(dtype)
