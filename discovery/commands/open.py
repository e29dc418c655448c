"""`eagc open`."""

from __future__ import annotations

import argparse

from eagc_ops.app.console import Parser, command, path
from eagc_ops.app.places import PlaceError
from eagc_ops.discovery.commands.refine import check_found


@command("eagc open")
def main(argv: list[str]) -> int:
    """Open the page of a discovery so that it saves your changes and makes new answers from them."""
    parser = Parser(
        prog="eagc open",
        description=main.__doc__,
        epilog="Only this machine can reach the page, at an address that nobody can guess. Your images are "
        "only read. Ctrl-C ends it.",
    )
    parser.add_argument("found", type=path, metavar="FOUND", help="output folder of `eagc discover`")
    parser.add_argument("--port", type=_port, default=0, help="port of the address [any free one]")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    arguments = parser.parse_args(argv)
    check_found(arguments.found)

    from eagc_ops.discovery.serving import open_page

    try:
        open_page(arguments.found, arguments.port, not arguments.no_browser)
    except OSError as error:
        raise PlaceError(
            f"--port {arguments.port} cannot be used ({error.strerror}); leave the option out"
        ) from error
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, got {text}")
    return int(text)
