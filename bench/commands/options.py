"""The options that the commands share, and the checks that are made before minutes of measuring."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagc_ops.app.console import Parser, path, plain_number
from eagc_ops.app.places import writable_file, writable_folder

if TYPE_CHECKING:
    import torch

FEWER_ROUNDS = "fewer rounds, for a quick look: too noisy to quote"
RESULTS_FILE = "also write the results as JSON, with machine, versions and commit"


def command_parser(name: str, description: str | None, *, output: str = "", quick: str = "") -> Parser:
    """The parser of `eagc bench NAME`.

    `output` and `quick` are the help texts of -o and --quick; "" leaves the option out.
    """
    parser = Parser(prog=f"eagc bench {name}", description=description)
    parser.set_defaults(command=name)
    if output:
        parser.add_argument("-o", "--output", type=path, help=output)
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
    """Make the folders of all files that will be written, if all of them can be."""
    named = {option: getattr(arguments, option, None) for option in ("output", "picture", "profile")}
    places = {option: place for option, place in named.items() if place is not None}
    for option, place in places.items():
        (writable_folder if arguments.command == "all" else writable_file)(f"--{option}", place)
    for place in places.values():
        (place if arguments.command == "all" else place.parent).mkdir(parents=True, exist_ok=True)


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that two runs must share before their results can be compared."""
    import torch

    return {"quick": arguments.quick, "device": str(device()), "threads": torch.get_num_threads()}


def device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _number(text: str) -> float:
    """The number, or NaN for a text that is none."""
    try:
        return plain_number(float, text)
    except ValueError:
        return math.nan
