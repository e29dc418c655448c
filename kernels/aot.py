"""Compile the launch table for GPUs that are not present, and report the resources of the compiled code.

Nothing here measures speed: registers, spills and shared memory are read from the compiled code, and blocks
per SM follow from them. A kernel fails the gate on spill stores or loads (as ptxas counts them), on fp64
instructions, on more shared memory than a block may have, or on more products in a step of its inner loop
than the formulas need.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from .assembly import Code, Loop, read
from .launch import LOWEST_TRITON, TESTED_TRITON, Prepared, operand_dtype, prepare, prepare_labelled_energy
from .records import DTYPES, Coordination, Inputs, Precision, Tau
from .tiles import SCAN_LIMIT, Tile, pick

KERNELS = ("coordinate", "labelled_energy")  # and "compaction"
TF32: tuple[Precision, ...] = ("tf32x3", "tf32")  # on NVIDIA's tensor cores only


class UnsupportedTriton(ImportError):
    """The internals of the installed Triton are not those that the gate reads."""


@dataclass(frozen=True)
class Limits:
    """The limits of one SM (or CU).

    A warp gets its registers in groups of `register_group`, from the quarter of the register file that
    belongs to its scheduler (SIMD). A block takes `reserved` bytes of shared memory beyond its own.
    """

    registers: int
    warps: int  # or waves
    blocks: int
    shared: int  # bytes
    shared_per_block: int  # bytes
    lanes: int  # per warp
    register_group: int = 256  # 8 per lane
    reserved: int = 1024  # CUDA keeps 1 KB per block


SCHEDULERS = 4  # of an SM, and SIMDs of a CU
# From the vendors' programming guides (CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability"; CDNA3 ISA) and, for gfx942, LLVM's AMDGPU target: per SIMD 8 waves and 512 VGPRs of 64 lanes,
# AGPRs included (.vgpr_count counts both), handed out 8 per lane; 16 blocks, because each takes one of the
# CU's barriers; no LDS is reserved.
LIMITS = {
    "sm_80": Limits(65536, 64, 32, 164 << 10, 163 << 10, 32),
    "sm_86": Limits(65536, 48, 16, 100 << 10, 99 << 10, 32),
    "sm_90": Limits(65536, 64, 32, 228 << 10, 227 << 10, 32),
    "sm_100": Limits(65536, 64, 32, 228 << 10, 227 << 10, 32),
    "sm_120": Limits(65536, 48, 24, 100 << 10, 99 << 10, 32),
    "gfx942": Limits(131072, 32, 16, 64 << 10, 64 << 10, 64, register_group=512, reserved=0),
}


@dataclass(frozen=True)
class Case:
    """One compilation. `rows` and `dim` are the largest that the table entry serves in practice.

    z_ref has `dtype`, or is fp32 (`wide_ref`). With `far_rows`, g, z and z_ref lie in storage of more than
    2 GB, as z = tokens[:, 0] of many tokens does; in smaller storage, launches on AMD use 32-bit addresses.
    With `count`, the number of labelled rows is an argument. With `basis`, the energy has one.
    """

    kernel: str
    arch: str
    dtype: str
    precision: Precision
    rows: int
    dim: int
    tile: Tile
    wide_ref: bool = False
    tau: Tau = "energy"
    count: bool = False
    far_rows: bool = False
    basis: bool = False


@dataclass(frozen=True)
class Resources:
    registers: int
    spill_stores: int
    spill_loads: int
    shared: int
    fp64: int
    blocks_per_sm: int
    instructions: int  # of the whole kernel, each counted once
    loops: tuple[Loop, ...]  # over the inner dimension, in the order of `steps`
    problems: tuple[str, ...]
    beyond_machine: tuple[str, ...] | None  # opcodes that `beyond` named; "amdgcn"; None: not asked


class Step(NamedTuple):
    """One step of BLOCK_K in a loop of a kernel, by the formulas."""

    multiply_adds: int  # of a block
    loaded: int  # bytes that a block loads
    times: int  # steps of the column block that has the most


def steps(case: Case) -> tuple[Step, ...]:
    """The loops of a kernel: z S (or z M) and g S together, then g S alone (see `fused._products`)."""
    tile = case.tile
    if case.kernel == "compaction":
        return ()
    operand = DTYPES[case.dtype]
    matrix = operand_dtype(operand, case.precision)

    def step(factors: int, inner: int, matrices: int = 1) -> Step:
        volume = tile.block_m * tile.block_n * tile.block_k
        loaded = factors * tile.block_m * operand.itemsize + matrices * tile.block_n * matrix.itemsize
        products = 3 if case.precision == "tf32x3" else 1  # large x large, large x small, small x large
        return Step(factors * products * volume, tile.block_k * loaded, inner // tile.block_k)

    unit = max(tile.block_n, tile.block_k)
    units = -(-case.dim // unit)
    both = units // 2 + 1  # z S down to the diagonal block, in the column blocks that have the most
    if case.kernel == "labelled_energy":
        return (step(1, (units if case.basis else both) * unit),)
    if case.tau == "uniform":
        return (step(1, units * unit),)
    if case.basis:
        return (step(2, units * unit, matrices=2),)
    if tile.triangle:
        return step(2, both * unit), step(1, (units - both) * unit)
    return (step(2, units * unit),)


def cases(*, subset: bool = False) -> Iterator[Case]:
    """Every table entry x dtype x architecture, then uneven D, options and precisions.

    `subset` keeps the cases that a quick test run can afford: the paper's batch for each architecture, in one
    dtype.
    """
    if subset:
        for arch, dtype in zip(LIMITS, ("fp32", "bf16", "fp16", "bf16", "fp32", "bf16")):
            yield next(
                c for c in cases() if (c.kernel, c.arch, c.dtype, c.dim) == ("coordinate", arch, dtype, 768)
            )
        return
    yield from dict.fromkeys(case for arch in LIMITS for case in _cases_of(arch))


def triangle_cases() -> Iterator[Case]:
    """The paper's batch and 4,096 x 1,024, each without and then with the triangle (see `tiles.TABLE`)."""
    for arch in LIMITS:
        for rows, dim in ((256, 768), (4096, 1024)):
            for dtype in ("fp32", "bf16"):
                case = _case("coordinate", arch, dtype, "auto", rows, dim)
                for triangle in (False, True):
                    yield replace(case, tile=case.tile._replace(triangle=triangle))


