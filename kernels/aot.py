"""Compile the launch table for GPUs that are not present, and report the resources of the compiled code.

Nothing here measures speed: registers, spills and shared memory are read from the compiled code, and blocks
per SM follow from them. A kernel fails the gate on spill stores or loads (as ptxas counts them), on fp64
instructions, or on more shared memory than a block may have.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton

from . import fused
from .launch import compile_options, constants, operand_dtype
from .ptx import unknown_instructions
from .records import Precision, Tau
from .tiles import FAMILY, SCAN_LIMIT, TABLE, Tile, pick

# The gate reads what Triton does not promise to keep: knobs, the form of a source, the words of reports. A
# test compares both versions with the constraints files.
LOWEST_TRITON, TESTED_TRITON = (3, 6), (3, 9)
KERNELS = ("coordinate", "labelled_energy")
TF32: tuple[Precision, ...] = ("tf32x3", "tf32")  # on NVIDIA's tensor cores only
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
    With `count`, the number of labelled rows is an argument.
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


@dataclass(frozen=True)
class Resources:
    registers: int
    spill_stores: int
    spill_loads: int
    shared: int
    fp64: int
    blocks_per_sm: int
    problems: tuple[str, ...]
    beyond_machine: tuple[
        str, ...
    ]  # opcodes that the PTX machine does not execute; of AMD code: its language


def cases(*, subset: bool = False) -> Iterator[Case]:
    """Every table entry x dtype x architecture x kernel, then uneven D, options and precisions.

    `subset` keeps the cases that a quick test run can afford: for each architecture the first entry that
    serves D >= 768, in one dtype.
    """
    if subset:
        for arch, dtype in zip(LIMITS, ("fp32", "bf16", "fp16", "bf16", "fp32", "bf16")):
            yield next(
                c
                for c in cases()
                if (c.kernel, c.arch, c.dtype) == ("coordinate", arch, dtype) and c.dim >= 768
            )
        return
    yield from dict.fromkeys(case for arch in LIMITS for case in _cases_of(arch))


def compile_all(chosen: list[Case], workers: int = 2) -> list[tuple[Case, Resources]]:
    """Compile in separate processes: a compilation is single-threaded and takes seconds.

    A Triton with other internals raises `UnsupportedTriton`.
    """
    if _version() < LOWEST_TRITON:
        raise _unsupported("it is older")
    with ProcessPoolExecutor(workers) as pool:
        return list(zip(chosen, pool.map(compile_case, chosen)))


def compile_case(case: Case) -> Resources:
    # With these two settings Triton bypasses its cache and prints the log of the ptxas run that makes the
    # binary.
    with _reading_internals(), contextlib.redirect_stdout(io.StringIO()) as log:
        triton.knobs.nvidia.dump_ptxas_log = triton.knobs.compilation.always_compile = True
        compiled = compiled_kernel(case)
        shared = compiled.metadata.shared
        assembly = compiled.asm["amdgcn" if case.arch.startswith("gfx") else "ptx"]
    if case.arch.startswith("gfx"):
        registers = _number(r"\.vgpr_count:\s+(\d+)", assembly)
        spills = _number(r"\.vgpr_spill_count:\s+(\d+)", assembly) * 4 * LIMITS[case.arch].lanes
        stores = loads = spills
        fp64 = len(re.findall(r"^\s*v_\w+_f64", assembly, re.MULTILINE))
        beyond = ["amdgcn"]
    else:
        report = log.getvalue()
        registers = _number(r"Used (\d+) registers", report)
        stores = _number(r"(\d+) bytes spill stores", report)
        loads = _number(r"(\d+) bytes spill loads", report)
        fp64 = len(re.findall(r"\.f64\b", assembly))
        beyond = unknown_instructions(assembly)
    return judge(case, registers, stores, loads, shared, fp64, beyond)


def compiled_kernel(case: Case) -> triton.compiler.CompiledKernel:
    """The kernel as a launch on that GPU would compile it."""
    return triton.compile(source(case), target=target(case.arch), options=compile_options(case.tile))


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
    beyond_machine: Sequence[str] = (),
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
    warps = case.tile.warps
    per_warp = -(-registers * limits.lanes // limits.register_group) * limits.register_group
    by_registers = SCHEDULERS * (limits.registers // SCHEDULERS // per_warp) // warps
    by_shared = limits.shared // (shared + limits.reserved) if shared else limits.blocks
    blocks = min(by_registers, by_shared, limits.warps // warps, limits.blocks)
    return Resources(registers, stores, loads, shared, fp64, blocks, tuple(problems), tuple(beyond_machine))


def source(case: Case) -> triton.compiler.ASTSource:
    """The kernel with the argument types of a real launch.

    Pointers are aligned, row strides are divisible by 16 if D is, and on AMD pointers span less than 2 GB
    (except with `far_rows`).
    """
    kernel = getattr(fused, f"{case.kernel}_kernel")
    dtype, hip = DTYPES[case.dtype], case.arch.startswith("gfx")
    matrix = next(name for name in DTYPES if DTYPES[name] == operand_dtype(dtype, case.precision))
    order = "*i64" if case.rows > SCAN_LIMIT else None
    types: dict[str, str | None] = {
        **dict.fromkeys(("g_ptr", "z_ptr", "out_ptr"), f"*{case.dtype}"),
        "z_ref_ptr": "*fp32" if case.wide_ref else f"*{case.dtype}",
        "matrix_ptr": f"*{matrix}",
        "mask_ptr": "*u8",
        "order_ptr": order,
        "unlabelled_ptr": order,
        "arrivals_ptr": "*i32",
        "count_ptr": "*fp32" if case.count else None,
        **dict.fromkeys(("rows", "g_stride", "z_stride", "z_ref_stride"), "i32"),
        **dict.fromkeys(("lambda_a", "lambda_p", "momentum"), "fp32"),
    }
    shared = constants(case.tile, case.rows, dtype, case.precision, amd=hip)
    fixed = {"D": case.dim, "MEAN": True, "UNIFORM": case.tau == "uniform", "UPDATE": True, **shared}
    signature: dict[str, str] = {}
    constexprs: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], list[list[object]]] = {}
    for position, name in enumerate(kernel.arg_names):
        type_name = types.get(name, "*fp32")
        if name in fixed or type_name is None:
            signature[name] = "constexpr"
            constexprs[(position,)] = fixed.get(name)
            continue
        signature[name] = type_name
        pointer = type_name.startswith("*")
        if pointer or (name.endswith("stride") and case.dim % 16 == 0):
            attributes[(position,)] = [["tt.divisibility", 16]]
        if pointer and hip and not (case.far_rows and name in ("g_ptr", "z_ptr", "z_ref_ptr")):
            attributes[(position,)] += [["tt.pointer_range", 32]]
    return triton.compiler.ASTSource(kernel, signature, constexprs, attributes)


def executable(results: Sequence[tuple[Case, Resources]]) -> str:
    """How many of the compiled kernels the PTX machine can execute, and why not the others."""
    reasons = {"wgmma": "wgmma", "tcgen05": "tcgen05", "amdgcn": "AMD code"}
    counts: Counter[str] = Counter()
    for _, found in results:
        opcodes = found.beyond_machine
        if opcodes:
            names = [name for start, name in reasons.items() if any(o.startswith(start) for o in opcodes)]
            counts[names[0] if names else opcodes[0]] += 1
    able = len(results) - counts.total()
    others = ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))
    return (
        f"{able} of {len(results)} can be executed by the PTX machine{f'; not: {others}' if others else ''}"
    )


def as_record(case: Case, resources: Resources) -> dict[str, Any]:
    """One JSON object per compilation, for results files and models of GPU time."""
    record = asdict(case) | asdict(resources)
    del record["tile"]
    return record | case.tile._asdict()


def _cases_of(arch: str) -> Iterator[Case]:
    shapes = []
    for entry in (entry for entry in TABLE if entry.family == FAMILY[arch]):
        # A tile that serves rows on both sides of SCAN_LIMIT gives two kernels: up to the limit, the kernel
        # finds its rows itself.
        for rows in sorted({min(entry.max_rows, SCAN_LIMIT), min(entry.max_rows, 65536)}):
            # ptxas allocates registers differently for every D: the paper's D is compiled beside the largest.
            shapes += [(rows, dim) for dim in sorted({min(entry.max_dim, 768), min(entry.max_dim, 4096)})]
    # Not in the table: the paper's batch, and D that no tile divides. D = 512, where bf16 takes most
    # registers, follows below.
    shapes += [(256, 768), (256, 100), (4096, 1000), (65536, 4095)]
    for rows, dim in shapes:
        for dtype in DTYPES:
            for kernel in KERNELS:
                yield _case(kernel, arch, dtype, "auto", rows, dim)
    for rows in (SCAN_LIMIT, 65536):
        for dtype in ("fp32", "bf16"):
            yield _case("coordinate", arch, dtype, "auto", rows, 512)
    yield _case("coordinate", arch, "fp32", "auto", SCAN_LIMIT, 768, tau="uniform")
    yield _case("coordinate", arch, "fp32", "auto", SCAN_LIMIT, 768, count=True)
    for rows, dim in ((256, 768), (SCAN_LIMIT, 768), (65536, 4096)):
        for dtype in ("bf16", "fp16"):
            yield _case("coordinate", arch, dtype, "auto", rows, dim, wide_ref=True)
    for rows, dim in ((256, 768), (4096, 768), (65536, 4096), (65536, 1000)):
        for dtype in ("bf16", "fp16"):
            yield _case("coordinate", arch, dtype, "high", rows, dim)
        if not arch.startswith("gfx"):
            for precision in TF32:
                yield _case("coordinate", arch, "fp32", precision, rows, dim)
    yield _case("labelled_energy", arch, "bf16", "high", SCAN_LIMIT, 768)
    if arch.startswith("gfx"):
        for dtype in DTYPES:
            for kernel in KERNELS:
                yield _case(kernel, arch, dtype, "auto", SCAN_LIMIT, 768, far_rows=True)
    else:
        yield _case("coordinate", arch, "fp32", "tf32", 2048, 768)
        for precision in TF32:
            yield _case("labelled_energy", arch, "fp32", precision, SCAN_LIMIT, 768)


def _case(
    kernel: str, arch: str, dtype: str, precision: Precision, rows: int, dim: int, **options: Any
) -> Case:
    """A case with the tile that a launch picks."""
    z_ref_dtype = torch.float32 if options.get("wide_ref") else None
    tile = pick(arch, rows, dim, DTYPES[dtype], precision, z_ref_dtype)
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
