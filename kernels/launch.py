"""The host side of the Triton kernels: choose a tile, allocate, launch, and never wait for the device.

Importing this module needs Triton. It runs on CUDA and ROCm devices, and on CPU tensors under Triton's
interpreter (TRITON_INTERPRET=1 set before the first import).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tuned
from .fused import coordinate_kernel, labelled_energy_kernel
from .records import Coordinated, Coordination, Inputs, Precision
from .tiles import SCAN_LIMIT, Tile, architecture, chunks, pick

GRID_LIMIT = 65535  # programs along the second axis of a CUDA grid
INTERPRETED = not isinstance(coordinate_kernel, triton.runtime.JITFunction)
TRITON_DTYPE = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def coordinate(
    g: Tensor, inputs: Inputs, settings: Coordination, precision: Precision = "auto", tile: Tile | None = None
) -> Coordinated:
    """`formulas.coordinate` in one launch, for at least one row; energy and tau of labelled rows are NaN."""
    rows, dim = g.shape
    g, z = _with_unit_columns(g), _with_unit_columns(inputs.z)
    z_ref = None if inputs.z_ref is None else _with_unit_columns(inputs.z_ref)
    plan = _Plan(z, inputs, precision, tile, None if z_ref is None else z_ref.dtype)
    out = torch.empty((rows, dim), dtype=g.dtype, device=g.device)
    product = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
    energy, tau = torch.empty((2, rows), dtype=torch.float32, device=g.device)
    order, unlabelled = _order(inputs.mask)
    plan.run(
        coordinate_kernel,
        g_ptr=g,
        z_ptr=z,
        z_ref_ptr=z_ref,
        mask_ptr=inputs.mask.contiguous().view(torch.uint8),
        order_ptr=order,
        unlabelled_ptr=unlabelled,
        matrix_ptr=plan.matrix,
        energy_ref_ptr=inputs.energy_ref.to(torch.float32),
        scale_ptr=None if inputs.scale is None else inputs.scale.to(torch.float32),
        count_ptr=None if inputs.labelled is None else inputs.labelled.to(torch.float32),
        out_ptr=out,
        product_ptr=product,
        partial_ptr=plan.partial(),
        arrivals_ptr=plan.arrivals(),
        energy_ptr=energy,
        tau_ptr=tau,
        rows=rows,
        g_stride=g.stride(0),
        z_stride=z.stride(0),
        z_ref_stride=0 if z_ref is None else z_ref.stride(0),
        lambda_a=float(settings.lambda_a),
        lambda_p=float(settings.lambda_p),
        D=dim,
        MEAN=settings.anchor == "mean",
        UNIFORM=settings.tau == "uniform",
    )
    return Coordinated(out, energy, tau)


def labelled_energy(
    inputs: Inputs, momentum: float, precision: Precision = "auto", *, update: bool, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """(sum of E over the labelled rows, their number), and Ebar after this batch, in one launch.

    `update` writes Ebar to `inputs.energy_ref`.
    """
    z = _with_unit_columns(inputs.z)
    plan = _Plan(z, inputs, precision, tile)
    sums = torch.empty(2, dtype=torch.float32, device=z.device)
    used = torch.empty((), dtype=torch.float32, device=z.device)
    order, unlabelled = _order(inputs.mask)
    plan.run(
        labelled_energy_kernel,
        z_ptr=z,
        mask_ptr=inputs.mask.contiguous().view(torch.uint8),
        order_ptr=order,
        unlabelled_ptr=unlabelled,
        matrix_ptr=plan.matrix,
        energy_ref_ptr=inputs.energy_ref,
        used_ptr=used,
        sums_ptr=sums,
        partial_ptr=plan.partial(),
        group_sum_ptr=torch.empty(plan.row_blocks, dtype=torch.float32, device=z.device),
        arrivals_ptr=plan.arrivals(),
        rows=z.shape[0],
        z_stride=z.stride(0),
        momentum=momentum,
        D=z.shape[1],
        UPDATE=update,
    )
    return sums, used


@contextlib.contextmanager
def compiling(workers: int) -> Iterator[list[Future[Any]]]:
    """Within the block launches only compile their kernels, `workers` at a time, and return nothing of use.

    It yields the compilations under way. A kernel that does not compile raises when it is launched.
    """
    global _only_compile
    futures: list[Future[Any]] = []

    class Noting(ThreadPoolExecutor):
        def submit(self, *args: Any, **options: Any) -> Future[Any]:
            futures.append(super().submit(*args, **options))
            return futures[-1]

    # Threads suffice: Triton's compiler releases Python's lock, and ptxas is a process.
    with Noting(workers) as executor, triton.AsyncCompileMode(executor, ignore_errors=True):
        _only_compile = True
        try:
            yield futures
        finally:
            _only_compile = False


_only_compile = False


def operand_dtype(dtype: torch.dtype, precision: Precision) -> torch.dtype:
    """The dtype of the matrix and of the products, for z in `dtype`."""
    return torch.float32 if precision == "high" else dtype


def effective(precision: Precision, dtype: torch.dtype) -> Precision:
    """The precision of a launch: "auto" for fp32 features follows torch's setting for fp32 products on GPUs.

    torch.set_float32_matmul_precision("high" or "medium") and torch.backends.cuda.matmul both set it.
    """
    if precision == "auto" and dtype == torch.float32 and torch.version.hip is None:
        return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "auto"
    return precision


def constants(
    tile: Tile, rows: int, dtype: torch.dtype, precision: Precision, *, amd: bool
) -> dict[str, Any]:
    """The compile-time arguments that both kernels share; `aot` compiles with the same ones."""
    return {
        "DOT": TRITON_DTYPE[operand_dtype(dtype, precision)],
        "PRECISION": precision if precision.startswith("tf32") else "ieee",
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "CHUNKS": chunks(rows),
        "AMD": amd,
        "FIRST": 0,
    }


def compile_options(tile: Tile) -> dict[str, Any]:
    # FMA fusion is requested explicitly, because Triton's default changes after 3.9.
    return {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}


class _Plan:
    """The tile, the grid and the options of a launch for z, with the matrix in the dtype of the products."""

    def __init__(
        self,
        z: Tensor,
        inputs: Inputs,
        precision: Precision,
        tile: Tile | None,
        z_ref_dtype: torch.dtype | None = None,
    ) -> None:
        self.rows, self.dim = z.shape
        self.device = z.device
        precision = effective(precision, z.dtype)
        tile = tile or _tile(z, precision, z_ref_dtype)
        self.matrix = _operand(inputs, operand_dtype(z.dtype, precision))
        self.column_blocks = triton.cdiv(self.dim, tile.block_n)
        self.row_blocks = triton.cdiv(self.rows, tile.block_m)
        shared = constants(tile, self.rows, z.dtype, precision, amd=torch.version.hip is not None)
        self.options = shared | compile_options(tile)
        # The interpreter cannot multiply bf16: every operand is widened at load, which is exact.
        if INTERPRETED:
            self.options["DOT"] = tl.float32

    def run(self, kernel: Any, **arguments: Any) -> None:
        """Launch over all row blocks: once, unless they are more than a grid holds."""
        with _on_device(self.device):
            for first in range(0, self.row_blocks, GRID_LIMIT):
                grid = (self.column_blocks, min(self.row_blocks - first, GRID_LIMIT))
                run = functools.partial(kernel.warmup, grid=grid) if _only_compile else kernel[grid]
                run(**arguments, **self.options | {"FIRST": first})

    def partial(self) -> Tensor:
        """Scratch for the shares of z S z^T and |z|^2."""
        return torch.empty((self.column_blocks, 2, self.rows), dtype=torch.float32, device=self.device)

    def arrivals(self) -> Tensor:
        """Zeroed arrival counters, one of all row blocks and one of each.

        They are made for each call. Counters that are kept would outlive a call, which CUDA-graph trees
        refuse, and a launch that dies would leave wrong ones for the next.
        """
        return torch.zeros(1 + self.row_blocks, dtype=torch.int32, device=self.device)


def _with_unit_columns(x: Tensor) -> Tensor:
    """x, or a contiguous copy: rows may be strided (a slice of a wider tensor), but not columns."""
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


def _order(mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if mask.numel() <= SCAN_LIMIT:
        return None, None
    return mask.to(torch.uint8).sort(stable=True).indices, mask.numel() - mask.sum()


def _tile(z: Tensor, precision: Precision, z_ref_dtype: torch.dtype | None) -> Tile:
    """The tile that `eagc tune` found on this machine, or that of the table.

    The search times z_ref in z's dtype; a different one needs more registers.
    """
    rows, dim = z.shape
    found = tuned.tile(z.device, rows, dim, z.dtype, precision) if z_ref_dtype in (None, z.dtype) else None
    return found or pick(architecture(z.device), rows, dim, z.dtype, precision, z_ref_dtype)


def _operand(inputs: Inputs, dtype: torch.dtype) -> Tensor:
    """S in the dtype of the products: the caller's 16-bit copy, or a cast that lives as long as the call."""
    half = inputs.half
    return (half if half is not None and half.dtype == dtype else inputs.matrix.to(dtype)).contiguous()


def _on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make the tensor's device the current one, on which Triton launches."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
