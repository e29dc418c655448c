"""The first answer of 1,000 to 200,000 images from features: seconds and memory; k-means by libraries."""

from __future__ import annotations

import argparse

from eagc_ops.bench.commands.options import RESULTS_FILE, command_parser, settings


def parse(argv: list[str]) -> argparse.Namespace:
    quick = "at most 10,000 images"
    return command_parser("scale", __doc__, output=RESULTS_FILE, quick=quick).parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import scale, tables
    from eagc_ops.bench.results_file import save

    rows, kmeans = scale.scale_rows(arguments.quick), scale.kmeans_rows(arguments.quick)
    if arguments.output:
        save(arguments.output, "scale", {"settings": settings(arguments), "scale": rows, "kmeans": kmeans})
    print("The first answer\n")
    print(tables.scale(rows).markdown())
    print("\nk-means of all rows\n")
    print(tables.kmeans(kmeans).markdown())
    return 0
