"""S and Ebar from features: time, error, symmetry, eigenvalues."""

from __future__ import annotations

import argparse

from eagc_ops.bench.commands.options import RESULTS_FILE, command_parser, device, settings


def parse(argv: list[str]) -> argparse.Namespace:
    quick = "without N = 20000, with three apertures"
    return command_parser("conceptor", __doc__, output=RESULTS_FILE, quick=quick).parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import conceptor, tables
    from eagc_ops.bench.results_file import save

    results = conceptor.conceptor_tables(arguments.quick, device())
    if arguments.output:
        content = {**results, "settings": settings(arguments) | results["settings"]}
        save(arguments.output, "conceptor", content)
    print("S and Ebar from features, aperture 2\n")
    print(tables.conceptor_times(results["times"]).markdown(), "\n")
    print(tables.conceptor_quality(results["quality"]).markdown())
    return 0