Beyond = Callable[[str], Sequence[str]]


def compile_all(
    chosen: list[Case], workers: int = 2, beyond: Beyond | None = None
) -> list[tuple[Case, Resources]]:
    """Compile in separate processes: a compilation is single-threaded and takes seconds.

    `beyond` says which opcodes of a PTX text cannot be executed; other processes can import it.
    A Triton with other internals raises `UnsupportedTriton`.
    """
    if _version() < LOWEST_TRITON:
        raise _unsupported("it is older")
    return list(zip(chosen, in_processes(chosen, workers, beyond=beyond)))


def in_processes(
    chosen: list[Case], workers: int, start_method: str | None = None, beyond: Beyond | None = None
) -> Iterator[Resources]:
    """`compile_case` of every case, in order. Ctrl-C does not wait for the compilations under way."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context(start_method)) as pool:
        under_way = [pool.submit(compile_case, case, beyond) for case in chosen]
        try:
            for compiled in under_way:
                yield compiled.result()
        except BaseException:
            for child in multiprocessing.active_children():
                child.kill()
            raise


def compile_case(case: Case, beyond: Beyond | None = None) -> Resources:
    # With these two settings Triton bypasses its cache and prints the log of the ptxas run that makes the
    # binary. They are the process's, so they are put back for whoever compiles next.
    with (
        _reading_internals(),
        triton.knobs.nvidia.scope(),
        triton.knobs.compilation.scope(),
        contextlib.redirect_stdout(io.StringIO()) as log,
    ):
        triton.knobs.nvidia.dump_ptxas_log = triton.knobs.compilation.always_compile = True
        compiled = compiled_kernel(case)
        shared = compiled.metadata.shared
        assembly = compiled.asm["amdgcn" if case.arch.startswith("gfx") else "ptx"]
    if case.arch.startswith("gfx"):
        registers = _number(r"\.vgpr_count:\s+(\d+)", assembly)
        spills = _number(r"\.vgpr_spill_count:\s+(\d+)", assembly) * 4 * LIMITS[case.arch].lanes
        stores = loads = spills
        fp64 = len(re.findall(r"^\s*v_\w+_f64", assembly, re.MULTILINE))
        unexecuted: Sequence[str] | None = ["amdgcn"]
    else:
        report = log.getvalue()
        registers = _number(r"Used (\d+) registers", report)
        stores = _number(r"(\d+) bytes spill stores", report)
        loads = _number(r"(\d+) bytes spill loads", report)
        fp64 = len(re.findall(r"\.f64\b", assembly))
        unexecuted = beyond and beyond(assembly)
    with _reading_internals():
        code = read(compiled.asm, compiled.metadata.num_warps)
    return judge(case, registers, stores, loads, shared, fp64, code, unexecuted)


def compiled_kernel(case: Case) -> triton.compiler.CompiledKernel:
    """The kernel as a launch on that GPU would compile it."""
    what, options = source(case)
    return triton.compile(what, target=target(case.arch), options=options)


def target(arch: str) -> triton.backends.compiler.GPUTarget:
    backend = ("hip", arch, 64) if arch.startswith("gfx") else ("cuda", int(arch[3:]), 32)
    return triton.backends.compiler.GPUTarget(*backend)


def judge(
    case: Case,
    registers: int,
    stores: int,
    loads: int,
    shared: int,
    fp64: int,
    code: Code,
    beyond_machine: Sequence[str] | None = None,
) -> Resources:
    """The gate: the problems of a compiled kernel, and how many of its blocks an SM holds."""
    limits = LIMITS[case.arch]
    problems = []
    if stores or loads:
        problems.append(f"spills {stores} bytes stored, {loads} loaded")
    if fp64:
        problems.append(f"{fp64} fp64 instructions")
    if shared > limits.shared_per_block:
        problems.append(f"shared memory {shared} bytes > {limits.shared_per_block}")
    expected = steps(case)
    if len(code.loops) != len(expected):
        problems.append(f"{len(code.loops)} loops of products instead of {len(expected)}")
    for loop, step in zip(code.loops, expected):
        found = loop.multiply_adds / unrolled(loop, step) / step.multiply_adds
        if found != 1:
            problems.append(f"{found:g} times the products of a step")
    warps = case.tile.warps
    per_warp = -(-registers * limits.lanes // limits.register_group) * limits.register_group
    by_registers = SCHEDULERS * (limits.registers // SCHEDULERS // per_warp) // warps
    by_shared = limits.shared // (shared + limits.reserved) if shared else limits.blocks
    blocks = min(by_registers, by_shared, limits.warps // warps, limits.blocks)
    return Resources(
        registers,
        stores,
        loads,
        shared,
        fp64,
        blocks,
        code.instructions,
        tuple(code.loops),
        tuple(problems),
        None if beyond_machine is None else tuple(beyond_machine),
    )


def source(case: Case) -> tuple[triton.compiler.ASTSource, dict[str, Any]]:
    """What Triton compiles for a launch of the case: types, constants, attributes (alignment) and options.

    The launch is that of `launch`, with tensors that have no memory.
    """
    launched = launch_of(case)
    backend = triton.compiler.make_backend(target(case.arch))
    kernel = launched.kernel
    bind = triton.runtime.jit.create_function_from_signature(kernel.signature, kernel.params, backend)
    arguments = launched.arguments
    options, *parts = kernel._pack_args(backend, arguments, *bind(**arguments))
    return triton.compiler.ASTSource(kernel, *parts), vars(options)


def launch_of(case: Case) -> Prepared:
    """The launch of a case, on tensors that have no memory."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    dtype = DTYPES[case.dtype]
    # More than 2 GB between the first and the last row: a slice of wider rows.
    width = max(case.dim, (2 << 30) // case.rows // dtype.itemsize * 2) if case.far_rows else case.dim
    z = empty(case.rows, width, dtype=dtype)[:, : case.dim]
    z_ref = z.float() if case.wide_ref else z
    mask, one = empty(case.rows, dtype=torch.bool), empty()
    inputs = Inputs(z, z_ref, mask, empty(case.dim, case.dim), one, one, one if case.count else None)
    if case.basis:
        inputs = inputs._replace(basis=empty(case.dim, case.dim), weights=empty(case.dim))
    settings = Coordination(tau=case.tau)
    if case.kernel == "labelled_energy":
        _, launches = prepare_labelled_energy(
            inputs, 0.9, case.precision, update=True, tile=case.tile, arch=case.arch
        )
    else:
        _, launches = prepare(z, inputs, settings, case.precision, case.tile, case.arch)
    return launches[0 if case.kernel == "compaction" else -1]


def executable(results: Sequence[tuple[Case, Resources]]) -> str:
    """How many of the compiled kernels the PTX machine can execute, and why not the others."""
    counts: Counter[str] = Counter()
    for _, found in results:
        if found.beyond_machine is None:
            return "NOT COUNTED how many the PTX machine can execute: pip install ./ptx_machine"
        opcodes = found.beyond_machine
        if opcodes:
            counts["AMD code" if opcodes[0] == "amdgcn" else opcodes[0]] += 1
    able = len(results) - counts.total()
    others = ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))
    return (
        f"{able} of {len(results)} can be executed by the PTX machine{f'; not: {others}' if others else ''}"
    )


