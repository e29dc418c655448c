"""`eagc study`. `Study` says what its output folder holds."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagc_ops.app.console import Parser, command, path, whole_number
from eagc_ops.app.files import atomic_write, removed_if_refused
from eagc_ops.app.locks import lock
from eagc_ops.app.places import writable_folder
from eagc_ops.evidence.commands.executor import (
    add_executor_arguments,
    commands_text,
    executor,
    slurm_text,
)
from eagc_ops.evidence.studies.earlier import earlier_part, take_over
from eagc_ops.evidence.studies.plan import study_plan
from eagc_ops.evidence.studies.questions import KEEPS
from eagc_ops.evidence.studies.study import (
    CONFIRMED,
    METHOD,
    OTHERS,
    RECIPES,
    REGIMES,
    SETTINGS,
    Cell,
    Regime,
    Study,
    begin_study,
    check_study,
)
from eagc_ops.training.commands.common import MOST_SEEDS, list_unreadable
from eagc_ops.training.config import ConfigError, Sizes, add_config_arguments, as_options, resolve
from eagc_ops.training.config.options import Recipe
from eagc_ops.training.engine.preconditions import check_run

# Settings of a study of one's own images: where they are, and what their number and the backbone ask for
OWN = (
    *("root", "split_file", "skip_unreadable", "flip", "channels", "backbone", "weights", "image_size"),
    *("batch_size", "backbone_lr", "head_lr", "mlp_head_layers"),
)
SPLIT = "split.json"  # in the output folder: the classes that were drawn to be known


@command("eagc study", as_options)
def main(argv: list[str]) -> int:
    """Train SimGCD with and without EAGC for more and fewer known classes, and write what that shows.

    The outcome and its test were decided before the runs. The same command goes on with a study.

    With --root it is a study of your own images, all in folders named by class. Some classes are known,
    the others play novel ones. --split-file names the known ones; without it, half of the classes are drawn.
    The settings of `eagc train` that are options here belong to such a study.
    """
    parser = Parser(prog="eagc study", description=main.__doc__)
    parser.add_argument(
        "-o",
        "--output",
        type=path,
        metavar="FOLDER",
        help="folder for runs and evidence.md [runs/study, or runs/confirmation]",
    )
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="the second study: does EAGC keep the known classes? It asks, with other characters and seeds, "
        "what the first study saw without having asked",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the runs and their time, train nothing")
    parser.add_argument(
        "--background",
        action="store_true",
        help="run in a process of its own that outlives this terminal; it writes to study.log",
    )
    parser.add_argument(
        "--known",
        type=whole_number(),
        nargs="+",
        choices=list(REGIMES),
        default=list(REGIMES),
        metavar="N",
        help=f"train only regimes with these numbers of known classes now [{' '.join(map(str, REGIMES))}]",
    )
    parser.add_argument(
        "--recipes",
        nargs="+",
        choices=list(RECIPES),
        default=list(RECIPES),
        help="train only these now [all]",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=[METHOD, *OTHERS],
        default=[METHOD, *OTHERS],
        help="train only these now [all]; methods other than simgcd run at 10 known classes, recipe paper",
    )
    parser.add_argument(
        "--seeds",
        type=whole_number(most=MOST_SEEDS),
        metavar="N",
        help="seeds of every regime, fixed when the study begins [10; 5 from 50 known classes on]",
    )
    parser.add_argument(
        "--epochs",
        type=whole_number(),
        metavar="N",
        help=f"epochs of every run, fixed when the study begins [{SETTINGS['epochs']}]",
    )
    parser.add_argument(
        "--earlier",
        type=path,
        metavar="FOLDER",
        help="folder of an earlier part of the same study, or a copy of its study.json, evidence.md, "
        "evidence.csv and figures: whatever is complete there counts and is not trained again",
    )
    add_config_arguments(parser, OWN, Recipe(METHOD, "folder", "paper"))
    add_executor_arguments(parser, jobs="one for each core, up to 4")
    arguments = parser.parse_args(argv)
    if arguments.output is None:
        arguments.output = Path("runs/confirmation" if arguments.confirm else "runs/study")
    writable_folder("--output", arguments.output)
    epochs = {} if arguments.epochs is None else {"epochs": arguments.epochs}
    settings = {**SETTINGS, **epochs}
    study = Study(arguments.output, settings=settings)
    if arguments.confirm:
        if arguments.seeds is not None or arguments.epochs is not None:
            raise ConfigError("--confirm has seeds and epochs of its own: leave out --seeds and --epochs")
        study = replace(study, regimes=CONFIRMED, others=(), question=KEEPS)
    split = arguments.output / SPLIT
    with removed_if_refused(split, unless=arguments.output / "study.json"):
        study = _own(arguments, study) or study
    if arguments.seeds is not None:
        study = replace(study, regimes=[replace(regime, seeds=arguments.seeds) for regime in study.regimes])
    check_study(study)
    now = [
        cell
        for cell in study.cells
        if (cell.regime.known in arguments.known or "root" in arguments)
        and cell.recipe in arguments.recipes
        and cell.method in arguments.methods
    ]
    if not now:
        raise ConfigError(
            f"no part of the study has --known {' '.join(map(str, arguments.known))}, --recipes "
            f"{' '.join(arguments.recipes)} and --methods {' '.join(arguments.methods)} at once: other "
            f"methods than {METHOD} are trained at 10 known classes with the recipe paper, --root by "
            f"{METHOD} with paper, and --confirm at 5 and 10 known classes by {METHOD}"
        )
    slurm = executor(vars(arguments), arguments.output)
    if "commands" in arguments:
        return _print_commands(study, now)
    print(study_plan(study, earlier_part(study, arguments.earlier)), flush=True)
    if arguments.dry_run:
        if slurm is not None:
            print(slurm_text(_left(study, now), slurm))
        return 0
    if arguments.background:
        return _detach(argv, arguments.output)
    at_a_time = 0 if getattr(arguments, "executor", "") == "none" else arguments.jobs
    return _run(study, now, at_a_time, arguments.earlier, slurm)


def _own(arguments: argparse.Namespace, study: Study) -> Study | None:
    """A study of the user's own images; None without --root."""
    own = {name: value for name, value in vars(arguments).items() if name in OWN}
    if not own:
        return None
    if "root" not in own:
        raise ConfigError(
            f"{next(iter(own))} belongs to a study of your own images: name their folder too, with --root",
            next(iter(own)),
        )
    if arguments.confirm:
        raise ConfigError("--confirm is a study of glyphs: leave it out, or --root")
    if arguments.earlier is not None:
        raise ConfigError("--earlier takes over studies of glyphs: leave it out, or --root")
    if arguments.known != list(REGIMES):
        raise ConfigError(
            "--known chooses among the regimes of glyphs; the known classes of --root are in split_file"
        )
    own["dataset"] = "folder"
    list_unreadable(own, arguments.output / "unreadable.json")
    if "split_file" not in own:
        own["split_file"] = str(_drawn_split(own["root"], arguments.output))
    config = resolve(METHOD, preset="paper", **own, **study.settings)
    check_run(config)
    from eagc_ops.training.data import open_data  # torchvision takes seconds to import

    data = open_data(
        "folder",
        own["root"],
        split_file=own["split_file"],
        skip_unreadable=config.skip_unreadable,
        channels=config.channels,
    )
    fewest = data.labelled.labels.bincount(minlength=data.known).min().item()
    if data.known < 3 or fewest < 2:
        raise ConfigError(
            f"split_file {own['split_file']} has {data.known} known classes, the smallest with {fewest} "
            "labelled images: the probe of a study needs at least 3 classes with 2 labelled images each"
        )
    regime = Regime(data.known, data.known + data.novel, len(data.merged), settings=own)
    config.check_sizes(Sizes(known=data.known, images=len(data.merged), labelled=len(data.labelled)))
    return replace(study, regimes=(regime,), recipes=("paper",), others=())


