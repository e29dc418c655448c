"""The host side of the Triton kernels: choose a tile, allocate, launch, and never wait for the device.

The host's time is part of a kernel's cost. So what calls of one form share is worked out once (`_Plan`), and
from the second call on the compiled kernel is launched without Triton's own search for it. Importing this
module needs Triton. It runs on CUDA and ROCm devices, and on CPU tensors under Triton's interpreter
(TRITON_INTERPRET=1 set before the first import).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import JITFunction

from . import tuned
from .fused import compaction_kernel, coordinate_kernel, labelled_energy_kernel
from .records import Coordinated, Coordination, Inputs, Precision
from .tiles import SCAN_LIMIT, Tile, architecture, pick

# The gate and the direct launch use what Triton does not promise to keep: knobs, the form of a source, the
# words of reports, the arguments of a compiled kernel. A test compares both versions with the constraints
# files.
LOWEST_TRITON, TESTED_TRITON = (3, 6), (3, 9)
GRID_LIMIT = 65535  # programs along the second axis of a CUDA grid
INTERPRETED = not isinstance(coordinate_kernel, JITFunction)
TRITON_DTYPE = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
# Rows of a block of the compaction kernel. A block counts the rows before its own in steps of this many.
COMPACTED = 4096


class Prepared(NamedTuple):
    """One launch: a kernel, its grid, the values of its parameters before the constants, and these."""

    kernel: Any
    grid: tuple[int, int]
    values: tuple[Any, ...]
    form: _Form

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by name, and the options of the compilation."""
        return {**dict(zip(self.form.parameters, self.values)), **self.form.constants}


def run(
    g: Tensor,
    inputs: Inputs,
    settings: Coordination,
    precision: Precision = "auto",
    tile: Tile | None = None,
    *,
    autocast: bool = False,
) -> Coordinated:
    """`formulas.coordinated` in one kernel, for at least one row; energy and tau of labelled rows are NaN.

    A fill of its counters comes first and, beyond SCAN_LIMIT rows, a small kernel that lists unlabelled rows.
    """
    made, launches = prepare(g, inputs, settings, precision, tile, autocast=autocast)
    _start(launches, g.device)
    return made


def run_labelled_energy(
    inputs: Inputs,
    momentum: float,
    precision: Precision = "auto",
    *,
    update: bool,
    tile: Tile | None = None,
    autocast: bool = False,
) -> tuple[Tensor, Tensor]:
    """(sum of E over the labelled rows, their number), and Ebar after this batch, in one launch.

    `update` writes Ebar to `inputs.energy_ref`. Beyond SCAN_LIMIT rows a small launch comes first.
    """
    made, launches = prepare_labelled_energy(
        inputs, momentum, precision, update=update, tile=tile, autocast=autocast
    )
    _start(launches, inputs.z.device)
    return made


def prepare(
    g: Tensor,
    inputs: Inputs,
    settings: Coordination,
    precision: Precision,
    tile: Tile | None = None,
    arch: str | None = None,
    *,
    autocast: bool = False,
) -> tuple[Coordinated, list[Prepared]]:
    """The results of `run`, allocated, and the launches that fill them; `arch` is that of g's device.

    `aot` compiles from them, so the gate sees what a GPU gets.
    """
    rows, dim = g.shape
    g, z = _with_unit_columns(g), _with_unit_columns(inputs.z)
    z_ref = None if inputs.z_ref is None else _with_unit_columns(inputs.z_ref)
    uniform = settings.tau == "uniform"
    if uniform:
        inputs = inputs._replace(basis=None, weights=None)
    precision = effective(precision, z.dtype, autocast)
    matrix, basis, weights = _operands(inputs, operand_dtype(z.dtype, precision))
    scale = None if inputs.scale is None else _fp32(inputs.scale)
    count = None if inputs.labelled is None else _fp32(inputs.labelled)
    seen = map(_specialised, (g, z, z_ref, matrix, basis, weights))
    project = settings.lambda_p != 0
    options = (settings.anchor, uniform, project, scale is None, count is None)
    key = ("coordinate", _place(z, arch), rows, dim, precision, tile, *options, JITFunction.run, *seen)
    plan = _plans.get(key)
    if plan is None:
        z_ref_dtype = None if z_ref is None else z_ref.dtype
        arch = arch or architecture(z.device)
        tile = tile or _tile(z, precision, z_ref_dtype, basis is not None, arch)
        constants = {
            "MEAN": settings.anchor == "mean",
            "UNIFORM": uniform,
            "PROJECT": project,
            "TRIANGLE": tile.triangle and basis is None,  # M has no symmetry
            "TAIL": tile.tail,
            **_constants(dim, matrix.dtype, precision, tile, arch),
        }
        product = 0 if g.dtype == torch.float32 else rows * dim  # else g S is summed up in the result
        results = (rows, rows, product)
        plan = _Plan(_COORDINATE, constants, rows, dim, tile, labelled=False, counters=0, results=results)
        _remember(key, plan)
    out = torch.empty_like(g, memory_format=torch.contiguous_format)
    arrivals, order, partial, energy, tau, product = plan.scratch(z)
    mask = _as_bytes(inputs.mask)
    launches = plan.launches(
        coordinate_kernel,
        mask,
        order,
        *(g, z, z_ref, mask, order, matrix, basis, weights),
        *(_fp32(inputs.energy_ref), scale, count),
        *(out, out if g.dtype == torch.float32 else product, partial, arrivals, energy, tau),
        *(rows, 0, g.stride(0), z.stride(0), 0 if z_ref is None else z_ref.stride(0)),
        *(float(settings.lambda_a), float(settings.lambda_p)),
    )
    return Coordinated(out, energy, tau), launches