def as_record(case: Case, resources: Resources) -> dict[str, Any]:
    """One JSON object per compilation, for results files and models of GPU time.

    `loops` has for each loop over the inner dimension what one pass does and how many steps it is
    (`unrolled`), and what a step is by the formulas (`Step`). `chosen`: this is the tile that a launch picks.
    """
    record = asdict(case) | asdict(resources)
    record["loops"] = [
        {**loop._asdict(), "unrolled": unrolled(loop, step), "loaded": step.loaded, "times": step.times}
        for loop, step in zip(resources.loops, steps(case))
    ]
    z_ref_dtype = torch.float32 if case.wide_ref else None
    picked = pick(case.arch, case.rows, case.dim, DTYPES[case.dtype], case.precision, z_ref_dtype, case.basis)
    del record["tile"]
    return record | case.tile._asdict() | {"chosen": case.tile == picked}


def unrolled(loop: Loop, step: Step) -> int:
    """Steps in one pass: LLVM unrolls loops on AMD, where a pass loads the operands of as many steps."""
    return 1 if loop.loaded is None else max(1, round(loop.loaded / step.loaded))


# Rows and D of the plain cases: every entry of the table, on both sides of SCAN_LIMIT where an entry serves
# both, at the paper's D and at the largest; and a D that only the smaller tiles divide.
SHAPES = ((512, 384), (256, 768), (512, 4096), (2048, 768), (65536, 192), (65536, 768), (65536, 4096))
UNEVEN = ((256, 100), (65536, 1000))  # no tile divides D


