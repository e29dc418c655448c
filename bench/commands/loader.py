"""CPU time of loading a photograph: as published, and from cached pixels."""

from __future__ import annotations

import argparse

from eagc_ops.bench.commands.options import FEWER_ROUNDS, RESULTS_FILE, command_parser, settings


def parse(argv: list[str]) -> argparse.Namespace:
    return command_parser("loader", __doc__, output=RESULTS_FILE, quick=FEWER_ROUNDS).parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import loader, tables
    from eagc_ops.bench.results_file import save

    results = loader.loader_tables(rounds=3 if arguments.quick else 21, images=64)
    if arguments.output:
        content = {**results, "settings": settings(arguments) | results["settings"]}
        save(arguments.output, "loader", content)
    print(f"{tables.loader_note(results)}\n")
    print(tables.loader(results["loader"]).markdown(), "\n")
    print(tables.bars(results["bars"]).markdown())
    return 0
