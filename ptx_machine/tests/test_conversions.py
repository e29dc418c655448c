"""Every conversion that the decoder accepts: all values of 8 and 16 bits, edge cases of 32 and 64."""

import itertools
import math

import formats
import numpy as np
import pytest
from formats import FLOATS, WHOLE
from ptx_text import elementwise, kernel

import ptx_machine


def modifiers(kind: str, source: str) -> list[tuple[str, ...]]:
    """(rounding, flags) that PTX allows between two types, as an opcode has them."""
    if kind in WHOLE:
        if source in WHOLE:
            return [(), ("sat",)]
        ways = [("rni",), ("rzi",), ("rmi",), ("rpi",), ("rni", "sat")]
        return [*ways, *([("rzi", "ftz")] if source == "f32" else [])]
    if source in WHOLE:
        return [(how,) for how in ("rn", "rz", "rm", "rp")]
    narrows = formats.size(kind) < formats.size(source) or {kind, source} == {"f16", "bf16"}
    ways = [(how,) for how in ("rn", "rz", "rm", "rp")] if narrows else [()]
    if kind == source:
        ways += [("rni",), ("rzi",), ("rmi",), ("rpi",)]
    ways += [(*way, "sat") for way in ways]
    return ways + [(*way, "ftz") for way in ways if "f32" in (kind, source)]


PAIRS = [(kind, source) for kind in (*FLOATS, *WHOLE) for source in (*FLOATS, *WHOLE)]


def opcode(kind: str, source: str, how: tuple[str, ...]) -> str:
    order = sorted(
        how, key=("ftz", "sat").index if not set(how) - {"ftz", "sat"} else lambda part: len(part) > 2
    )
    return ".".join(["cvt", *order, kind, source])


def expected(value, kind: str, source: str, how: tuple[str, ...]):
    """The value after a conversion, by definition; a Python number, and whether a zero is negative."""
    rounding = next((part[:2] for part in how if part[0] == "r"), "rn")
    value = value.item() if source in ("f32", "f64") or source in WHOLE else float(value)
    if isinstance(value, float):
        if math.isnan(value):
            return (0 if kind in WHOLE or "sat" in how else math.nan), False
        negative = math.copysign(1, value) < 0
        if "ftz" in how and source == "f32" and abs(value) < 2.0**-126:
            value = math.copysign(0.0, value)
        if any(part.endswith("i") for part in how) and not math.isinf(value):
            value = formats.INTEGRAL[rounding](value)
    else:
        negative = value < 0
    if kind in WHOLE:
        info = np.iinfo(formats.DTYPE[kind])
        if source in FLOATS or "sat" in how:
            clamped = info.min if value < info.min else info.max if value > info.max else int(value)
            return clamped, False
        bits = 8 * formats.size(kind)
        value %= 1 << bits
        return (value - (1 << bits) if value > info.max else value), False
    if "sat" in how:
        value, negative = (0, False) if value <= 0 else (min(value, 1), False)
    if isinstance(value, float) and math.isinf(value):
        return value, negative
    result = formats.rounded(value, kind, rounding)
    if "ftz" in how and kind == "f32" and abs(result) < 2.0**-126:
        result = 0.0
    return result, negative


def bits(kind: str, value, negative: bool, register: int) -> int:
    if kind in WHOLE:
        return int(value) % (1 << 8 * register)  # sign-extended or zero-extended to the register
    if value == 0 and negative:
        value = -0.0
    return formats.bits_of(float(value), kind)


@pytest.mark.parametrize(("kind", "source"), PAIRS)
def test_conversion(kind, source):
    every = formats.edges(source)
    register = max(2, formats.size(kind))
    for how in modifiers(kind, source):
        # All 65,536 values under each rounding; with a flag beside it every eleventh.
        values = every[:: 11 if len(every) == 1 << 16 and {"sat", "ftz"} & {*how} else 1]
        mine = elementwise(f"{opcode(kind, source, how)} {{out}}, {{0}};", values, out=f"u{register}")
        wanted = np.array([bits(kind, *expected(v, kind, source, how), register) for v in values], mine.dtype)
        differs = mine != wanted
        if kind in FLOATS:
            with np.errstate(all="ignore"):
                both = [x.view(formats.DTYPE[kind]).astype("f8") for x in (mine, wanted)]
            differs &= ~(np.isnan(both[0]) & np.isnan(both[1]))
        at = np.flatnonzero(differs)[:4]
        assert not len(at), (how, values[at], mine[at], wanted[at], f"{differs.sum()} of {len(values)}")


@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "u16", "s32", "u32"])
@pytest.mark.parametrize("source", ["s32", "u64", "f32", "bf16"])
def test_a_result_narrower_than_its_register_is_extended(kind, source):
    values = formats.edges(source)
    how = () if source in WHOLE else ("rzi",)
    for wide in (4, 8):
        if wide > formats.size(kind):
            text = f"{opcode(kind, source, how)} {{out}}, {{0}};"
            mine = elementwise(text, values, out=f"u{formats.size(kind)}", wide=wide)
            wanted = [bits(kind, *expected(v, kind, source, how), wide) for v in values]
            assert (mine == np.array(wanted, mine.dtype)).all()


def test_nothing_else_is_accepted():
    """Any combination of modifiers beyond those that the oracle of this file knows is refused."""
    parts = ["", ".rn", ".rz", ".rm", ".rp", ".rna", ".rni", ".rzi"]
    for kind, source in PAIRS:
        known = {frozenset(how) for how in modifiers(kind, source)}
        for rounding, ftz, sat in itertools.product(parts, ("", ".ftz"), ("", ".sat")):
            how = frozenset(part for part in f"{rounding}{ftz}{sat}".split(".") if part)
            register = {2: "%h", 4: "%r", 8: "%d"}
            target, value = (f"{register[max(2, formats.size(k))]}1" for k in (kind, source))
            text = kernel(f"cvt{rounding}{ftz}{sat}.{kind}.{source} {target}, {value};", 0)
            accepted = not ptx_machine.unknown_instructions(text)
            if how == set() and (kind, source) == ("bf16", "f16"):
                assert accepted  # of numbers that fit: the machine stops at others
            elif accepted and how not in known:
                # Flags that change nothing: a float saturates to an integer anyway.
                assert kind in WHOLE and source in FLOATS, (kind, source, how)
