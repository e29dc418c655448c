"""The host side of the Triton kernels: choose a tile, allocate, launch, and never wait for the device.

Importing this module needs Triton. It runs on CUDA and ROCm devices, and on CPU tensors under Triton's
interpreter (TRITON_INTERPRET=1 set before the first import).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tuned
from .fused import compaction_kernel, coordinate_kernel, labelled_energy_kernel
from .records import Coordinated, Coordination, Inputs, Precision
from .tiles import SCAN_LIMIT, Tile, architecture, pick

GRID_LIMIT = 65535  # programs along the second axis of a CUDA grid
INTERPRETED = not isinstance(coordinate_kernel, triton.runtime.JITFunction)
TRITON_DTYPE = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
# Rows of a block of the compaction kernel. A block counts the rows before its own in steps of this many.
COMPACTED = 4096


class Launch(NamedTuple):
    """One launch of a kernel: its grid, its arguments and the options of its compilation."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]


def coordinate(
    g: Tensor, inputs: Inputs, settings: Coordination, precision: Precision = "auto", tile: Tile | None = None
) -> Coordinated:
    """`formulas.coordinate` in one kernel, for at least one row; energy and tau of labelled rows are NaN.

    A fill of its counters comes first and, beyond SCAN_LIMIT rows, a small kernel that lists unlabelled rows.
    """
    launches = coordinate_launches(g, inputs, settings, precision, tile)
    _run(launches, g.device)
    made = launches[-1].arguments
    return Coordinated(made["out_ptr"], made["energy_ptr"], made["tau_ptr"])


def labelled_energy(
    inputs: Inputs, momentum: float, precision: Precision = "auto", *, update: bool, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """(sum of E over the labelled rows, their number), and Ebar after this batch, in one launch.

    `update` writes Ebar to `inputs.energy_ref`. Beyond SCAN_LIMIT rows a small launch comes first.
    """
    launches = labelled_energy_launches(inputs, momentum, precision, update=update, tile=tile)
    _run(launches, inputs.z.device)
    made = launches[-1].arguments
    return made["sums_ptr"], made["used_ptr"]


def coordinate_launches(
    g: Tensor,
    inputs: Inputs,
    settings: Coordination,
    precision: Precision,
    tile: Tile | None = None,
    arch: str | None = None,
) -> list[Launch]:
    """The launches of `coordinate`, with everything allocated; `arch` is that of g's device by default.

    `aot` compiles from them, so the gate sees what a GPU gets.
    """
    rows, dim = g.shape
    g, z = _with_unit_columns(g), _with_unit_columns(inputs.z)
    z_ref = None if inputs.z_ref is None else _with_unit_columns(inputs.z_ref)
    if settings.tau == "uniform":
        inputs = inputs._replace(basis=None, weights=None)
    plan = _Plan(z, inputs, precision, tile, arch, None if z_ref is None else z_ref.dtype)
    out = torch.empty((rows, dim), dtype=g.dtype, device=g.device)
    order, launches = plan.compaction(inputs.mask, labelled=False)
    arguments = {
        "g_ptr": g,
        "z_ptr": z,
        "z_ref_ptr": z_ref,
        "mask_ptr": _as_bytes(inputs.mask),
        "order_ptr": order,
        "matrix_ptr": plan.matrix,
        "basis_ptr": plan.basis,
        "weights_ptr": plan.weights,
        "energy_ref_ptr": inputs.energy_ref.to(torch.float32),
        "scale_ptr": None if inputs.scale is None else inputs.scale.to(torch.float32),
        "count_ptr": None if inputs.labelled is None else inputs.labelled.to(torch.float32),
        "out_ptr": out,
        "product_ptr": out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32),
        "partial_ptr": plan.partial(),
        "arrivals_ptr": plan.arrivals(),
        # One allocation each: the second half of one would be aligned only if rows % 4 == 0, and Triton
        # compiles a kernel of its own for pointers that are not.
        "energy_ptr": torch.empty(rows, dtype=torch.float32, device=g.device),
        "tau_ptr": torch.empty(rows, dtype=torch.float32, device=g.device),
        "rows": rows,
        "g_stride": g.stride(0),
        "z_stride": z.stride(0),
        "z_ref_stride": 0 if z_ref is None else z_ref.stride(0),
        "lambda_a": float(settings.lambda_a),
        "lambda_p": float(settings.lambda_p),
        "D": dim,
        "MEAN": settings.anchor == "mean",
        "UNIFORM": settings.tau == "uniform",
        "TRIANGLE": plan.tile.triangle and plan.basis is None,  # M has no symmetry
        "TAIL": plan.tile.tail,
    }
    return [*launches, *plan.launches(coordinate_kernel, arguments)]