def _drawn_split(root: str, output: Path) -> Path:
    """A split file in the study's folder, written once: half of the classes are known."""
    from eagc_ops.training.data import read_images  # as in `_own`
    from eagc_ops.training.data.splits import drawn_classes

    file = output / SPLIT
    if not file.exists():
        names = read_images("folder", root).names
        if len(names) < 4:
            raise ConfigError(
                f"root {root} has {len(names)} class folders: a study needs 3 known classes and one at least "
                "that plays novel",
                "root",
            )
        known = drawn_classes(names)
        output.mkdir(parents=True, exist_ok=True)
        atomic_write(file, json.dumps({"known_classes": known, "labelled_fraction": 0.5}, indent=1) + "\n")
        print(
            f"{len(known)} of {len(names)} classes were drawn to be known, and the others play novel: {file}"
        )
    return file


def _left(study: Study, now: list[Cell]) -> list[Any]:
    from eagc_ops.evidence.sets import left_of  # as below
    from eagc_ops.evidence.studies.running import runs_of

    complete = earlier_part(study).sections
    return left_of(runs_of(study, [cell for cell in now if cell not in complete]))


def _print_commands(study: Study, now: list[Cell]) -> int:
    begin_study(study)
    print(commands_text(_left(study, now)))
    return 0


def _run(study: Study, now: list[Cell], jobs: int | None, earlier: Path | None, slurm: Any) -> int:
    # Accelerate, timm and matplotlib take seconds to import: a plan does not wait for them.
    from eagc_ops.evidence.jobs import default_jobs
    from eagc_ops.evidence.studies.running import run_study

    started = time.perf_counter()
    with lock(study.output / ".lock", study.output):
        if earlier is not None:
            take_over(study, earlier)
        at_a_time = default_jobs("cpu") if jobs is None else jobs
        failed = run_study(study, now, at_a_time, lambda text: print(text, flush=True), slurm)
    print(f"\nevidence: {study.output / 'evidence.md'}\n{time.perf_counter() - started:.0f} s in all")
    if failed:
        print(f"{failed} runs failed: run the same command to try them again")
    return 1 if failed else 0


def _detach(argv: list[str], output: Path) -> int:
    output.mkdir(parents=True, exist_ok=True)
    log = output / "study.log"
    words = [word for word in argv if word != "--background"]
    # A script's own background jobs ignore Ctrl-C and would pass that on: the line below promises otherwise.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with log.open("ab") as lines:
        process = subprocess.Popen(
            [sys.executable, "-m", "eagc_ops.app.cli", "study", *words],
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a closed terminal does not end it
        )
    print(f"process {process.pid} goes on, its lines in {log}; kill -INT {process.pid} stops it, resumably")
    return 0
