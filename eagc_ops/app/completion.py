"""Completion of commands and options in a shell, by argcomplete.

`eval "$(eagc completion bash)"` in ~/.bashrc asks `eagc` itself at every TAB: `asked` says that this is such
a call. The words so far lead to the parser of a command, which then answers and ends the process.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import NoReturn

from .console import Parser, command

__all__ = ["asked", "complete", "complete_commands", "main", "words"]


@command("eagc completion")
def main(argv: list[str]) -> int:
    """Print the script that completes commands and options: eval "$(eagc completion bash)"."""
    parser = Parser(prog="eagc completion", description=main.__doc__)
    parser.add_argument(
        "shell", choices=("bash", "zsh", "tcsh", "fish", "powershell"), metavar="SHELL", help="your shell"
    )
    shell = parser.parse_args(argv).shell

    from argcomplete.shell_integration import shellcode

    print(shellcode(["eagc"], shell=shell))
    return 0


def asked() -> bool:
    """Whether the shell asks for completions."""
    return "_ARGCOMPLETE" in os.environ


def words() -> list[str]:
    """The words after `eagc` up to the cursor; the last one is being typed, and may be empty."""
    before = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    return [*before.split()[1:], *([""] if before[-1:].isspace() else [])]


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer for a command's parser, and end the process, unless a parser further down the line has to."""
    import argcomplete

    depth = len(parser.prog.split())
    deeper = any(action.dest == "command" and not action.option_strings for action in parser._actions)
    if deeper and parser._subparsers is None and len(words()) > depth:
        return
    os.environ["_ARGCOMPLETE"] = str(depth)  # the number of words that are the program's name
    argcomplete.autocomplete(parser, always_complete_options="long")


def complete_commands(commands: Iterable[str]) -> NoReturn:
    """Answer with the names of the commands."""
    parser = argparse.ArgumentParser(prog="eagc", add_help=False)
    first = sorted({name.split()[0] for name in commands} | {"help"})
    parser.add_argument("command", choices=first)
    parser.add_argument("--version", action="store_true")
    os.environ["_ARGCOMPLETE"] = "1"

    import argcomplete

    argcomplete.autocomplete(parser)
    raise SystemExit(1)
