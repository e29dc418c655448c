"""`eagc train`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from eagc_ops.app.console import Parser, command, path
from eagc_ops.app.interrupts import go_on_with
from eagc_ops.training.commands.common import RUNS, is_main_process, list_unreadable
from eagc_ops.training.config import (
    COMMON,
    CONFIGS,
    LISTED_NOW,
    NULL,
    Config,
    ConfigError,
    add_config_arguments,
    as_options,
    config_from_arguments,
    recipe_of,
)
from eagc_ops.training.engine.preconditions import changed, check_run
from eagc_ops.training.engine.run_folder import EPOCHS, RunFolder, scores_text


@command("eagc train", as_options)
def main(argv: list[str]) -> int:
    """Train a GCD method on a data set, with EAGC or without it (--no-eagc changes nothing else)."""
    settings = vars(_parse(argv))
    output, resumed = settings.pop("output"), settings.pop("resume")
    if resumed is None:
        if "skip_unreadable" in settings:
            name = output or RUNS / f"{settings.get('dataset', 'digits')}"
            file = name.with_name(f"{name.name}.unreadable.json")
            list_unreadable(settings, file, lambda rest: check_run(_config(rest)))
        config = _config(settings)
        run = output or RUNS / _default_name(config)
        again = shlex.join(["eagc", "train", *argv])
        resume = shlex.join(["eagc", "train", "--resume", str(run)])
        go_on_with(lambda: resume if (run / "run.json").exists() else again)
        if (run / "run.json").exists():
            result = _resume(run, _changes(RunFolder.open(run, what="--output"), config, settings))
        else:
            check_run(config, run)
            result = _train(config, run, own_encoder="weights" not in settings)
    else:
        run = resumed
        if settings.get("skip_unreadable") == LISTED_NOW:
            del settings["skip_unreadable"]  # the run has its list
        result = _resume(run, settings)
    if is_main_process() and result["best"] is None:  # a discovery
        print(f"{run} is trained: run its `eagc discover` command again to write the results")
    elif is_main_process():
        for which in sorted(("last", "best"), key=lambda which: which != result["headline"]):
            print(f"{EPOCHS[which]} ({result[which]['epoch'] + 1}): {scores_text(result[which])}")
        if start := result.get("best_start"):
            print(
                f"{EPOCHS['best_start']} ({start['epoch'] + 1}): {scores_text(start)}    (as the released "
                "code measures: augmented views, one restart of k-means; above: test views, end of an epoch)"
            )
        print(f"run: {run}    (eagc evaluate {run}; eagc report {run} -o out)")
    _end_group()
    return 0


def header(config: Config, run: Path, device: str) -> str:
    """What is about to be trained, and where it goes.

    >>> from eagc_ops.training.config import resolve
    >>> print(header(resolve("simgcd", "digits"), Path("runs/first"), "cpu"))
    simgcd with EAGC (preset paper) on scikit-learn digits: 1,797 images, 5 known of K = 10 classes
    20 epochs, 128 images per step, seed 0, on cpu -> runs/first
    """
    spec = config.spec
    k: dict[Any, Any] = {
        None: spec.known + spec.novel or "the number of",
        "estimate": "an estimated number of",
    }
    images = f"{spec.train:,} images, {spec.known} known of " if spec.train else ""
    return (
        f"{config.method} {'with' if config.eagc else 'without'} EAGC (preset {config.preset}) on "
        f"{spec.title}: {images}K = {k.get(config.k, config.k)} classes\n"
        f"{config.epochs} epochs, {config.batch_size} images per step, seed {config.seed}, on {device} "
        f"-> {run}"
    )


def _train(config: Config, run: Path, own_encoder: bool) -> dict[str, Any]:
    # torch, Accelerate and timm take seconds to import: --help and wrong options do not wait for them.
    from eagc_ops.training import runs
    from eagc_ops.training.engine.experiment import device_of
    from eagc_ops.training.engine.pretraining import with_encoder

    say = print if is_main_process() else lambda _: None
    say(header(config, run, device_of(config)))
    return runs.train(with_encoder(config, run.parent, say) if own_encoder else config, run, say=say)


def _resume(run: Path, settings: dict[str, Any]) -> dict[str, Any]:
    folder = RunFolder.open(run, what="--resume")
    config = changed(folder.config, settings)
    if (result := folder.result()) is not None:
        if is_main_process():
            print(f"{run} is complete: there is nothing left to train")
            for warning in result["warnings"]:  # a run that trains now says them itself
                print(f"warning: {warning}")
        return result
    check_run(config)

    from eagc_ops.training import runs
    from eagc_ops.training.engine.experiment import device_of

    say = print if is_main_process() else lambda _: None
    say(f"resumed: {header(config, run, device_of(config))}")
    return runs.resume(run, say=say, **settings)


def _changes(folder: RunFolder, config: Config, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the machine that a command names which began the run in `folder` before."""
    if differences := folder.differences(config):
        raise ConfigError(
            f"output {folder.path} holds a run of other settings ({'; '.join(differences[:3])}): go on "
            f"with it by eagc train --resume {shlex.quote(str(folder.path))}, or choose a different folder",
            "output",
        )
    free = config.machine_settings()
    return {name: value for name, value in settings.items() if name in free}


def _end_group() -> None:
    """End the group of several processes: torch 2.11 may abort if its threads outlive Python, NCCL warns."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _parse(argv: list[str]) -> argparse.Namespace:
    _import_method(argv)
    recipe = recipe_of(argv)
    usage = "eagc train --method simgcd --dataset cub --root FOLDER --split-file FILE [--no-eagc] [options]"
    shown = (
        f"Defaults are in brackets. Many depend on the recipe: those of {recipe} are shown. "
        "`eagc train --method M --dataset D --preset P --help` shows those of another one."
    )
    parser = Parser(prog="eagc train", usage=usage, description=main.__doc__, epilog=shown)
    parser.add_argument(
        "-o",
        "--output",
        type=path,
        metavar="RUN",
        help="folder of the run; typed again, the command goes on with it "
        "[runs/<data set>-<method>-<preset>[-no-eagc|-null]-seed<seed>]",
    )
    parser.add_argument(
        "--resume",
        type=path,
        metavar="RUN",
        help="continue the run in this folder; only settings of the machine may change",
    )
    parser.add_argument(
        "--help-all", action="help", help="show all options, also those that are rarely needed"
    )
    add_config_arguments(parser, recipe=recipe, shown=None if "--help-all" in argv else COMMON)
    arguments = parser.parse_args(argv)
    if arguments.resume is not None and arguments.output is not None:
        parser.error(f"--resume {arguments.resume} continues in the folder of the run: leave --output out")
    return arguments


def _config(settings: dict[str, Any]) -> Config:
    return config_from_arguments(argparse.Namespace(**settings))


def _import_method(argv: list[str]) -> None:
    """Import the methods if `--method` names one that is not built in: its options are known only then.

    The import takes seconds, so the name must stand in a file of the methods' folder.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--method", nargs="?")
    method = parser.parse_known_args(argv)[0].method
    if method in (None, *CONFIGS):
        return
    files = (Path(__file__).parents[1] / "methods").glob("*.py")
    if any(f'"{method}"' in (text := file.read_text()) or f"'{method}'" in text for file in files):
        import eagc_ops.training.methods  # noqa: F401


def _default_name(config: Config) -> str:
    off = "-no-eagc" if config.preset != "baseline" and not config.eagc else ""
    null = "-null" if config.eagc and config == config.replace(**NULL) else ""
    return f"{config.dataset}-{config.method}-{config.preset}{off}{null}-seed{config.seed}"
