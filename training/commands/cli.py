"""`eagc train`, `eagc evaluate`, `eagc report`, `eagc data verify`: options in, exit code out (0 done, 1 failed, 2 not as asked)."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

from eagc_ops.console import Parser, command
from eagc_ops.training.config import CONFIGS, Config, add_config_arguments, config_from_arguments
from eagc_ops.training.data import DATASETS, verify

RUNS = Path("runs")
MOVED = (
    "root",
    "split_file",
    "weights",
    "init",
    "trunk_cache",
    "device",
    "workers",
)  # what an evaluation may find elsewhere


@command("eagc train")
def train(argv: list[str]) -> int:
    """Train a GCD method on a data set, with EAGC or without it (--no-eagc changes nothing else)."""
    usage = "eagc train --method simgcd --dataset cub --root FOLDER --split-file FILE --weights FILE [--no-eagc] [options]"
    parser = Parser(prog="eagc train", usage=usage, description=train.__doc__)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="RUN",
        help="folder of the run [runs/<data set>-<method>-<preset>-seed<seed>]",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue the run in this folder; only settings of the machine may change",
    )
    _import_method(argv)
    add_config_arguments(parser)
    given = vars(parser.parse_args(argv))
    output, run = given.pop("output"), given.pop("resume")
    if run is not None and output is not None:
        parser.error("--resume continues in the folder of the run: leave --output out")
    config = None if run is not None else config_from_arguments(argparse.Namespace(**given))
    from eagc_ops.training import (
        runs,  # Accelerate and timm take seconds to import: --help does not wait for them
    )
    from eagc_ops.training.engine.pretraining import with_encoder

    if config is None:
        if _main_process() and (run / "result.json").exists():
            print(f"{run} is complete; nothing is left to train")
        result = runs.resume(run, **given)
    else:
        run = output or RUNS / _name(config)
        if "weights" not in given:
            config = with_encoder(config, run.parent, print if _main_process() else lambda _: None)
        result = runs.train(config, run)
    if _main_process():
        epochs = sorted(("last", "best"), key=lambda which: which != result["headline"])
        for which in epochs:
            print(f"{which} epoch ({result[which]['epoch'] + 1}): {_scores(result[which])}")
        for warning in result["warnings"]:
            print(f"warning: {warning}")
        print(f"run: {run}    (eagc evaluate {run}; eagc report {run} -o out)")
    return 0


@command("eagc evaluate")
def evaluate(argv: list[str]) -> int:
    """All / Old / New on the unlabelled set, from the weights of a run (one optimal matching of clusters and classes)."""
    parser = Parser(prog="eagc evaluate", description=evaluate.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--which",
        choices=("last", "best"),
        default="last",
        help="weights of the last epoch, or of the best [last]",
    )
    add_config_arguments(parser, MOVED)
    given = vars(parser.parse_args(argv))
    from eagc_ops.training import runs

    scores = runs.evaluate(given.pop("run"), given.pop("which"), **given)
    if _main_process():
        print(_scores(scores._asdict()))
    return 0


@command("eagc report")
def report(argv: list[str]) -> int:
    """One self-contained HTML page about some runs: curves, energies, diagnoses, mean and std over seeds; pictures of weights if asked."""
    parser = Parser(prog="eagc report", description=report.__doc__)
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="folder of a run; runs that differ only in the seed are averaged",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("out"),
        metavar="FOLDER",
        help="where report.html is written [out]",
    )
    line = "also draw what needs data and weights: energies and tau of whole sets, conceptor spectrum, t-SNE, attention maps; the options "
    parser.add_argument(
        "--pictures", action="store_true", help=line + "below say where these are, if they have moved"
    )
    add_config_arguments(parser, MOVED)
    given = vars(parser.parse_args(argv))
    runs, output, pictures = (given.pop(name) for name in ("runs", "output", "pictures"))
    if given and not pictures:
        parser.error(
            f"--{next(iter(given)).replace('_', '-')} is for --pictures: without them no data and no weights are read"
        )
    from eagc_ops.training.report.page import write_report

    print(f"report: {write_report(runs, output, pictures=pictures, **given)}")
    return 0


@command("eagc data")
def data(argv: list[str]) -> int:
    """Look at data sets on disk."""
    parser = Parser(prog="eagc data", description=data.__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    line = "counts against the published table, and what is wrong with a root (exit code 1 if something is)"
    check = commands.add_parser("verify", help=line, description=line)
    check.add_argument("--dataset", required=True, choices=DATASETS, help="data set")
    check.add_argument("--root", type=Path, help="its folder (digits have none)")
    check.add_argument(
        "--split-file",
        type=Path,
        help="class split of SSB data sets (.pkl or .json) or of a plain image folder",
    )
    given = parser.parse_args(argv)
    if given.dataset != "digits" and (given.root is None or not given.root.expanduser().is_dir()):
        check.error("--root is missing" if given.root is None else f"--root {given.root} is not a folder")
    found = verify(given.dataset, given.root, given.split_file)
    print(found)
    return 0 if found.ok else 1


def _import_method(argv: list[str]) -> None:
    """Import the methods if `--method` names one that is not built in: its options are known only then."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--method", nargs="?")
    if parser.parse_known_args(argv)[0].method not in (None, *CONFIGS):
        import eagc_ops.training.methods  # noqa: F401  (it takes seconds: the four built-in ones do not wait)


def _name(config: Config) -> str:
    off = "-no-eagc" if config.preset != "baseline" and not config.eagc else ""
    return f"{config.dataset}-{config.method}-{config.preset}{off}-seed{config.seed}"


def _scores(scores: dict[str, Any]) -> str:
    def share(value: float | None) -> str:
        return "-" if value is None or math.isnan(value) else f"{value:.2%}"  # New where no image is new

    return "  ".join(f"{name.capitalize()} {share(scores[name])}" for name in ("all", "old", "new"))


def _main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
