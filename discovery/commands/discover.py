"""`eagc discover`."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from pathlib import Path
from typing import Any

from eagc_ops.app.console import Parser, command, path, plain_number
from eagc_ops.app.places import readable_file, writable_folder
from eagc_ops.discovery.beginning import BEGINNING, Beginning
from eagc_ops.discovery.number import asked_for
from eagc_ops.discovery.places import IMAGES, check_links, check_two_folders
from eagc_ops.training.config import ConfigError, add_config_arguments, as_options, resolve
from eagc_ops.training.config.options import Recipe
from eagc_ops.training.engine.preconditions import check_run
from eagc_ops.training.engine.run_folder import RunFolder

DEMO = "eagc-demo"  # the default folder of a demo
SETTINGS = (
    "method",
    "preset",
    "eagc",
    "seed",
    "epochs",
    "batch_size",
    "reference_epochs",
    "backbone_lr",
    "head_lr",
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
    """The text of an error, with this command line's options."""
    text = as_options(error)
    if text.startswith("cannot read the image "):  # damaged pixels, which listing does not read
        text = (
            f"{text.partition('; `eagc data')[0]}; repair it and go on with the same command, or start "
            "again in a different folder with --skip-unreadable"
        )
    return text


def _with_options(note: str) -> str:
    return re.sub(r"\b(drop|skip|sort)_([a-z]+)\b", r"--\1-\2", note)


@command("eagc discover", words)
def main(argv: list[str]) -> int:
    """Discover the categories in unlabelled images, given labelled images of some of them."""
    arguments = vars(_parse(argv))
    demo = arguments.pop("demo")
    if demo:
        arguments = _of_demo(arguments)
    labelled, unlabelled, output = (arguments.pop(name) for name in ("labelled", "unlabelled", "output"))
    check_two_folders(labelled, unlabelled, output)
    if arguments["truth"] is not None:
        readable_file("--truth", arguments["truth"], "name a .csv file with the columns path,class")
    if arguments["sort_into"] is not None:
        check_links(arguments["sort_into"], labelled, unlabelled, output)
    settings = {name: value for name, value in arguments.items() if name in SETTINGS}
    asked_for(arguments["k"])
    if (output / BEGINNING).exists():
        Beginning.read(output).with_changes(output, settings)
    else:
        _check_new(labelled, output, settings)

    from eagc_ops.discovery.discovery import discover  # torch takes seconds to import

    discover(
        labelled, unlabelled, output, say=lambda line: print(_with_options(line), flush=True), **arguments
    )
    if demo:
        print("now your own pictures:      eagc discover LABELLED UNLABELLED -o found")
    return 0


def _check_new(labelled: Path, output: Path, settings: dict[str, Any]) -> None:
    """Check a new discovery as far as possible at once. Published weights come after the images."""
    if (output / "run.json").exists():
        of = RunFolder.open(output, what="--output").config.dataset
        raise ConfigError(f"output {output} holds a run on {of}: choose a different folder", "output")
    known = settings if "weights" in settings else {**settings, "weights": "random"}
    if known["weights"] == "pretrained":
        known = {**known, "weights": "random"}
    config = resolve(**{"preset": "recommended", **known}, dataset="discover", root=str(labelled))
    check_run(config, output, beforehand=(IMAGES,))


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="eagc discover",
        description=main.__doc__,
        usage="eagc discover LABELLED UNLABELLED -o OUT [options]\n       eagc discover --demo [-o OUT]",
        epilog="Run the same command again, and it continues where it stopped. Your images are only read.",
    )
    parser.add_argument(
        "labelled",
        nargs="?",
        type=path,
        metavar="LABELLED",
        help="folder with one folder of images for each known class",
    )
    parser.add_argument(
        "unlabelled",
        nargs="?",
        type=path,
        metavar="UNLABELLED",
        help="folder of images, at any depth, or a text file with one path per line",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=path,
        metavar="OUT",
        help="folder for the results",
    )
    parser.add_argument(
        "--demo",
        action="store_true",
        help=f"try it without pictures of your own: draws some into OUT [{DEMO}] and sorts them with the "
        "bundled encoder; needs no network and less than a minute",
    )
    parser.add_argument(
        "--k",
        default="estimate",
        metavar="N",
        help="number of categories, known and new together; 8-15: estimate it within these bounds [estimate]",
    )
    parser.add_argument(
        "--holdout",
        type=_share,
        default=0.2,
        metavar="X",
        help="share of the labelled images of every class to hold out: nothing is fitted to them, and they "
        "measure the accuracy; 0: none [0.2]",
    )
    parser.add_argument("--skip-unreadable", action="store_true", help="leave out images that cannot be read")
    parser.add_argument(
        "--drop-duplicates",
        action="store_true",
        help="leave out unlabelled images that are also among the labelled ones",
    )
    parser.add_argument(
        "--truth",
        type=path,
        metavar="FILE",
        help="the classes of the unlabelled images, if you know them (.csv with the columns path,class): "
        "compared with the result and used for nothing else",
    )
    parser.add_argument(
        "--sort-into",
        type=path,
        metavar="DIR",
        help="make a folder of links to the unlabelled images in DIR for each category; nothing is moved "
        "or copied",
    )
    parser.add_argument(
        "--fast",
        action="store_false",
        dest="train",
        default=None,
        help="stop at the first answer, a clustering of the pretrained encoder's features. Otherwise the "
        "command trains from there, and labelled images hidden from all answers decide which one is kept",
    )
    add_config_arguments(parser, SETTINGS, Recipe(dataset="discover", preset="recommended"))
    arguments = parser.parse_args(argv)
    named = {"LABELLED": arguments.labelled, "UNLABELLED": arguments.unlabelled}
    if arguments.demo and arguments.labelled is not None:
        parser.error(f"--demo draws its own pictures, got {arguments.labelled}; leave one of them out")
    missing = [name for name, place in {**named, "-o/--output": arguments.output}.items() if place is None]
    if missing and not arguments.demo:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    return arguments


def _of_demo(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a discovery in sample pictures, drawn on first use."""
    from eagc_ops.discovery import sample_pictures as pictures

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--demo is for one process: leave the launcher out")
    home = arguments["output"] or Path(DEMO)
    writable_folder("--output", home)
    sample, read = pictures.write_sample_pictures(home), pictures.SETTINGS
    of_sample = {**sample._asdict(), "output": home / "found"}
    options = "--backbone {backbone} --channels {channels} --image-size {image_size} --no-flip".format(**read)
    places = shlex.join(map(str, (sample.labelled, sample.unlabelled)))
    ends = f"-o {shlex.quote(str(of_sample['output']))} --truth {shlex.quote(str(sample.truth))}"
    print(
        f"sample pictures: drawn characters in {home / 'pictures'}, half of them known\n"
        f"now: eagc discover {places} {ends} {options} --fast"
    )
    return {**read, **arguments, "train": False, **of_sample}  # its first answer leaves nothing to find


def _share(text: str) -> float:
    try:
        value = plain_number(float, text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be a share >= 0 and < 1, got {text}; 0 holds nothing out")
    return value
