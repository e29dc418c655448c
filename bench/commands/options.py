"""The options that the commands share, and the checks that are made before minutes of measuring."""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import torch

from eagc_ops.console import Parser

FEWER_ROUNDS = "fewer rounds, for a quick look: too noisy to quote"
RESULTS_FILE = "also write the results as JSON, with machine, versions and commit"


def command_parser(name: str, description: str | None, *, output: str = "", quick: str = "") -> Parser:
    """The parser of `eagc bench NAME`.

    `output` and `quick` are the help texts of -o and --quick; "" leaves the option out.
    """
    parser = Parser(prog=f"eagc bench {name}", description=description)
    parser.set_defaults(command=name)
    if output:
        parser.add_argument("-o", "--output", type=Path, help=output)
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def seconds(text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text}")
    return value


def share(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f"must be a share above 0 and at most 1, got {text}; for example, 0.1 is 10 %"
        )
    return value


def picture(text: str) -> Path:
    if Path(text).suffix not in (".svg", ".png"):
        raise argparse.ArgumentTypeError(f"must be a file name that ends in .svg or .png, got {text}")
    return Path(text)


def make_folders(arguments: argparse.Namespace) -> None:
    """Make the folders of all files that will be written; raise a ValueError if that is impossible."""
    for option in ("output", "picture"):
        path = getattr(arguments, option, None)
        if path is None:
            continue
        folder = path if arguments.command == "all" else path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise ValueError(
                f"--{option} {path} cannot be written ({error}); choose a different place"
            ) from error
        if path.is_dir() and folder != path:
            raise ValueError(f"--{option} {path} is a folder; pass the name of a file")


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that two runs must share before their results can be compared."""
    return {"quick": arguments.quick, "device": str(device()), "threads": torch.get_num_threads()}


def device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _number(text: str) -> float:
    """The number, or NaN for a text that is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
