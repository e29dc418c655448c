"""`eagc evaluate`."""

from __future__ import annotations

from pathlib import Path

from eagc_ops.console import Parser, command
from eagc_ops.training.commands.common import MOVED, is_main_process
from eagc_ops.training.config import add_config_arguments
from eagc_ops.training.scores import scores_text


@command("eagc evaluate")
def main(argv: list[str]) -> int:
    """Compute All / Old / New on the unlabelled set from the weights of a run."""
    parser = Parser(prog="eagc evaluate", description=main.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--which",
        choices=("last", "best"),
        default="last",
        help="weights of the last epoch, or of the best one [last]",
    )
    add_config_arguments(parser, MOVED)
    settings = vars(parser.parse_args(argv))
    run, which = settings.pop("run"), settings.pop("which")

    from eagc_ops.training import runs

    scores = runs.evaluate(run, which, **settings)
    if is_main_process():
        print(scores_text(scores._asdict()))
    return 0
