"""Host side of the Triton kernels: choose a tile, allocate, launch. No autograd, no host synchronisation.

Importing this module needs Triton. It runs on CUDA and ROCm devices, and on CPU tensors when Triton interprets
(TRITON_INTERPRET=1 set before the first import).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .copies import as_dtype
from .fused import coordinate_kernel, labelled_energy_kernel
from .tiles import SCAN_LIMIT, TABLE, Tile, architecture, chunks, pick

INTERPRETED = not isinstance(coordinate_kernel, triton.runtime.JITFunction)
TRITON_DTYPE = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


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
    precision: str = "auto",
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.coordinate` in one launch; energy and tau of labelled rows are NaN. Rows must be non-empty."""
    rows, dim = g.shape
    g, z, z_ref = (
        _with_unit_columns(g),
        _with_unit_columns(z),
        None if z_ref is None else _with_unit_columns(z_ref),
    )
    shape = _Shape(z, matrix, precision, tile, None if z_ref is None else z_ref.dtype)
    out = torch.empty((rows, dim), dtype=g.dtype, device=g.device)
    product = (
        out if out.dtype == torch.float32 else torch.empty((rows, dim), dtype=torch.float32, device=g.device)
    )
    energy, weight = torch.empty((2, rows), dtype=torch.float32, device=g.device)
    order, unlabelled = _order(mask)
    with _on_device(g.device):
        coordinate_kernel[shape.grid](
            g, z, z_ref, mask.contiguous().view(torch.uint8), order, unlabelled,
            shape.matrix, energy_ref, scale, count,
            out, product, shape.partial(), _arrivals(shape), energy, weight,
            rows, g.stride(0), z.stride(0), 0 if z_ref is None else z_ref.stride(0), float(lambda_a), float(lambda_p),
            D=dim, MEAN=anchor == "mean", UNIFORM=tau == "uniform", **shape.options,
        )  # fmt: skip
    return out, energy, weight


