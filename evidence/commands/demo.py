"""`eagc demo`."""

from __future__ import annotations

import time
from typing import Any

from eagc_ops.app.console import Parser, command, whole_number
from eagc_ops.app.locks import lock
from eagc_ops.app.places import writable_folder
from eagc_ops.training.commands.common import MOST_JOBS, MOST_SEEDS, add_output
from eagc_ops.training.config import as_options


@command("eagc demo", as_options)
def main(argv: list[str]) -> int:
    """Train SimGCD with and without EAGC on drawn characters, and judge it against the noise floor."""
    parser = Parser(prog="eagc demo", description=main.__doc__)
    add_output(parser, "runs/demo", "folder for runs and report")
    count: dict[str, Any] = {"type": whole_number(), "metavar": "N"}
    seeds: dict[str, Any] = {"type": whole_number(most=MOST_SEEDS), "metavar": "N"}
    parser.add_argument("--seeds", default=5, help="seeds 0 to N - 1 of every variant [5]", **seeds)
    parser.add_argument("--epochs", default=15, help="epochs of every run [15]", **count)
    jobs: dict[str, Any] = {"type": whole_number(most=MOST_JOBS), "metavar": "N"}
    parser.add_argument("--jobs", help="runs at a time [one for each core, up to 4]", **jobs)
    parser.add_argument(
        "--fresh", action="store_true", help="do everything again instead of using finished work"
    )
    arguments = parser.parse_args(argv)
    writable_folder("--output", arguments.output)

    # Accelerate, timm and matplotlib take seconds to import: --help and wrong options do not wait for them.
    from eagc_ops.evidence.jobs import default_jobs
    from eagc_ops.evidence.studies.demo import run_demo

    started = time.perf_counter()
    with lock(arguments.output / ".lock", arguments.output):
        report = run_demo(
            arguments.output,
            seeds=arguments.seeds,
            epochs=arguments.epochs,
            at_a_time=arguments.jobs or default_jobs("cpu"),
            fresh=arguments.fresh,
            say=lambda text: print(text, flush=True),
        )
    print(f"\nreport: {report}\n{time.perf_counter() - started:.0f} s in all")
    return 0
