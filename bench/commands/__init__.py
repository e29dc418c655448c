"""`eagc bench COMMAND`: one command per question.

Each command has a file here, with `parse(argv)` for its options and `run(arguments)`, which measures, saves
and prints. torch is imported by `run`: --help and wrong options do not wait for it.
"""

from __future__ import annotations

import argparse
import importlib

from eagc_ops.app.console import Parser, command
from eagc_ops.bench.commands.options import make_folders
from eagc_ops.bench.pinning import pin_process

COMMANDS = {
    "operator": "the CPU path and the conceptor solve against the released formulation",
    "throughput": "rows x D x dtype: released hooks, plain torch, torch.compile and this package",
    "host": "what a call costs the host: the fused path, the dense torch form and the released hooks",
    "roofline": "a picture: measured points of this device, modelled points of four GPUs",
    "overhead": "the paper's overhead table: steps, memory, evaluation, reference model, trunk cache",
    "loader": "loading a photograph: as published, and from cached pixels",
    "conceptor": "S and Ebar from features: time, error, symmetry, eigenvalues",
    "estimate": "the search for the number of classes: as published, and with shared first centers",
    "discover": "the categories that are found in real data sets, with K known and estimated",
    "scale": "the first answer of many images: seconds and memory, and k-means by libraries",
    "refine": "what the corrections of a simulated person give the images that it has not touched",
    "all": "all of the above that need no data, with pictures",
    "aot": "compile the kernels for GPUs that are absent: registers, spills, shared memory",
    "compare": "two results files: ratios, and which measurements became worse",
}
_NOT_TIMED = ("aot", "compare", "discover", "refine")


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
