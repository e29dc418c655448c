"""`eagc refine`."""

from __future__ import annotations

from pathlib import Path

from eagc_ops.app.console import Parser, command, path
from eagc_ops.app.places import readable_file
from eagc_ops.discovery.places import CATEGORIES_JSON


@command("eagc refine")
def main(argv: list[str]) -> int:
    """Make a new answer of a discovery from your changes on its page (edits.json), in seconds."""
    parser = Parser(
        prog="eagc refine",
        description=main.__doc__,
        epilog="Your changes hold, and the other images are sorted again. The page shows what changed; "
        "change more, save, and repeat.",
    )
    parser.add_argument("found", type=path, metavar="FOUND", help="output folder of `eagc discover`")
    parser.add_argument("edits", type=path, metavar="EDITS", help="the file edits.json saved on the page")
    arguments = parser.parse_args(argv)
    check_found(arguments.found)
    readable_file("EDITS", arguments.edits, "save edits.json on the page, or run `eagc open`")

    from eagc_ops.discovery.refinement import refine  # torch takes seconds to import

    refine(arguments.found, arguments.edits)
    return 0


def check_found(folder: Path) -> None:
    readable_file("FOUND", folder / CATEGORIES_JSON, "name the output folder of a complete `eagc discover`")
