"""The command `eagc`: a table of commands, and the dispatch. Each command has its own `--help`."""

from __future__ import annotations

import difflib
import importlib
import os
import select
import sys
from typing import NamedTuple, TextIO

from . import completion, interrupts
from .console import Parser


class Command(NamedTuple):
    """A command: its module has main(argv) -> exit code; its extra installs the packages it needs."""

    module: str
    extra: str
    help: str
    group: str  # who uses it, as a heading


PHOTOGRAPHS, METHODS = "your own photographs", "training, and the paper's methods"
EVIDENCE, MACHINE = "evidence for EAGC", "this machine"
COMMANDS = {
    "discover": Command(
        "eagc_ops.discovery.commands.discover",
        "train",
        "discover the categories in your own images, given labelled images of some of them",
        PHOTOGRAPHS,
    ),
    "open": Command(
        "eagc_ops.discovery.commands.open",
        "train",
        "open the page of a discovery so that it saves your changes and sorts into folders",
        PHOTOGRAPHS,
    ),
    "refine": Command(
        "eagc_ops.discovery.commands.refine",
        "train",
        "make a new answer of a discovery from the changes on its page",
        PHOTOGRAPHS,
    ),
    "predict": Command(
        "eagc_ops.discovery.commands.predict",
        "train",
        "find the categories of other images with a trained run",
        PHOTOGRAPHS,
    ),
    "export": Command(
        "eagc_ops.discovery.commands.export",
        "train",
        "write the network of a run to a file that needs only torch",
        PHOTOGRAPHS,
    ),
    "train": Command(
        "eagc_ops.training.commands.train",
        "train",
        "train a method on a data set, with EAGC or without it",
        METHODS,
    ),
    "evaluate": Command(
        "eagc_ops.training.commands.evaluate",
        "train",
        "compute All / Old / New from a run's weights",
        METHODS,
    ),
    "report": Command(
        "eagc_ops.evidence.commands.report",
        "train",
        "write an HTML page about runs: curves, energies, mean and std over seeds",
        METHODS,
    ),
    "data": Command(
        "eagc_ops.training.commands.data",
        "train",
        "fetch a data set, or check it on disk (eagc data download, verify)",
        METHODS,
    ),
    "estimate-k": Command(
        "eagc_ops.training.commands.estimate_k",
        "train",
        "estimate the number of classes of a data set",
        METHODS,
    ),
    "pretrain": Command(
        "eagc_ops.evidence.commands.pretrain",
        "train",
        "pretrain a small encoder on a data set, without labels or with labels of other classes",
        METHODS,
    ),
    "demo": Command(
        "eagc_ops.evidence.commands.demo",
        "train",
        "train SimGCD with and without EAGC on a small data set, in minutes on a CPU",
        EVIDENCE,
    ),
    "probe": Command(
        "eagc_ops.evidence.commands.probe",
        "train",
        "tell from labelled images alone, before a run, whether EAGC can act on a data set",
        EVIDENCE,
    ),
    "study": Command(
        "eagc_ops.evidence.commands.study",
        "train",
        "compare training with and without EAGC, from few to many known classes",
        EVIDENCE,
    ),
    "waterfall": Command(
        "eagc_ops.evidence.commands.waterfall",
        "train",
        "change a method's own recipe into EAGC's, one switch at a time, to see where the points come from",
        EVIDENCE,
    ),
    "table": Command(
        "eagc_ops.evidence.commands.table",
        "train",
        "fill in a table of the paper: train its missing runs, and print the paper's values beside yours",
        EVIDENCE,
    ),
    "table overhead": Command(
        "eagc_ops.bench.paper_table",
        "bench",
        "measure the paper's overhead table on this machine",
        EVIDENCE,
    ),
    "selftest": Command(
        "eagc_ops.selftest.command",
        "",
        "compare every implementation with fp64 on this device; run it first on a GPU",
        MACHINE,
    ),
    "tune": Command(
        "eagc_ops.selftest.tune_command",
        "",
        "find the fastest tile of the kernel for one shape on this GPU, and keep it",
        MACHINE,
    ),
    "bench": Command(
        "eagc_ops.bench.commands",
        "bench",
        "measure the operator, the conceptor, the overhead table and the compiled kernels",
        MACHINE,
    ),
    "env": Command("eagc_ops.app.environment", "", "print versions and devices, for a bug report", MACHINE),
    "completion": Command(
        "eagc_ops.app.completion", "train", "print the script that completes commands in your shell", MACHINE
    ),
}


def main(argv: list[str] | None = None) -> int:
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        return 128 + 13  # as a command that SIGPIPE ends


def _run(argv: list[str]) -> int:
    if completion.asked():
        Parser.completer = completion.complete
        argv = completion.words()
        if len(argv) < 2:
            completion.complete_commands(COMMANDS)
    if argv[:1] == ["help"] and len(argv) > 1:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if argv[0] in ("-V", "--version"):
        from eagc_ops import __version__

        print(f"eagc-ops {__version__}")
        return 0
    name, *options = argv
    if options and f"{name} {options[0]}" in COMMANDS:  # a command of two words
        name, *options = f"{name} {options[0]}", *options[1:]
    if name not in COMMANDS:
        print(f"eagc: {_unknown(name)}", file=sys.stderr)
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
            if error.name in sys.stdlib_module_names:  # resource, on Windows
                remedy = "this system lacks it; run the command on Linux"
            print(f"eagc {name}: needs {error.name}; {remedy}", file=sys.stderr)
            return 2


def _unknown(word: str) -> str:
    if word.startswith("-"):
        nearest = difflib.get_close_matches(word, ("--version", "--help"), 1)
        hint = f"did you mean {nearest[0]}?" if nearest else "options follow the name of a command"
        return f"unknown option {word}; {hint}"
    nearest = difflib.get_close_matches(word, COMMANDS, 1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"must be one of {', '.join(COMMANDS)}"
    return f"unknown command {word!r}; {hint}"


def _overview() -> str:
    lines = ["usage: eagc COMMAND [options]", "", "Energy-Aware Gradient Coordinator."]
    for group in dict.fromkeys(command.group for command in COMMANDS.values()):
        lines += ["", f"{group}:"]
        lines += [f"  {name:15} {c.help}" for name, c in COMMANDS.items() if c.group == group]
    return "\n".join(
        [
            *lines,
            "",
            "`eagc help COMMAND` shows a command's options, `eagc --version` the version.",
        ]
    )


def _nobody_reads() -> bool:
    """Whether the reader of the output has gone, as `head` does; then Python does not flush it at the end."""
    gone = [stream for stream in (sys.stdout, sys.stderr) if _has_no_reader(stream)]
    for stream in gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return bool(gone)


def _has_no_reader(stream: TextIO) -> bool:
    try:
        stream.flush()
    except BrokenPipeError:
        return True
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()  # an unbuffered stream has nothing left to flush
    poll.register(stream.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


if __name__ == "__main__":
    sys.exit(main())
