"""Execute a compiled kernel on the machine, and report what happened."""

from __future__ import annotations

import ctypes
import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .decode import (
    BYTES,
    FINDINGS,
    MIDDLE,
    PARAMETER_BITS,
    SPECIAL,
    TENSORMAP,
    WINDOW,
    Program,
    Statement,
    fill,
)
from .library import library

if TYPE_CHECKING:  # torch is not needed: whoever passes a tensor has it
    from torch import Tensor

RACES = (
    "READ_AFTER_WRITE", "WRITE_AFTER_READ", "WRITE_AFTER_WRITE", "PENDING_COPY", "PENDING_READ",
    "NO_PROXY_FENCE", "NOT_WAITED", "NO_REGISTER_FENCE",
)  # fmt: skip
WORDS = {
    "READ_AFTER_WRITE": "reads what another thread wrote, unordered",
    "WRITE_AFTER_READ": "writes what another thread read, unordered",
    "WRITE_AFTER_WRITE": "writes what another thread wrote, unordered",
    "PENDING_COPY": "touches the target of a cp.async that was not waited for",
    "OUT_OF_BOUNDS": "is out of bounds",
    "MISALIGNED": "is misaligned",
    "UNINITIALISED": "reads shared or tensor memory that nobody wrote",
    "PENDING_READ": "writes what an asynchronous operation may still read",
    "NO_PROXY_FENCE": "reads through the async proxy what was written without a fence.proxy.async after it",
    "NOT_WAITED": "needs the end of an asynchronous operation, and nobody waited for it",
    "NO_REGISTER_FENCE": "has registers that were written without a wgmma.fence after it",
    "LEFT_BEHIND": "allocates tensor memory that the block did not free",
}
MOST_FINDINGS = 1000


class MachineError(RuntimeError):
    """The kernel did something that ends it: a trap, a barrier in divergent code, a loop without end."""


@dataclass(frozen=True)
class TensorMap:
    """An argument that describes boxes of a tensor (a `CUtensorMap`), for TMA.

    Attributes:
        tensor: CPU tensor or numpy array, contiguous in its last dimension.
        shape, strides: of the tensor, in elements, the last dimension last.
        box: the shape of a box.
        elemtype: as PTX numbers it in `tensormap.replace`: 6 is f16, 7 f32, 10 bf16.
        swizzle: 0 none, 1, 2, 3: of 32, 64, 128 bytes.
        nan: elements outside of the tensor are NaN, not 0.
    """

    tensor: Any
    shape: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    elemtype: int
    swizzle: int = 0
    nan: bool = False

    def record(self, address: int, itemsize: int) -> np.ndarray:
        """The map in memory, of a tensor at that address of the machine."""
        out, rank = np.zeros(1, TENSORMAP), len(self.shape)
        out["global_address"], out["rank"], out["elemtype"] = address, rank - 1, self.elemtype
        out["swizzle_mode"], out["fill_mode"] = self.swizzle, self.nan
        out["box_dim"][0, :rank], out["global_dim"][0, :rank] = self.box[::-1], self.shape[::-1]
        out["global_stride"][0, : rank - 1] = [step * itemsize for step in self.strides[-2::-1]]
        out["element_stride"][0, :rank] = 1
        return out


@dataclass(frozen=True)
class Finding:
    """A race or a violation.

    Attributes:
        kind: a key of WORDS.
        statement: the instruction that was found.
        earlier: the other instruction of a race.
        place: "shared memory" or the argument, and the byte offset there.
        times: how often it happened.
    """

    kind: str
    statement: Statement
    earlier: Statement | None
    place: str
    thread: str
    times: int

    def __str__(self) -> str:
        def where(s: Statement) -> str:
            return f"line {s.line}{f' ({s.source})' if s.source else ''}: {s.text}"

        text = f"{where(self.statement)} -- {WORDS[self.kind]}, at {self.place}, by {self.thread}"
        if self.earlier:
            text += f"; the other: {where(self.earlier)}"
        return f"{text} [{self.times} x]"


@dataclass(frozen=True)
class Executed:
    """How often an instruction ran: by warps, and by lanes (fewer than 32 per warp if predicated off).

    With `traffic`: 32-byte sectors of global memory; wavefronts of shared memory, and how many there would
    be without bank conflicts.
    """

    statement: Statement
    warps: int
    lanes: int
    sectors: int
    wavefronts: int
    ideal_wavefronts: int
    moved: int  # bytes, all lanes together


