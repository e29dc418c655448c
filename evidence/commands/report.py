"""`eagc report`."""

from __future__ import annotations

from functools import partial

from eagc_ops.app.console import Parser, command, path
from eagc_ops.app.places import writable_folder
from eagc_ops.training.commands.common import MOVED, add_output
from eagc_ops.training.config import add_config_arguments, as_options
from eagc_ops.training.engine.preconditions import changed
from eagc_ops.training.engine.run_folder import RunFolder


@command("eagc report", as_options)
def main(argv: list[str]) -> int:
    """Write a self-contained HTML page about runs: curves, energies, mean and std over seeds."""
    parser = Parser(prog="eagc report", description=main.__doc__)
    parser.add_argument(
        "runs",
        type=path,
        nargs="+",
        metavar="RUN",
        help="folder of a run; runs that differ only in the seed are averaged",
    )
    add_output(parser, "out", "folder for report.html")
    parser.add_argument(
        "--pictures",
        action="store_true",
        help="also draw the figures that need data and weights: energies and tau of whole sets, conceptor "
        "spectrum, t-SNE, attention maps; the options below say where data and weights are, if they have "
        "moved",
    )
    add_config_arguments(parser, MOVED)
    settings = vars(parser.parse_args(argv))
    runs, output, pictures = (settings.pop(name) for name in ("runs", "output", "pictures"))
    if settings and not pictures:
        option = f"--{next(iter(settings)).replace('_', '-')}"
        parser.error(f"{option} is for --pictures: without it, neither data nor weights are read")
    for run in runs:
        config = RunFolder.open(run, what="RUN").config
        if pictures:
            changed(config, settings)
    writable_folder("--output", output)

    # matplotlib and torch take seconds to import: wrong options do not wait for them.
    from eagc_ops.evidence.weight_figures import weight_figures
    from eagc_ops.training.report.page import write_report

    weights = partial(weight_figures, **settings) if pictures else None
    print(f"report: {write_report(runs, output, weights=weights)}")
    return 0
