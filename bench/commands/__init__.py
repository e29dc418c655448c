"""`eagc bench COMMAND`: one command per question.

Each command has a file here, with `parse(argv)` for its options and `run(arguments)`, which measures, saves
and prints. torch is imported by `run`: --help and wrong options do not wait for it.
"""

from __future__ import annotations

import argparse
import importlib

from eagc_ops.bench.commands.options import make_folders
from eagc_ops.bench.pinning import pin_process
from eagc_ops.console import Parser, command

COMMANDS = {
    "operator": "the CPU path and the conceptor solve against the released formulation",
    "throughput": "rows x D x dtype: released hooks, plain torch, torch.compile and this package",
    "roofline": "a picture: measured points of this device, modelled points of four GPUs",
    "overhead": "the paper's overhead table: steps, memory, evaluation, reference model, trunk cache",
    "loader": "loading a photograph: as published, and from cached pixels",
    "conceptor": "S and Ebar from features: time, error, symmetry, eigenvalues",
    "estimate": "the search for the number of classes: as published, and with shared first centers",
    "all": "all of the above, with pictures",
    "aot": "compile the kernels for GPUs that are absent: registers, spills, shared memory",
    "compare": "two results files: ratios, and which measurements became worse",
}
_NOT_TIMED = ("aot", "compare")


def main(argv: list[str]) -> int:
    listed = "\n".join(f"  {name:11} {line}" for name, line in COMMANDS.items())
    parser = Parser(
        prog="eagc bench",
        usage="eagc bench COMMAND [options]",
        description="Measure. On a CPU, times are CPU time of one thread, and every ratio has its quartiles.",
        epilog=f"commands:\n{listed}\n\n`eagc bench COMMAND --help` shows a command's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    name = parser.parse_args(argv[:1]).command
    if name is None:
        parser.error(f"COMMAND is missing; choose one of {', '.join(COMMANDS)}")
    module = importlib.import_module(f"eagc_ops.bench.commands.{name}")

    @command(f"eagc bench {name}")
    def run(argv: list[str]) -> int:
        arguments = module.parse(argv)
        make_folders(arguments)
        if name not in _NOT_TIMED:
            pin_process()
        return module.run(arguments)

    return run(argv[1:])
