"""A machine that executes PTX on a CPU: the code that a GPU would run, instruction by instruction."""

from .decode import Program, UnknownInstruction, unknown_instructions
from .execute import Executed, Finding, MachineError, Report, run
from .hook import on_machine
from .library import NoCompiler, compiler

__all__ = [
    "Executed",
    "Finding",
    "MachineError",
    "NoCompiler",
    "Program",
    "Report",
    "UnknownInstruction",
    "compiler",
    "on_machine",
    "run",
    "unknown_instructions",
]