@dataclass(frozen=True)
class Report:
    """What a launch did. The arguments hold its results."""

    kernel: str
    races: list[Finding]
    violations: list[Finding]
    instructions: list[Executed] = field(repr=False)

    def counts(self) -> Counter[str]:
        """Warp instructions by opcode.

        A name with dots such as "fma.rn.f32" is the opcode of the PTX text.
        """
        total: Counter[str] = Counter()
        for executed in self.instructions:
            total[executed.statement.opcode] += executed.warps
        return total

    def traffic(self) -> Counter[str]:
        """Bytes that the lanes move, by "ld.global", "st.shared", "cp.async", "ldmatrix", ..."""
        total: Counter[str] = Counter()
        for executed in self.instructions:
            if executed.moved:
                total[_class(executed.statement.opcode)] += executed.moved
        return total

    def check(self) -> None:
        """Raise AssertionError if anything was found."""
        findings = [*self.races, *self.violations]
        if findings:
            raise AssertionError("\n".join(map(str, [f"{self.kernel}: {len(findings)} findings", *findings])))


def run(
    kernel: Any,
    grid: Sequence[int],
    arguments: Sequence[Any],
    *,
    seed: int = 0,
    shared: int | None = None,
    block: Sequence[int] | None = None,
    resident: int = 8,
    races: bool = True,
    traffic: bool = False,
    limit: int = 1_000_000_000,
    names: Sequence[str] | None = None,
    reachable: Sequence[Any] = (),
) -> Report:
    """Execute a kernel on the CPU, instruction by instruction.

    Args:
        kernel: PTX text, or what `triton.compile` returned.
        grid: the number of blocks in x, y, z; missing ones are 1.
        arguments: in the order of the kernel's parameters. CPU tensors or numpy arrays (pointers, read and
            written in place), numbers, None (a null pointer), a `TensorMap`. Triton's scratch pointers at
            the end may be left out.
        seed: of the schedule. Another seed is another order of blocks and warps.
        shared: bytes of dynamic shared memory; Triton's kernels know theirs.
        block: threads in x, y, z, if the PTX text has no .reqntid.
        resident: the most blocks on the machine at a time.
        races: look for races; without, the run is about twice as fast.
        traffic: count sectors and wavefronts.
        limit: warp instructions after which the kernel is taken to hang.
        names: of the arguments, for findings; without, those of the PTX text.
        reachable: CPU tensors or arrays whose addresses (`data_ptr`) the kernel finds in memory.

    Raises:
        UnknownInstruction: the kernel has an instruction that the machine does not execute.
        MachineError: the kernel cannot go on.
    """
    if isinstance(kernel, str):
        program, scratch = decoded(kernel), 0
        shared = shared or 0
    else:
        program, metadata = decoded(kernel.asm["ptx"]), kernel.metadata
        shared = metadata.shared if shared is None else shared
        scratch = getattr(metadata, "global_scratch_size", 0) or 0
    arguments = list(arguments)
    missing = len(program.parameters) - len(arguments)
    if not isinstance(kernel, str) and missing == 2:
        blocks = int(np.prod(list(grid)))
        arguments += [np.zeros(scratch * blocks, np.uint8) if scratch else None, None]
    elif missing:
        raise ValueError(f"{program.name} has {len(program.parameters)} parameters, got {len(arguments)}")
    threads = tuple(block) if block is not None else program.threads
    if threads is None:
        raise ValueError(f"{program.name}: the PTX text has no .reqntid, pass block=(x, y, z)")
    names = [*(names or []), *(name for name, _ in program.parameters[len(names or []) :])]
    return _Launch(program, arguments, names, tuple(grid), tuple(threads), reachable).run(
        seed=seed,
        shared=program.static_shared + shared,
        resident=resident,
        races=races,
        traffic=traffic,
        limit=limit,
        replicas=not isinstance(kernel, str),
    )


@functools.lru_cache(maxsize=64)
def decoded(text: str) -> Program:
    """`Program(text)`, remembered."""
    return Program(text)


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("host", ctypes.c_void_p), ("size", ctypes.c_int64), ("base", ctypes.c_int64),
        ("region", ctypes.c_int32), ("pad", ctypes.c_int32), ("place", ctypes.c_int64),
    )  # fmt: skip


class _LaunchRecord(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_void_p), ("registers", ctypes.c_void_p), ("buffers", ctypes.c_void_p),
        ("regions", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("instructions", "register_bytes")),
        *((name, ctypes.c_int32) for name in ("buffer_count", "region_count")),
        ("grid", ctypes.c_int32 * 3), ("block", ctypes.c_int32 * 3),
        *((name, ctypes.c_int32) for name in ("shared", "resident", "global_cell", "shared_cell")),
        *((name, ctypes.c_int32) for name in ("races", "traffic")),
        ("sink_starts", ctypes.c_void_p), ("lists", ctypes.c_void_p), ("sinks", ctypes.c_void_p),
        ("special", ctypes.c_int32 * len(SPECIAL)), ("seed", ctypes.c_uint64), ("limit", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("replicas", "pad", "local", "first_host")),
    )  # fmt: skip


