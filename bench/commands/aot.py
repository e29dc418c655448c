"""Compile the launch table for GPUs that are absent: registers, spills, shared memory, instructions.

The exit code is 1 if a case fails.
"""

from __future__ import annotations

import argparse

from eagc_ops.bench.commands.options import RESULTS_FILE, command_parser
from eagc_ops.console import whole_number


def parse(argv: list[str]) -> argparse.Namespace:
    parser = command_parser("aot", __doc__, output=RESULTS_FILE)
    subset = "one case per architecture (half a minute) instead of the whole table (minutes)"
    parser.add_argument("--subset", action="store_true", help=subset)
    triangle = "instead, two sizes with and without the triangle of S: what it saves and what it costs"
    parser.add_argument("--triangle", action="store_true", help=triangle)
    parser.add_argument(
        "--jobs", type=whole_number(most=256), default=2, help="compilations at a time (default: 2)"
    )
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import tables
    from eagc_ops.bench.results_file import save
    from eagc_ops.kernels import aot

    if arguments.triangle:
        cases, key, table = list(aot.triangle_cases()), "triangle", tables.triangle
    else:
        cases, key, table = list(aot.cases(subset=arguments.subset)), "cases", tables.aot
    results = aot.compile_all(cases, arguments.jobs)
    records = [aot.as_record(*result) for result in results]
    if arguments.output:
        save(arguments.output, "aot", {key: records})
    print(table(records).markdown())
    failed = sum(bool(record["problems"]) for record in records)
    print(f"\n{len(records) - failed} passed, {failed} failed; {aot.executable(results)}")
    return 1 if failed else 0
