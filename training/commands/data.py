"""`eagc data`."""

from __future__ import annotations

from pathlib import Path

from eagc_ops.console import Parser, command
from eagc_ops.training.config import SPECS


@command("eagc data")
def main(argv: list[str]) -> int:
    """Inspect data sets on disk."""
    parser = Parser(prog="eagc data", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    line = (
        "open every image, compare the data set with the published counts, and list its faults "
        "(exit code 1 if it has any)"
    )
    check = commands.add_parser("verify", help=line, description=line)
    check.add_argument("--dataset", required=True, choices=tuple(SPECS), help="data set")
    check.add_argument("--root", type=Path, help="its folder, unless the images come with a package")
    check.add_argument(
        "--split-file",
        type=Path,
        help="class split of SSB data sets (.pkl or .json) or of a plain image folder",
    )
    check.add_argument(
        "--deep", action="store_true", help="decode all pixels instead of headers and ends of files"
    )
    check.add_argument(
        "--skip-unreadable",
        type=Path,
        metavar="FILE",
        help="write the training images that cannot be read to FILE (.json), with which `eagc train "
        "--skip-unreadable FILE` trains without them",
    )
    arguments = parser.parse_args(argv)
    root = arguments.root
    if not SPECS[arguments.dataset].bundled and (root is None or not root.expanduser().is_dir()):
        layout = f"pass a folder with {SPECS[arguments.dataset].layout}"
        check.error(f"--root is missing: {layout}" if root is None else f"--root {root} is not a folder")

    # torchvision takes seconds to import.
    from eagc_ops.training.data import verify
    from eagc_ops.training.data.image_files import read_list, write_list

    file = arguments.skip_unreadable
    if file is not None and not file.parent.is_dir():
        check.error(f"--skip-unreadable {file}: {file.parent} is not a folder")
    if file is not None and file.exists():
        read_list(file)  # anything but an older list is not replaced
    verification = verify(arguments.dataset, root, arguments.split_file, deep=arguments.deep, progress=True)
    print(verification)
    if file is not None and verification.home is not None:
        write_list(file, verification.home, dict(verification.unreadable))
        print(
            f"{len(verification.unreadable):,} unreadable training images are listed in {file}; "
            f"eagc train --skip-unreadable {file} trains without them"
        )
    return 0 if verification.ok else 1