def _cases_of(arch: str) -> Iterator[Case]:
    for kernel in KERNELS:
        for rows, dim in (*SHAPES, *UNEVEN):
            for dtype in DTYPES:
                yield _case(kernel, arch, dtype, "auto", rows, dim)
    yield _case("compaction", arch, "fp32", "auto", 65536, 768)
    yield _case("coordinate", arch, "fp32", "auto", 256, 768, tau="uniform")
    yield _case("coordinate", arch, "fp32", "auto", 256, 768, count=True)
    for rows, dim in ((256, 768), (65536, 4096)):
        for dtype in ("bf16", "fp16"):
            yield _case("coordinate", arch, dtype, "auto", rows, dim, wide_ref=True)
            yield _case("coordinate", arch, dtype, "high", rows, dim)
    yield _case("coordinate", arch, "bf16", "high", 65536, 1000)
    yield _case("labelled_energy", arch, "bf16", "high", 65536, 768)
    yield from _cases_with_basis(arch)
    if arch.startswith("gfx"):
        for dtype in DTYPES:
            for kernel in KERNELS:
                yield _case(kernel, arch, dtype, "auto", SCAN_LIMIT, 768, far_rows=True)
    else:
        for precision in TF32:
            for rows, dim in (
                (512, 384),
                (256, 768),
                (2048, 768),
                (65536, 768),
                (65536, 4096),
                (65536, 1000),
            ):
                yield _case("coordinate", arch, "fp32", precision, rows, dim)
            for rows in (256, 65536):
                yield _case("labelled_energy", arch, "fp32", precision, rows, 768)


