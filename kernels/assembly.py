"""What the inner loops of compiled kernels do: instructions and multiply-adds, read from the assembly.

A loop is a label and a branch back to it with no other loop in between. Its multiply-adds are those of the
matrix instructions or, in a loop without any, of the scalar ones. The kernels' loops over the inner dimension
of the products are found by them, so that a compiler that makes warps repeat each other's products is seen.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from triton import knobs


class Loop(NamedTuple):
    """One pass through an inner loop."""

    instructions: int  # of one warp, in machine code
    multiply_adds: int  # of the whole block
    loaded: int | None  # bytes that the block loads from memory; None: not counted (NVIDIA)
    kinds: dict[str, int]  # machine instructions of one warp by the first part of their name


def product_loops(assembly: dict[str, object], warps: int) -> list[Loop]:
    """The loops with matrix products, in the order of the code; `assembly` is that of a compiled kernel."""
    if "amdgcn" in assembly:
        lines = str(assembly["amdgcn"]).splitlines()
        bodies = [body for body in _bodies(lines, *_AMD) if _with_products(body, _amd_multiply_adds)]
        return [
            Loop(len(body), warps * _amd_multiply_adds(body), warps * _amd_loaded(body), _kinds(body, "_"))
            for body in bodies
        ]
    # The products are counted in PTX, where every matrix instruction names its shape, and the instructions in
    # SASS. ptxas keeps the order of the loops; if it unrolls one, its matrix instructions multiply.
    ptx = str(assembly["ptx"]).splitlines()
    constants = {m[1]: int(m[2]) for line in ptx if (m := re.match(r"\s*mov\.b32\s+(%r\d+), (\d+);", line))}

    def multiply_adds(body: list[str]) -> int:
        return _ptx_multiply_adds(body, constants, warps)

    found = [multiply_adds(body) for body in _bodies(ptx, *_PTX) if _with_products(body, multiply_adds)]
    sass = _disassembled(bytes(assembly["cubin"])).splitlines()  # type: ignore[arg-type, call-overload]
    bodies = [body for body in _bodies(sass, *_SASS) if _with_products(body, _sass_products)]
    if len(found) != len(bodies):
        raise RuntimeError(f"{len(found)} loops with products in PTX, {len(bodies)} in SASS")
    return [Loop(len(body), n, None, _kinds(body, ".")) for n, body in zip(found, bodies)]


# A loop of fewer multiply-adds than this (of one lane, or matrix instructions) is not one of matrix products: the
# last program's g - w (g S) has one for each of its 32 elements.
_FEWEST_FMA = 64

Line = str
_PTX = (re.compile(r"(\$L__BB\w+):"), re.compile(r"\bbra(?:\.uni)?\s+(\$L__BB\w+);"), re.compile(r"[a-z]"))
_SASS = (
    re.compile(r"(\.L_x_\d+):"),
    re.compile(r"\bBRA(?:\.\S+)?\s.*`\((\.L_x_\d+)\)"),
    re.compile(r"/\*[0-9a-f]{4,}\*/"),
)
_AMD = (re.compile(r"(\.LBB\w+):"), re.compile(r"s_c?branch\w*\s+(\.LBB\w+)"), re.compile(r"[a-z]"))


def _bodies(
    lines: list[str], label: re.Pattern[str], branch: re.Pattern[str], instruction: re.Pattern[str]
) -> list[list[str]]:
    """The instructions of every innermost loop."""
    code: list[str] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for line in (line.strip() for line in lines):
        if match := label.match(line):
            labels[match[1]] = len(code)
        elif instruction.match(line.lstrip("@!%{ ")):
            code.append(re.sub(r"^/\*[0-9a-f]+\*/\s*|;.*$", "", line))
            if (match := branch.search(line)) and match[1] in labels:
                loops.append((labels[match[1]], len(code)))
    return [
        code[start:end]
        for start, end in loops
        if not any(start <= a and b <= end and (a, b) != (start, end) for a, b in loops)
    ]


def _with_products(body: list[str], multiply_adds: Callable[[list[str]], int]) -> bool:
    return multiply_adds(body) > 0


def _ptx_multiply_adds(body: list[str], constants: dict[str, int], warps: int) -> int:
    """Of the whole block."""
    text = "\n".join(body)
    total = 0
    for shape in re.findall(r"\bmma\.sync\.aligned\.(m\d+n\d+k\d+)\.", text):
        total += warps * _volume(shape)
    for shape in re.findall(r"\bwgmma\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)\.", text):
        total += warps // 4 * _volume(shape)  # one instruction of four warps
    for kind, descriptor in re.findall(
        r"\btcgen05\.mma\.cta_group::1\.kind::(\w+) .*?, %rd\d+, %rd\d+, (%r\d+),", text
    ):
        # One thread issues it for the block. PTX ISA, "Instruction descriptor": N / 8 from bit 17, M / 16
        # from bit 24; K is 32 bytes.
        bits = constants[descriptor]
        total += (bits >> 17 & 63) * 8 * (bits >> 24 & 31) * 16 * {"f16": 16, "tf32": 8}[kind]
    lanes = 32 * warps
    scalar = len(re.findall(r"\bfma\.rn\.f32\s", text)) + 2 * len(re.findall(r"\bfma\.rn\.f32x2\s", text))
    return total or (lanes * scalar if scalar > _FEWEST_FMA else 0)


def _sass_products(body: list[str]) -> int:
    names = Counter(_name(line).split(".")[0] for line in body)
    matrix = names["HMMA"] + names["HGMMA"] + names["UTCHMMA"]
    scalar = names["FFMA"] + 2 * names["FFMA2"]
    return matrix or (scalar if scalar > _FEWEST_FMA else 0)


def _amd_multiply_adds(body: list[str]) -> int:
    """Of one wave."""
    shapes = (re.match(r"v_mfma_f32_(\d+)x(\d+)x(\d+)", line) for line in body)
    total = sum(int(m[1]) * int(m[2]) * int(m[3]) for m in shapes if m)
    scalar = sum(_name(line).startswith(("v_fma_f32", "v_fmac_f32")) for line in body)
    scalar += 2 * sum(_name(line).startswith("v_pk_fma_f32") for line in body)
    return total or (64 * scalar if scalar > _FEWEST_FMA else 0)


def _amd_loaded(body: list[str]) -> int:
    """Bytes, of one wave."""
    total = 0
    for line in body:
        if match := re.match(r"(?:buffer|global)_load_(dword|[us]?short|[us]?byte)\w*?(?:x(\d))?\s", line):
            width = 4 if match[1] == "dword" else 2 if match[1].endswith("short") else 1
            total += 64 * width * int(match[2] or 1)
    return total


def _volume(shape: str) -> int:
    m, n, k = map(int, re.findall(r"\d+", shape))
    return m * n * k


def _name(line: str) -> str:
    """`HMMA.16816.F32` of "@P0 HMMA.16816.F32 R4, R8, R12, R4"."""
    return re.sub(r"^@!?\w+\s+", "", line).split()[0]


def _kinds(body: list[str], separator: str) -> dict[str, int]:
    words = 2 if separator == "_" else 1  # v_mfma, ds_read; HMMA, LDSM
    return dict(Counter(separator.join(_name(line).split(separator)[:words]) for line in body).most_common())


def _disassembled(cubin: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.nvdisasm.path, "-c", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