def prepare_labelled_energy(
    inputs: Inputs,
    momentum: float,
    precision: Precision,
    *,
    update: bool,
    tile: Tile | None = None,
    arch: str | None = None,
    autocast: bool = False,
) -> tuple[tuple[Tensor, Tensor], list[Prepared]]:
    """The results of `run_labelled_energy`, allocated, and its launches, as in `prepare`."""
    z, energy_ref = _with_unit_columns(inputs.z), inputs.energy_ref
    rows, dim = z.shape
    precision = effective(precision, z.dtype, autocast)
    matrix, basis, weights = _operands(inputs, operand_dtype(z.dtype, precision))
    factor = matrix if basis is None else basis
    seen = map(_specialised, (z, factor, weights))
    options = (update, energy_ref.dtype)
    key = ("labelled_energy", _place(z, arch), rows, dim, precision, tile, *options, JITFunction.run, *seen)
    plan = _plans.get(key)
    if plan is None:
        arch = arch or architecture(z.device)
        tile = tile or _tile(z, precision, None, basis is not None, arch)
        constants = {"UPDATE": update, **_constants(dim, matrix.dtype, precision, tile, arch)}
        results = (triton.cdiv(rows, tile.block_m), 2)
        plan = _Plan(_LABELLED_ENERGY, constants, rows, dim, tile, labelled=True, counters=1, results=results)
        _remember(key, plan)
    arrivals, order, partial, group_sum, sums = plan.scratch(z)
    used = z.new_empty((), dtype=torch.float32)  # apart: it lives until backward, the scratch does not
    mask = _as_bytes(inputs.mask)
    launches = plan.launches(
        labelled_energy_kernel,
        mask,
        order,
        *(z, mask, order, factor, weights, energy_ref, used, sums),
        *(partial, group_sum, arrivals, rows, 0, z.stride(0), float(momentum)),
    )
    return (sums, used), launches


def forget() -> None:
    """Read the tiles of `eagc tune` again at the next call."""
    tuned.forget()
    _plans.clear()


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


def effective(precision: Precision, dtype: torch.dtype, autocast: bool = False) -> Precision:
    """The precision of a launch: on NVIDIA GPUs "auto" for fp32 features becomes "tf32" in two cases.

    One is a forward under autocast: the model's products have 16 bits there, though its last LayerNorm gives
    fp32 features. fp16 products of scaled gradients would overflow; TF32 has the range of fp32. The other is
    torch's own setting for fp32 products: torch.set_float32_matmul_precision("high" or "medium"), or
    torch.backends.cuda.matmul.
    """
    if precision == "auto" and dtype == torch.float32 and torch.version.hip is None:
        return "tf32" if autocast or torch.backends.cuda.matmul.fp32_precision == "tf32" else "auto"
    return precision


def compile_options(warps: int, stages: int) -> dict[str, Any]:
    # FMA fusion is requested explicitly, because Triton's default changes after 3.9.
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}


# The parameters of the kernels, in order; constants are those in capitals.
_COORDINATE, _LABELLED_ENERGY, _COMPACTION = (
    tuple(kernel.arg_names) for kernel in (coordinate_kernel, labelled_energy_kernel, compaction_kernel)
)