def labelled_energy(
    z: Tensor,
    mask: Tensor,
    matrix: Tensor,
    energy_ref: Tensor,
    *,
    momentum: float,
    update: bool,
    precision: str = "auto",
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """(sum of E over labelled rows, their number), and Ebar after this batch, in one launch. `update` writes it to energy_ref."""
    z = _with_unit_columns(z)
    shape = _Shape(z, matrix, precision, tile)
    sums = torch.empty(2, dtype=torch.float32, device=z.device)
    used = torch.empty((), dtype=torch.float32, device=z.device)
    group_sums = torch.empty(shape.grid[1], dtype=torch.float32, device=z.device)
    order, unlabelled = _order(mask)
    with _on_device(z.device):
        labelled_energy_kernel[shape.grid](
            z, mask.contiguous().view(torch.uint8), order, unlabelled, shape.matrix, energy_ref, used, sums,
            shape.partial(), group_sums, _arrivals(shape),
            z.shape[0], z.stride(0), momentum, D=z.shape[1], UPDATE=update, **shape.options,
        )  # fmt: skip
    return sums, used


def warmup(
    rows: int, dtype: torch.dtype, matrix: Tensor, *, anchor: str, tau: str, precision: str = "auto"
) -> None:
    """Compile every form of a call with this many rows ahead of a CUDA graph capture: without z_ref, with z_ref in z's dtype and, beside
    half features, in fp32; with and without scale and count.

    Outside a capture the half copy of the matrix is ready afterwards too. A capture casts the matrix itself, as a part of the graph, and
    so follows later writes to it.
    """
    z = torch.zeros((rows, matrix.shape[0]), dtype=dtype, device=matrix.device)
    mask = torch.arange(rows, device=matrix.device) % 2 == 0
    one = torch.ones((), device=matrix.device)
    for z_ref in (None, z) if dtype == torch.float32 else (None, z, z.float()):
        for scale in (None, one):
            for count in (None, one):
                options = {
                    "lambda_a": 1.0,
                    "lambda_p": 1.0,
                    "anchor": anchor,
                    "tau": tau,
                    "scale": scale,
                    "count": count,
                }
                coordinate(z, z, z_ref, mask, matrix, one, precision=precision, **options)
    for update in (True, False):
        labelled_energy(z, mask, matrix, one.clone(), momentum=0.5, update=update, precision=precision)


def autotune(
    rows: int, dim: int, dtype: torch.dtype, device: torch.device, timer: Callable[[Callable[[], Any]], float]
) -> dict[Tile, float]:
    """Time every tile of the table on the device at hand; `timer(run)` gives seconds. The fastest is min(result, key=result.get)."""
    z = torch.randn((rows, dim), dtype=dtype, device=device)
    mask = torch.arange(rows, device=device) % 2 == 0
    matrix, one = torch.eye(dim, device=device) * 0.5, torch.ones((), device=device)
    options = {"lambda_a": 0.7, "lambda_p": 0.5, "anchor": "mean", "tau": "energy"}
    tiles = dict.fromkeys(entry.tile(dtype) for entry in TABLE)
    return {
        tile: timer(lambda tile=tile: coordinate(z, z, z, mask, matrix, one, tile=tile, **options))
        for tile in tiles
    }


def operand_dtype(dtype: torch.dtype, precision: str) -> torch.dtype:
    """Of the matrix and of the products, for z in `dtype`."""
    return torch.float32 if precision == "high" else dtype


def constants(tile: Tile, rows: int, dtype: torch.dtype, precision: str, *, amd: bool) -> dict[str, Any]:
    """The compile-time arguments both kernels share; `aot` compiles with the same ones."""
    return {
        "DOT": TRITON_DTYPE[operand_dtype(dtype, precision)],
        "PRECISION": precision if precision.startswith("tf32") else "ieee",
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "CHUNKS": chunks(rows),
        "AMD": amd,
    }


def compile_options(tile: Tile) -> dict[str, Any]:
    # Fusion is said aloud: the default of Triton changes after 3.9.
    return {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}


class _Shape:
    """What a launch needs to know about z: tile, grid, the matrix in the type of the products, scratch for the energy shares."""

    def __init__(
        self,
        z: Tensor,
        matrix: Tensor,
        precision: str,
        tile: Tile | None,
        z_ref_dtype: torch.dtype | None = None,
    ):
        self.rows, self.dim = z.shape
        self.device = z.device
        operand = operand_dtype(z.dtype, precision)
        tile = tile or pick(architecture(z.device), self.rows, self.dim, z.dtype, precision, z_ref_dtype)
        self.matrix = as_dtype(matrix, operand).contiguous()
        self.grid = (triton.cdiv(self.dim, tile.block_n), triton.cdiv(self.rows, tile.block_m))
        self.options = constants(
            tile, self.rows, z.dtype, precision, amd=torch.version.hip is not None
        ) | compile_options(tile)
        if INTERPRETED:  # it cannot multiply bf16: there every operand is widened at load, which is exact
            self.options["DOT"] = tl.float32

    def partial(self) -> Tensor:
        return torch.empty((self.grid[0], 2, self.rows), dtype=torch.float32, device=self.device)


def _with_unit_columns(x: Tensor) -> Tensor:
    """Rows may be strided (a slice of a wider tensor), columns not: an expanded gradient is written out."""
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


def _order(mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if mask.numel() <= SCAN_LIMIT:
        return None, None
    return mask.to(torch.uint8).sort(stable=True).indices, mask.numel() - mask.sum()


_counters: dict[tuple[torch.device, int], Tensor] = {}


def _arrivals(shape: _Shape) -> Tensor:
    """Zeroed arrival counters. The kernels leave them zero, so one set per device and stream serves all launches on it.

    A CUDA graph may be replayed on any stream, at the same time as other work: inside a capture the counters are its own.
    """
    needed = shape.grid[1] + 1
    stream = 0
    if shape.device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return torch.zeros(needed, dtype=torch.int32, device=shape.device)
        stream = torch.cuda.current_stream(shape.device).cuda_stream
    key = (shape.device, stream)
    if key not in _counters or _counters[key].numel() < needed:
        _counters[key] = torch.zeros(max(needed, 1024), dtype=torch.int32, device=shape.device)
    return _counters[key]


def _on_device(device: torch.device) -> contextlib.AbstractContextManager:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
