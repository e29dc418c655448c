"""Small PTX programs for the tests of the machine."""

from __future__ import annotations

import re

import numpy as np

import ptx_machine

REGISTER = {1: "%h", 2: "%h", 4: "%r", 8: "%d"}


def kernel(body: str, parameters: int, *, threads: int = 32, shared: int = 0) -> str:
    """A kernel with pointers p0, p1, ... in %d0, %d1, ... and the thread's number in %r0."""
    names = ", ".join(f".param .u64 p{k}" for k in range(parameters))
    loads = "\n".join(f"ld.param.b64 %d{k}, [p{k}];" for k in range(parameters))
    return f"""
    .version 8.7
    .target sm_80
    .address_size 64
    {f".shared .align 16 .b8 buffer[{shared}];" if shared else ""}
    .visible .entry k({names}) .reqntid {threads}
    {{
    .reg .pred %p<10>; .reg .b16 %h<30>; .reg .b32 %r<60>; .reg .b64 %d<60>;
    {loads}
    mov.u32 %r0, %tid.x;
    {body}
    ret;
    }}
    """


def lanes(instruction: str, *inputs: np.ndarray, out: str) -> np.ndarray:
    """One instruction on 32 lanes: {0}, {1}, ... are the inputs' registers, {out} (dtype `out`) the result.

    A result of dtype bool is a predicate.
    """
    result = np.zeros(32, out)
    registers, lines = [], []
    for k, values in enumerate(inputs):
        size = values.itemsize
        register = f"{REGISTER[size]}{10 + k}"
        registers.append(register)
        lines += [f"mad.wide.u32 %d{40 + k}, %r0, {size}, %d{k};"]
        lines += [f"ld.global.{'u8' if size == 1 else f'b{8 * size}'} {register}, [%d{40 + k}];"]
        if values.dtype == bool:
            lines += [f"setp.ne.b16 %p{k + 1}, {register}, 0;"]
            registers[-1] = f"%p{k + 1}"
    size = result.itemsize
    target = "%p0" if result.dtype == bool else f"{REGISTER[size]}9"
    lines.append(
        re.sub(r"\{(\w+)\}", lambda m: target if m[1] == "out" else registers[int(m[1])], instruction)
    )
    if result.dtype == bool:
        lines.append("selp.b16 %h9, 1, 0, %p0;")
        target = "%h9"
    lines += [f"mad.wide.u32 %d50, %r0, {size}, %d{len(inputs)};", f"st.global.b{8 * size} [%d50], {target};"]
    report = ptx_machine.run(kernel("\n".join(lines), len(inputs) + 1), (1,), [*inputs, result])
    report.check()
    return result


def elementwise(instruction: str, *inputs: np.ndarray, out: str, wide: int = 0) -> np.ndarray:
    """As `lanes`, for any number of values; the result's register has `wide` bytes if that is more."""
    n, size = len(inputs[0]), max(np.dtype(out).itemsize, wide, 2)
    result = np.zeros(n, f"u{size}")
    registers, lines = [], ["mov.u32 %r1, %ctaid.x; mad.lo.u32 %r1, %r1, 128, %r0;"]
    lines += [f"setp.ge.u32 %p1, %r1, {n}; @%p1 bra $L_end;"]
    for k, values in enumerate(inputs):
        bytes_ = values.itemsize
        registers.append(f"{REGISTER[bytes_]}{10 + k}")
        lines += [f"mad.wide.u32 %d{40 + k}, %r1, {bytes_}, %d{k};"]
        lines += [f"ld.global.{'u8' if bytes_ == 1 else f'b{8 * bytes_}'} {registers[-1]}, [%d{40 + k}];"]
    target = f"{REGISTER[size]}9"
    lines.append(
        re.sub(r"\{(\w+)\}", lambda m: target if m[1] == "out" else registers[int(m[1])], instruction)
    )
    lines += [f"mad.wide.u32 %d50, %r1, {size}, %d{len(inputs)};", f"st.global.b{8 * size} [%d50], {target};"]
    text = kernel("\n".join([*lines, "$L_end:"]), len(inputs) + 1, threads=128)
    given = [np.ascontiguousarray(values).view(f"u{values.itemsize}") for values in inputs]
    ptx_machine.run(text, (-(-n // 128),), [*given, result], races=False).check()
    return result