class _Form:
    """The constants of a kernel and its options, and what Triton has compiled for them."""

    def __init__(self, parameters: Sequence[str], constants: dict[str, Any]) -> None:
        self.parameters, self.constants = parameters, constants
        self.last = tuple(constants[name] for name in parameters if name.isupper())
        self.compiled: dict[Hashable, CompiledKernel] = {}  # by `_environment`


class _Plan:
    """What calls of one form share: the grids, the constants, and the layout of the scratch."""

    def __init__(
        self,
        parameters: Sequence[str],
        constants: dict[str, Any],
        rows: int,
        dim: int,
        tile: Tile,
        *,
        labelled: bool,  # which rows the compaction lists
        counters: int,  # arrival counters besides one for each row block
        results: Sequence[int],  # 4-byte words of further scratch
    ) -> None:
        self.rows = rows
        columns, groups = triton.cdiv(dim, tile.block_n), triton.cdiv(rows, tile.block_m)
        # One launch over all row blocks, unless they are more than a grid holds.
        self.grids = [
            (first, (columns, min(groups - first, GRID_LIMIT))) for first in range(0, groups, GRID_LIMIT)
        ]
        self.form = _Form(parameters, constants)
        listing = {"LABELLED": labelled, "BLOCK": COMPACTED, **compile_options(warps=8, stages=1)}
        self.listing, self.listing_grid = _Form(_COMPACTION, listing), (triton.cdiv(rows, COMPACTED), 1)
        sizes = (counters + groups, rows + 1 if rows > SCAN_LIMIT else 0, columns * 2 * rows, *results)
        self.layout: list[int] = []  # words
        self.parts: list[int | None] = []  # where in the layout; None: a part without words, for which no
        for size in sizes:  # view is made, because each takes the host a microsecond
            self.parts.append(len(self.layout) if size else None)
            # A part starts at a multiple of 16 bytes: for others Triton compiles a kernel of its own.
            self.layout += [words for words in (size, -size % 4) if words]
        self.words = sum(self.layout)

    def scratch(self, like: Tensor) -> list[Any]:
        """Arrival counters (int32, zero), room for a list of rows (int32), shares and results (fp32).

        Parts that the plan does not need are None.

        It is allocated for each call. Counters that are kept would outlive a call, which CUDA-graph trees
        refuse, and a launch that dies would leave wrong ones for the next.
        """
        memory = like.new_empty(self.words, dtype=torch.float32)
        pieces = memory.split_with_sizes(self.layout)
        arrivals, order, *others = [None if part is None else pieces[part] for part in self.parts]
        if arrivals is not None:
            arrivals = arrivals.view(torch.int32).zero_()
        return [arrivals, None if order is None else order.view(torch.int32), *others]

    def launches(self, kernel: Any, mask: Tensor, order: Tensor | None, *values: Any) -> list[Prepared]:
        """The launches with these values, in order; that of "first" is filled in."""
        launches = []
        if order is not None:
            grid, rows = self.listing_grid, self.rows
            launches.append(Prepared(compaction_kernel, grid, (mask, order, rows), self.listing))
        launches.append(Prepared(kernel, self.grids[0][1], values, self.form))
        for first, grid in self.grids[1:]:
            at = self.form.parameters.index("first")
            launches.append(Prepared(kernel, grid, (*values[:at], first, *values[at + 1 :]), self.form))
        return launches


# By the shape, the device and all that Triton specialises a kernel to: dtypes, strides, alignments, which
# pointers are None. JITFunction.run is a part of the key because tools replace it to see launches.
_plans: dict[Hashable, _Plan] = {}


def _remember(key: Hashable, plan: _Plan) -> None:
    if len(_plans) >= 1000:  # batches of a thousand sizes: start again
        _plans.clear()
    _plans[key] = plan


def _place(z: Tensor, arch: str | None) -> Hashable:
    return arch or (z.device if z.is_cuda else architecture(z.device))


def _specialised(x: Tensor | None) -> Hashable:
    """What of a tensor makes a different kernel; on AMD also whether 32-bit addresses reach all of it."""
    if x is None:
        return None
    place = x.dtype, x.stride(), x.data_ptr() % 16
    return place if torch.version.hip is None else (*place, x.untyped_storage().nbytes() < 1 << 31)