_FOUND = np.dtype(
    [(name, "<i4") for name in ("kind", "at", "earlier", "block", "warp", "lane", "buffer", "pad")]
    + [("offset", "<i8"), ("times", "<i8")]
)


class _Launch:
    """The records that the C++ part reads, and what it gives back."""

    def __init__(
        self,
        program: Program,
        arguments: list[Any],
        names: list[str],
        grid: tuple[int, ...],
        threads: tuple[int, ...],
        reachable: Sequence[Any],
    ) -> None:
        self.program, self.names = program, [*names, *program.constants]
        self.grid, self.threads = (*grid, 1, 1)[:3], (*threads, 1, 1)[:3]
        self.registers = program.registers()
        maps = [value for value in arguments if isinstance(value, TensorMap)]
        self.first_host = len(arguments) + len(program.constants) + len(maps)
        self.buffers = (_Buffer * max(1, self.first_host + len(reachable)))()
        self.kept: list[Any] = []  # arrays whose memory the buffers point to
        self.spans: list[tuple[int, int, int]] = []
        described = len(arguments) + len(program.constants)
        for number, value in enumerate(program.constants.values(), len(arguments)):
            self._place(value, number, start=0)
        for position, (value, (name, kind)) in enumerate(zip(arguments, program.parameters)):
            place, size = program.parameter_places[position], BYTES.get(kind, 0)
            if isinstance(value, TensorMap):
                address = self._place(value.tensor, described)
                self.names.append(name)
                described += 1
                itemsize = value.tensor.itemsize
                self._place(value.record(address, itemsize), position, start=0)
                number = position + 1 << PARAMETER_BITS
            elif _is_array(value):
                number = self._place(value, position)
            else:
                number = _scalar(value, name, kind)
            fill(self.registers, place, size, number)
        for number, value in enumerate(reachable):
            self._place(value, self.first_host + number, host=True)
            self.names.append("a tensor whose address was in memory")
        self.regions = self._regions(self.spans)

    def _place(self, value: Any, position: int, *, start: int | None = None, host: bool = False) -> int:
        """Make an array the buffer of that number; its address."""
        first, length, inside = _extent(value)
        self.kept.append(value)
        base = (position + 1 << WINDOW) + MIDDLE + (first % 256 if start is None else start)
        if host:
            base = first
        self.buffers[position] = _Buffer(first, length, base, -1, 0, 0)
        self.spans.append((first, first + length, position))
        return base + inside

    def _regions(self, spans: list[tuple[int, int, int]]) -> list[int]:
        """One region per group of overlapping arguments of which one is written; their sizes."""
        written, parameters = self.program.written, len(self.program.parameters)
        groups: list[tuple[int, int, list[int]]] = []
        for start, end, position in sorted(spans):
            if groups and start < groups[-1][1]:
                first, last, members = groups.pop()
                groups.append((first, max(last, end), [*members, position]))
            else:
                groups.append((start, end, [position]))
        sizes: list[int] = []
        for start, end, members in groups:
            if not written.intersection(min(position, parameters) for position in members):
                continue
            start -= start % 16
            for position in members:
                self.buffers[position].region = len(sizes)
                self.buffers[position].place = self.buffers[position].host - start
            sizes.append(end - start)
        return sizes

    def run(
        self, *, seed: int, shared: int, resident: int, races: bool, traffic: bool, limit: int, replicas: bool
    ) -> Report:
        program = self.program
        code = np.ascontiguousarray(program.code)
        regions = np.array([*self.regions, 0], np.int64)
        counts = np.zeros((len(code), 5), np.int64)
        starts, sinks = program.sinks
        lists = np.array(program.lists, np.int32)
        found = np.zeros(MOST_FINDINGS, _FOUND)
        number, message = ctypes.c_int(), ctypes.create_string_buffer(256)
        record = _LaunchRecord(
            code.ctypes.data, self.registers.ctypes.data, ctypes.addressof(self.buffers), regions.ctypes.data,
            len(code), len(self.registers), len(self.buffers), len(self.regions), self.grid, self.threads,
            shared, resident, program.cell("global"), program.cell("shared"), races, traffic,
            starts.ctypes.data, lists.ctypes.data, sinks.ctypes.data, tuple(program.special()), seed, limit,
            replicas, 0, program.local_bytes, self.first_host,
        )  # fmt: skip
        failed = library().ptx_machine_run(
            ctypes.byref(record), ctypes.c_void_p(counts.ctypes.data), ctypes.c_void_p(found.ctypes.data),
            len(found), ctypes.byref(number), message, len(message),
        )  # fmt: skip
        if failed:
            raise MachineError(self._reason(message.value.decode(), limit, resident))
        findings = [self._finding(row) for row in found[: number.value]]
        return Report(
            program.name,
            [finding for finding in findings if finding.kind in RACES],
            [finding for finding in findings if finding.kind not in RACES],
            [self._executed(*parts) for parts in zip(program.statements, code, counts.tolist())],
        )

    def _reason(self, message: str, limit: int, resident: int) -> str:
        at, _, reason = message.partition(":")
        if int(at) < 0:
            text = f"{self.program.name} {reason} after {limit} warp instructions"
            blocks = int(np.prod(self.grid))
            if blocks > resident:
                text += f"; {resident} of {blocks} blocks ran at a time"
                text += "; if they wait for others, raise `resident`"
            return text
        statement = self.program.statements[int(at)]
        return (
            f"{self.program.name}, PTX line {statement.line} ({statement.source}): {statement.text}: {reason}"
        )

    def _finding(self, row: Any) -> Finding:
        statements, buffer, offset = self.program.statements, int(row["buffer"]), int(row["offset"])
        if buffer == -1:
            place = f"byte {offset} of shared memory"
        elif buffer == -3:
            place = f"lane {offset >> 16}, column {offset & 0xFFFF} of tensor memory"
        elif buffer == -4:
            place = "a register"
        elif buffer == -5:
            place = f"byte {offset} of the memory of a lane"
        elif buffer == -2:
            place = f"address {offset:#x}, which is no argument"
        else:
            place = (
                f"byte {offset} of {self.buffers[buffer].size} of argument {buffer} ({self.names[buffer]})"
            )
        earlier = statements[row["earlier"]] if row["earlier"] >= 0 else None
        thread = f"block {row['block']}, warp {row['warp']}, lane {row['lane']}"
        return Finding(
            FINDINGS[row["kind"]], statements[row["at"]], earlier, place, thread, int(row["times"])
        )

    def _executed(self, statement: Statement, instruction: Any, counts: list[int]) -> Executed:
        warps, lanes, sectors, wavefronts, ideal = counts
        moved = lanes * _bytes_of(statement, instruction)
        return Executed(statement, warps, lanes, sectors, wavefronts, ideal, moved)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "data_ptr")


