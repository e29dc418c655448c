"""A machine that executes PTX on a CPU: the code that a GPU would run, instruction by instruction.

Warps and blocks run under random schedules; a race detector follows the PTX memory model; every access is
checked against the bounds of its argument. For a kernel of your own:

    with ptx_machine.on_machine("sm_80", seed=3) as reports:
        kernel[grid](x, y, out, n, BLOCK=256)  # a Triton kernel, CPU tensors
    reports[0].check()

`run` does the same for PTX text:

    >>> import numpy as np
    >>> twice = '''
    ...     .visible .entry twice(.param .u64 x) .reqntid 32 {
    ...         .reg .b32 %r<4>; .reg .b64 %d<4>;
    ...         ld.param.b64 %d1, [x];
    ...         mov.u32 %r1, %tid.x;
    ...         mad.wide.u32 %d2, %r1, 4, %d1;
    ...         ld.global.b32 %r2, [%d2];
    ...         add.s32 %r2, %r2, %r2;
    ...         st.global.b32 [%d2], %r2;
    ...         ret;
    ...     }'''
    >>> x = np.arange(32, dtype=np.int32)
    >>> run(twice, (1,), [x]).check()
    >>> x[:5]
    array([0, 2, 4, 6, 8], dtype=int32)

Read the files in this order: `decode` (text to instructions), `machine/` (C++: `program.h`, what the two
languages share; `machine.cpp`, the schedule; `operations.cpp`, `numbers.h` and `tensor.cpp`, the
instructions; `memory.cpp`, `asynchronous.h` and `races.h`, memory and the race detector; `copies.cpp`, boxes
of tensors), `execute` (a launch
and its report), `hook` (launches of Triton kernels), `library` (building the C++ part).
"""

from .decode import Program, UnknownInstruction, unknown_instructions
from .execute import Executed, Finding, MachineError, Report, TensorMap, run
from .hook import on_machine
from .library import NoCompiler, compiler
from .reading import summary

__all__ = [
    "Executed",
    "Finding",
    "MachineError",
    "NoCompiler",
    "Program",
    "Report",
    "TensorMap",
    "UnknownInstruction",
    "compiler",
    "on_machine",
    "run",
    "summary",
    "unknown_instructions",
]
