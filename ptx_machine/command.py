"""`ptx-machine run script.py --arch sm_90`: a script whose Triton launches run on the machine."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from .cpu import cuda_on_cpu
from .hook import on_machine
from .reading import summary


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if there was a finding."""
    parser = argparse.ArgumentParser("ptx-machine", description="Executes compiled Triton kernels on a CPU.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a Python script; its Triton kernels run on the machine")
    run.add_argument("script", type=Path)
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    run.add_argument("--arch", default="sm_80", help="the GPU to compile for (default: sm_80)")
    run.add_argument("--seed", type=int, default=0, help="of the schedule (default: 0)")
    run.add_argument("--no-races", action="store_true", help="do not look for races: about twice as fast")
    parsed = parser.parse_args(argv)
    if not parsed.script.is_file():
        parser.error(f"{parsed.script} is no file")
    before = sys.argv, list(sys.path)
    sys.argv = [str(parsed.script), *parsed.arguments]
    sys.path.insert(0, str(parsed.script.parent))
    options = {"seed": parsed.seed, "races": not parsed.no_races, "traffic": True}
    try:
        with on_machine(parsed.arch, **options) as reports, cuda_on_cpu(parsed.arch):
            runpy.run_path(str(parsed.script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
    print(summary(reports))
    return int(any(report.races or report.violations for report in reports))


if __name__ == "__main__":
    sys.exit(main())