def _constants(dim: int, operand: torch.dtype, precision: Precision, tile: Tile, arch: str) -> dict[str, Any]:
    """The constants that both kernels have, and the options of their compilation."""
    amd = arch.startswith("gfx")
    # Matrix instructions of 16 x 16: a block of 32 x 64 has two of 32 x 32, and four waves would all do both.
    small = {"matrix_instr_nonkdim": 16} if amd and tile.block_m < 64 else {}
    return {
        "D": dim,
        # The interpreter cannot multiply bf16: every operand is widened at load, which is exact.
        "DOT": tl.float32 if INTERPRETED else TRITON_DTYPE[operand],
        "PRECISION": precision if precision.startswith("tf32") else "ieee",
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "AMD": amd,
        **compile_options(tile.warps, tile.stages),
        **small,
    }


def _start(launches: list[Prepared], device: torch.device) -> None:
    # Triton launches on the current device.
    elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
    with torch.cuda.device(device) if elsewhere else contextlib.nullcontext():
        environment = _environment() if launches[-1].form.compiled and not _only_compile else None
        if environment is not None:
            driver = environment[0]
            stream = driver.get_current_stream(driver.get_current_device())
        for launch in launches:
            kernel, grid, values, form = launch
            compiled = form.compiled.get(environment)
            if compiled is None or getattr(kernel, "pre_run_hooks", True):
                _start_by_triton(launch)
            else:
                about = compiled.function, compiled.packed_metadata, None
                compiled.run(*grid, 1, stream, *about, None, None, *values, *form.last)  # None: no hooks


# A newer Triton may call its compiled kernels differently.
_DIRECT = not INTERPRETED and tuple(map(int, triton.__version__.split(".")[:2])) <= TESTED_TRITON


def _start_by_triton(launch: Prepared) -> None:
    """Launch as Triton does, which finds or compiles the kernel, and keep that for the next call."""
    if _only_compile:
        launch.kernel.warmup(grid=launch.grid, **launch.arguments)
        return
    compiled = launch.kernel[launch.grid](**launch.arguments)
    if _DIRECT and isinstance(compiled, CompiledKernel) and (environment := _environment()) is not None:
        launch.form.compiled[environment] = compiled


def _environment() -> tuple[Any, ...] | None:
    """What Triton compiles for besides the arguments: its driver, and the switches of its debugging tools.

    None if someone has put hooks around launches, as profilers do: Triton's own launch calls them.
    """
    runtime, compilation = knobs.runtime, knobs.compilation
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
        return None
    return (
        triton.runtime.driver.active,
        runtime.debug,
        getattr(runtime, "add_stages_inspection_hook", None),
        getattr(compilation, "instrumentation_mode", None),
        getattr(compilation, "fpsan_homomorphic_casts", None),
    )


def _as_bytes(mask: Tensor) -> Tensor:
    """The mask as bytes that start at a multiple of 16, as Triton's kernel for aligned pointers wants it.

    A slice of a longer mask is copied: the kernel for any address needs 14 % more instructions in fp32.
    """
    mask = mask.contiguous()
    return (mask if mask.data_ptr() % 16 == 0 else mask.clone()).view(torch.uint8)


def _with_unit_columns(x: Tensor) -> Tensor:
    """x, or a contiguous copy: rows may be strided (a slice of a wider tensor), but not columns."""
    if x.is_contiguous() or (x.stride(1) == 1 and x.stride(0) >= x.shape[1]):
        return x
    return x.contiguous()


def _tile(z: Tensor, precision: Precision, z_ref_dtype: torch.dtype | None, basis: bool, arch: str) -> Tile:
    """The tile that `eagc tune` found on this machine, or that of the table for `arch`.

    The search times z_ref in z's dtype and no basis; others need more registers and more shared memory.
    """
    rows, dim = z.shape
    searched = z_ref_dtype in (None, z.dtype) and not basis and arch == architecture(z.device)
    found = tuned.tile(z.device, rows, dim, z.dtype, precision) if searched else None
    return found or pick(arch, rows, dim, z.dtype, precision, z_ref_dtype, basis)


def _operands(inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """S, M and the weights of M's columns, as the kernels take them."""
    matrix = _operand(inputs.matrix, inputs.half, dtype)
    if inputs.basis is None or inputs.weights is None:
        return matrix, None, None
    basis = _operand(inputs.basis, inputs.half_basis, dtype)
    return matrix, basis, _fp32(inputs.weights).contiguous()


def _operand(wide: Tensor, half: Tensor | None, dtype: torch.dtype) -> Tensor:
    """S or M in the dtype of the products: the caller's 16-bit copy, or a cast for the time of the call."""
    return (half if half is not None and half.dtype == dtype else wide.to(dtype)).contiguous()


def _fp32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float32 else x.to(torch.float32)  # the check is cheaper than the call