def labelled_energy_launches(
    inputs: Inputs,
    momentum: float,
    precision: Precision,
    *,
    update: bool,
    tile: Tile | None = None,
    arch: str | None = None,
) -> list[Launch]:
    """The launches of `labelled_energy`, as in `coordinate_launches`."""
    z = _with_unit_columns(inputs.z)
    plan = _Plan(z, inputs, precision, tile, arch)
    order, launches = plan.compaction(inputs.mask, labelled=True)
    arguments = {
        "z_ptr": z,
        "mask_ptr": _as_bytes(inputs.mask),
        "order_ptr": order,
        "matrix_ptr": plan.matrix if plan.basis is None else plan.basis,
        "weights_ptr": plan.weights,
        "energy_ref_ptr": inputs.energy_ref,
        "used_ptr": torch.empty((), dtype=torch.float32, device=z.device),
        "sums_ptr": torch.empty(2, dtype=torch.float32, device=z.device),
        "partial_ptr": plan.partial(),
        "group_sum_ptr": torch.empty(plan.row_blocks, dtype=torch.float32, device=z.device),
        "arrivals_ptr": plan.arrivals(),
        "rows": z.shape[0],
        "z_stride": z.stride(0),
        "momentum": momentum,
        "D": z.shape[1],
        "UPDATE": update,
    }
    return [*launches, *plan.launches(labelled_energy_kernel, arguments)]


@contextlib.contextmanager
def compiling(workers: int) -> Iterator[list[Future[Any]]]:
    """Within the block launches only compile their kernels, `workers` at a time, and return nothing of use.

    It yields the compilations under way. A kernel that does not compile raises when it is launched.
    """
    global _only_compile
    futures: list[Future[Any]] = []

    class Noting(ThreadPoolExecutor):
        def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
            futures.append(super().submit(function, *args, **options))
            return futures[-1]

    # Threads suffice: Triton's compiler releases Python's lock, and ptxas is a process.
    with (
        _parsing_in_turn(),
        Noting(workers) as executor,
        triton.AsyncCompileMode(executor, ignore_errors=True),
    ):
        _only_compile = True
        try:
            yield futures
        finally:
            _only_compile = False


_only_compile = False


@contextlib.contextmanager
def _parsing_in_turn() -> Iterator[None]:
    """Within the block Triton parses the source of one function at a time.

    Python 3.11 and 3.12 count the depth of the syntax trees of all threads in one place: one of two threads
    that parse at once may get a SystemError (cpython issue 106905).
    """
    function, turn = triton.runtime.jit.JITCallable, threading.Lock()
    parse = function.parse

    def parse_alone(self: Any) -> Any:
        with turn:
            return parse(self)

    function.parse = parse_alone
    try:
        yield
    finally:
        function.parse = parse


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


