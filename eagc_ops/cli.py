"""The command `eagc`: picks a room and hands over. Each command's options are in its own `--help`."""

from __future__ import annotations

import importlib
import sys

# command: (module with main(argv) -> exit code, or module:function, extra that installs what it needs, one
# line of help)
COMMANDS = {
    "demo": (
        "eagc_ops.training.studies.demo",
        "train",
        "the main job: SimGCD with and without EAGC on a small data set, in minutes on a CPU",
    ),
    "train": (
        "eagc_ops.training.commands.cli:train",
        "train",
        "train a method on a data set, with EAGC or without it",
    ),
    "evaluate": ("eagc_ops.training.commands.cli:evaluate", "train", "All / Old / New of a run's weights"),
    "report": (
        "eagc_ops.training.commands.cli:report",
        "train",
        "one HTML page about some runs: curves, energies, mean and std over seeds",
    ),
    "table": (
        "eagc_ops.training.commands.table",
        "train",
        "a table of the paper: trains what is missing, writes it beside the paper's values",
    ),
    "data": ("eagc_ops.training.commands.cli:data", "train", "check a data set on disk (eagc data verify)"),
    "selftest": (
        "eagc_ops.selftest",
        "",
        "compare every provider with the fp64 reference on this device; GPU users run it first",
    ),
    "estimate-k": (
        "eagc_ops.training.commands.estimate_k",
        "train",
        "estimate the number of classes of a data set (Brent or bisection)",
    ),
    "bench": (
        "eagc_ops.bench.commands",
        "bench",
        "measure: the operator against the released hooks, the conceptor, compile-without-GPU resources",
    ),
    "env": ("eagc_ops.environment", "", "versions and devices, for bug reports"),
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: eagc COMMAND [options]\n\nEnergy-Aware Gradient Coordinator.\n\ncommands:")
        for name, (_, _, line) in COMMANDS.items():
            print(f"  {name:10} {line}")
        print("\n`eagc COMMAND --help` shows a command's options.")
        return 0
    if argv[0] not in COMMANDS:
        print(f"eagc: unknown command {argv[0]!r}; choose one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    target, extra, _ = COMMANDS[argv[0]]
    module, _, function = target.partition(":")
    try:
        command = getattr(importlib.import_module(module), function or "main")
    except ModuleNotFoundError as error:
        if extra and error.name and not error.name.startswith("eagc_ops"):
            print(
                f"eagc {argv[0]}: needs {error.name}; install it with pip install 'eagc-ops[{extra}]'",
                file=sys.stderr,
            )
            return 2
        raise
    return command(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