def _extent(value: Tensor | np.ndarray) -> tuple[int, int, int]:
    """The address of the first byte that may be touched, the bytes up to the last one, and where it starts.

    An expanded view tells only its pointer: a kernel may have strides of its own, and all of the storage.
    """
    if not isinstance(value, np.ndarray):
        if value.device.type != "cpu":
            raise ValueError(f"the machine reads CPU memory, got a tensor on {value.device}")
        if any(n > 1 and s == 0 for n, s in zip(value.shape, value.stride())):
            storage = value.untyped_storage()
            return storage.data_ptr(), storage.nbytes(), value.data_ptr() - storage.data_ptr()
        steps = [(n - 1) * s for n, s in zip(value.shape, value.stride())]
        return value.data_ptr(), (sum(steps) + 1) * value.element_size() if value.numel() else 0, 0
    if any(step < 0 for step in value.strides):
        raise ValueError("the machine needs arrays with positive strides")
    steps = [(n - 1) * s for n, s in zip(value.shape, value.strides)]
    return value.ctypes.data, sum(steps) + value.itemsize if value.size else 0, 0


def _scalar(value: Any, name: str, kind: str) -> int:
    if value is None:
        return 0
    if _is_array(value):
        raise TypeError(f"parameter {name} is a {kind}, not a pointer")
    if kind == "f32":
        return int(np.float32(value).view(np.uint32))
    if kind == "f64":
        return int(np.float64(value).view(np.uint64))
    if int(value) != value:
        raise TypeError(f"parameter {name} is a {kind}, got {value!r}")
    return int(value)


def _class(opcode: str) -> str:
    head, *parts = opcode.split(".")
    space = next((part.split("::")[0] for part in parts if part.startswith(("global", "shared"))), "")
    if "bulk" in parts:
        return "cp.async.bulk"
    return "cp.async" if head == "cp" else f"{head}.{space}" if head in ("ld", "st", "atom", "red") else head


def _bytes_of(statement: Statement, instruction: Any) -> int:
    """Bytes per lane."""
    name = _class(statement.opcode)
    if name == "cp.async":
        return int(instruction["count"]) if "[" in statement.text else 0
    if name in ("ldmatrix", "stmatrix"):
        return 4 * int(instruction["count"])
    if name.startswith(("ld.", "st.", "atom.", "red.")) and not name.endswith("."):
        return BYTES[statement.opcode.split(".")[-1]] * int(instruction["count"])
    return 0
