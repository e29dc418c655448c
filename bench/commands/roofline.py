"""A picture: measured points of this device, and modelled points of four GPUs from compiled resources."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path
from typing import Any

from eagc_ops.app.environment import describe
from eagc_ops.bench.commands.options import RESULTS_FILE, command_parser, device, picture, settings


def parse(argv: list[str]) -> argparse.Namespace:
    parser = command_parser("roofline", __doc__, output=RESULTS_FILE, quick="one number of rows per GPU")
    default = Path("roofline.svg")
    parser.add_argument(
        "--picture", type=picture, default=default, help="SVG or PNG to write (default: %(default)s)"
    )
    measured = "earlier results of this command, whose measured points are kept; nothing is measured"
    parser.add_argument("--measured", type=_earlier, metavar="FILE", help=measured)
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace, measured: list[dict[str, Any]] | None = None) -> int:
    """`measured` are rows of `throughput_rows`; without them some are measured here."""
    from eagc_ops.bench import pictures, roofline, tables, throughput
    from eagc_ops.bench.results_file import save

    today = {"date": datetime.date.today().isoformat(), **describe()}
    origin = today  # of the measured points; the file's header is theirs
    if earlier := arguments.measured:
        roofs, measured = earlier["roofs"], earlier["measured"]
        origin = {key: earlier[key] for key in today}
    else:
        if measured is None:
            fp32 = [shape for shape in throughput.shapes(device(), quick=True) if shape.dtype == "fp32"]
            measured = throughput.throughput_rows(fp32, device(), 2.0)
        roofs = roofline.measured_roofs(device())
    try:
        modelled = roofline.modelled_rows((256,) if arguments.quick else (256, 1024, 4096, 16384))
    except ImportError as error:  # Triton has no wheels for every platform, or is one that `aot` cannot read
        print(f"no modelled points: {error}", file=sys.stderr)
        modelled = []
    if arguments.output:
        points = {"roofs": roofs, "measured": measured, "modelled": modelled, "modelled_with": today}
        content = {"settings": settings(arguments), **points, "assumptions": roofline.ASSUMPTIONS}
        save(arguments.output, "roofline", {**origin, **content})
    machine = origin["machine"]
    title = machine["gpus"][0] if machine["gpus"] else f"{machine['cpu']}, one thread"
    pictures.draw_roofline(arguments.picture, roofs, measured, modelled, title)
    product, copy = roofs["flop_per_s"] / 1e9, roofs["bytes_per_s"] / 1e9
    print(f"{title}: product {product:.1f} GFLOP/s, copy {copy:.1f} GB/s (measured)\n")
    if modelled:
        print(tables.modelled(modelled).markdown())
    print(f"\npicture: {arguments.picture}")
    return 0


def _earlier(text: str) -> dict[str, Any]:
    """The contents of a results file of this command."""
    from eagc_ops.bench.results_file import load

    try:
        content = load(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if content["benchmark"] != "roofline":
        raise argparse.ArgumentTypeError(f"must be results of `eagc bench roofline`, got {text}")
    return content
