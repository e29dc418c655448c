"""`eagc predict`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from eagc_ops.app.console import command, path
from eagc_ops.app.files import atomic_write
from eagc_ops.app.places import PlaceError, readable_file, writable_file
from eagc_ops.discovery.beginning import check_answered, parser_of_a_run
from eagc_ops.training.config import add_config_arguments, as_options

SETTINGS = ("weights", "device", "workers", "root", "split_file", "trunk_cache")


@command("eagc predict", as_options)
def main(argv: list[str]) -> int:
    """Find the categories of images with a trained run, as CSV with the rows of assignments.csv."""
    parser = parser_of_a_run("eagc predict", main.__doc__)
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGES",
        help="image files, folders of images, or @FILE for a text file with one path per line",
    )
    parser.add_argument(
        "-o", "--output", type=path, metavar="FILE", help="file for the table [standard output]"
    )
    parser.add_argument("--skip-unreadable", action="store_true", help="leave out images that cannot be read")
    add_config_arguments(parser, SETTINGS)
    settings = vars(parser.parse_args(argv))
    run, images, output = (settings.pop(name) for name in ("run", "images", "output"))
    for word in images:
        if word.startswith("@"):
            readable_file("IMAGES", Path(word[1:]), "name a text file with one path per line")
        elif not os.path.exists(word):
            raise PlaceError(f"IMAGES {word}: no such file or folder")
    if output is not None:
        writable_file("--output", output)
    check_answered(run, {name: value for name, value in settings.items() if name in SETTINGS})

    # torch takes seconds to import.
    from eagc_ops.discovery.category_files import csv_text
    from eagc_ops.discovery.prediction import predict

    table = csv_text(*predict(run, images, progress=True, **settings))
    if output is None:
        sys.stdout.buffer.write(table)
        sys.stdout.flush()
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(output, table)
    return 0
