"""`eagc export`."""

from __future__ import annotations

from eagc_ops.app.console import command, path
from eagc_ops.app.places import writable_file
from eagc_ops.discovery.beginning import check_answered, parser_of_a_run
from eagc_ops.training.config import add_config_arguments, as_options

SETTINGS = ("weights", "root", "split_file", "trunk_cache")


@command("eagc export", as_options)
def main(argv: list[str]) -> int:
    """Write the network of a run to a file that needs only torch (torch.export.load)."""
    parser = parser_of_a_run("eagc export", main.__doc__)
    parser.add_argument(
        "-o", "--output", type=path, required=True, metavar="FILE", help="file to write (.pt2)"
    )
    add_config_arguments(parser, SETTINGS)
    settings = vars(parser.parse_args(argv))
    run, output = settings.pop("run"), settings.pop("output")
    if output.suffix != ".pt2":
        parser.error(f"--output must end in .pt2, the type of files that torch.export writes, got {output}")
    writable_file("--output", output)
    check_answered(run, settings)

    from eagc_ops.discovery.prediction import export  # torch takes seconds to import

    export(run, output, **settings)
    print(f"network: {output}    (torch.export.load({str(output)!r}).module())")
    return 0