def _cases_with_basis(arch: str) -> Iterator[Case]:
    """The tiles of both kernels in all dtypes, and the other precisions."""
    for dtype in DTYPES:
        shapes = ((512, 384), (256, 768), (512, 4096), (2048, 768), (65536, 192), (65536, 768), *UNEVEN)
        for rows, dim in shapes:
            for kernel in KERNELS:
                yield _case(kernel, arch, dtype, "auto", rows, dim, basis=True)
    for dtype in ("bf16", "fp16"):
        yield _case("coordinate", arch, dtype, "auto", 256, 768, wide_ref=True, basis=True)
        yield _case("coordinate", arch, dtype, "high", 256, 768, basis=True)
    yield _case("labelled_energy", arch, "bf16", "high", 256, 768, basis=True)
    for dtype in DTYPES if arch.startswith("gfx") else ():
        for kernel in KERNELS:
            yield _case(kernel, arch, dtype, "auto", SCAN_LIMIT, 768, far_rows=True, basis=True)
    for precision in () if arch.startswith("gfx") else TF32:
        for rows in (256, 2048, 65536):
            yield _case("coordinate", arch, "fp32", precision, rows, 768, basis=True)
        yield _case("labelled_energy", arch, "fp32", precision, 256, 768, basis=True)


def _case(
    kernel: str, arch: str, dtype: str, precision: Precision, rows: int, dim: int, **options: Any
) -> Case:
    """A case with the tile that a launch picks."""
    z_ref_dtype = torch.float32 if options.get("wide_ref") else None
    tile = pick(arch, rows, dim, DTYPES[dtype], precision, z_ref_dtype, options.get("basis", False))
    return Case(kernel, arch, dtype, precision, rows, dim, tile, **options)


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    if not match:
        raise _unsupported(f"its compiler's report has no {pattern!r}")
    return int(match.group(1))


@contextlib.contextmanager
def _reading_internals() -> Iterator[None]:
    """Errors by which Python says that a name or a parameter does not exist become `UnsupportedTriton`.

    An error in a kernel is not one of them: Triton raises a CompilationError.
    """
    try:
        yield
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        raise _unsupported(f"{type(error).__name__}: {error}") from error


def _unsupported(difference: str) -> UnsupportedTriton:
    lowest, tested = (".".join(map(str, version)) for version in (LOWEST_TRITON, TESTED_TRITON))
    return UnsupportedTriton(
        f"compiling for absent GPUs needs Triton {lowest} or later (tested up to {tested}), but this is "
        f"Triton {triton.__version__} ({difference}); the operator itself does not need it"
    )


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in triton.__version__.split(".")[:2])
