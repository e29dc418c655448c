"""Compile the launch table for GPUs that are absent: registers, spills, shared memory, instructions.

With --execute, execute the compiled NVIDIA kernels on a CPU instead. The exit code is 1 if a case fails.
"""

from __future__ import annotations

import argparse

from eagc_ops.app.console import whole_number
from eagc_ops.bench.commands.options import RESULTS_FILE, command_parser


def parse(argv: list[str]) -> argparse.Namespace:
    parser = command_parser("aot", __doc__, output=RESULTS_FILE)
    subset = "one case per architecture (half a minute) instead of the whole table (minutes)"
    parser.add_argument("--subset", action="store_true", help=subset)
    triangle = "instead, two sizes with and without the triangle of S: what it saves and what it costs"
    parser.add_argument("--triangle", action="store_true", help=triangle)
    execute = "instead, run every NVIDIA kernel on the PTX machine: values against fp64, races, bounds"
    parser.add_argument("--execute", action="store_true", help=execute)
    parser.add_argument(
        "--arch",
        action="append",
        default=None,
        help="with --execute: only this target, e.g. sm_90; repeatable",
    )
    parser.add_argument(
        "--jobs", type=whole_number(most=256), default=2, help="compilations at a time (default: 2)"
    )
    arguments = parser.parse_args(argv)
    if arguments.execute and arguments.triangle:
        parser.error("--execute runs the launch table; leave --triangle out")
    if arguments.arch and not arguments.execute:
        parser.error("--arch chooses what --execute runs; add --execute")
    return arguments


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import tables
    from eagc_ops.bench.results_file import save
    from eagc_ops.kernels import aot

    if arguments.execute:
        return _execute(arguments)
    if arguments.triangle:
        cases, key, table = list(aot.triangle_cases()), "triangle", tables.triangle
    else:
        cases, key, table = list(aot.cases(subset=arguments.subset)), "cases", tables.aot
    results = aot.compile_all(cases, arguments.jobs, _beyond_machine())
    records = [aot.as_record(*result) for result in results]
    if arguments.output:
        save(arguments.output, "aot", {key: records})
    print(table(records).markdown())
    failed = sum(bool(record["problems"]) for record in records)
    print(f"\n{len(records) - failed} passed, {failed} failed; {aot.executable(results)}")
    return 1 if failed else 0


def _execute(arguments: argparse.Namespace) -> int:
    try:
        import ptx_machine  # noqa: F401 - before any process starts
    except ImportError:
        print("--execute needs the PTX machine: pip install ./ptx_machine")
        return 1
    from eagc_ops.bench import executed
    from eagc_ops.bench.results_file import save
    from eagc_ops.kernels import aot

    nvidia = [case for case in aot.cases(subset=arguments.subset) if not case.arch.startswith("gfx")]
    known = list(dict.fromkeys(case.arch for case in nvidia))
    if unknown := sorted({*(arguments.arch or ())} - {*known}):
        print(f"--arch {unknown[0]} is not in the launch table; it has {', '.join(known)}")
        return 1
    cases = [case for case in nvidia if case.arch in (arguments.arch or known)]
    records = []
    for found in executed.execute_all(cases, arguments.jobs):
        records.append(executed.as_record(found))
        for problem in found.problems:
            print(f"{found.case}: {problem}", flush=True)
    if arguments.output:
        save(arguments.output, "aot", {"executed": records})
    failed = sum(bool(record["problems"]) for record in records)
    seconds = sum(record["seconds"] for record in records)
    with_races = sum(record["races"] for record in records)
    print(
        f"{len(records) - failed} of {len(records)} kernels are right, {failed} are not; races looked for in "
        f"{with_races}; {seconds / 60:.0f} minutes of CPU time"
    )
    return 1 if failed else 0


def _beyond_machine():
    """Names the opcodes that the PTX machine does not execute; None if it is not installed."""
    try:
        from ptx_machine import unknown_instructions
    except ImportError:
        return None
    return unknown_instructions
