"""PTX text -> the instructions that the machine executes.

`Program(text)` decodes a kernel, and raises `UnknownInstruction` for what the machine does not execute;
`unknown_instructions(text)` lists all of it. An opcode is accepted only if every part of it is understood: a
modifier that is ignored could change the result.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

SOURCES = Path(__file__).parent / "machine"
ADDRESS, ADDRESS2, OPERANDS = 15, 14, 16
LANES = 32

INSTRUCTION = np.dtype(
    [(name, "<i4") for name in ("operation", "type", "from", "mode", "order", "block_scope", "predicate")]
    + [(name, "<i4") for name in ("negated", "count", "width", "wide", "target", "list", "touches")]
    + [("operand", "<i4", OPERANDS), ("offset", "<i8"), ("offset2", "<i8")]
)


def _enum(name: str) -> dict[str, int]:
    """The names of a C++ enum of the machine, and their values."""
    text = (SOURCES / "program.h").read_text(encoding="utf-8")
    body = re.search(rf"enum {name} : int32_t \{{(.*?)\}}", text, re.DOTALL)
    assert body, f"program.h has no enum {name}"
    return {word: value for value, word in enumerate(re.findall(r"\w+", body[1]))}


OPERATION, TYPE = _enum("Operation"), _enum("Type")
FINDINGS = list(_enum("Finding"))
WEAK, RELAXED, ACQUIRE, RELEASE = 0, 1, 2, 4

BYTES = {"pred": 0, **{f"{kind}{size}": size // 8 for kind in "bus" for size in (8, 16, 32, 64)}}
BYTES |= {"f16": 2, "bf16": 2, "f32": 4, "tf32": 4, "f64": 8, "f16x2": 4, "bf16x2": 4, "f32x2": 8}
BYTES |= {"e4m3": 1, "e5m2": 1, "e2m1": 1, "u16x2": 4, "s16x2": 4}
INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
PAIRS = ("u16x2", "s16x2")
BITS = ("b16", "b32", "b64")
WIDE_FLOATS = ("f32", "f64")
FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32x2", *WIDE_FLOATS)
HALVES = ("f16", "bf16")
EIGHTS = ("e4m3", "e5m2")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "num", "nan", "ltu", "leu", "gtu", "geu", "equ", "neu")
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")
ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
CACHES = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"}  # where a copy may stay: no change of the value
SPECIAL = [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
SPECIAL += ["%laneid", "%warpid", "%smid", *(f"%lanemask_{how}" for how in ("eq", "le", "lt", "ge", "gt"))]
CLOCKS = {"%clock": 4, "%clock64": 8, "%globaltimer": 8}
FTZ, NAN_WINS, SAT, DIRECTED = 1, 2, 4, 8  # the last one times the rounding (ROUNDINGS)
SIGN_OF_BOTH = 64  # .xorsign.abs
NO_SINKS = -1
WORD = 2  # beside the width of an address: see Program._mark_words
TO_INTEGRAL, SATURATE, FLUSH, EXACT, RELU = 8, 16, 32, 64, 128  # of cvt, beside the rounding
READS_CARRY, WRITES_CARRY, SUBTRACTS, MULTIPLIES, HIGH = 1, 2, 4, 8, 16
WINDOW, MIDDLE = 40, 1 << 39  # addresses of an argument: (position + 1) << 40, and the middle of that window
PARAMETER_BITS = 12  # of its short address in the parameter space: (position + 1) << 12
CARRY = "%carry"
# Functions that are no part of the text, and their parameters.
OUTSIDE = {"vprintf": 2, "__assertfail": 5}


@dataclass(frozen=True)
class Statement:
    """An instruction of the text, its line and, if the compiler tells, the source it comes from."""

    text: str
    line: int
    source: str
    scope: int  # of the braces around it: registers and labels declared there are its own

    @property
    def opcode(self) -> str:
        return re.sub(r"^@\S+\s+", "", self.text).split()[0]


class UnknownInstruction(NotImplementedError):
    """The machine does not execute some instructions of a kernel: the first one, and the opcodes of all."""

    def __init__(self, statement: Statement, opcodes: Sequence[str]) -> None:
        self.statement, self.opcodes = statement, list(opcodes)
        text = f"PTX line {statement.line}: the machine does not execute {statement.text!r}"
        if len(opcodes) > 1:
            text += f", nor {', '.join(opcodes[1:4])}{', ...' if len(opcodes) > 4 else ''}"
        super().__init__(text)


def unknown_instructions(text: str) -> list[str]:
    """The opcodes of a kernel that the machine does not execute, in order of appearance; empty: it runs.

    >>> unknown_instructions(".entry k() { tcgen05.shift.cta_group::1.down [0]; bar.sync 0; ret; }")
    ['tcgen05.shift.cta_group::1.down']
    """
    return Program(text, strict=False).unknown


class Program:
    """One kernel of a PTX text.

    Attributes:
        name: of the kernel.
        parameters: (name, type) of each, in order.
        threads: of a block, (x, y, z), if the text says so.
        statements: what stands in the text, one per instruction.
        code: the same, decoded (dtype INSTRUCTION).
        unknown: opcodes that the machine does not execute; empty if `strict`.
        lists: registers of the operands that have too many for a row of `code`.
        written: positions of the pointer parameters through which the kernel may write.
    """

    def __init__(self, text: str, *, strict: bool = True) -> None:
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
        entry = re.search(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{]*)\{", text)
        if not entry:
            raise ValueError("the PTX text has no .entry")
        if len(re.findall(r"\.entry\s", text)) > 1:
            raise ValueError("the PTX text has several kernels; pass one")
        self.name = entry[1]
        self.parameters = [_parameter(part) for part in entry[2].split(",") if part.strip()]
        size = re.search(r"\.reqntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", entry[3])
        self.threads = tuple(int(part or 1) for part in size.groups()) if size else None
        self._widths: dict[str, int] = {}  # declared registers: prefix or name -> bytes
        self._places: dict[str, int] = {}
        self._constants: dict[int, tuple[int, int]] = {}  # place -> (bytes, value)
        self.register_bytes = 0
        self.shared: dict[str, int] = {}  # shared variables: name -> address
        self.static_shared = 0
        self._declare_shared(text)
        self._declare_constants(text)
        self.local: dict[str, int] = {}  # variables of a lane, and the parameters of calls: name -> address
        self.local_bytes = 0
        self.targets: dict[str, list[str]] = {}  # of brx.idx: list -> labels
        self._parents: list[int] = [-1]  # of every pair of braces, the one around it
        self._count = 0
        self._functions = _functions(text)
        self.parameter_places = [self._new(max(1, BYTES.get(kind, 0))) for _, kind in self.parameters]
        files = dict(re.findall(r"^\s*\.file\s+(\d+)\s+\"([^\"]*)\"", text, re.MULTILINE))
        self.labels: dict[str, int] = {}
        start = text[: entry.end()].count("\n") + 1
        self.statements = list(self._statements(_body(text[entry.end() :]), start, files, 0))
        unknown: dict[str, Statement] = {}
        self.code = np.zeros(len(self.statements), INSTRUCTION)
        self.lists: list[int] = [0]
        self._touched: list[tuple[list[str], list[str], str | None]] = []
        for number, statement in enumerate(self.statements):
            decoder = _Decoder(self, statement)
            try:
                self.code[number] = decoder.record()
            except _Refused:
                unknown.setdefault(statement.opcode, statement)
            self._touched.append((decoder.writes, decoder.reads, decoder.address))
        self._mark_words()
        self._mark_accumulators()
        self.unknown = list(unknown)
        if strict and unknown:
            raise UnknownInstruction(unknown[self.unknown[0]], self.unknown)

    def _mark_words(self) -> None:
        """A compare-and-swap of the word around a narrower value (`and.b64 word, address, -4`), and its load.

        Compilers make 16-bit atomics of it. At the end of an array half of the word is outside, and stays.
        """
        rounded = {
            writes[0]
            for statement, (writes, _, _) in zip(self.statements, self._touched)
            if writes and re.match(r"and\.b64\s.*,\s*-4$", statement.text)
        }
        swapped = {
            address
            for row, (_, _, address) in zip(self.code, self._touched)
            if row["operation"] == OPERATION["ATOM_GLOBAL"] and row["mode"] == ATOMICS.index("cas")
        }
        for row, (_, _, address) in zip(self.code, self._touched):
            if address in rounded & swapped and row["type"] == TYPE["U32"] and row["count"] == 1:
                row["wide"] |= WORD

    def _mark_accumulators(self) -> None:
        """Who else reads or writes the registers of a wgmma: it must wait for it, or fence before it."""
        asynchronous = {
            self._known(name, statement.scope)
            for row, statement, (writes, reads, _) in zip(self.code, self.statements, self._touched)
            if row["operation"] == OPERATION["WGMMA"]
            for name in [*writes, *reads]
        }
        for row, statement, (writes, reads, _) in zip(self.code, self.statements, self._touched):
            if not asynchronous or row["operation"] == OPERATION["WGMMA"]:
                continue
            touched = {self._known(name, statement.scope): 0 for name in reads}
            touched |= {self._known(name, statement.scope): 1 for name in writes}
            pairs = [(self._places[n], w) for n, w in touched.items() if n in asynchronous]
            if pairs:
                row["touches"] = len(self.lists)
                self.lists += [len(pairs), *(number for pair in pairs for number in pair)]

    @cached_property
    def written(self) -> frozenset[int]:
        """Which parameters reach the address of a store: a register may point where its operands point.

        What is stored to shared memory may be loaded from it: Triton exchanges pointers like that. A pointer
        from global memory may point anywhere, and so may a tensor map: then the number of parameters is
        among them.
        """
        reach: dict[str, int] = {"shared": 0}  # of a register, as a mask of parameters
        operations = [_NAMES[int(operation)] for operation in self.code["operation"]]
        before = None
        while reach != before:
            before = dict(reach)
            for number, (operation, (writes, reads, _)) in enumerate(zip(operations, self._touched)):
                parameter = self._parameter_loads.get(number)
                if operation in ("LOAD_SHARED", "LDMATRIX", "ATOM_SHARED"):
                    sources = reach["shared"]
                elif operation in ("LOAD_GLOBAL", "ATOM_GLOBAL"):
                    sources = 0
                elif operation == "LOAD_LOCAL":
                    sources = reach.get("local", 0)
                else:
                    sources = 0 if parameter is None else 1 << parameter
                    for name in reads:
                        sources |= reach.get(name, 0)
                if operation in ("STORE_SHARED", "STMATRIX"):
                    reach["shared"] |= sources
                if operation == "STORE_LOCAL":
                    reach["local"] = reach.get("local", 0) | sources
                for name in writes:
                    reach[name] = reach.get(name, 0) | sources
        stored = 0
        for operation, (_, _, address) in zip(operations, self._touched):
            if operation in ("STORE_GLOBAL", "ATOM_GLOBAL") and address is not None:
                stored |= reach.get(address, 0) or -1
            if operation in ("TMA_STORE", "TENSORMAP_COPY"):
                stored = -1
        return frozenset(k for k in range(len(self.parameters) + 1) if stored >> k & 1)

    @cached_property
    def sinks(self) -> tuple[np.ndarray, np.ndarray]:
        """For every load from global memory, the stores that its value may reach, as (starts, positions).

        NO_SINKS instead: it may also decide where other memory is read or written, or reach another lane.
        """
        guards = self._guards()
        loads = [k for k, row in enumerate(self.code["operation"]) if _NAMES[int(row)] == "LOAD_GLOBAL"]
        bit = {load: 1 << k for k, load in enumerate(loads)}
        reach: dict[str, int] = {}  # of a register, as a mask of loads
        before = None
        while reach != before:
            before = dict(reach)
            for number, (writes, reads, _) in enumerate(self._touched):
                mask = bit.get(number, 0)
                for name in reads:
                    mask |= reach.get(name, 0)
                for name in writes:
                    reach[name] = reach.get(name, 0) | mask
            for guard, decided in guards.values():
                for name in decided or ():
                    reach[name] = reach.get(name, 0) | reach.get(guard, 0)
        elsewhere, stores = 0, {}
        for number, (row, (_, reads, address)) in enumerate(zip(self.code["operation"], self._touched)):
            name, (guard, decided) = _NAMES[int(row)], guards.get(number, ("", []))
            mask = 0
            for read in reads:
                mask |= reach.get(read, 0)
            hard = reach.get(guard, 0) if decided is None else 0
            if name == "STORE_GLOBAL":
                stores[number] = mask
                hard |= reach.get(address or "", 0)
            elif name not in _LANE_WISE:
                hard |= mask | reach.get(address or "", 0)
            elsewhere |= hard
        rows = []
        for number in range(len(self.code)):
            mask = bit.get(number, 0)
            found = [store for store, reached in stores.items() if reached & mask]
            rows.append([NO_SINKS] if not mask or mask & elsewhere else found)
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int32)
        return starts, np.array([place for row in rows for place in row] or [NO_SINKS], np.int32)

    def _guards(self) -> dict[int, tuple[str, list[str] | None]]:
        """The predicate of each guarded instruction, and the registers it decides; None: it decides more.

        A branch over what a lane does for itself, up to where both ways meet, decides registers too.
        """
        out: dict[int, tuple[str, list[str] | None]] = {}
        for number, statement in enumerate(self.statements):
            guard = re.match(r"@!?([%\w$]+)", statement.text)
            if guard is None:
                continue
            name = _NAMES[int(self.code[number]["operation"])]
            if name in _LANE_WISE:
                decided: list[str] | None = self._touched[number][0]
            elif name == "BRANCH":
                decided = self._decided(number)
            else:
                decided = None
            out[number] = guard[1], decided
        return out

    def _decided(self, branch: int) -> list[str] | None:
        one, other = (self._straight(at) for at in (int(self.code[branch]["target"]), branch + 1))
        meet = next((at for at in one if at in other), None)
        if meet is None:
            return None
        between = one[: one.index(meet)] + other[: other.index(meet)]
        return [name for at in between for name in self._touched[at][0]]

    def _straight(self, at: int) -> list[int]:
        """Where a lane goes from there, as long as it works for itself; the last one is where that ends."""
        out: list[int] = []
        while at < len(self.code) and len(out) < 100:
            out.append(at)
            name = _NAMES[int(self.code[at]["operation"])]
            if name == "BRANCH" and self.code[at]["predicate"] < 0:
                at = int(self.code[at]["target"])
            elif name in _LANE_WISE:
                at += 1
            else:
                break
        return out

    @cached_property
    def _parameter_loads(self) -> dict[int, int]:
        names = {name: position for position, (name, _) in enumerate(self.parameters)}
        loads = {}
        for number, statement in enumerate(self.statements):
            match = re.search(r"ld\.param\.\w+\s.*\[\s*([\w$]+)\s*\]", statement.text)
            if match and match[1] in names:
                loads[number] = names[match[1]]
        return loads

    def cell(self, space: str) -> int:
        """The least number of bytes that an instruction moves in "global" or "shared" memory."""
        sizes = [16]
        for instruction, statement in zip(self.code, self.statements):
            name = _NAMES[int(instruction["operation"])]
            if name == "CP_ASYNC":
                sizes.append(int(instruction["count"]))
            elif name.startswith(("MBARRIER", "TENSOR_ALLOC")) and space == "shared":
                sizes.append(4)
            elif name.startswith("TMA") or name == "TENSORMAP_SET":
                sizes.append(1)
            elif name.endswith(f"_{space.upper()}"):
                sizes.append(BYTES[statement.opcode.split(".")[-1]])
        return min(sizes)

    def place(self, name: str, scope: int = 0) -> int:
        """The byte offset of a register, a special register or a constant."""
        owner = self._known(name, scope)
        if owner not in self._places:
            self._places[owner] = self._new(self.width(name, scope))
        return self._places[owner]

    def around(self, name: str, scope: int) -> Iterator[str]:
        """What a name may be called that is used in a scope, from the inside out."""
        while scope >= 0:
            yield _owned(name, scope)
            scope = self._parents[scope]

    def _known(self, name: str, scope: int) -> str:
        """The name under which a register has its place."""
        prefix = re.sub(r"\d+$", "", name)
        for owner, family in zip(self.around(name, scope), self.around(f"{prefix}<>", scope)):
            if owner in self._widths or family in self._widths:
                return owner
        return name

    def width(self, name: str, scope: int = 0) -> int:
        """Bytes of a register; 0: a predicate."""
        if name in SPECIAL or name == CARRY:
            return 4
        prefix = re.sub(r"\d+$", "", name)
        for pair in zip(self.around(name, scope), self.around(f"{prefix}<>", scope)):
            for owner in pair:
                if owner in self._widths:
                    return self._widths[owner]
        raise KeyError(name)

    def symbol(self, name: str, scope: int) -> int | None:
        """The address of a variable in its own space, or of an array among the parameters."""
        for owner in self.around(name, scope):
            if owner in self.local:
                return self.local[owner]
        if name in self.shared:
            return self.shared[name]
        if name in self.constants:
            return self.constant_address(name)
        for position, (parameter, kind) in enumerate(self.parameters):
            if parameter == name and kind == "array":
                return position + 1 << PARAMETER_BITS
        return None

    def constant_address(self, name: str) -> int:
        return (len(self.parameters) + 1 + list(self.constants).index(name) << WINDOW) + MIDDLE

    def target(self, label: str, scope: int) -> int:
        return next(self.labels[name] for name in self.around(label, scope) if name in self.labels)

    def constant(self, value: int, bytes_: int) -> int:
        """The byte offset of a register that holds a value in every lane; a predicate has 0 bytes."""
        key = f"={bytes_}:{value}"
        if key not in self._places:
            self._places[key] = self._new(bytes_)
            self._constants[self._places[key]] = (bytes_, value)
        return self._places[key]

    def registers(self) -> np.ndarray:
        """The initial registers of a warp, with the constants in place."""
        image = np.zeros(self.register_bytes, np.uint8)
        for place, (bytes_, value) in self._constants.items():
            fill(image, place, bytes_, value)
        return image

    def special(self) -> list[int]:
        return [self._places.get(name, -1) for name in SPECIAL]

    def _new(self, bytes_: int) -> int:
        place = self.register_bytes
        # A predicate is one 32-bit mask. Registers start on a cache line.
        self.register_bytes += -(-(bytes_ * LANES or 4) // 64) * 64
        return place

    def _declare_shared(self, text: str) -> None:
        """Shared variables one after the other; the one without a size (`extern`) is behind them."""
        pattern = r"\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?\s*;"
        dynamic = []
        for align, kind, name, length in re.findall(pattern, text):
            if re.search(rf"{re.escape(name)}\[\s*\]\s*;", text):
                dynamic.append(name)
                continue
            step = int(align or BYTES[kind])
            self.static_shared = -(-self.static_shared // step) * step
            self.shared[name] = self.static_shared
            self.static_shared += BYTES[kind] * int(length or 1)
        if dynamic:
            self.static_shared = -(-self.static_shared // 16) * 16
        self.shared |= dict.fromkeys(dynamic, self.static_shared)

    def _declare_constants(self, text: str) -> None:
        """Arrays of the module that the text initialises: name -> bytes."""
        self.constants: dict[str, np.ndarray] = {}
        pattern = (
            r"\.(?:global|const)\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)\s*\[(\d*)\]\s*=\s*\{([^}]*)\}"
        )
        for kind, name, length, values in re.findall(pattern, text):
            mask = (1 << 8 * BYTES[kind]) - 1
            numbers = [int(value, 0) & mask for value in values.split(",")]
            numbers += [0] * (int(length or 0) - len(numbers))
            self.constants[name] = np.array(numbers, f"u{BYTES[kind]}")

    def _declare_local(self, text: str, scope: int) -> None:
        match = re.match(
            r"\.(?:local|param)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?$", text
        )
        assert match, text
        size = BYTES[match[2]]
        self.local[_owned(match[3], scope)] = self._new_local(
            size * int(match[4] or 1), int(match[1] or size)
        )

    def _new_local(self, bytes_: int, align: int) -> int:
        start = -(-self.local_bytes // align) * align
        self.local_bytes = start + bytes_
        return start

    def _declare_registers(self, text: str, scope: int) -> None:
        kind, names = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        for name in (name.strip() for name in names.split(",")):
            numbered = re.match(r"(%?[\w$]+)<\d+>$", name)
            self._widths[_owned(f"{numbered[1]}<>" if numbered else name, scope)] = BYTES[kind]

    def _open(self, parent: int) -> int:
        self._parents.append(parent)
        return len(self._parents) - 1

    def _statements(self, body: str, line: int, files: dict[str, str], scope: int) -> Iterator[Statement]:
        """The instructions; declarations and labels go into their tables on the way.

        A call of a function of the text is its instructions, with registers of its own.
        """
        source, pending, begun, named = "", "", line, ""
        scopes = [scope]
        for number, raw in enumerate(body.split("\n"), line):
            text = raw.split("//")[0].strip()
            if re.match(r"\.loc\s", text):
                source = _source(text, files)
                continue
            for piece in re.findall(r"[;{}]|[^;{}]+", text):
                if piece == "{" and not pending:
                    scopes.append(self._open(scopes[-1]))
                elif piece == "}" and not pending:
                    scopes.pop()
                elif piece != ";":
                    while not pending and (label := _LABEL.match(piece)):
                        named = _owned(label[1], scopes[-1])
                        self.labels[named] = self._count
                        piece = piece[label.end() :]
                    if piece.strip():
                        begun = begun if pending else number
                        pending += piece
                elif pending:
                    statement, pending = " ".join(pending.split()), ""
                    call = _CALL.match(statement)
                    if statement.startswith(".reg"):
                        self._declare_registers(statement, scopes[-1])
                    elif statement.startswith((".local ", ".param ")):
                        self._declare_local(statement, scopes[-1])
                    elif statement.startswith(".branchtargets"):
                        self.targets[named] = [word.strip(",") for word in statement.split()[1:]]
                    elif call and call[2] in self._functions:
                        yield from self._called(call, files, scopes[-1])
                    elif not statement.startswith((".pragma", ".shared")):
                        self._count += 1
                        yield Statement(statement, begun, source, scopes[-1])
            pending += " " if pending else ""

    def _called(self, call: re.Match[str], files: dict[str, str], scope: int) -> Iterator[Statement]:
        line, formal, body = self._functions[call[2]]
        inside = self._open(-1)
        actual = [name.strip() for part in (call[1], call[3]) for name in (part or "").split(",") if part]
        for name, given in zip(formal, actual):
            place = self.symbol(given, scope)
            if place is not None:
                self.local[_owned(name, inside)] = place
        end = "$end"
        for statement in self._statements(body, line, files, inside):
            yield dataclasses.replace(
                statement, text=re.sub(r"(^|\s)ret(\.uni)?$", rf"\1bra {end}", statement.text)
            )
        self.labels[_owned(end, inside)] = self._count


_CALL = re.compile(r"call(?:\.uni)?\s+(?:\(([^)]*)\)\s*,\s*)?([\w$]+)\s*(?:,\s*\(([^)]*)\))?$")
_LABEL = re.compile(r"\s*([\w$]+):(?!:)")


def _owned(name: str, scope: int) -> str:
    """The name of a label or register that was declared between inner braces."""
    return f"{name}#{scope}" if scope else name


def fill(image: np.ndarray, place: int, bytes_: int, value: int) -> None:
    """Put a value into every lane of a register."""
    if bytes_ == 0:
        raw = (0xFFFFFFFF if value else 0).to_bytes(4, "little")
        image[place : place + 4] = np.frombuffer(raw, np.uint8)
        return
    raw = (value & (1 << 8 * bytes_) - 1).to_bytes(bytes_, "little")
    image[place : place + bytes_ * LANES] = np.tile(np.frombuffer(raw, np.uint8), LANES)


_NAMES = {value: name for name, value in OPERATION.items()}
# What a lane does for itself, from registers to registers.
_LANE_WISE = frozenset(list(OPERATION)[: list(OPERATION).index("SHFL")])


class _Refused(Exception):
    """A statement that the machine does not know."""


class _Decoder:
    """One statement. `record()` is a row of Program.code."""

    def __init__(self, program: Program, statement: Statement) -> None:
        self.program, self.statement = program, statement
        self.reads: list[str] = []
        self.writes: list[str] = []
        self.address: str | None = None  # the register of a global address
        self.row: dict[str, Any] = {"predicate": -1, "operand": [-1] * OPERANDS, "count": 1, "type": 0}

    def record(self) -> tuple[Any, ...]:
        text = self.statement.text
        guard = re.match(r"@(!?)([%\w$]+)\s+(.*)", text)
        if guard:
            self.row["negated"] = int(bool(guard[1]))
            try:
                self.row["predicate"] = self.register(guard[2], 0)
            except KeyError:
                self.refuse()
            text = guard[3]
        opcode, _, rest = text.partition(" ")
        self.head, *self.parts = opcode.split(".")
        self.args = [arg.strip() for arg in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)]
        decode = _DECODERS.get(self.head)
        if decode is None:
            self.refuse()
        try:
            decode(self)
        except (KeyError, ValueError, IndexError, AttributeError, TypeError, AssertionError, StopIteration):
            self.refuse()
        return tuple(self.row.get(name, 0) for name in INSTRUCTION.names or ())

    def refuse(self) -> NoReturn:
        raise _Refused

    def require(self, condition: bool) -> None:
        if not condition:
            self.refuse()

    def option(self, *names: str) -> str | None:
        """Take a modifier out of the opcode."""
        for name in names:
            if name in self.parts:
                self.parts.remove(name)
                return name
        return None

    def type(self, *allowed: str) -> str:
        """Take the last part of the opcode, a type."""
        kind = self.parts.pop()
        self.require(kind in allowed)
        return kind

    def plain(self, arguments: int) -> None:
        """Nothing of the opcode is left, and the number of operands is right."""
        self.require(not self.parts and len(self.args) == arguments)

    def operation(self, name: str, kind: str | None = None, **fields: int) -> None:
        self.row["operation"] = OPERATION[name]
        if kind is not None:
            self.row["type"] = TYPE[_plain_type(kind)]
        self.row |= fields

    def operands(self, *widths: int) -> None:
        """The first operand is the result; all have exactly these widths."""
        for position, (arg, bytes_) in enumerate(zip(self.args, widths)):
            self.row["operand"][position] = (
                self.result(arg, bytes_) if position == 0 else self.value(arg, bytes_)
            )

    def register(self, name: str, bytes_: int) -> int:
        self.require(self.program.width(name, self.statement.scope) == bytes_)
        return self.program.place(name, self.statement.scope)

    def result(self, name: str, bytes_: int) -> int:
        if name == "_":
            return -1
        self.writes.append(name)
        return self.register(name, bytes_)

    def value(self, text: str, bytes_: int) -> int:
        if self.is_register(text):
            self.reads.append(text)
            return self.register(text, bytes_)
        address = self.program.symbol(text, self.statement.scope)
        return self.program.constant(_number(text) if address is None else address, bytes_)

    def is_register(self, text: str) -> bool:
        """Registers need no %: inline assembly declares its own."""
        if text.startswith("%"):
            return True
        if not re.match(r"[A-Za-z_$]", text) or self.program.symbol(text, self.statement.scope) is not None:
            return False
        self.program.width(text, self.statement.scope)  # or it is not known
        return True

    def vector(self, text: str) -> list[str]:
        return [part.strip() for part in text.strip("{} ").split(",")]

    def width_of(self, names: list[str]) -> int:
        """The width that the registers of a vector have in common."""
        (width,) = {self.program.width(name, self.statement.scope) for name in names if name != "_"}
        return width

    def memory(self, text: str, *, second: bool = False) -> None:
        match = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
        if match is None:
            self.refuse()
        base, offset = match[1], int(match[2] or "0", 0)
        if self.is_register(base):
            wide = self.program.width(base, self.statement.scope) == 8
            place = self.program.place(base, self.statement.scope)
            self.address = base
        else:
            address = self.program.symbol(base, self.statement.scope)
            self.require(address is not None)
            wide, place = False, self.program.constant(address or 0, 4)
        if second:
            self.require(not wide)
            self.row["operand"][ADDRESS2], self.row["offset2"] = place, offset
        else:
            self.row["operand"][ADDRESS], self.row["offset"], self.row["wide"] = place, offset, int(wide)

    def hints(self) -> None:
        """Take cache modifiers and eviction priorities out: they change no value."""
        self.parts = [part for part in self.parts if part not in CACHES and not re.match(r"L[12]::", part)]

    def order(self, default: int) -> None:
        """Take semantics and scope out of the opcode."""
        named = self.option("weak", "relaxed", "volatile", "acquire", "release", "acq_rel")
        orders = {"weak": WEAK, "relaxed": RELAXED, "volatile": RELAXED, None: default}
        orders |= {"acquire": RELAXED | ACQUIRE, "release": RELAXED | RELEASE}
        orders |= {"acq_rel": RELAXED | ACQUIRE | RELEASE}
        self.row["order"] = orders[named]
        self.row["block_scope"] = int(self.option("cta", "gpu", "sys") == "cta")

    # Data movement ------------------------------------------------------------------------------------------

    def mov(self) -> None:
        kind = self.type("pred", *BITS, *INTEGERS, "f32", "f64")
        self.plain(2)
        target, value = self.args
        if target.startswith("{") or value.startswith("{"):
            names = self.vector(target if target.startswith("{") else value)
            width = BYTES[kind] // len(names)
            self.require(width >= 1)
            if target.startswith("{"):
                places = [self.result(name, width) for name in names] + [self.value(value, BYTES[kind])]
            else:
                places = [self.result(target, BYTES[kind])] + [self.value(name, width) for name in names]
            self.row["operand"][: len(places)] = places
            self.operation(
                "UNPACK" if target.startswith("{") else "PACK", kind, count=len(names), width=width
            )
            return
        if value in CLOCKS:
            self.require(BYTES[kind] == CLOCKS[value])
            self.operation("CLOCK", kind)
            self.row["operand"][0] = self.result(target, BYTES[kind])
            return
        self.operation("MOV", kind)
        self.operands(BYTES[kind], BYTES[kind])
        if kind == "pred":
            self.row["operand"][2] = self.row["operand"][1]

    def cvta(self) -> None:
        """Global addresses are the same as generic ones here; others have a mark of their space."""
        turned = self.option("to") is not None
        space = self.option("global", "local", "param")
        self.require(space is not None and not (turned and space == "param"))
        self.type("u64")
        self.plain(2)
        if space == "global":
            self.operation("MOV", "u64")
        else:
            self.operation("CVTA", "u64", mode=("param", "local").index(space or "") + 2 * turned)
        self.operands(8, 8)

    def createpolicy(self) -> None:
        """A cache policy is a hint: any number will do."""
        self.require(self.parts.pop() == "b64")
        self.args = [self.args[0], "0"]
        self.operation("MOV", "u64")
        self.operands(8, 8)

    def ld(self) -> None:
        if "param" in self.parts and not self.is_local(self.args[1]):
            self.parts.remove("param")
            self.ld_param()
            return
        self.load_or_store(self.args[0], self.args[1], store=False)

    def is_local(self, address: str) -> bool:
        name = re.match(r"\[\s*([%\w$]+)", address)
        around = self.program.around(name[1], self.statement.scope) if name else ()
        return any(one in self.program.local for one in around)

    def ld_param(self) -> None:
        kind = self.type(*BITS, *INTEGERS, "b8", "u8", "s8", "f32", "f64")
        self.plain(2)
        name = self.args[1].strip("[] ")
        position = [parameter for parameter, _ in self.program.parameters].index(name)
        size = BYTES[kind]  # of a wider parameter: its low bytes
        self.require(size <= BYTES[self.program.parameters[position][1]])
        width = self.width_of([self.args[0]])
        integer = kind if kind[0] in "us" else f"u{8 * size}"
        self.row["from"] = TYPE[integer.upper()]
        self.operation(
            "CVT", f"{'s' if integer[0] == 's' else 'u'}{8 * max(width, size)}",
            count=BYTES[self.program.parameters[position][1]], width=width,
        )  # fmt: skip
        self.row["operand"][0] = self.result(self.args[0], width)
        self.row["operand"][1] = self.program.parameter_places[position]

    def st(self) -> None:
        self.load_or_store(self.args[1], self.args[0], store=True)

    def load_or_store(self, registers: str, address: str, *, store: bool) -> None:
        policy = any(part.endswith("cache_hint") for part in self.parts)
        self.hints()
        kind = self.type("b8", "u8", "s8", *BITS, *INTEGERS, "f32", "f64")
        count = int((self.option("v2", "v4", "v8") or "v1")[1])
        space = "SHARED" if self.option("shared", "shared::cta") else "GLOBAL"
        if space == "GLOBAL" and self.option("local", "param", *(() if store else ("param::func",))):
            space = "LOCAL"
        elif space == "GLOBAL":
            self.option("global", "const")
        self.order(WEAK)
        self.require(not (space != "GLOBAL" and self.row["order"] & (ACQUIRE | RELEASE)))
        self.plain(3 if policy else 2)
        names = self.vector(registers)
        self.require(len(names) == count and count * BYTES[kind] <= 32)
        if store:
            constants = [name for name in names if not self.is_register(name)]
            width = (
                self.width_of([n for n in names if n not in constants] or []) if len(constants) < count else 0
            )
            width = width or max(2, BYTES[kind])
            places = [self.value(name, width) for name in names]
        else:
            width = self.width_of(names)
            places = [self.result(name, width) for name in names]
        self.require(width >= BYTES[kind])
        self.row["operand"][:count] = places
        self.operation(f"{'STORE' if store else 'LOAD'}_{space}", kind, count=count, width=width)
        self.memory(address)
        if space != "GLOBAL":
            self.address = None

    def atom(self) -> None:
        self.hints()
        self.option("noftz")
        kind = self.type(
            "b16", "b32", "b64", "u32", "s32", "u64", "s64", "f32", "f64", *HALVES, "f16x2", "bf16x2"
        )
        name = self.option(*ATOMICS)
        assert name
        count = int((self.option("v2", "v4") or "v1")[1])
        self.require(kind != "b16" or name == "cas")
        self.require(not kind.endswith("x2") or name == "add")
        integer, real = name not in ("add", "exch"), kind[0] == "f" or kind in HALVES
        self.require(not (integer and real) and (name not in ("inc", "dec") or kind == "u32"))
        space = "SHARED" if self.option("shared", "shared::cta") else "GLOBAL"
        if space == "GLOBAL":
            self.option("global")
        self.order(RELAXED)
        self.require(not (space == "SHARED" and self.row["order"] & (ACQUIRE | RELEASE)))
        if self.head == "red":
            self.args.insert(0, "_")
        self.plain(4 if name == "cas" else 3)
        size = BYTES[kind]
        target, address, *values = self.args
        if count > 1:  # every element for itself: the results, then the values
            self.require(space == "GLOBAL" and name in ("add", "min", "max"))
            results = ["_"] * count if target == "_" else self.vector(target)
            values = self.vector(values[0])
            self.require(len(results) == len(values) == count)
            places = [self.result(one, size) for one in results] + [self.value(one, size) for one in values]
            self.row["operand"][: 2 * count] = places
        else:
            self.row["operand"][:3] = [
                self.result(target, size), *(self.value(v, size) for v in values), -1
            ][:3]  # fmt: skip
        self.operation(f"ATOM_{space}", kind, mode=ATOMICS.index(name), count=count)
        self.memory(address)

    def cp(self) -> None:
        reduces = self.option("reduce") is not None
        self.require(self.option("async") is not None)
        if self.option("bulk"):
            self.bulk(reduces)
        elif reduces:
            self.refuse()
        elif self.option("commit_group"):
            self.plain(0)
            self.operation("CP_COMMIT")
        elif self.option("wait_all"):
            self.plain(0)
            self.operation("CP_WAIT", count=-1)
        elif self.option("wait_group"):
            self.plain(1)
            self.operation("CP_WAIT", count=_number(self.args[0]))
        else:
            self.require(self.option("ca", "cg") is not None)
            self.hints()
            self.require(self.option("shared", "shared::cta") is not None and bool(self.option("global")))
            to, start, size, *source = self.args
            self.plain(4 if source else 3)
            count = _number(size)
            self.require(count in (4, 8, 16))
            self.row["operand"][0] = self.value(source[0] if source else size, 4)
            self.operation("CP_ASYNC", count=count)
            self.memory(to, second=True)
            self.memory(start)

    def ldmatrix(self) -> None:
        self.matrix("LDMATRIX", self.args[0], self.args[1])

    def stmatrix(self) -> None:
        self.matrix("STMATRIX", self.args[1], self.args[0])

    def matrix(self, operation: str, registers: str, address: str) -> None:
        self.type("b16")
        for name in ("sync", "aligned", "m8n8"):
            self.require(self.option(name) is not None)
        self.require(self.option("shared", "shared::cta") is not None)
        count = int((self.option("x1", "x2", "x4") or self.refuse())[1])
        mode = int(self.option("trans") is not None)
        self.plain(2)
        names = self.vector(registers)
        self.require(len(names) == count)
        place = self.result if operation == "LDMATRIX" else self.value
        self.row["operand"][:count] = [place(name, 4) for name in names]
        self.operation(operation, count=count, mode=mode)
        self.memory(address)

    # Arithmetic ---------------------------------------------------------------------------------------------

    def arithmetic(self, operation: str, arguments: int, allowed: tuple[str, ...]) -> None:
        """d = f(a, ...), all of one type; or f32 with a narrow first operand (sm_100)."""
        if "cc" in self.parts:
            self.carry()
            return
        if len(self.parts) >= 2 and self.parts[-2:-1] == ["f32"] and self.parts[-1] in HALVES:
            self.mixed(operation, arguments)
            return
        kind = self.type(*allowed)
        mode = 0
        if kind in FLOATS:
            approximate = operation in ("DIV", "SQRT", "RSQRT", "RCP", "EX2", "LG2", "SIN", "COS", "TANH")
            if operation not in ("NEG", "ABS", "MIN", "MAX", "COPYSIGN") and not (
                approximate and self.option("approx", "full")
            ):
                directed = kind in WIDE_FLOATS and operation in _ROUNDED
                rounding = self.option(*(ROUNDINGS[:4] if directed else ("rn",))) or "rn"
                mode |= DIRECTED * ROUNDINGS.index(rounding)
            if kind == "f32" or (kind == "f64" and operation in ("RCP", "RSQRT")):
                mode |= FTZ * (self.option("ftz") is not None)
            elif kind in ("bf16", "bf16x2") and operation == "EX2":
                self.require(self.option("ftz") is not None)
            if operation in ("MIN", "MAX") and self.option("NaN"):
                mode |= NAN_WINS
                self.require(kind != "f64")
            if operation in ("MIN", "MAX") and self.option("xorsign"):
                mode |= SIGN_OF_BOTH
                self.require(self.option("abs") is not None and kind != "f64" and len(self.args) == 3)
            if kind == "f32" and operation in ("ADD", "SUB", "MUL", "FMA") and self.option("sat"):
                mode |= SAT
            if kind == "f32" and operation in ("MIN", "MAX") and len(self.args) == 4:  # sm_100
                arguments = 4
        elif kind == "s32" and operation in ("ADD", "SUB") and self.option("sat"):
            mode |= SAT
        self.plain(arguments)
        self.operation(operation, kind, mode=mode, count=arguments - 1)
        self.operands(*[BYTES[kind]] * arguments)

    def mixed(self, operation: str, arguments: int) -> None:
        self.require(operation in ("ADD", "SUB", "FMA"))
        narrow = self.parts.pop()
        self.parts.pop()
        self.option("rn")
        self.plain(arguments)
        self.row["from"] = TYPE[narrow.upper()]
        self.operation(operation, "f32")
        self.operands(4, *[2] * (arguments - 2), 4)

    def mul(self) -> None:
        self.product("MUL", 3)

    def mad(self) -> None:
        self.product("MAD", 4)

    def product(self, operation: str, arguments: int) -> None:
        if self.option("wide"):
            kind = self.type("u16", "s16", "u32", "s32")
            self.plain(arguments)
            size = BYTES[kind]
            self.operation(f"{operation}WIDE", kind)
            self.operands(2 * size, size, size, 2 * size)
            return
        if "cc" in self.parts:
            self.carry()
            return
        high = self.option("hi") is not None
        if high or self.option("lo"):
            self.arithmetic(f"{operation}HI" if high else operation, arguments, INTEGERS)
        elif operation == "MUL":
            self.arithmetic("MUL", 3, FLOATS)
        else:
            self.refuse()

    def carry(self) -> None:
        """add.cc, addc, mad.lo.cc, ...: sums of numbers that need several registers."""
        kind = self.type("u32", "s32", "u64", "s64", "b32", "b64")
        mode = READS_CARRY * self.head.endswith("c")
        mode |= WRITES_CARRY * (self.option("cc") is not None) | SUBTRACTS * self.head.startswith("sub")
        if self.head.startswith("mad"):
            mode |= MULTIPLIES | HIGH * (self.option("hi", "lo") == "hi")
        arguments = 4 if mode & MULTIPLIES else 3
        self.plain(arguments)
        self.operation("CARRY", kind, mode=mode)
        self.operands(*[BYTES[kind]] * arguments)
        self.row["operand"][4] = self.program.place(CARRY)
        if mode & READS_CARRY:
            self.reads.append(CARRY)
        if mode & WRITES_CARRY:
            self.writes.append(CARRY)

    def logic(self) -> None:
        kind = self.type("pred", *BITS)
        arguments = 2 if self.head == "not" else 3
        self.plain(arguments)
        self.operation(self.head.upper(), kind)
        self.operands(*[BYTES[kind]] * arguments)
        if kind == "pred" and self.head == "not":
            self.row["operand"][2] = self.row["operand"][1]

    def shift(self) -> None:
        kind = self.type(*BITS, *INTEGERS)
        self.plain(3)
        self.operation(self.head.upper(), kind)
        self.operands(BYTES[kind], BYTES[kind], 4)

    def shf(self) -> None:
        self.type("b32")
        left = self.option("l", "r") == "l"
        mode = int(self.option("wrap", "clamp") == "wrap")
        self.plain(4)
        self.operation("SHF_LEFT" if left else "SHF_RIGHT", "u32", mode=mode)
        self.operands(4, 4, 4, 4)

    def bfe(self) -> None:
        kind = self.type("u32", "s32", "u64", "s64")
        self.plain(4)
        self.operation("BFE", kind)
        self.operands(BYTES[kind], BYTES[kind], 4, 4)

    def bfi(self) -> None:
        kind = self.type("b32", "b64")
        self.plain(5)
        self.operation("BFI", kind)
        self.operands(BYTES[kind], BYTES[kind], BYTES[kind], 4, 4)

    def brev(self) -> None:
        kind = self.type("b32", "b64")
        self.plain(2)
        self.operation("BREV", kind)
        self.operands(BYTES[kind], BYTES[kind])

    def bit_count(self) -> None:
        kind = self.type("b32", "b64")
        self.plain(2)
        self.operation(self.head.upper(), kind)
        self.operands(4, BYTES[kind])

    def bfind(self) -> None:
        kind = self.type("u32", "s32", "u64", "s64")
        distance = self.option("shiftamt") is not None
        self.plain(2)
        self.operation("BFIND", kind, mode=int(distance))
        self.operands(4, BYTES[kind])

    def prmt(self) -> None:
        self.type("b32")
        self.plain(4)
        self.operation("PRMT", "u32")
        self.operands(4, 4, 4, 4)

    def lop3(self) -> None:
        self.type("b32")
        self.plain(5)
        self.operation("LOP3", "u32", mode=_number(self.args[4]))
        self.operands(4, 4, 4, 4)

    def testp(self) -> None:
        kind = self.type(*WIDE_FLOATS)
        self.require(len(self.parts) == 1)
        mode = ("finite", "infinite", "number", "notanumber", "normal", "subnormal").index(self.parts.pop())
        self.plain(2)
        self.operation("TESTP", kind, mode=mode)
        self.operands(0, BYTES[kind])

    def set(self) -> None:
        source, kind = self.parts.pop(), self.parts.pop()
        self.require(len(self.parts) == 1)
        how = COMPARISONS.index(self.parts.pop())
        packed = source in ("f16x2", "bf16x2")
        self.require(packed or source in (*INTEGERS, *HALVES, *WIDE_FLOATS))
        self.require(source not in INTEGERS or how < 6)
        self.require(
            kind
            in (
                (source,)
                if packed
                else ("u32", "s32", "f32", source)
                if source in HALVES
                else ("u32", "s32", "f32")
            )
        )
        self.plain(3)
        self.row["from"] = TYPE[source.upper()]
        self.operation("SET", kind, mode=how)
        self.operands(BYTES[kind], BYTES[source], BYTES[source])

    def nothing(self) -> None:
        """Hints about time, power and caches: no value depends on them."""
        self.operation("NOTHING")

    def selp(self) -> None:
        kind = self.type(*BITS, *INTEGERS, *WIDE_FLOATS)
        self.plain(4)
        self.operation("SELP", kind)
        self.operands(BYTES[kind], BYTES[kind], BYTES[kind], 0)

    def setp(self) -> None:
        kind = self.type(*BITS, *INTEGERS, *HALVES, "f16x2", "bf16x2", *WIDE_FLOATS)
        self.require(len(self.parts) == 1)
        how = COMPARISONS.index(self.parts.pop())
        self.require(kind in FLOATS or how < 6)  # the others ask about NaN
        self.plain(3)
        if kind.endswith("x2"):
            self.args[0], second = (name.strip() for name in self.args[0].split("|"))
            self.row["operand"][3] = self.result(second, 0)
        self.operation("SETP", kind, mode=how)
        self.operands(0, BYTES[kind], BYTES[kind])

    def cvt(self) -> None:
        source = self.parts.pop()
        kind = self.parts.pop()
        rounding = self.option(*ROUNDINGS)
        to_integral = self.option("rni", "rzi", "rmi", "rpi")
        ftz, saturate = self.option("ftz"), self.option("sat")
        if {kind[:-2], source[:-2]} & set(EIGHTS):
            self.eights(kind, source, rounding)
            return
        if kind in ("f16x2", "bf16x2"):
            relu = RELU * (self.option("relu") is not None)
            self.require(
                source == "f32" and rounding in ("rn", "rz") and not (to_integral or ftz or saturate)
            )
            self.plain(3)
            self.operation("CVT_PAIR", kind, mode=ROUNDINGS.index(rounding or "") | relu)
            self.operands(4, 4, 4)
            return
        if kind == "tf32":
            self.require(
                source == "f32" and rounding in ("rna", "rn") and not (to_integral or ftz or saturate)
            )
            self.plain(2)
            self.operation("CVT", "tf32", mode=ROUNDINGS.index(rounding or ""))
            self.operands(4, 4)
            return
        real = (*HALVES, *WIDE_FLOATS)
        whole = ("u8", "s8", *INTEGERS)
        self.require(kind in (*real, *whole) and source in (*real, *whole))
        self.require(rounding != "rna" and not (saturate and kind in real and source in whole))
        inexact = kind in real and (
            source in whole or BYTES[kind] < BYTES[source] or {kind, source} == set(HALVES)
        )
        # Of sm_90; of numbers that fit
        unsaid = (kind, source) == ("bf16", "f16") and rounding is None and not saturate
        self.require(inexact == (rounding is not None) or unsaid)
        rounds = to_integral is not None
        self.require(rounds == (source in real) if kind in whole else not rounds or kind == source)
        self.require(ftz is None or (source in real and "f32" in (kind, source)))
        self.plain(2)
        mode = ROUNDINGS.index(to_integral[:2] if to_integral else rounding or "rn")
        mode |= (
            TO_INTEGRAL * bool(to_integral) | SATURATE * bool(saturate) | FLUSH * bool(ftz) | EXACT * unsaid
        )
        target, value = self.args
        width = self.width_of([target])
        size = self.width_of([value]) if self.is_register(value) else max(2, BYTES[source])
        self.require(width >= BYTES[kind] and size >= BYTES[source])
        self.row["from"] = TYPE[source.upper()]
        self.operation("CVT", kind, mode=mode, count=size, width=width)
        self.row["operand"][:2] = [self.result(target, width), self.value(value, size)]

    def eights(self, kind: str, source: str, rounding: str | None) -> None:
        """Two numbers of 8 bits in a 16-bit register, to and from f16 or f32."""
        self.require(rounding == "rn")
        relu = self.option("relu") is not None
        if source[:-2] in EIGHTS:
            self.require(kind in ("f16x2", "bf16x2"))
            self.plain(2)
            self.row["from"] = TYPE[kind.upper()]
            self.operation("EIGHTS_WIDEN", source[:-2], mode=relu)
            self.operands(4, 2)
            return
        self.require(self.option("satfinite") is not None and source in ("f32", "f16x2", "bf16x2"))
        self.plain(3 if source == "f32" else 2)
        self.row["from"] = TYPE[source.upper()]
        self.operation("EIGHTS_NARROW", kind[:-2], mode=relu)
        self.operands(2, 4, *([4] if source == "f32" else []))

    # The warp and the block ---------------------------------------------------------------------------------

    def shfl(self) -> None:
        self.type("b32")
        self.require(self.option("sync") is not None)
        mode = ("bfly", "up", "down", "idx").index(self.option("bfly", "up", "down", "idx") or "")
        self.plain(5)
        target, _, predicate = self.args[0].partition("|")
        self.operation("SHFL", "u32", mode=mode)
        self.args[0] = target.strip()
        self.operands(4, 4, 4, 4, 4)
        if predicate:
            self.row["operand"][5] = self.result(predicate.strip(), 0)

    def vote(self) -> None:
        self.require(self.option("sync") is not None)
        mode = ("all", "any", "uni", "ballot").index(self.option("all", "any", "uni", "ballot") or "")
        self.type("b32" if mode == 3 else "pred")
        self.plain(3)
        if self.args[1].startswith("!"):
            self.args[1] = self.args[1][1:]
            self.row["wide"] = 1  # negated
        self.operation("VOTE", "u32", mode=mode)
        self.operands(4 if mode == 3 else 0, 0, 4)

    def redux(self) -> None:
        kind = self.type("s32", "u32", "b32", "f32")
        self.require(self.option("sync") is not None)
        name = self.option(*(("min", "max") if kind == "f32" else ("add", "min", "max", "and", "or", "xor")))
        self.require(kind != "b32" or name in ("and", "or", "xor"))
        mode = ATOMICS.index(name or "")
        if kind == "f32":
            mode += 8 * (self.option("abs") is not None) + 16 * (self.option("NaN") is not None)
        self.plain(3)
        self.operation("REDUX", kind, mode=mode)
        self.operands(4, 4, 4)

    def elect(self) -> None:
        self.require(self.option("sync") is not None)
        self.plain(2)
        target, _, predicate = self.args[0].partition("|")
        self.operation("ELECT")
        places = [self.result(target.strip(), 4), self.result(predicate.strip(), 0)]
        self.row["operand"][:3] = [*places, self.value(self.args[1], 4)]

    def activemask(self) -> None:
        self.type("b32")
        self.plain(1)
        self.operation("ACTIVEMASK")
        self.operands(4)

    def mma(self) -> None:
        for name in ("sync", "aligned", "row", "col"):
            self.require(self.option(name) is not None)
        saturate = SAT * (self.option("satfinite") is not None)
        if self.option("block_scale"):
            self.mma_scaled()
            return
        shape, kind, source, other, added = self.parts
        depth = int(shape.partition("k")[2])
        bytes_ = source in ("s8", "u8")
        if source in EIGHTS:
            self.mma_eights(shape, kind, source, other, added)
            return
        allowed = {
            "f16": (16, 8),
            "bf16": (16, 8),
            "tf32": (8, 4),
            "s8": (32, 16),
            "u8": (32, 16),
            "f64": (4,),
        }
        self.require(shape == f"{'m8' if source == 'f64' else 'm16'}n8k{depth}" and depth in allowed[source])
        self.require(other == source or (bytes_ and other in ("s8", "u8")))
        self.require(saturate == 0 or bytes_)
        results = "s32" if bytes_ else "f64" if source == "f64" else "f32"
        self.require(kind == added and kind in (results, *(["f16"] if source == "f16" else [])))
        width = BYTES[kind] if kind == "f64" else 4
        per = 1 if width == 8 else 4 // BYTES[source]
        rows = 8 if width == 8 else 16
        of_results = 2 if kind in ("f16", "f64") else 4
        sizes = [of_results, rows * depth // (32 * per), 8 * depth // (32 * per), of_results]
        vectors = [self.vector(arg) for arg in self.args]
        self.require([len(names) for names in vectors] == sizes)
        places = [self.result(name, width) for name in vectors[0]] + [-1] * (4 - of_results)
        places += [self.value(name, width) for names in vectors[1:] for name in names]
        self.row["operand"][: len(places)] = places
        self.row["from"] = TYPE[source.upper()]
        # `block_scope` has no other meaning here: of bytes, one factor has a sign and the other none
        self.operation("MMA", kind, count=depth, mode=saturate, block_scope=int(other != source))

    def mma_eights(self, shape: str, kind: str, source: str, other: str, added: str) -> None:
        depth = int(shape.removeprefix("m16n8k"))
        self.require(depth in (16, 32) and other in EIGHTS and kind == added and kind in ("f32", "f16"))
        results = 4 if kind == "f32" else 2
        vectors = [self.vector(arg) for arg in self.args]
        self.require([len(names) for names in vectors] == [results, depth // 8, depth // 16, results])
        places = [self.result(name, 4) for name in vectors[0]] + [-1] * (4 - results)
        places += [self.value(name, 4) for names in vectors[1:] for name in names]
        self.row["operand"][: len(places)] = places
        self.row["from"] = TYPE[source.upper()]
        self.operation("MMA", kind, count=depth, width=TYPE[other.upper()])

    def mma_scaled(self) -> None:
        """Numbers of 8 or 4 bits with a scale for each block of them."""
        kind = self.option("kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4")
        fours = kind != "kind::mxf8f6f4"
        times = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4}
        name = self.option(*times)
        blocks = times[name] if name else 2 if fours else 1
        shape, results, a, b, added, scale = self.parts
        self.require(kind is not None and shape == ("m16n8k64" if fours else "m16n8k32"))
        self.require(results == added == "f32" and {a, b} <= ({"e2m1"} if fours else {*EIGHTS}))
        self.require(scale == "ue8m0" or (scale == "ue4m3" and kind == "kind::mxf4nvf4"))
        self.require(blocks in ((2, 4) if fours else (1,)) and (blocks != 4 or kind == "kind::mxf4nvf4"))
        vectors = [self.vector(arg) for arg in self.args]
        self.require([len(names) for names in vectors] == [4, 4, 2, 4, 1, 2, 1, 2])
        d, *factors, c, (scale_a,), of_a, (scale_b,), of_b = vectors
        (byte_a, threads_a), (byte_b, thread_b) = (map(_number, pair) for pair in (of_a, of_b))
        places = [self.result(name, 4) for name in d]
        places += [self.value(name, 4) for names in (*factors, c) for name in names]
        self.row["operand"] = [*places, self.value(scale_a, 4), self.value(scale_b, 4)]
        self.require(threads_a < 2 and thread_b < 4 and max(byte_a, byte_b) + blocks <= 4)
        self.row["from"] = TYPE[a.upper()]
        mode = byte_a | threads_a << 2 | byte_b << 4 | thread_b << 6
        self.operation(
            "MMA_SCALED", "f32", count=64 if fours else 32, width=TYPE[b.upper()], mode=mode, target=blocks,
            block_scope=int(scale == "ue4m3"),
        )  # fmt: skip

    def fence(self) -> None:
        if self.option("mbarrier_init"):
            self.parts = [part for part in self.parts if part not in ("release", "cluster")]
            self.plain(0)
            self.operation("NOTHING")
            return
        if self.option("proxy"):
            if self.option("tensormap::generic"):  # a tensor map is seen at once here
                self.require(self.option("acquire", "release") is not None)
                self.option("cta", "gpu", "sys")
                self.require(not self.parts)
                self.operation("NOTHING")
                return
            self.require(self.option("async") is not None)
            self.option("global", "shared::cta", "shared::cluster")
            self.plain(0)
            self.operation("PROXY_FENCE")
            return
        if self.head == "membar":
            scope = self.option("cta", "gl", "sys")
        else:
            self.option("sc", "acq_rel")
            scope = self.option("cta", "gpu", "sys")
        self.require(scope is not None)
        self.plain(0)
        self.operation("FENCE", block_scope=int(scope == "cta"))

    def bar(self) -> None:
        if self.option("warp"):
            self.require(self.option("sync") is not None)
            self.plain(1)
            self.operation("WARP_SYNC")
            self.row["operand"][0] = self.value(self.args[0], 4)
            return
        self.option("cta")
        self.option("aligned")
        self.require(self.option("sync") is not None)
        members = 0  # all
        if len(self.args) == 2:
            members, threads = _number(self.args.pop()), self.program.threads
            self.require(members > 0 and members % LANES == 0)
            self.require(threads is None or members <= int(np.prod(threads)))
            if threads is not None and members == int(np.prod(threads)):
                members = 0
        self.plain(1)
        self.operation("BARRIER", count=_number(self.args[0]), width=members // LANES)

    def bra(self) -> None:
        self.option("uni")
        self.plain(1)
        self.operation("BRANCH", target=self.program.target(self.args[0], self.statement.scope))

    def brx(self) -> None:
        self.require(self.option("idx") is not None)
        self.option("uni")
        self.plain(2)
        names = self.program.around(self.args[1], self.statement.scope)
        labels = next(self.program.targets[name] for name in names if name in self.program.targets)
        self.row["operand"][0] = self.value(self.args[0], 4)
        self.row["list"] = len(self.program.lists)
        self.program.lists += [self.program.target(label, self.statement.scope) for label in labels]
        self.operation("BRANCH_TABLE", count=len(labels))

    def call(self) -> None:
        """Of a function that prints or fails. Its parameters lie in memory of the lane."""
        match = _CALL.match(self.statement.text)
        self.require(match is not None and match[2] in OUTSIDE)
        assert match
        places = [self.program.symbol(name.strip(), self.statement.scope) for name in match[3].split(",")]
        self.require(len(places) == OUTSIDE[match[2]] and None not in places)
        self.row["operand"][: len(places)] = places
        self.operation("PRINT" if match[2] == "vprintf" else "ASSERT")

    def ret(self) -> None:
        self.option("uni")
        self.plain(0)
        self.operation("EXIT")

    def trap(self) -> None:
        self.plain(0)
        self.operation("TRAP")

    # Asynchronous products and what they are waited for with ------------------------------------------------

    def list_of(self, names: list[str], *, result: bool) -> None:
        """Append registers to the list of the row."""
        if not self.row.get("list"):
            self.row["list"] = len(self.program.lists)
        self.program.lists += [self.result(name, 4) if result else self.value(name, 4) for name in names]

    def wgmma(self) -> None:
        for name in ("sync", "aligned"):
            self.require(self.option(name) is not None)
        what = self.parts.pop(0)
        if what in ("fence", "commit_group", "wait_group"):
            self.plain(int(what == "wait_group"))
            count = _number(self.args[0]) if self.args else 0
            self.operation(f"WGMMA_{what.removesuffix('_group').upper()}", count=count)
            return
        saturate = self.option("satfinite") is not None
        shape, *types = self.parts
        columns, depth = map(int, re.fullmatch(r"m64n(\d+)k(\d+)", shape).groups())  # type: ignore[union-attr]
        kind, source, other = types
        whole = source in ("s8", "u8")
        self.require(what == "mma_async" and depth == 32 // BYTES[source])
        if whole or source in EIGHTS:
            self.require(other in (("s8", "u8") if whole else EIGHTS))
        else:
            self.require(other == source and source in (*HALVES, "tf32"))
        narrow = kind == "f16" and source in ("f16", *EIGHTS)
        self.require(kind == ("s32" if whole else "f32") or narrow)
        self.require(whole or not saturate)
        self.require(columns % 8 == 0 and 8 <= columns <= 256)
        results, a, b, adds, *immediate = self.args
        in_registers = a.startswith("{")
        signs = [] if whole else [_number(text) for text in immediate[:2]]
        transposed = [_number(text) for text in immediate[len(signs) :]]
        turns = 0 if source not in HALVES else 1 if in_registers else 2
        self.require(len(transposed) == turns and len(signs) == (0 if whole else 2))
        self.require({*signs} <= {1, -1} and {*transposed} <= {0, 1})
        turned_a, turned_b = [0, 0, *transposed][-2:]
        mode = in_registers | turned_a << 1 | turned_b << 2 | saturate << 5
        mode |= (-1 in signs[:1]) << 3 | (-1 in signs[1:]) << 4
        names = self.vector(results)
        self.require(len(names) == columns // (4 if narrow else 2))
        self.list_of(names, result=True)
        self.reads += names
        if in_registers:
            self.require(len(self.vector(a)) == 4)
            self.list_of(self.vector(a), result=False)
        self.row["operand"][:3] = [
            -1 if in_registers else self.value(a, 8), self.value(b, 8), self.value(adds, 0)
        ]  # fmt: skip
        self.row["from"] = TYPE[source.upper()]
        self.operation("WGMMA", kind, count=columns, mode=mode, width=TYPE[other.upper()])

    def mbarrier(self) -> None:
        self.require(self.parts.pop() == "b64" and self.option("shared::cta", "shared") is not None)
        what = self.parts.pop(0)
        if what in ("try_wait", "test_wait"):
            self.require(self.option("parity") is not None)
            self.option("acquire")
            self.option("cta")
            self.plain(3)
            self.operation("MBARRIER_WAIT")
            self.row["operand"][:2] = [self.result(self.args[0], 0), self.value(self.args[2], 4)]
            self.memory(self.args[1])
            return
        if what in ("arrive", "expect_tx"):
            expects = what == "expect_tx" or self.option("expect_tx") is not None
            self.option("release", "relaxed")
            self.option("cta")
            if what == "arrive":
                self.require(self.args.pop(0) == "_")
            if expects:
                self.plain(2)
                self.operation("MBARRIER_ARRIVE", mode=1 if what == "arrive" else 2)
                self.row["operand"][0] = self.value(self.args[1], 4)
                self.memory(self.args[0])
                return
            self.args += ["1"] * (len(self.args) == 1)
        if what == "inval":
            self.args.append("0")
        self.plain(2)
        self.require(what in ("init", "inval", "arrive"))
        self.operation(f"MBARRIER_{what.upper()}")
        self.row["operand"][0] = self.value(self.args[1], 4)
        self.memory(self.args[0])

    def tcgen05(self) -> None:
        what = self.parts.pop(0)
        if what in ("alloc", "dealloc", "relinquish_alloc_permit", "mma", "commit"):
            self.require(self.option("cta_group::1") is not None)
        if what in ("mma", "commit"):
            (self.tensor_mma if what == "mma" else self.tensor_commit)()
            return
        for name in ("sync", "aligned"):
            self.require(self.option(name) is not None)
        if what.startswith("wait::"):
            self.plain(0)
            self.operation("TENSOR_WAIT", mode={"wait::ld": 1, "wait::st": 2}[what])
            return
        if what == "relinquish_alloc_permit":
            self.plain(0)
            self.operation("NOTHING")
            return
        self.type("b32")
        if what == "alloc":
            self.option("shared::cta")
            self.plain(2)
            self.operation("TENSOR_ALLOC")
            self.row["operand"][0] = self.value(self.args[1], 4)
            self.memory(self.args[0])
        elif what == "dealloc":
            self.plain(2)
            self.operation("TENSOR_DEALLOC")
            self.row["operand"][:2] = [self.value(text, 4) for text in self.args]
        else:
            self.tensor_move(what)

    def tensor_mma(self) -> None:
        if self.option("block_scale"):
            self.tensor_mma_scaled()
            return
        kinds = {"kind::f16": "f16", "kind::tf32": "tf32", "kind::f8f6f4": "e4m3", "kind::i8": "s8"}
        kind = kinds[self.parts.pop()]
        self.plain(5)
        a, b, what, adds = self.args[1:]
        inside = a.startswith("[")  # a lies in tensor memory
        self.row["operand"][:4] = [
            -1 if inside else self.value(a, 8), self.value(b, 8), self.value(what, 4), self.value(adds, 0)
        ]  # fmt: skip
        if inside:
            self.memory(a, second=True)
        self.operation("TENSOR_MMA", kind)
        self.memory(self.args[0])

    def tensor_mma_scaled(self) -> None:
        kind = self.option("kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4")
        sizes = {"block32": 2, "block16": 4, "scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4}
        name = self.option(*sizes)
        fours = kind != "kind::mxf8f6f4"
        blocks = 1 if not fours else sizes[name] if name else 2
        self.require(
            kind is not None and name in (("block32", "scale_vec::1X", None) if not fours else sizes)
        )
        self.require(blocks in ((2, 4) if fours else (1,)) and (blocks != 4 or kind == "kind::mxf4nvf4"))
        self.plain(7)
        a, b, what, scale_a, scale_b, adds = self.args[1:]
        inside = a.startswith("[")
        places = [
            -1 if inside else self.value(a, 8),
            self.value(b, 8),
            self.value(what, 4),
            self.value(adds, 0),
        ]
        for scale, offset in ((scale_a, "target"), (scale_b, "width")):
            self.memory(scale)
            self.require(self.row["wide"] == 0)
            places.append(self.row["operand"][ADDRESS])
            self.row[offset] = self.row["offset"]
        if inside:
            self.memory(a, second=True)
        self.row["operand"][:6] = places
        self.operation("TENSOR_MMA", "f32", mode=int(fours), count=1 + blocks)
        self.memory(self.args[0])

    def tensor_commit(self) -> None:
        self.require(self.parts.pop() == "b64" and self.option("mbarrier::arrive::one") is not None)
        self.option("shared::cluster")
        self.plain(1)
        self.operation("TENSOR_COMMIT")
        self.memory(self.args[0])

    def tensor_move(self, what: str) -> None:
        packed = self.option("pack::16b" if what == "ld" else "unpack::16b") is not None
        shape, times = self.parts
        count = int(times.removeprefix("x"))
        self.parts.clear()
        if what == "st":
            address, *half, registers = self.args
        else:
            registers, address, *half = self.args
        self.require(what in ("ld", "st") and shape in ("32x32b", "16x32bx2"))
        self.require(len(half) == (shape == "16x32bx2"))
        names = self.vector(registers)
        self.require(len(names) == count and count in (1, 2, 4, 8, 16, 32, 64, 128))
        self.list_of(names, result=what == "ld")
        self.operation("TENSOR_LOAD" if what == "ld" else "TENSOR_STORE", count=count)
        self.row["mode"] = len(half) + 2 * packed
        self.row["target"] = _number(half[0]) if half else 0
        self.memory(address)

    # Tensors in global memory by a tensor map ---------------------------------------------------------------

    def bulk(self, reduces: bool) -> None:
        """Copies of boxes of a tensor between global and shared memory, by one thread (TMA)."""
        if self.option("commit_group"):
            self.plain(0)
            self.operation("BULK_COMMIT")
            return
        if self.option("wait_group"):
            self.option("read")
            self.plain(1)
            self.operation("BULK_WAIT", count=_number(self.args[0]))
            return
        self.require(self.option("tensor") is not None)
        if self.option("prefetch"):
            self.operation("NOTHING")
            return
        dimensions = int(self.option("1d", "2d", "3d", "4d", "5d")[0])  # type: ignore[index]
        rows = self.option("tile::gather4", "tile::scatter4", "tile") in ("tile::gather4", "tile::scatter4")
        arguments = self.args
        if arguments and len(arguments) == 4:  # a cache policy
            self.require(self.option("L2::cache_hint") is not None or len(self.args) == 3)
            arguments = arguments[:3]
        stores = self.parts[:1] == ["global"]
        if stores:
            self.parts.pop(0)
            self.require(self.option("shared::cta") is not None and self.option("bulk_group") is not None)
            how = self.option("add", "min", "max", "and", "or", "xor") if reduces else None
            self.require(reduces == (how is not None))
            if "L2::cache_hint" in self.parts:
                self.parts.remove("L2::cache_hint")
                arguments = arguments[:2]
            box, shared = arguments
            self.operation("TMA_STORE", mode=ATOMICS.index(how) if how else -1)
        else:
            self.require(self.option("shared::cta", "shared::cluster") is not None and not reduces)
            self.require(self.option("global") is not None)
            self.require(self.option("mbarrier::complete_tx::bytes") is not None)
            shared, box, barrier = arguments
            self.operation("TMA_LOAD")
            self.memory(barrier)
            self.require(self.row["wide"] == 0)
            self.row["operand"][8] = self.row["operand"][ADDRESS]
            self.row["target"] = self.row["offset"]
        self.require(not self.parts)
        match = re.fullmatch(r"\[\s*([%\w$]+)\s*,\s*\{([^}]*)\}\s*\]", box)
        assert match
        at = [self.value(name.strip(), 4) for name in match[2].split(",")]
        self.require(len(at) == (5 if rows else dimensions) and not (rows and dimensions != 2))
        self.row["operand"][: len(at)] = at
        self.row["count"], self.row["width"] = dimensions, int(rows)
        self.memory(shared, second=True)
        self.memory(f"[{match[1]}]")
        self.row["order"], self.row["block_scope"] = RELAXED, 0

    def tensormap(self) -> None:
        if self.option("cp_fenceproxy"):
            for name in ("global", "shared::cta", "tensormap::generic", "release", "gpu", "sync", "aligned"):
                self.require(self.option(name) is not None)
            self.plain(3)
            self.require(_number(self.args[2]) == TENSORMAP_BYTES)
            self.operation("TENSORMAP_COPY")
            source = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*0)?\s*\]", self.args[1])
            assert source
            self.row["count"] = width = self.width_of([source[1]])
            self.row["operand"][0] = self.value(source[1], width)
            self.memory(self.args[0])
            return
        self.require(self.option("replace") is not None and self.option("tile") is not None)
        self.require(self.option("shared::cta") is not None and self.option("b1024") is not None)
        kind = self.type("b32", "b64")
        field = TENSORMAP.fields[self.parts.pop()]  # type: ignore[index]
        size, offset = field[0].base.itemsize, field[1]
        address, *which, value = self.args
        self.plain(3 if field[0].shape else 2)
        place = offset + size * (_number(which[0]) if which else 0)
        self.operation("TENSORMAP_SET", kind, count=size)
        self.row["operand"][0] = self.value(value, BYTES[kind])
        self.memory(address)
        self.row["offset"] += place


_ROUNDED = ("ADD", "SUB", "MUL", "FMA", "DIV", "SQRT", "RCP")


def _arithmetic(operation: str, arguments: int, *allowed: str) -> Callable[[_Decoder], None]:
    return lambda decoder: decoder.arithmetic(operation, arguments, allowed)


TENSORMAP_BYTES = 128
# A tensor map of this machine; NVIDIA does not tell its own. Numbers as in PTX's tensormap.replace.
TENSORMAP = np.dtype(
    [
        ("global_address", "<u8"), ("rank", "<u4"), ("elemtype", "u1"), ("interleave_layout", "u1"),
        ("swizzle_mode", "u1"), ("fill_mode", "u1"), ("box_dim", "<u4", 5), ("global_dim", "<u4", 5),
        ("global_stride", "<u8", 4), ("element_stride", "<u4", 5), ("rest", "u1", 20),
    ]
)  # fmt: skip
assert TENSORMAP.itemsize == TENSORMAP_BYTES

_DECODERS: dict[str, Callable[[_Decoder], None]] = {
    **{name: getattr(_Decoder, name) for name in (
        "mov", "cvta", "createpolicy", "ld", "st", "atom", "cp", "ldmatrix", "stmatrix", "mul", "mad", "shf",
        "bfe", "bfi", "bfind", "brev", "prmt", "lop3", "selp", "setp", "cvt", "shfl", "vote", "redux",
        "elect", "activemask", "mma", "fence", "bar", "bra", "ret", "trap", "testp", "set",
        "wgmma", "mbarrier", "tcgen05", "tensormap", "brx", "call",
    )},
    "red": _Decoder.atom,
    **dict.fromkeys(("addc", "subc", "madc"), _Decoder.carry),
    "membar": _Decoder.fence,
    "barrier": _Decoder.bar,
    "exit": _Decoder.ret,
    **dict.fromkeys(("and", "or", "xor", "not"), _Decoder.logic),
    **dict.fromkeys(("shl", "shr"), _Decoder.shift),
    **dict.fromkeys(("popc", "clz"), _Decoder.bit_count),
    **{name: _arithmetic(name.upper(), 3, *INTEGERS, *FLOATS) for name in ("add", "sub")},
    **{name: _arithmetic(name.upper(), 3, *INTEGERS, *FLOATS, *PAIRS) for name in ("min", "max")},
    **{name: _arithmetic(name.upper(), 2, "s16", "s32", "s64", *FLOATS) for name in ("abs", "neg")},
    "div": _arithmetic("DIV", 3, *INTEGERS, *WIDE_FLOATS),
    "rem": _arithmetic("REM", 3, *INTEGERS),
    "fma": _arithmetic("FMA", 4, *FLOATS),
    **{name: _arithmetic(name.upper(), 2, *WIDE_FLOATS) for name in ("sqrt", "rsqrt", "rcp")},
    **{name: _arithmetic(name.upper(), 2, "f32") for name in ("lg2", "sin", "cos")},
    **{name: _arithmetic(name.upper(), 2, "f32", *HALVES, "f16x2", "bf16x2") for name in ("ex2", "tanh")},
    **dict.fromkeys(("nanosleep", "prefetch", "prefetchu", "griddepcontrol", "setmaxnreg"), _Decoder.nothing),
    "copysign": _arithmetic("COPYSIGN", 3, *WIDE_FLOATS),
}  # fmt: skip


def _plain_type(kind: str) -> str:
    """The machine's name of a type; untyped bits are unsigned."""
    return (f"u{kind[1:]}" if kind[0] == "b" and kind[1].isdigit() else kind).upper()


