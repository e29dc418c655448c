"""Run every timed benchmark, one after the other, and draw the pictures.

The roofline uses the results of the throughput benchmark.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from types import ModuleType

from eagc_ops.bench.commands import (
    conceptor,
    estimate,
    host,
    loader,
    operator,
    overhead,
    roofline,
    scale,
    throughput,
)
from eagc_ops.bench.commands.options import FEWER_ROUNDS, command_parser


def parse(argv: list[str]) -> argparse.Namespace:
    output = "folder for results and pictures (default: %(default)s)"
    parser = command_parser("all", __doc__, output=output, quick=FEWER_ROUNDS)
    parser.set_defaults(output=Path("out/bench"))
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench.results_file import load

    folder = arguments.output
    begin = time.perf_counter()

    def options(module: ModuleType, name: str, *more: str) -> argparse.Namespace:
        quick = ["--quick"] if arguments.quick else []
        return module.parse(["-o", str(folder / f"{name}.json"), *quick, *more])

    print("\n## The operator on a CPU\n", flush=True)
    operator.run(options(operator, "operator"))
    print("\n## Throughput\n", flush=True)
    throughput.run(options(throughput, "throughput"))
    print("\n## The host's part of a call\n", flush=True)
    host.run(options(host, "host"))
    print("\n## Overhead of EAGC in a training step\n", flush=True)
    overhead.run(options(overhead, "overhead", "--picture", str(folder / "overhead.svg")))
    print("\n## Loading\n", flush=True)
    loader.run(options(loader, "loader"))
    print("\n## Conceptor\n", flush=True)
    conceptor.run(options(conceptor, "conceptor"))
    print("\n## Number of classes\n", flush=True)
    estimate.run(options(estimate, "estimate"))
    print("\n## The first answer of many images\n", flush=True)
    scale.run(options(scale, "scale"))
    print("\n## Roofline\n", flush=True)
    measured = load(folder / "throughput.json")["throughput"]
    roofline.run(options(roofline, "roofline", "--picture", str(folder / "roofline.svg")), measured)
    print(f"\nresults and pictures: {folder}; {time.perf_counter() - begin:.0f} s")
    return 0
