"""The CPU path against the released hooks, and the conceptor's solve against the released inverse."""

from __future__ import annotations

import argparse

from eagc_ops.bench.commands.options import FEWER_ROUNDS, RESULTS_FILE, command_parser, settings


def parse(argv: list[str]) -> argparse.Namespace:
    return command_parser("operator", __doc__, output=RESULTS_FILE, quick=FEWER_ROUNDS).parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import operator, tables
    from eagc_ops.bench.results_file import save

    calls = operator.operator_rows((lambda rows: 5) if arguments.quick else operator.ROUNDS.__getitem__)
    solves = operator.solve_rows(5 if arguments.quick else 21)
    if arguments.output:
        content = {"settings": settings(arguments), "operator": calls, "conceptor": solves}
        save(arguments.output, "operator", content)
    print("The operator, D = 768, fp32, half the rows labelled.")
    print("CPU time of one thread; variants are interleaved, speed-ups are paired by round.\n")
    print(tables.operator(calls).markdown(), "\n")
    print("The conceptor's solve for a known R, against R @ inv(R + a^-2 I) in fp32.\n")
    print(tables.solve(solves).markdown())
    return 0
