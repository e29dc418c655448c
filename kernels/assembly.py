"""What the inner loops of compiled kernels do: instructions and multiply-adds, read from the assembly.

A loop is a label and a branch back to it. Its multiply-adds are those of the matrix instructions or, in a
loop without any, of the scalar ones. The kernels' loops over the inner dimension of the products are the
shortest ones that have any. Their number shows whether warps repeat each other's products.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Loop(NamedTuple):
    """One pass through an inner loop."""

    instructions: int  # of one warp, in machine code
    multiply_adds: int  # of the whole block
    loaded: int | None  # bytes that the block loads from memory; None: not counted (NVIDIA)
    kinds: dict[str, int]  # machine instructions of one warp by the first part of their name
    shared: int = 0  # bytes that the block moves into and out of shared memory


class Code(NamedTuple):
    """A compiled kernel."""

    instructions: int  # in machine code, each counted once
    loops: list[Loop]  # those with matrix products, in the order of the code


def read(assembly: dict[str, object], warps: int) -> Code:
    """Count in the `asm` of a compiled kernel with so many warps."""
    if "amdgcn" in assembly:
        length, amd = _loops(_llvm_lines(assembly["amdgcn"]), *_AMD, _amd_multiply_adds)
        loops = [
            Loop(
                len(body),
                warps * _amd_multiply_adds(body),
                warps * _amd_loaded(body),
                _kinds(body, "_"),
                warps * _amd_shared(body),
            )
            for body in amd
        ]
        return Code(length, loops)
    # The products are counted in PTX, where every matrix instruction names its shape, and the instructions in
    # SASS. Both have the loops in the same order.
    ptx = _llvm_lines(assembly["ptx"])
    constants = {m[1]: int(m[2]) for line in ptx if (m := re.match(r"\s*mov\.b32\s+(%r\d+), (\d+);", line))}

    def multiply_adds(body: list[str]) -> int:
        return _ptx_multiply_adds(body, constants, warps)

    found = [multiply_adds(body) for body in _loops(ptx, *_PTX, multiply_adds)[1]]
    sass = _disassembled(bytes(assembly["cubin"])).splitlines()  # type: ignore[call-overload]
    length, bodies = _loops(sass, *_SASS, _sass_products)
    if len(found) != len(bodies):
        return Code(length, [])  # ptxas unrolled a loop fully: there is no step to count
    loops = [
        Loop(len(body), n, None, _kinds(body, "."), warps * _sass_shared(body))
        for n, body in zip(found, bodies)
    ]
    return Code(length, loops)


# A loop is one of scalar products if they are more than a third of its instructions: 50-90 % in the kernels'
# loops over the inner dimension, 23 % in the loop that writes g - w (g S).
_SHARE_OF_PRODUCTS = 1 / 3

# LLVM says in a comment which labels belong to a loop; other branches back come from blocks that were moved.
_PTX = (
    re.compile(r"(\$L__BB\w+):.*\bLoop\b"),
    re.compile(r"\bbra(?:\.uni)?\s+(\$L__BB\w+);"),
    re.compile(r"[a-z](?!\S*:$)"),
)
_SASS = (
    re.compile(r"(\.L_x_\d+):"),
    re.compile(r"\bBRA(?:\.\S+)?\s.*`\((\.L_x_\d+)\)"),
    re.compile(r"/\*[0-9a-f]{4,}\*/"),
)
_AMD = (
    re.compile(r"(\.LBB\w+):.*\bLoop\b"),
    re.compile(r"s_c?branch\w*\s+(\.LBB\w+)"),
    re.compile(r"[a-z](?!\S*:$)"),
)


def _llvm_lines(text: object) -> list[str]:
    """The lines, with a comment about a loop on the line of its label."""
    return re.sub(r"\n\s*(?:;|//)(?=.*\bLoop\b)", " ;", str(text)).splitlines()


def _loops(
    lines: list[str],
    label: re.Pattern[str],
    branch: re.Pattern[str],
    instruction: re.Pattern[str],
    products: Callable[[list[str]], int],
) -> tuple[int, list[list[str]]]:
    """The number of all instructions; those of every loop with products, the shortest of overlapping ones."""
    code: list[str] = []
    labels: dict[str, int] = {}
    ends: dict[int, int] = {}  # of the loop that begins there: the last branch back
    for line in (line.strip() for line in lines):
        if match := label.match(line):
            labels[match[1]] = len(code)
        elif instruction.match(line.lstrip("@!%{ ")):
            code.append(re.sub(r"^/\*[0-9a-f]+\*/\s*|;.*$", "", line))
            if (match := branch.search(line)) and match[1] in labels:
                ends[labels[match[1]]] = len(code)
    kept: list[tuple[int, int]] = []
    for start, end in sorted(ends.items(), key=lambda loop: loop[1] - loop[0]):
        if not any(start < b and a < end for a, b in kept) and products(code[start:end]):
            kept.append((start, end))
    return len(code), [code[start:end] for start, end in sorted(kept)]


def _ptx_multiply_adds(body: list[str], constants: dict[str, int], warps: int) -> int:
    """Of the whole block."""
    text = "\n".join(body)
    total = 0
    for shape in re.findall(r"\bmma\.sync\.aligned\.(m\d+n\d+k\d+)\.", text):
        total += warps * _volume(shape)
    for shape in re.findall(r"\bwgmma\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)\.", text):
        total += warps // 4 * _volume(shape)  # one instruction of four warps
    for kind, descriptor in re.findall(
        r"\btcgen05\.mma\.cta_group::1\.kind::(\w+) \[[^]]*\], (?:%rd\d+|\[[^]]*\]), %rd\d+, (%r\d+),", text
    ):
        # One thread issues it for the block. PTX ISA, "Instruction descriptor": N / 8 from bit 17, M / 16
        # from bit 24; K is 32 bytes.
        bits = constants[descriptor]
        total += (bits >> 17 & 63) * 8 * (bits >> 24 & 31) * 16 * {"f16": 16, "tf32": 8}[kind]
    lanes = 32 * warps
    scalar = len(re.findall(r"\bfma\.rn\.f32\s", text)) + 2 * len(re.findall(r"\bfma\.rn\.f32x2\s", text))
    return total or lanes * _if_most(scalar, body)


def _sass_products(body: list[str]) -> int:
    names = Counter(_name(line).split(".")[0] for line in body)
    matrix = names["HMMA"] + names["HGMMA"] + names["UTCHMMA"]
    scalar = names["FFMA"] + 2 * names["FFMA2"]
    return matrix or _if_most(scalar, body)


def _amd_multiply_adds(body: list[str]) -> int:
    """Of one wave."""
    shapes = (re.match(r"v_mfma_f32_(\d+)x(\d+)x(\d+)", line) for line in body)
    total = sum(int(m[1]) * int(m[2]) * int(m[3]) for m in shapes if m)
    scalar = sum(_name(line).startswith(("v_fma_f32", "v_fmac_f32")) for line in body)
    scalar += 2 * sum(_name(line).startswith("v_pk_fma_f32") for line in body)
    return total or 64 * _if_most(scalar, body)


def _if_most(scalar: int, body: list[str]) -> int:
    return scalar if scalar > _SHARE_OF_PRODUCTS * len(body) else 0


def _amd_loaded(body: list[str]) -> int:
    """Bytes, of one wave."""
    total = 0
    for line in body:
        if match := re.match(r"(?:buffer|global)_load_(dword|[us]?short|[us]?byte)\w*?(?:x(\d))?\s", line):
            width = 4 if match[1] == "dword" else 2 if match[1].endswith("short") else 1
            total += 64 * width * int(match[2] or 1)
    return total


def _sass_shared(body: list[str]) -> int:
    """Bytes into and out of shared memory, of one warp; lanes that read the same address count each."""
    total = 0
    for line in body:
        kind, *parts = _name(line).split(".")
        if kind == "LDSM":  # so many 8 x 8 matrices of 16 bits
            total += 128 * int(parts[-1]) if parts[-1].isdigit() else 128
        elif kind in ("LDS", "STS", "LDGSTS"):
            bits = [int(m[1]) for part in parts if (m := re.fullmatch(r"[US]?(8|16|64|128)", part))]
            total += 32 * (bits[-1] if bits else 32) // 8
        elif kind == "HGMMA":  # of four warps; K is 32 bytes; A is in registers or, like B, in shared memory
            rows, columns, _ = map(int, parts[0].split("x"))
            in_registers = re.search(r"HGMMA\S+ R\d+, R\d+, gdesc", line)
            total += 32 * (columns if in_registers else rows + columns) // 4
    return total


def _amd_shared(body: list[str]) -> int:
    """Bytes into and out of LDS, of one wave."""
    found = (re.match(r"ds_(?:read|write)(2?)(?:st64)?_[ubi](\d+)", line) for line in body)
    return sum(64 * int(m[2]) // 8 * (2 if m[1] else 1) for m in found if m)


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
    import triton  # here, because the counting does not need it

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
