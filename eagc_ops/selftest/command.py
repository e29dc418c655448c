"""Compare every implementation with the fp64 formulas on this device.

The kernels were developed without a GPU, in Triton's interpreter and by compiling for GPUs that were not
present. This command runs them on yours. It repeats each Triton case and compares the bits, tries streams,
CUDA graphs, compiled steps and odd masks, and with --races lets Triton's sanitizer watch global memory.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from ..app.console import Parser, bar, command, say, whole_number
from ..app.environment import describe

if TYPE_CHECKING:
    from .selftest import Result


@command("eagc selftest")
def main(argv: list[str]) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    known = ("cpu", "cuda", "xpu", "mps")
    if arguments.device is not None and arguments.device.split(":")[0] not in known:
        parser.error(f"--device {arguments.device} is unknown; choose one of {', '.join(known)}")
    full, races, shown = arguments.full, arguments.races, not arguments.json
    repeats = arguments.repeats or (200 if full else 2 if races else 20)

    import torch  # it takes seconds: --help and wrong options do not wait for it

    from .. import kernels
    from . import scenarios, selftest

    chosen = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(chosen)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        parser.error(
            f"--device {chosen} cannot be used: {str(error).splitlines()[0]}; choose a different one"
        )
    if races and (reason := selftest.why_no_sanitizer(device)):
        parser.error(f"--races: {reason}")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    reason = kernels.why_not_triton(device, torch.float32)
    if shown:
        tested = f"not tested, {reason}" if reason else "tested"
        print(f"device: {name}; torch {torch.__version__}; Triton: {tested}")
    cases = list(selftest.cases(device, full=full, races=races))
    results = []
    with selftest.exact_products(), selftest.sanitizer() if races else contextlib.nullcontext():
        if device.type == "cuda" and not reason:
            selftest.compile_kernels([case for case in cases if case.impl == "triton"], device, shown)
        if shown:
            print(
                "impl    precision  form       dtype       rows     D labelled     error   allowed repeats  "
                "result"
            )
        for case in bar(cases, "cases", len(cases)):
            results.append(selftest.check(case, device, selftest.repeats_of(case, device, repeats)))
            if shown:
                say(_line(results[-1]))
            if races and results[-1].raised:
                break  # the sanitizer's trap ends the use of the device
        outcomes = [] if races else list(scenarios.run(device))
    not_run = {"Triton kernels": reason} if reason else {}
    not_run |= {outcome.name: outcome.not_run for outcome in outcomes if outcome.not_run}
    verdicts = [result.verdict for result in results]
    verdicts += [outcome.verdict for outcome in outcomes if not outcome.not_run]
    failures = sum(verdict != "ok" for verdict in verdicts)
    if shown:
        for outcome in outcomes:
            if not outcome.not_run:
                print(f"{outcome.name}: {outcome.verdict}")
        for what, why in not_run.items():
            print(f"{what}: not run, {why}")
        if not (full or races or device.type == "cpu"):
            print("this was --quick; --full tests all shapes and precisions")
        print(f"{len(verdicts) - failures} passed, {failures} failed")
    else:
        content = {
            "device": name,
            "arguments": argv,
            "triton": reason or "tested",
            "failures": failures,
            "results": [result.to_json() for result in results],
            "scenarios": {outcome.name: outcome.verdict for outcome in outcomes},
            "not_run": not_run,
        }
        print(json.dumps({**describe(), **content}, indent=1))
    return 1 if failures else 0


def _parser() -> Parser:
    parser = Parser(prog="eagc selftest", description=__doc__)
    parser.add_argument("--device", help="device to test [a GPU if there is one]")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="a few shapes of each kind [the default]")
    extent.add_argument("--full", action="store_true", help="all shapes, forms and precisions")
    extent.add_argument(
        "--races",
        action="store_true",
        help="run the kernels under Triton's sanitizer of global memory (NVIDIA GPU, Triton 3.9 or newer)",
    )
    parser.add_argument(
        "--repeats",
        type=whole_number(most=10**6),
        metavar="N",
        help="runs of each Triton case to compare [20; 200 with --full, 2 with --races]",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object for a bug report, not a table"
    )
    return parser


def _line(result: Result) -> str:
    dtype = str(result.dtype).removeprefix("torch.")
    return (
        f"{result.impl:7} {result.precision:10} {result.form:10} {dtype:9} {result.rows:6} "
        f"{result.dim:5} {result.labelled:8.0%} {result.error:9.1e} {result.allowed:9.1e} {result.repeats:7} "
        f" {result.verdict}"
    )
