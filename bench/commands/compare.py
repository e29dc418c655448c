"""Compare two results files: ratios, and which measurements became worse. The exit code is 1 if any did."""

from __future__ import annotations

import argparse
import sys

from eagc_ops.app.console import path
from eagc_ops.app.places import readable_file
from eagc_ops.bench.commands.options import command_parser, share


def parse(argv: list[str]) -> argparse.Namespace:
    parser = command_parser("compare", __doc__)
    parser.add_argument("a", type=path, metavar="A.json", help="before")
    parser.add_argument("b", type=path, metavar="B.json", help="after")
    threshold = "a change for the worse beyond this share is a regression (default: 0.1, which is 10 %%)"
    parser.add_argument("--threshold", type=share, default=0.1, help=threshold)
    arguments = parser.parse_args(argv)
    for name, file in (("A.json", arguments.a), ("B.json", arguments.b)):
        readable_file(name, file, "name a results file of `eagc bench`")
    return arguments


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import tables
    from eagc_ops.bench.compare import compare, machine_differences
    from eagc_ops.bench.results_file import load

    a, b = load(arguments.a), load(arguments.b)
    changes = compare(a, b, arguments.threshold)
    if differing := machine_differences(a, b):
        names = ", ".join(differing)
        print(
            f"note: machine or versions differ ({names}): seconds and launches are shown but not judged",
            file=sys.stderr,
        )
    print(tables.changes(changes).markdown())
    regressions = sum(change.regression for change in changes)
    compared = sum(change.ratio is not None for change in changes)
    print(f"\n{compared} measurements compared, {regressions} regressions beyond {arguments.threshold:.0%}")
    return 1 if regressions else 0
