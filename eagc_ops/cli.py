"""The command `eagc`: a table of commands, and the dispatch. Each command has its own `--help`."""

from __future__ import annotations

import importlib
import sys
from typing import NamedTuple

from eagc_ops import interrupts


class Command(NamedTuple):
    """A command: its module has main(argv) -> exit code; its extra installs the packages it needs."""

    module: str
    extra: str
    help: str


COMMANDS = {
    "demo": Command(
        "eagc_ops.training.commands.demo",
        "train",
        "train SimGCD with and without EAGC on a small data set, in minutes on a CPU",
    ),
    "train": Command(
        "eagc_ops.training.commands.train", "train", "train a method on a data set, with EAGC or without it"
    ),
    "evaluate": Command(
        "eagc_ops.training.commands.evaluate", "train", "compute All / Old / New from a run's weights"
    ),
    "discover": Command(
        "eagc_ops.training.commands.discover",
        "train",
        "discover the categories in your own images, given labelled images of some of them",
    ),
    "predict": Command(
        "eagc_ops.training.commands.predict",
        "train",
        "find the categories of other images with a trained run",
    ),
    "export": Command(
        "eagc_ops.training.commands.export",
        "train",
        "write the network of a run to a file that torch alone can load",
    ),
    "report": Command(
        "eagc_ops.training.commands.report",
        "train",
        "write an HTML page about runs: curves, energies, mean and std over seeds",
    ),
    "table": Command(
        "eagc_ops.training.commands.table",
        "train",
        "train the missing runs of a table of the paper, and print it beside the paper's values",
    ),
    "table overhead": Command(
        "eagc_ops.bench.paper_table", "bench", "measure the paper's overhead table on this machine"
    ),
    "data": Command(
        "eagc_ops.training.commands.data",
        "train",
        "fetch a data set, or check it on disk (eagc data download, verify)",
    ),
    "estimate-k": Command(
        "eagc_ops.training.commands.estimate_k", "train", "estimate the number of classes of a data set"
    ),
    "probe": Command(
        "eagc_ops.training.commands.probe",
        "train",
        "say before a run, from labelled images alone, whether EAGC can act on a data set",
    ),
    "study": Command(
        "eagc_ops.training.commands.study",
        "train",
        "train with and without EAGC for more and fewer known classes, and write what that shows",
    ),
    "pretrain": Command(
        "eagc_ops.training.commands.pretrain",
        "train",
        "pretrain a small encoder on a data set, without labels or with those of other classes",
    ),
    "selftest": Command(
        "eagc_ops.selftest_command",
        "",
        "compare every implementation with fp64 on this device; run it first on a GPU",
    ),
    "tune": Command(
        "eagc_ops.tune_command",
        "",
        "find the fastest tile of the kernel for one shape on this GPU, and keep it",
    ),
    "bench": Command(
        "eagc_ops.bench.commands",
        "bench",
        "measure the operator, the conceptor, the overhead table and the compiled kernels",
    ),
    "env": Command("eagc_ops.environment", "", "print versions and devices, for a bug report"),
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: eagc COMMAND [options]\n\nEnergy-Aware Gradient Coordinator.\n\ncommands:")
        for name, command in COMMANDS.items():
            print(f"  {name:14} {command.help}")
        print("\n`eagc COMMAND --help` shows a command's options.")
        return 0
    name, *options = argv
    if options and f"{name} {options[0]}" in COMMANDS:  # a command of two words
        name, *options = f"{name} {options[0]}", *options[1:]
    if name not in COMMANDS:
        print(f"eagc: unknown command {name!r}; must be one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    command = COMMANDS[name]
    with interrupts.handled(["eagc", *argv]):
        try:
            return importlib.import_module(command.module).main(options)  # it may import more after parsing
        except KeyboardInterrupt:
            return interrupts.leave(f"eagc {name}")
        except ModuleNotFoundError as error:
            if not command.extra or not error.name or error.name.startswith("eagc_ops"):
                raise
            remedy = f"install it with pip install 'eagc-ops[{command.extra}]'"
            print(f"eagc {name}: needs {error.name}; {remedy}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
