"""Compile the launch table for GPUs that are absent: registers, spills, shared memory.

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
    parser.add_argument(
        "--jobs", type=whole_number(most=256), default=2, help="compilations at a time (default: 2)"
    )
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import tables
    from eagc_ops.bench.results_file import save
    from eagc_ops.kernels import aot

    results = aot.compile_all(list(aot.cases(subset=arguments.subset)), arguments.jobs)
    if arguments.output:
        save(arguments.output, "aot", {"cases": [aot.as_record(*result) for result in results]})
    print(tables.aot(results).markdown())
    failed = sum(bool(resources.problems) for _, resources in results)
    print(f"\n{len(results) - failed} passed, {failed} failed; {aot.executable(results)}")
    return 1 if failed else 0
