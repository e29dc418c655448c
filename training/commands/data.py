"""`eagc data`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagc_ops.app.console import Parser, command, path
from eagc_ops.app.places import MissingPlaceError, PlaceError, writable_file, writable_folder
from eagc_ops.training.config import DATASETS, SPECS, as_options
from eagc_ops.training.config.places import check_root, check_split_file

if TYPE_CHECKING:
    from eagc_ops.training.data import Images


@command("eagc data")
def main(argv: list[str]) -> int:
    """Fetch data sets, and inspect them on disk."""
    parser = Parser(prog="eagc data", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_verify(commands)
    _add_download(commands)
    _add_show(commands)
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.error(f"COMMAND is missing; choose one of {', '.join(commands.choices)}")
    return {"verify": _verify, "download": _download, "show": _show}[arguments.command](arguments)


def _add_verify(commands: Any) -> None:
    line = (
        "open every image, compare the data set with the published counts, and list what is wrong "
        "(exit code 1 if anything is)"
    )
    check = commands.add_parser("verify", help=line, description=line)
    check.add_argument("--dataset", required=True, choices=DATASETS, help="data set")
    check.add_argument("--root", type=path, help="its folder, unless the images come with a package")
    check.add_argument(
        "--split-file",
        type=path,
        help="class split of SSB data sets (.pkl or .json) or of a plain image folder",
    )
    check.add_argument(
        "--deep",
        action="store_true",
        help="decode all pixels instead of reading only the headers and ends of files",
    )
    check.add_argument(
        "-o",
        "--output",
        type=path,
        metavar="FILE",
        help="list the training images that cannot be read in FILE (.json); `eagc train "
        "--skip-unreadable FILE` trains without them",
    )


def _verify(arguments: argparse.Namespace) -> int:
    check_root(arguments.dataset, arguments.root, "--root")
    if arguments.split_file is not None:  # without one, the images are checked all the same
        check_split_file(arguments.dataset, arguments.split_file, "--split-file")

    file = arguments.output
    if file is not None:
        writable_file("--output", file)

    # torchvision takes seconds to import.
    from eagc_ops.training.data import verify
    from eagc_ops.training.data.image_files import read_list, write_list

    if file is not None and file.exists():
        read_list(file)  # anything but an older list is not replaced
    verification = verify(
        arguments.dataset,
        arguments.root,
        arguments.split_file,
        deep=arguments.deep,
        progress=True,
        words=as_options,
    )
    print(verification)
    if file is not None and verification.home is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_list(file, verification.home, dict(verification.unreadable))
        print(
            f"{len(verification.unreadable):,} unreadable training images are listed in {file}; "
            f"eagc train --skip-unreadable {file} trains without them"
        )
    return 0 if verification.ok else 1


def _add_download(commands: Any) -> None:
    fetched = [name for name, spec in SPECS.items() if spec.archive_bytes]
    line = (
        f"fetch and unpack {', '.join(fetched)}, and check the archive's published checksum; for the "
        "other data sets, say where to get them and what their folder looks like"
    )
    get = commands.add_parser("download", help=line, description=line)
    get.add_argument("dataset", choices=DATASETS, help="data set")
    get.add_argument("--root", type=path, metavar="DIR", help="folder to unpack it in")


def _download(arguments: argparse.Namespace) -> int:
    name, root, spec = arguments.dataset, arguments.root, SPECS[arguments.dataset]
    if not spec.archive_bytes:
        where = f"is published at {spec.source}" if spec.source else "is not fetched"
        print(f"{spec.title} {where}; a folder for --root has {spec.layout}")
        return 0
    if root is None:
        raise MissingPlaceError(f"--root is missing: name a folder to unpack {spec.title} in")
    writable_folder("--root", root)
    if not (root / spec.inner).exists():
        print(f"{spec.title}: an archive of {spec.archive_bytes / 1e6:,.0f} MB, unpacked in {root}")

    from eagc_ops.training.data.download import download  # torchvision takes seconds to import

    home = download(name, root)
    if home is None:
        print(f"{root / spec.inner} is there already: nothing is fetched")
    print(f"eagc data verify --dataset {name} --root {root}    compares it with the published counts")
    return 0


def _add_show(commands: Any) -> None:
    line = "draw sample images: a row for each of the first classes"
    show = commands.add_parser("show", help=line, description=line)
    show.add_argument("--dataset", required=True, choices=DATASETS, help="data set")
    show.add_argument("--root", type=path, help="its folder, unless the images come with a package")
    show.add_argument(
        "-o", "--output", type=path, required=True, metavar="FILE", help="picture to write (.png)"
    )


def _show(arguments: argparse.Namespace) -> int:
    output = arguments.output
    check_root(arguments.dataset, arguments.root, "--root")
    if output.suffix != ".png":
        raise PlaceError(f"--output {output} must end in .png")
    writable_file("--output", output)

    from eagc_ops.training.data import read_images  # torchvision takes seconds to import

    images = read_images(arguments.dataset, arguments.root)
    output.parent.mkdir(parents=True, exist_ok=True)
    _draw_samples(output, images)
    print(f"samples: {output}")
    return 0


def _draw_samples(file: Path, images: Images, classes: int = 12, each: int = 16, side: int = 36) -> None:
    """A row of the first `each` images of each of the first `classes` classes."""
    import numpy as np
    from PIL import Image

    rows, mode = [], "L" if images.image(0).mode == "L" else "RGB"
    for target in range(min(classes, int(images.targets.max()) + 1)):
        positions = np.flatnonzero(images.targets == target)[:each]
        row = [images.image(i).convert(mode).resize((side, side)) for i in positions]
        row += [Image.new(mode, (side, side), "white")] * (each - len(row))
        rows.append(np.concatenate([np.asarray(image) for image in row], 1))
    Image.fromarray(np.concatenate(rows)).save(file, "PNG", optimize=True)
