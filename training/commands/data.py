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
    line = "compare a data set with the published counts and list its faults (exit code 1 if it has any)"
    check = commands.add_parser("verify", help=line, description=line)
    check.add_argument("--dataset", required=True, choices=tuple(SPECS), help="data set")
    check.add_argument("--root", type=Path, help="its folder, unless the images come with a package")
    check.add_argument(
        "--split-file",
        type=Path,
        help="class split of SSB data sets (.pkl or .json) or of a plain image folder",
    )
    arguments = parser.parse_args(argv)
    root = arguments.root
    if not SPECS[arguments.dataset].bundled and (root is None or not root.expanduser().is_dir()):
        layout = f"pass a folder with {SPECS[arguments.dataset].layout}"
        check.error(f"--root is missing: {layout}" if root is None else f"--root {root} is not a folder")

    from eagc_ops.training.data import verify  # torchvision takes seconds to import

    verification = verify(arguments.dataset, root, arguments.split_file)
    print(verification)
    return 0 if verification.ok else 1
