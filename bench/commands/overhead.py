"""The paper's overhead table on this machine: steps, memory, evaluation, reference model, trunk cache."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eagc_ops.app.console import path, whole_number
from eagc_ops.bench.commands.options import RESULTS_FILE, command_parser, device, picture, settings
from eagc_ops.training.config import DATASETS
from eagc_ops.training.config.places import check_root, check_split_file

if TYPE_CHECKING:
    from eagc_ops.training.data import GCDData

BACKBONES = ("vit_small_patch16_224", "vit_base_patch16_224")
IMAGE_SIZE = 224


def parse(argv: list[str]) -> argparse.Namespace:
    parser = command_parser("overhead", __doc__, output=RESULTS_FILE, quick="3 rounds instead of 9")
    rows = whole_number(most=4096, multiple_of=4, why="two views of every image, half the images labelled")
    rounds = "timed rounds; one takes about 25 s of CPU time with the defaults"
    data = "real images of this data set, with its --root (default: synthetic photographs)"
    split = "class split of SSB data sets or of a plain image folder"
    parser.add_argument(
        "--backbone", choices=BACKBONES, default=BACKBONES[0], help="ViT to measure (default: %(default)s)"
    )
    parser.add_argument(
        "--rows", type=rows, help="rows of a step, two per image (default: 16, on a GPU 256, as published)"
    )
    parser.add_argument(
        "--precision", choices=("no", "bf16"), default="no", help="autocast of the steps (default: no)"
    )
    profile = "also write a trace of all variants' steps (.json, for Perfetto), each step a named range"
    parser.add_argument("--profile", type=path, metavar="FILE", help=profile)
    parser.add_argument("--rounds", type=whole_number(), help=rounds)
    parser.add_argument("--dataset", choices=DATASETS, help=data)
    parser.add_argument("--root", type=path, help="folder of the data set")
    parser.add_argument("--split-file", type=path, help=split)
    parser.add_argument("--picture", type=picture, help="SVG or PNG to write")
    arguments = parser.parse_args(argv)
    for option, value in (("--root", arguments.root), ("--split-file", arguments.split_file)):
        if value is not None and arguments.dataset is None:
            parser.error(
                f"{option} {value} needs --dataset, the name of the data set; without both, synthetic "
                "photographs are measured"
            )
    if arguments.dataset is not None:
        check_root(arguments.dataset, arguments.root, "--root")
        check_split_file(arguments.dataset, arguments.split_file, "--split-file")
    return arguments


def run(arguments: argparse.Namespace) -> int:
    # Imported late: they import the training package, which must not delay `parse` and the restart.
    from eagc_ops.bench import overhead, tables
    from eagc_ops.bench.results_file import save

    rounds = arguments.rounds or (3 if arguments.quick else 9)
    images = 8 if arguments.quick else 16
    arguments.rows = arguments.rows or (256 if device().type == "cuda" else 16)
    data = _open_data(arguments, images)
    what = arguments.backbone, arguments.rows, device()
    results = overhead.overhead(*what, rounds, images, data, IMAGE_SIZE, arguments.precision)
    if arguments.profile:
        overhead.trace(arguments.profile, *what, arguments.precision)
    if arguments.output:
        content = {**results, "settings": settings(arguments) | results["settings"]}
        save(arguments.output, "overhead", content)
    if arguments.picture:
        from eagc_ops.bench import pictures

        pictures.draw_overhead(arguments.picture, results)
    print(f"{tables.overhead_note(results)}\n")
    print("\n\n".join(table.markdown() for table in tables.overhead(results)))
    return 0


def _open_data(arguments: argparse.Namespace, images: int) -> GCDData | None:
    """The data set, if one was named; it must have `images` images for the epochs, half of them labelled."""
    from eagc_ops.training.data import open_data

    if arguments.dataset is None:
        return None
    root = "without --root" if arguments.root is None else f"--root {arguments.root}"
    options = f"--dataset {arguments.dataset} {root}"
    try:
        data = open_data(
            arguments.dataset, arguments.root, split_file=arguments.split_file, image_size=IMAGE_SIZE
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"{options}: {error}") from error
    labelled, unlabelled = len(data.labelled), len(data.unlabelled)
    if min(labelled, unlabelled) < images // 2 or labelled + unlabelled < arguments.rows // 2:
        raise ValueError(
            f"{options} has {labelled} labelled and {unlabelled} unlabelled images; {images // 2} of each "
            f"are needed, and {arguments.rows // 2} in all for --rows {arguments.rows}: choose a larger data "
            "set or fewer rows"
        )
    return data
