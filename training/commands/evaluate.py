"""`eagc evaluate`."""

from __future__ import annotations

from eagc_ops.app.console import Parser, command, path
from eagc_ops.app.places import readable_file
from eagc_ops.training.commands.common import MOVED, how_to_finish, is_main_process
from eagc_ops.training.config import add_config_arguments, as_options
from eagc_ops.training.engine.preconditions import changed, check_run
from eagc_ops.training.engine.run_folder import EPOCHS, RunFolder, scores_text


@command("eagc evaluate", as_options)
def main(argv: list[str]) -> int:
    """Compute All / Old / New on the unlabelled set from the weights of a run."""
    parser = Parser(prog="eagc evaluate", description=main.__doc__)
    parser.add_argument("run", type=path, metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--which",
        choices=("last", "best"),
        default="last",
        help=f"weights of the last epoch, or of the {EPOCHS['best']} [last]",
    )
    add_config_arguments(parser, MOVED)
    settings = vars(parser.parse_args(argv))
    run, which = settings.pop("run"), settings.pop("which")
    folder = RunFolder.open(run, what="RUN")
    check_run(changed(folder.config, settings))
    checkpoint = folder.last if which == "last" else folder.best
    readable_file(f"--which {which}:", checkpoint, how_to_finish(folder))

    from eagc_ops.training import runs  # torch takes seconds to import: wrong options do not wait for it

    scores = runs.evaluate(run, which, **settings)
    if is_main_process():
        print(f"{EPOCHS[which]}: {scores_text(scores._asdict())}")
    return 0