def _number(text: str) -> int:
    """A constant: decimal, hexadecimal, or the bits of a floating-point number (0f3F800000)."""
    if re.match(r"0[fFdD][0-9a-fA-F]{8,16}$", text):
        return int(text[2:], 16)
    return int(text.rstrip("U"), 0)


def _parameter(text: str) -> tuple[str, str]:
    words = text.split()
    kinds = [word[1:] for word in words if word[1:] in BYTES]
    name = re.sub(r"\[.*\]$", "", words[-1])
    return name, "array" if "[" in words[-1] else kinds[0]


def _functions(text: str) -> dict[str, tuple[int, list[str], str]]:
    """Functions beside the kernel: the line of the body, the parameters (the result first), the body."""
    out = {}
    for found in re.finditer(r"\.func\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*\(([^)]*)\)[^{};]*\{", text):
        formal = [
            _parameter(part)[0]
            for group in (found[1], found[3])
            for part in (group or "").split(",")
            if part.strip()
        ]
        out[found[2]] = text[: found.end()].count("\n") + 1, formal, _body(text[found.end() :])
    return out


def _body(text: str) -> str:
    """Up to the brace that closes the kernel."""
    depth = 1
    for match in re.finditer(r"[{}]", text):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return text[: match.start()]
    raise ValueError("the PTX text ends inside the kernel")


def _source(text: str, files: dict[str, str]) -> str:
    """ "fused.py:222", with the line that inlined it."""
    places = re.findall(r"(?:\.loc|inlined_at)\s+(\d+)\s+(\d+)", text)
    return " in ".join(f"{Path(files.get(file, '?')).name}:{line}" for file, line in places)
