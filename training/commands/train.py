"""`eagc train`."""

from __future__ import annotations

import argparse
from pathlib import Path

from eagc_ops.console import Parser, command
from eagc_ops.training.commands.common import RUNS, is_main_process
from eagc_ops.training.config import CONFIGS, Config, add_config_arguments, config_from_arguments
from eagc_ops.training.scores import scores_text


@command("eagc train")
def main(argv: list[str]) -> int:
    """Train a GCD method on a data set, with EAGC or without it (--no-eagc changes nothing else)."""
    usage = (
        "eagc train --method simgcd --dataset cub --root FOLDER --split-file FILE --weights FILE [--no-eagc] "
        "[options]"
    )
    parser = Parser(prog="eagc train", usage=usage, description=main.__doc__)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="RUN",
        help="folder of the run [runs/<data set>-<method>-<preset>[-no-eagc]-seed<seed>]",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue the run in this folder; only settings of the machine may change",
    )
    _import_method(argv)
    add_config_arguments(parser)
    settings = vars(parser.parse_args(argv))
    output, run = settings.pop("output"), settings.pop("resume")
    if run is not None and output is not None:
        parser.error(f"--resume {run} continues in the folder of the run: leave --output out")
    config = None if run is not None else config_from_arguments(argparse.Namespace(**settings))

    # Accelerate and timm take seconds to import: --help and wrong options do not wait for them.
    from eagc_ops.training import runs
    from eagc_ops.training.engine.pretraining import with_encoder

    if config is None:
        if is_main_process() and (run / "result.json").exists():
            print(f"{run} is complete: there is nothing left to train")
        result = runs.resume(run, **settings)
    else:
        run = output or RUNS / _default_name(config)
        if "weights" not in settings:
            config = with_encoder(config, run.parent, print if is_main_process() else lambda _: None)
        result = runs.train(config, run)
    if is_main_process():
        for which in sorted(("last", "best"), key=lambda which: which != result["headline"]):
            print(f"{which} epoch ({result[which]['epoch'] + 1}): {scores_text(result[which])}")
        if start := result.get("best_start"):
            print(
                f"best start of an epoch ({start['epoch'] + 1}): {scores_text(start)}    (as the released "
                "code measures: augmented views, one restart of k-means; above: test views, end of an epoch)"
            )
        for warning in result["warnings"]:
            print(f"warning: {warning}")
        print(f"run: {run}    (eagc evaluate {run}; eagc report {run} -o out)")
    return 0


def _import_method(argv: list[str]) -> None:
    """Import the methods if `--method` names one that is not built in: its options are known only then."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--method", nargs="?")
    if parser.parse_known_args(argv)[0].method not in (None, *CONFIGS):
        import eagc_ops.training.methods  # noqa: F401  (it takes seconds; built-in methods need not wait)


def _default_name(config: Config) -> str:
    off = "-no-eagc" if config.preset != "baseline" and not config.eagc else ""
    return f"{config.dataset}-{config.method}-{config.preset}{off}-seed{config.seed}"
