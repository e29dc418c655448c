"""What a call of the fused path costs the host, beside the dense torch form and the released hooks.

A stub of Triton's driver compiles the kernel and launches nothing, so this needs no GPU. The figure to quote
is the ratio to the dense form: times depend on the processor.
"""

from __future__ import annotations

import argparse

from eagc_ops.bench.commands.options import FEWER_ROUNDS, RESULTS_FILE, command_parser, settings


def parse(argv: list[str]) -> argparse.Namespace:
    return command_parser("host", __doc__, output=RESULTS_FILE, quick=FEWER_ROUNDS).parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    try:
        from eagc_ops.bench import host
    except ImportError as error:
        raise SystemExit(
            f"eagc bench host needs Triton, which this platform may not have ({error})"
        ) from None
    from eagc_ops.bench import tables
    from eagc_ops.bench.results_file import save

    rows = host.host_rows(5 if arguments.quick else 41)
    if arguments.output:
        save(arguments.output, "host", {"settings": settings(arguments), "host": rows})
    print("One call at D = 768, half the rows labelled. CPU time of one thread, the median (quartiles).")
    print("No time is for the GPU or its driver: a stub takes the launches.\n")
    print(tables.host(rows).markdown())
    return 0