class _Plan:
    """The tile, the grid and the options of a launch for z, with S and M in the dtype of the products."""

    def __init__(
        self,
        z: Tensor,
        inputs: Inputs,
        precision: Precision,
        tile: Tile | None,
        arch: str | None,
        z_ref_dtype: torch.dtype | None = None,
    ) -> None:
        self.rows, self.dim = z.shape
        self.device = z.device
        arch = arch or architecture(z.device)
        precision = effective(precision, z.dtype)
        self.tile = tile or _tile(z, precision, z_ref_dtype, inputs.basis is not None)
        dtype = operand_dtype(z.dtype, precision)
        self.matrix = _operand(inputs.matrix, inputs.half, dtype)
        self.basis = self.weights = None
        if inputs.basis is not None and inputs.weights is not None:
            self.basis = _operand(inputs.basis, inputs.half_basis, dtype)
            self.weights = inputs.weights.to(torch.float32).contiguous()
        self.column_blocks = triton.cdiv(self.dim, self.tile.block_n)
        self.row_blocks = triton.cdiv(self.rows, self.tile.block_m)
        self.options = {
            # The interpreter cannot multiply bf16: every operand is widened at load, which is exact.
            "DOT": tl.float32 if INTERPRETED else TRITON_DTYPE[dtype],
            "PRECISION": precision if precision.startswith("tf32") else "ieee",
            "BLOCK_M": self.tile.block_m,
            "BLOCK_N": self.tile.block_n,
            "BLOCK_K": self.tile.block_k,
            "AMD": arch.startswith("gfx"),
            **compile_options(self.tile.warps, self.tile.stages),
        }
        if arch.startswith("gfx") and self.tile.block_m < 64:
            # Matrix instructions of 16 x 16: a block of 32 x 64 has two of 32 x 32, and four waves would all
            # do both.
            self.options["matrix_instr_nonkdim"] = 16

    def launches(self, kernel: Any, arguments: dict[str, Any]) -> Iterator[Launch]:
        """Over all row blocks: one, unless they are more than a grid holds."""
        for first in range(0, self.row_blocks, GRID_LIMIT):
            grid = (self.column_blocks, min(self.row_blocks - first, GRID_LIMIT))
            yield Launch(kernel, grid, {**arguments, "first": first, **self.options})

    def compaction(self, mask: Tensor, *, labelled: bool) -> tuple[Tensor | None, list[Launch]]:
        """The list of the rows of one kind and the launch that fills it; none up to SCAN_LIMIT rows."""
        if self.rows <= SCAN_LIMIT:
            return None, []
        order = torch.empty(self.rows + 1, dtype=torch.int32, device=self.device)
        arguments = {
            "mask_ptr": _as_bytes(mask),
            "order_ptr": order,
            "rows": self.rows,
            "LABELLED": labelled,
            "BLOCK": COMPACTED,
            **compile_options(warps=8, stages=1),
        }
        return order, [Launch(compaction_kernel, (triton.cdiv(self.rows, COMPACTED),), arguments)]

    def partial(self) -> Tensor:
        """Scratch for the shares of z S z^T and |z|^2."""
        return torch.empty((self.column_blocks, 2, self.rows), dtype=torch.float32, device=self.device)

    def arrivals(self) -> Tensor:
        """Zeroed arrival counters, one of all row blocks and one of each.

        They are made for each call. Counters that are kept would outlive a call, which CUDA-graph trees
        refuse, and a launch that dies would leave wrong ones for the next.
        """
        return torch.zeros(1 + self.row_blocks, dtype=torch.int32, device=self.device)


def compile_options(warps: int, stages: int) -> dict[str, Any]:
    # FMA fusion is requested explicitly, because Triton's default changes after 3.9.
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}


def _run(launches: list[Launch], device: torch.device) -> None:
    # Triton launches on the current device.
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        for kernel, grid, arguments in launches:
            run = functools.partial(kernel.warmup, grid=grid) if _only_compile else kernel[grid]
            run(**arguments)


def _as_bytes(mask: Tensor) -> Tensor:
    """The mask as bytes that start at a multiple of 16, as Triton's kernel for aligned pointers wants it.

    A slice of a longer mask is copied: the kernel for any address needs 14 % more instructions in fp32.
    """
    mask = mask.contiguous()
    return (mask if mask.data_ptr() % 16 == 0 else mask.clone()).view(torch.uint8)


def _with_unit_columns(x: Tensor) -> Tensor:
    """x, or a contiguous copy: rows may be strided (a slice of a wider tensor), but not columns."""
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


def _tile(z: Tensor, precision: Precision, z_ref_dtype: torch.dtype | None, basis: bool) -> Tile:
    """The tile that `eagc tune` found on this machine, or that of the table.

    The search times z_ref in z's dtype and no basis; others need more registers and more shared memory.
    """
    rows, dim = z.shape
    searched = z_ref_dtype in (None, z.dtype) and not basis
    found = tuned.tile(z.device, rows, dim, z.dtype, precision) if searched else None
    return found or pick(architecture(z.device), rows, dim, z.dtype, precision, z_ref_dtype, basis)


def _operand(wide: Tensor, half: Tensor | None, dtype: torch.dtype) -> Tensor:
    """S or M in the dtype of the products: the caller's 16-bit copy, or a cast for the time of the call."""
    return (half if half is not None and half.dtype == dtype else wide.to(dtype)).contiguous()
