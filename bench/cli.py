"""`eagc bench`: one sub-command per question."""

from __future__ import annotations

import argparse
from pathlib import Path

from eagc_ops.bench.measure import markdown, pin_process, save


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="eagc bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    operator = commands.add_parser("operator", help="the CPU path and the conceptor solve against the released formulation (CPU time)")
    operator.add_argument("--quick", action="store_true", help="fewer rounds: a look, not a result")
    operator.add_argument("-o", "--output", type=Path, help="also write the results as JSON, with machine, versions and commit")
    aot = commands.add_parser("aot", help="compile the launch table for GPUs that are not there: registers, spills, shared memory")
    aot.add_argument("--subset", action="store_true", help="one case per architecture (half a minute) instead of the whole table (minutes)")
    aot.add_argument("--jobs", type=int, default=2, help="compilations at a time (default: 2)")
    aot.add_argument("-o", "--output", type=Path, help="also write the results as JSON")
    arguments = parser.parse_args(argv)
    return {"operator": run_operator, "aot": run_aot}[arguments.command](arguments)


def run_operator(arguments: argparse.Namespace) -> int:
    pin_process()
    from eagc_ops.bench.operator import ROUNDS, conceptor_rows, operator_rows

    print("The operator, D = 768, fp32, half the rows labelled; CPU time of one thread, variants interleaved, speed-ups paired by round\n")
    operator = operator_rows((lambda rows: 5) if arguments.quick else ROUNDS.get)
    print(markdown(operator), "\n")
    print("The conceptor's solve, R given, against R @ inv(R + a^-2 I) in fp32\n")
    conceptor = conceptor_rows(5 if arguments.quick else 21)
    print(markdown(conceptor))
    if arguments.output:
        save(arguments.output, "operator", {"operator": operator, "conceptor": conceptor})
    return 0


def run_aot(arguments: argparse.Namespace) -> int:
    from eagc_ops.kernels import aot

    results = aot.compile_all(list(aot.cases(subset=arguments.subset)), arguments.jobs)
    print(aot.table(results))
    failed = [case for case, found in results if found.problems]
    print(f"\n{len(results) - len(failed)} passed, {len(failed)} failed")
    if arguments.output:
        save(arguments.output, "aot", {"cases": [aot.as_record(*result) for result in results]})
    return 1 if failed else 0
