"""The search for the number of classes: as published, and as `eagc estimate-k` does it."""

from __future__ import annotations

import argparse

from eagc_ops.bench.commands.options import RESULTS_FILE, command_parser, settings


def parse(argv: list[str]) -> argparse.Namespace:
    quick = "two seeds on two small planted sets"
    return command_parser("estimate", __doc__, output=RESULTS_FILE, quick=quick).parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import estimate, tables
    from eagc_ops.bench.results_file import save

    rows = estimate.estimate_rows(arguments.quick)
    if arguments.output:
        save(arguments.output, "estimate", {"settings": settings(arguments), "estimate": rows})
    print("The estimated number of classes, over seeds\n")
    print(tables.estimate(rows).markdown())
    return 0
