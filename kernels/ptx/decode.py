"""PTX text -> the instructions that the machine executes.

`Program(text)` decodes a kernel, and raises `UnknownInstruction` for what the machine does not execute;
`unknown_instructions(text)` lists all of it. An opcode is accepted only if every part of it is understood: a
modifier that is ignored could change the result.
"""

from __future__ import annotations

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
    + [(name, "<i4") for name in ("negated", "count", "width", "wide", "target")]
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
INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
BITS = ("b16", "b32", "b64")
WIDE_FLOATS = ("f32", "f64")
FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32x2", *WIDE_FLOATS)
HALVES = ("f16", "bf16")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "num", "nan", "ltu", "leu", "gtu", "geu", "equ", "neu")
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")
ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
CACHES = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"}  # where a copy may stay: no change of the value
SPECIAL = [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
SPECIAL += ["%laneid", "%warpid"]
FTZ, NAN_WINS = 1, 2
TO_INTEGRAL, SATURATE, FLUSH = 8, 16, 32  # of cvt, beside the rounding


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
        if any(opcode.startswith(("wgmma", "tcgen05")) for opcode in opcodes):
            text += "; the tensor cores of sm_90 and sm_100 (wgmma, tcgen05) are out of its reach"
        super().__init__(text)


def unknown_instructions(text: str) -> list[str]:
    """The opcodes of a kernel that the machine does not execute, in order of appearance; empty: it runs.

    >>> unknown_instructions(".entry k() { wgmma.fence.sync.aligned; bar.sync 0; ret; }")
    ['wgmma.fence.sync.aligned']
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
        self.parameter_places = [self._new(max(1, BYTES.get(kind, 0))) for _, kind in self.parameters]
        files = dict(re.findall(r"^\s*\.file\s+(\d+)\s+\"([^\"]*)\"", text, re.MULTILINE))
        self.labels: dict[str, int] = {}
        start = text[: entry.end()].count("\n") + 1
        self.statements = list(self._statements(_body(text[entry.end() :]), start, files))
        unknown: dict[str, Statement] = {}
        self.code = np.zeros(len(self.statements), INSTRUCTION)
        self._touched: list[tuple[list[str], list[str], str | None]] = []
        for number, statement in enumerate(self.statements):
            decoder = _Decoder(self, statement)
            try:
                self.code[number] = decoder.record()
            except _Refused:
                unknown.setdefault(statement.opcode, statement)
            self._touched.append((decoder.writes, decoder.reads, decoder.address))
        self.unknown = list(unknown)
        if strict and unknown:
            raise UnknownInstruction(unknown[self.unknown[0]], self.unknown)

    @cached_property
    def written(self) -> frozenset[int]:
        """Which parameters reach the address of a store: a register may point where its operands point.

        What is stored to shared memory may be loaded from it: Triton exchanges pointers like that. A pointer
        from global memory may point anywhere.
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
                else:
                    sources = 0 if parameter is None else 1 << parameter
                    for name in reads:
                        sources |= reach.get(name, 0)
                if operation in ("STORE_SHARED", "STMATRIX"):
                    reach["shared"] |= sources
                for name in writes:
                    reach[name] = reach.get(name, 0) | sources
        stored = 0
        for operation, (_, _, address) in zip(operations, self._touched):
            if operation in ("STORE_GLOBAL", "ATOM_GLOBAL") and address is not None:
                stored |= reach.get(address, 0) or -1
        return frozenset(k for k in range(len(self.parameters)) if stored >> k & 1)

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
            elif name.endswith(f"_{space.upper()}"):
                sizes.append(BYTES[statement.opcode.split(".")[-1]])
        return min(sizes)

    def place(self, name: str, scope: int = 0) -> int:
        """The byte offset of a register, a special register or a constant."""
        owner = _owned(name, scope) if _owned(name, scope) in self._widths else name
        if owner not in self._places:
            self._places[owner] = self._new(self.width(name, scope))
        return self._places[owner]

    def width(self, name: str, scope: int = 0) -> int:
        """Bytes of a register; 0: a predicate."""
        if name in SPECIAL:
            return 4
        prefix = re.sub(r"\d+$", "", name)
        for owner in (_owned(name, scope), name, prefix):
            if owner in self._widths:
                return self._widths[owner]
        raise KeyError(name)

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

    def _declare_registers(self, text: str, scope: int) -> None:
        kind, names = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        for name in (name.strip() for name in names.split(",")):
            numbered = re.match(r"(%?[\w$]+)<\d+>$", name)
            self._widths[numbered[1] if numbered else _owned(name, scope)] = BYTES[kind]

    def _statements(self, body: str, line: int, files: dict[str, str]) -> Iterator[Statement]:
        """The instructions; declarations and labels go into their tables on the way."""
        source, pending, begun, count = "", "", line, 0
        scopes, opened = [0], 0
        for number, raw in enumerate(body.split("\n"), line):
            text = raw.split("//")[0].strip()
            if text.startswith(".loc"):
                source = _source(text, files)
                continue
            for piece in re.findall(r"[;{}]|[^;{}]+", text):
                if piece == "{" and not pending:
                    opened += 1
                    scopes.append(opened)
                elif piece == "}" and not pending:
                    scopes.pop()
                elif piece != ";":
                    while not pending and (label := _LABEL.match(piece)):
                        self.labels[_owned(label[1], scopes[-1])] = count
                        piece = piece[label.end() :]
                    if piece.strip():
                        begun = begun if pending else number
                        pending += piece
                elif pending:
                    statement, pending = " ".join(pending.split()), ""
                    if statement.startswith(".reg"):
                        self._declare_registers(statement, scopes[-1])
                    elif not statement.startswith((".pragma", ".shared")):
                        yield Statement(statement, begun, source, scopes[-1])
                        count += 1
            pending += " " if pending else ""


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
        except (KeyError, ValueError, IndexError, AttributeError):
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
        if text.startswith("%"):
            self.reads.append(text)
            return self.register(text, bytes_)
        if text in self.program.shared:
            return self.program.constant(self.program.shared[text], bytes_)
        return self.program.constant(_number(text), bytes_)

    def vector(self, text: str) -> list[str]:
        return [part.strip() for part in text.strip("{} ").split(",")]

    def width_of(self, names: list[str]) -> int:
        """The width that the registers of a vector have in common."""
        (width,) = {self.program.width(name, self.statement.scope) for name in names if name != "_"}
        return width

    def memory(self, text: str, *, second: bool = False) -> None:
        match = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
        assert match, text
        base, offset = match[1], int(match[2] or "0", 0)
        if base.startswith("%"):
            wide = self.program.width(base, self.statement.scope) == 8
            place = self.program.place(base, self.statement.scope)
            self.address = base
        else:
            wide, place = False, self.program.constant(self.program.shared[base], 4)
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
            self.require(width >= 2)
            if target.startswith("{"):
                places = [self.result(name, width) for name in names] + [self.value(value, BYTES[kind])]
            else:
                places = [self.result(target, BYTES[kind])] + [self.value(name, width) for name in names]
            self.row["operand"][: len(places)] = places
            self.operation(
                "UNPACK" if target.startswith("{") else "PACK", kind, count=len(names), width=width
            )
            return
        self.operation("MOV", kind)
        self.operands(BYTES[kind], BYTES[kind])
        if kind == "pred":
            self.row["operand"][2] = self.row["operand"][1]

    def cvta(self) -> None:
        """Global addresses are the same as generic ones here."""
        self.option("to")
        self.require(self.option("global") is not None)
        self.type("u64")
        self.plain(2)
        self.operation("MOV", "u64")
        self.operands(8, 8)

    def createpolicy(self) -> None:
        """A cache policy is a hint: any number will do."""
        self.require(self.parts.pop() == "b64")
        self.args = [self.args[0], "0"]
        self.operation("MOV", "u64")
        self.operands(8, 8)

    def ld(self) -> None:
        if self.option("param"):
            self.ld_param()
            return
        self.load_or_store(self.args[0], self.args[1], store=False)

    def ld_param(self) -> None:
        kind = self.type(*BITS, *INTEGERS, "b8", "u8", "s8", "f32", "f64")
        self.plain(2)
        name = self.args[1].strip("[] ")
        position = [parameter for parameter, _ in self.program.parameters].index(name)
        size = BYTES[self.program.parameters[position][1]]
        self.require(size == BYTES[kind])
        width = self.width_of([self.args[0]])
        integer = kind if kind[0] in "us" else f"u{8 * size}"
        self.row["from"] = TYPE[integer.upper()]
        self.operation(
            "CVT", f"{'s' if integer[0] == 's' else 'u'}{8 * max(width, size)}", count=size, width=width
        )
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
        if space == "GLOBAL":
            self.option("global")
        self.order(WEAK)
        self.require(not (space == "SHARED" and self.row["order"] & (ACQUIRE | RELEASE)))
        self.plain(3 if policy else 2)
        names = self.vector(registers)
        self.require(len(names) == count and count * BYTES[kind] <= 32)
        if store:
            constants = [name for name in names if not name.startswith("%")]
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

    def atom(self) -> None:
        self.hints()
        self.option("noftz")
        kind = self.type("b32", "b64", "u32", "s32", "u64", "s64", "f32", "f64", *HALVES)
        name = self.option(*ATOMICS)
        assert name
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
        self.row["operand"][:3] = [self.result(target, size), *(self.value(v, size) for v in values), -1][:3]
        self.operation(f"ATOM_{space}", kind, mode=ATOMICS.index(name))
        self.memory(address)

    def cp(self) -> None:
        self.require(self.option("async") is not None)
        if self.option("commit_group"):
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
                self.option("rn")
            if kind == "f32" and self.option("ftz"):
                mode |= FTZ
            if operation in ("MIN", "MAX") and self.option("NaN"):
                mode |= NAN_WINS
        self.plain(arguments)
        self.operation(operation, kind, mode=mode)
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
        high = self.option("hi") is not None
        if high or self.option("lo"):
            self.arithmetic(f"{operation}HI" if high else operation, arguments, INTEGERS)
        elif operation == "MUL":
            self.arithmetic("MUL", 3, FLOATS)
        else:
            self.refuse()

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

    def selp(self) -> None:
        kind = self.type(*BITS, *INTEGERS, *WIDE_FLOATS)
        self.plain(4)
        self.operation("SELP", kind)
        self.operands(BYTES[kind], BYTES[kind], BYTES[kind], 0)

    def setp(self) -> None:
        kind = self.type(*BITS, *INTEGERS, *HALVES, *WIDE_FLOATS)
        self.require(len(self.parts) == 1)
        how = COMPARISONS.index(self.parts.pop())
        self.require(kind in (*HALVES, *WIDE_FLOATS) or how < 6)  # the others ask about NaN
        self.plain(3)
        self.operation("SETP", kind, mode=how)
        self.operands(0, BYTES[kind], BYTES[kind])

    def cvt(self) -> None:
        source = self.parts.pop()
        kind = self.parts.pop()
        rounding = self.option(*ROUNDINGS)
        to_integral = self.option("rni", "rzi", "rmi", "rpi")
        ftz, saturate = self.option("ftz"), self.option("sat")
        if kind in ("f16x2", "bf16x2"):
            self.require(source == "f32" and rounding == "rn" and not (to_integral or ftz or saturate))
            self.plain(3)
            self.operation("CVT_PAIR", kind)
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
        self.require(rounding != "rna" and (saturate is None or (kind in real and source in real)))
        narrowing = kind in real and (source in whole or BYTES[kind] < BYTES[source])
        self.require(
            (rounding in ("rn", "rz") if source in real else rounding == "rn") if narrowing else not rounding
        )
        self.require((kind in whole and source in real) <= (to_integral is not None))
        self.plain(2)
        mode = ROUNDINGS.index(to_integral[:2] if to_integral else rounding or "rn")
        mode |= TO_INTEGRAL * bool(to_integral) | SATURATE * bool(saturate) | FLUSH * bool(ftz)
        target, value = self.args
        width = self.width_of([target])
        size = self.width_of([value]) if value.startswith("%") else max(2, BYTES[source])
        self.require(width >= BYTES[kind] and size >= BYTES[source])
        self.row["from"] = TYPE[source.upper()]
        self.operation("CVT", kind, mode=mode, count=size, width=width)
        self.row["operand"][:2] = [self.result(target, width), self.value(value, size)]

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
        kind = self.type("s32", "u32", "b32")
        self.require(self.option("sync") is not None)
        name = self.option("add", "min", "max", "and", "or", "xor")
        mode = ATOMICS.index(name or "")
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
        shape, *types = self.parts
        shapes = {"m16n8k16": 16, "m16n8k8": 8, "m16n8k4": 4}
        source = types[1]
        allowed = {"f16": (16, 8), "bf16": (16, 8), "tf32": (8, 4)}
        self.require(types == ["f32", source, source, "f32"] and shapes[shape] in allowed[source])
        depth = shapes[shape]
        per = 1 if source == "tf32" else 2
        sizes = (4, 16 * depth // (32 * per), 8 * depth // (32 * per), 4)
        vectors = [self.vector(arg) for arg in self.args]
        self.require([len(names) for names in vectors] == list(sizes))
        places = [self.result(name, 4) for name in vectors[0]]
        places += [self.value(name, 4) for names in vectors[1:] for name in names]
        self.row["operand"][: len(places)] = places
        self.row["from"] = TYPE[source.upper()]
        self.operation("MMA", "f32", count=depth)

    def fence(self) -> None:
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
        if len(self.args) == 2:  # of all threads of the block, or it is not known here
            threads = self.program.threads
            self.require(threads is not None and _number(self.args[1]) == int(np.prod(threads)))
            del self.args[1]
        self.plain(1)
        self.operation("BARRIER", count=_number(self.args[0]))

    def bra(self) -> None:
        self.option("uni")
        self.plain(1)
        label = self.args[0]
        labels = self.program.labels
        own = _owned(label, self.statement.scope)
        self.operation("BRANCH", target=labels[own if own in labels else label])

    def ret(self) -> None:
        self.option("uni")
        self.plain(0)
        self.operation("EXIT")

    def trap(self) -> None:
        self.plain(0)
        self.operation("TRAP")


def _arithmetic(operation: str, arguments: int, *allowed: str) -> Callable[[_Decoder], None]:
    return lambda decoder: decoder.arithmetic(operation, arguments, allowed)


_DECODERS: dict[str, Callable[[_Decoder], None]] = {
    **{name: getattr(_Decoder, name) for name in (
        "mov", "cvta", "createpolicy", "ld", "st", "atom", "cp", "ldmatrix", "stmatrix", "mul", "mad", "shf",
        "bfe", "bfi", "brev", "prmt", "lop3", "selp", "setp", "cvt", "shfl", "vote", "redux", "elect",
        "activemask", "mma", "fence", "bar", "bra", "ret", "trap",
    )},
    "red": _Decoder.atom,
    "membar": _Decoder.fence,
    "barrier": _Decoder.bar,
    "exit": _Decoder.ret,
    **dict.fromkeys(("and", "or", "xor", "not"), _Decoder.logic),
    **dict.fromkeys(("shl", "shr"), _Decoder.shift),
    **dict.fromkeys(("popc", "clz"), _Decoder.bit_count),
    **{name: _arithmetic(name.upper(), 3, *INTEGERS, *FLOATS) for name in ("add", "sub", "min", "max")},
    **{name: _arithmetic(name.upper(), 2, "s16", "s32", "s64", *FLOATS) for name in ("abs", "neg")},
    "div": _arithmetic("DIV", 3, *INTEGERS, *WIDE_FLOATS),
    "rem": _arithmetic("REM", 3, *INTEGERS),
    "fma": _arithmetic("FMA", 4, *FLOATS),
    **{name: _arithmetic(name.upper(), 2, *WIDE_FLOATS) for name in ("sqrt", "rsqrt", "rcp")},
    **{name: _arithmetic(name.upper(), 2, "f32") for name in ("ex2", "lg2", "sin", "cos", "tanh")},
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
