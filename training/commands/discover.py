"""`eagc discover`."""

from __future__ import annotations

import argparse
import re

from eagc_ops.console import Parser, command, path
from eagc_ops.places import readable_file
from eagc_ops.training.config import add_config_arguments, as_options, resolve
from eagc_ops.training.config.options import Recipe
from eagc_ops.training.config.places import check_links, check_two_folders
from eagc_ops.training.engine.preconditions import check_begun, check_run
from eagc_ops.training.engine.run_folder import RunFolder

SETTINGS = (
    "method",
    "preset",
    "eagc",
    "k",
    "seed",
    "epochs",
    "batch_size",
    "reference_epochs",
    "backbone",
    "weights",
    "image_size",
    "flip",
    "channels",
    "trunk_cache",
    "cache_views",
    "cache_half",
    "init",
    "device",
    "precision",
    "workers",
)


def words(error: Exception) -> str:
    """The text of an error, in the words of this command line."""
    text = re.sub(r"^(holdout|truth|output)\b", r"--\1", _with_options(as_options(error)))
    if text.startswith("cannot read the image "):  # in the middle of its pixels, which the list had not read
        text = (
            f"{text.partition('; `eagc data')[0]}; repair it and go on with the same command, or start "
            "again in a different folder with --skip-unreadable"
        )
    return text


def _with_options(text: str) -> str:
    pattern = r"(?<![\w./-])(drop_duplicates|skip_unreadable|sort_into)\b"
    return re.sub(pattern, lambda found: "--" + found[0].replace("_", "-"), text)


@command("eagc discover", words)
def main(argv: list[str]) -> int:
    """Discover the categories in unlabelled images, given labelled images of some of them."""
    arguments = vars(_parse(argv))
    labelled, unlabelled, output = (arguments.pop(name) for name in ("labelled", "unlabelled", "output"))
    check_two_folders(labelled, unlabelled, output)
    if arguments["truth"] is not None:
        readable_file("--truth", arguments["truth"], "name a .csv file with the columns path,class")
    if arguments["sort_into"] is not None:
        check_links(arguments["sort_into"], labelled, unlabelled)
    settings = {name: value for name, value in arguments.items() if name in SETTINGS}
    if (output / "run.json").exists():
        check_begun(RunFolder.open(output, what="--output"), settings)
    else:
        check_run(resolve(**settings, dataset="discover", root=str(labelled)), output)

    from eagc_ops.training.discovery import discover  # torch takes seconds to import

    discover(labelled, unlabelled, output, say=lambda line: print(_with_options(line)), **arguments)
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="eagc discover",
        description=main.__doc__,
        usage="eagc discover LABELLED UNLABELLED -o OUT [options]",
        epilog="Typed again, the command goes on where it stopped. Your images are only read.",
    )
    parser.add_argument(
        "labelled",
        type=path,
        metavar="LABELLED",
        help="folder with one folder of images for each known class",
    )
    parser.add_argument(
        "unlabelled",
        type=path,
        metavar="UNLABELLED",
        help="folder of images, at any depth, or a text file with one path per line",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=path,
        required=True,
        metavar="OUT",
        help="folder for the run and what was found",
    )
    parser.add_argument(
        "--holdout",
        type=_share,
        default=0.2,
        metavar="X",
        help="share of the labelled images of every class that are not trained on, and give the one honest "
        "accuracy; 0: none [0.2]",
    )
    parser.add_argument("--skip-unreadable", action="store_true", help="leave out images that cannot be read")
    parser.add_argument(
        "--drop-duplicates",
        action="store_true",
        help="leave out unlabelled images that are labelled ones too",
    )
    parser.add_argument(
        "--truth",
        type=path,
        metavar="FILE",
        help="the classes of the unlabelled images, if you know them (.csv with the columns path,class): "
        "only compared with the result",
    )
    parser.add_argument(
        "--sort-into",
        type=path,
        metavar="DIR",
        help="make folders of links to the unlabelled images there, one for each category; nothing is moved "
        "or copied",
    )
    add_config_arguments(parser, SETTINGS, Recipe(dataset="discover"))
    return parser.parse_args(argv)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be a share >= 0 and < 1, got {text}; 0 holds nothing out")
    return value
