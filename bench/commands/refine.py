"""What a person's corrections give the other images: a simulated person, five rounds on real data sets.

The data sets are those of `eagc bench discover`.
"""

from __future__ import annotations

import argparse

from eagc_ops.app.console import path, whole_number
from eagc_ops.bench.commands.options import RESULTS_FILE, command_parser

SETS = ("cifar10", "digits", "glyphs", "quickdraw")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = command_parser("refine", __doc__, output=RESULTS_FILE)
    parser.add_argument("--data", type=path, required=True, help="folder of the data sets")
    parser.add_argument(
        "--sets", nargs="+", choices=SETS, default=SETS, help="data sets (default: all of them)"
    )
    parser.add_argument("--draws", type=whole_number(1), default=5, help="draws (default: %(default)s)")
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import refine
    from eagc_ops.bench.results_file import save

    if not arguments.data.is_dir():
        raise ValueError(f"--data {arguments.data}: there is no such folder")
    rows = []
    for name in arguments.sets:
        rows += refine.make(arguments.data, name, arguments.draws)
        if arguments.output:
            save(arguments.output, "refine", {"refine": rows})
    print(
        "Images that nobody touches, whose category bears the name of their class: percent, mean of draws\n"
    )
    print(refine.table(rows).markdown())
    return 0
