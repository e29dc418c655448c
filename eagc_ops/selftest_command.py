"""Compare every implementation with the fp64 formulas on this device.

The kernels were developed without a GPU, in Triton's interpreter and by compiling for GPUs that were not
present. Neither can show a race between programs. This command can, on your GPU: it repeats each Triton case
and compares the bits.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from eagc_ops.console import Parser, command, whole_number
from eagc_ops.environment import describe

if TYPE_CHECKING:
    from eagc_ops.selftest import Result


@command("eagc selftest")
def main(argv: list[str]) -> int:
    parser = Parser(prog="eagc selftest", description=__doc__)
    parser.add_argument("--device", help="device to test [a GPU if there is one]")
    parser.add_argument(
        "--repeats",
        type=whole_number(most=10**6),
        default=200,
        metavar="N",
        help="runs of each Triton case to compare [200]",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object for a bug report, not a table"
    )
    arguments = parser.parse_args(argv)
    known = ("cpu", "cuda", "xpu", "mps")
    if arguments.device is not None and arguments.device.split(":")[0] not in known:
        parser.error(f"--device {arguments.device} is unknown; choose one of {', '.join(known)}")

    import torch  # it takes seconds: --help and wrong options do not wait for it

    from eagc_ops import kernels
    from eagc_ops.selftest import run

    chosen = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(chosen)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        parser.error(
            f"--device {chosen} cannot be used: {str(error).splitlines()[0]}; choose a different one"
        )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    reason = kernels.why_not_triton(device, torch.float32)
    if not arguments.json:
        tested = f"not tested, {reason}" if reason else "tested"
        print(f"device: {name}; torch {torch.__version__}; Triton: {tested}")
        print(
            "impl    precision  form       dtype       rows     D labelled     error   allowed repeats  "
            "result"
        )
    results = []
    for result in run(device, arguments.repeats):
        results.append(result)
        if not arguments.json:
            print(_line(result), flush=True)
    failures = sum(result.verdict != "ok" for result in results)
    if arguments.json:
        content = {"device": name, "triton": reason or "tested", "failures": failures}
        print(
            json.dumps(
                {**describe(), **content, "results": [result.to_json() for result in results]}, indent=1
            )
        )
    else:
        print(f"{len(results) - failures} passed, {failures} failed")
    return 1 if failures else 0


def _line(result: Result) -> str:
    dtype = str(result.dtype).removeprefix("torch.")
    return (
        f"{result.impl:7} {result.precision:10} {result.form:10} {dtype:9} {result.rows:6} "
        f"{result.dim:5} {result.labelled:8.0%} {result.error:9.1e} {result.allowed:9.1e} {result.repeats:7} "
        f" {result.verdict}"
    )
