"""Compile the launch table for GPUs that are not there, and report what the compilers say about it.

Nothing here is a speed: registers, spills and shared memory are facts of the compiled code, blocks per SM follow from them.
A kernel fails the gate on spill stores or loads (as ptxas counts them), on fp64 instructions, or on more shared memory than
a block may have.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import fused
from .launch import compile_options, constants, operand_dtype
from .tiles import FAMILY, SCAN_LIMIT, TABLE, WIDENED, Tile, pick

KERNELS = ("coordinate", "labelled_energy")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Limits:
    """Of one SM (or CU): registers, warps (waves), blocks; shared memory in bytes per SM and per block; lanes per warp."""

    registers: int
    warps: int
    blocks: int
    shared: int
    shared_per_block: int
    lanes: int


# From the vendors' programming guides (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; CDNA3 ISA).
LIMITS = {
    "sm_80": Limits(65536, 64, 32, 164 << 10, 163 << 10, 32),
    "sm_86": Limits(65536, 48, 16, 100 << 10, 99 << 10, 32),
    "sm_90": Limits(65536, 64, 32, 228 << 10, 227 << 10, 32),
    "sm_100": Limits(65536, 64, 32, 228 << 10, 227 << 10, 32),
    "sm_120": Limits(65536, 48, 24, 100 << 10, 99 << 10, 32),
    "gfx942": Limits(131072, 32, 32, 64 << 10, 64 << 10, 64),
}


@dataclass(frozen=True)
class Case:
    """One compilation. `dim` and `rows` are the largest the table entry is asked to serve in practice; z_ref is of `dtype`, or fp32."""

    kernel: str
    arch: str
    dtype: str
    precision: str
    rows: int
    dim: int
    tile: Tile
    wide_ref: bool = False


@dataclass(frozen=True)
class Resources:
    registers: int
    spill_stores: int
    spill_loads: int
    shared: int
    fp64: int
    blocks_per_sm: int
    problems: tuple[str, ...]


def cases(*, subset: bool = False) -> Iterator[Case]:
    """Every entry of the table x dtype x architecture of its family x kernel; then uneven D and the other precisions.

    `subset` keeps what a quick test run can afford: the paper's size (256 rows, D = 768), one dtype per architecture.
    """
    if subset:
        for arch, dtype in zip(LIMITS, ("fp32", "bf16", "fp16", "bf16", "fp32", "bf16")):
            yield next(c for c in cases() if (c.kernel, c.arch, c.dtype) == ("coordinate", arch, dtype) and c.dim >= 768)
        return
    for arch in LIMITS:
        for entry in (entry for entry in TABLE if entry.family == FAMILY[arch]):
            rows, dim = min(entry.max_rows, 65536), min(entry.max_dim, 4096)
            for dtype, torch_dtype in DTYPES.items():
                for kernel in KERNELS:
                    yield Case(kernel, arch, dtype, "auto", rows, dim, pick(arch, rows, dim, torch_dtype))
        # What the entries do not show: D that no tile divides, a z_ref of fp32 beside half features, and the other precisions.
        for rows, dim in ((256, 100), (4096, 1000), (65536, 4095)):
            for dtype, torch_dtype in DTYPES.items():
                for kernel in KERNELS:
                    yield Case(kernel, arch, dtype, "auto", rows, dim, pick(arch, rows, dim, torch_dtype))
        for rows, dim in ((256, 768), (65536, 4096)):
            for dtype in ("bf16", "fp16"):
                tile = pick(arch, rows, dim, DTYPES[dtype], z_ref_dtype=torch.float32)
                yield Case("coordinate", arch, dtype, "auto", rows, dim, tile, wide_ref=True)
        for rows, dim in ((256, 768), (4096, 768), (65536, 4096), (65536, 1000)):
            for dtype in ("bf16", "fp16"):
                yield Case("coordinate", arch, dtype, "high", rows, dim, pick(arch, rows, dim, DTYPES[dtype], "high"))
            if not arch.startswith("gfx"):  # tf32 is a type of NVIDIA's tensor cores
                for precision in ("tf32x3", "tf32"):
                    yield Case("coordinate", arch, "fp32", precision, rows, dim, pick(arch, rows, dim, torch.float32, precision))
        yield Case("labelled_energy", arch, "bf16", "high", 4096, 768, WIDENED.tile(torch.float32))


def compile_all(chosen: list[Case], workers: int = 2) -> list[tuple[Case, Resources]]:
    """Compile in separate processes: a compilation is single-threaded and takes seconds."""
    with ProcessPoolExecutor(workers) as pool:
        return list(zip(chosen, pool.map(compile_case, chosen)))


def compile_case(case: Case) -> Resources:
    # The log of the very ptxas run that makes the binary: asked for through Triton's own switches, past its cache.
    knobs.nvidia.dump_ptxas_log = knobs.compilation.always_compile = True
    with contextlib.redirect_stdout(io.StringIO()) as log:
        compiled = compiled_kernel(case)
    shared = compiled.metadata.shared
    if case.arch.startswith("gfx"):
        assembly = compiled.asm["amdgcn"]
        registers = _number(r"\.vgpr_count:\s+(\d+)", assembly)
        spills = _number(r"\.vgpr_spill_count:\s+(\d+)", assembly) * 4 * LIMITS[case.arch].lanes
        stores = loads = spills
        fp64 = len(re.findall(r"^\s*v_\w+_f64", assembly, re.MULTILINE))
    else:
        assembly = compiled.asm["ptx"]
        report = log.getvalue()
        registers = _number(r"Used (\d+) registers", report)
        stores = _number(r"(\d+) bytes spill stores", report)
        loads = _number(r"(\d+) bytes spill loads", report)
        fp64 = len(re.findall(r"\.f64\b", assembly))
    return judge(case, registers, stores, loads, shared, fp64)


def compiled_kernel(case: Case) -> triton.compiler.CompiledKernel:
    """The kernel as a launch on that GPU would have it compiled."""
    hip = case.arch.startswith("gfx")
    target = GPUTarget("hip", case.arch, 64) if hip else GPUTarget("cuda", int(case.arch[3:]), 32)
    return triton.compile(source(case), target=target, options=compile_options(case.tile))


def judge(case: Case, registers: int, stores: int, loads: int, shared: int, fp64: int) -> Resources:
    """The gate: what is wrong with a compiled kernel, and how many of its blocks an SM holds."""
    limits = LIMITS[case.arch]
    problems = []
    if stores or loads:
        problems.append(f"spills {stores} bytes stored, {loads} loaded")
    if fp64:
        problems.append(f"{fp64} fp64 instructions")
    if shared > limits.shared_per_block:
        problems.append(f"shared memory {shared} bytes > {limits.shared_per_block}")
    threads = case.tile.warps * limits.lanes
    per_warp = -(-registers * limits.lanes // 256) * 256  # registers are handed out to a warp in groups of 256
    by_registers = limits.registers // (per_warp * case.tile.warps)
    by_shared = limits.shared // (shared + 1024) if shared else limits.blocks  # the runtime keeps 1 KB of shared memory per block
    blocks = min(by_registers, by_shared, limits.warps * limits.lanes // threads, limits.blocks)
    return Resources(registers, stores, loads, shared, fp64, blocks, tuple(problems))


def source(case: Case) -> ASTSource:
    """The kernel with the argument types a real launch has: aligned pointers, row strides divisible by 16 where D is."""
    kernel = getattr(fused, f"{case.kernel}_kernel")
    matrix = next(name for name, dtype in DTYPES.items() if dtype == operand_dtype(DTYPES[case.dtype], case.precision))
    large = case.rows > SCAN_LIMIT
    types = {
        **dict.fromkeys(("g_ptr", "z_ptr", "out_ptr"), f"*{case.dtype}"),
        "z_ref_ptr": "*fp32" if case.wide_ref else f"*{case.dtype}",
        "matrix_ptr": f"*{matrix}",
        "mask_ptr": "*u8",
        "order_ptr": "*i64" if large else None,
        "unlabelled_ptr": "*i64" if large else None,
        "arrivals_ptr": "*i32",
        "count_ptr": None,
        **dict.fromkeys(("rows", "g_stride", "z_stride", "z_ref_stride"), "i32"),
        **dict.fromkeys(("lambda_a", "lambda_p", "momentum"), "fp32"),
    }
    shared = constants(case.tile, case.rows, DTYPES[case.dtype], case.precision, amd=case.arch.startswith("gfx"))
    fixed = {"D": case.dim, "MEAN": True, "UNIFORM": False, "UPDATE": True, **shared}
    signature, constexprs, attributes = {}, {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name in fixed or types.get(name, "*fp32") is None:
            signature[name] = "constexpr"
            constexprs[(position,)] = fixed.get(name)
            continue
        signature[name] = types.get(name, "*fp32")
        if signature[name].startswith("*") or (name.endswith("stride") and case.dim % 16 == 0):
            attributes[(position,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constexprs, attributes)


def table(results: list[tuple[Case, Resources]]) -> str:
    """Markdown: one line per compilation."""
    names = ["kernel", "arch", "dtype", "precision", "rows <=", "D <=", "tile MxNxK", "warps", "stages"]
    names += ["registers", "spill st/ld", "shared KB", "blocks/SM", "gate"]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for case, found in results:
        tile = case.tile
        dtype = f"{case.dtype}, z_ref fp32" if case.wide_ref else case.dtype
        cells = [case.kernel, case.arch, dtype, case.precision, case.rows, case.dim, f"{tile.block_m}x{tile.block_n}x{tile.block_k}"]
        cells += [tile.warps, tile.stages, found.registers, f"{found.spill_stores}/{found.spill_loads}", f"{found.shared / 1024:.1f}"]
        cells += [found.blocks_per_sm, "; ".join(found.problems) or "ok"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def as_record(case: Case, found: Resources) -> dict:
    """One JSON object per compilation, for results files and models of GPU time."""
    record = {field.name: getattr(case, field.name) for field in fields(case) if field.name != "tile"} | case.tile._asdict()
    return record | {field.name: getattr(found, field.name) for field in fields(found)}


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if not found:
        raise RuntimeError(f"the compiler's report has no {pattern!r}; a newer version of it may print something else:\n{text[-2000:]}")
    return int(found.group(1))
