"""Rows x D x dtype: released hooks, plain torch, torch.compile, our torch path, our Triton kernel (GPU)."""

from __future__ import annotations

import argparse

from eagc_ops.app.console import path, whole_number
from eagc_ops.bench.commands.options import RESULTS_FILE, command_parser, device, seconds, settings

DTYPES = ("fp32", "bf16", "fp16")  # keys of `kernels.DTYPES`, which needs torch


def parse(argv: list[str]) -> argparse.Namespace:
    parser = command_parser("throughput", __doc__, output=RESULTS_FILE, quick="D = 768 only")
    size = whole_number(
        4, most=10**6, why="with fewer no unlabelled row has tau > 0"
    )  # or rounding alone decides that
    parser.add_argument("--rows", type=size, nargs="+", help="sweep these numbers of rows")
    parser.add_argument("--dims", type=size, nargs="+", help="sweep these D")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, help="sweep these dtypes")
    parser.add_argument("--budget", type=seconds, help="seconds of timing per shape (default: 6, quick: 2)")
    trace = "also write a trace of the last shape's contenders (.json, for Perfetto), each call a named range"
    parser.add_argument("--profile", type=path, metavar="FILE", help=trace)
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import tables, throughput
    from eagc_ops.bench.results_file import save

    swept = {name: getattr(arguments, name) for name in ("rows", "dims", "dtypes")}  # None: the default sweep
    shapes = throughput.shapes(device(), arguments.quick, **swept)
    budget = arguments.budget or (2.0 if arguments.quick else 6.0)
    rows = throughput.throughput_rows(shapes, device(), budget)
    if arguments.output:
        save(arguments.output, "throughput", {"settings": settings(arguments) | swept, "throughput": rows})
    if arguments.profile:
        throughput.trace(arguments.profile, shapes[-1], device())
    print("One call of the operator, forward and backward; half the rows are labelled.")
    print("GFLOP/s and GB/s are of the nominal work.")
    print("`of limit` compares with one product of all rows that must be multiplied.")
    print("A contender that is wrong against fp64 is not timed.\n")
    print(tables.throughput(rows).markdown())
    return 0
