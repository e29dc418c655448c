"""`eagc waterfall`. `Plan` says what its output folder holds."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagc_ops.app.console import Parser, command, path, whole_number
from eagc_ops.app.locks import lock
from eagc_ops.app.places import writable_folder
from eagc_ops.evidence.commands.executor import (
    add_executor_arguments,
    commands_text,
    executor,
    slurm_text,
)
from eagc_ops.evidence.waterfall.arms import ARMS
from eagc_ops.evidence.waterfall.plan import Plan, begin, drawn_split, own_problem
from eagc_ops.training.commands.common import list_unreadable
from eagc_ops.training.config import ConfigError, Sizes, add_config_arguments, as_options
from eagc_ops.training.config.options import Recipe
from eagc_ops.training.engine.preconditions import check_run

OWN = (
    *("root", "skip_unreadable", "flip", "channels", "backbone", "weights", "image_size"),
    *("batch_size", "epochs", "cache_views", "cache_half", "trunk_cache"),
)


@command("eagc waterfall", as_options)
def main(argv: list[str]) -> int:
    """Train SimGCD's own recipe, that of EAGC, and all steps between, one switch at a time.

    It says where the points come from, beside controls with smaller rates and longer runs. What is asked and
    how it is decided was written down before the runs. The same command goes on with what is left; each
    finished run enters evidence.md and runs.csv at once. Runs of another machine count if its runs.csv and
    waterfall.json are copied into the output folder. The data are glyphs or, with --root, folders of
    images named by class.
    """
    parser = Parser(prog="eagc waterfall", description=main.__doc__)
    parser.add_argument(
        "-o",
        "--output",
        type=path,
        default=Path("runs/waterfall"),
        metavar="FOLDER",
        help="folder for runs and evidence.md [runs/waterfall]",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the runs that are left, train nothing")
    parser.add_argument(
        "--known",
        type=whole_number(),
        nargs="+",
        metavar="N",
        help="of glyphs: train only problems with these numbers of known classes now [10 5 20]; "
        "of --root: the number of known classes [half]",
    )
    parser.add_argument(
        "--classes", type=whole_number(), metavar="N", help="of --root: classes of a replicate [all]"
    )
    parser.add_argument(
        "--recipes",
        nargs="+",
        choices=list(ARMS),
        metavar="RECIPE",
        help=f"train only these now [all]: {', '.join(ARMS)}",
    )
    parser.add_argument(
        "--replicates",
        type=whole_number(least=0),
        nargs="+",
        metavar="R",
        help="train only these now, from 0 [all]",
    )
    add_config_arguments(parser, OWN, Recipe("simgcd", "folder", "paper"))
    add_executor_arguments(parser, jobs="1; all of Slurm")
    arguments = parser.parse_args(argv)
    writable_folder("--output", arguments.output)
    plan, names = _plan(arguments)
    now = [
        run
        for run in plan.runs()
        if (arguments.known is None or run.problem.known in arguments.known)
        and (arguments.recipes is None or run.arm.name in arguments.recipes)
        and (arguments.replicates is None or run.replicate in arguments.replicates)
    ]
    if not now:
        raise ConfigError("no planned run has this --known, these --recipes and these --replicates at once")
    slurm = executor(vars(arguments), arguments.output)
    if arguments.dry_run:
        left = [run for run in plan.here(now) if not (run.folder / "result.json").exists()]
        names = [run.folder.name for run in left]
        if slurm is not None:
            from eagc_ops.evidence.sets import left_of  # as below

            names = [slurm_text(left_of(left), slurm)]
        print("\n".join([*names, f"{len(now)} runs, {len(now) - len(left)} of them finished"]))
        return 0

    # Accelerate, timm and matplotlib take seconds to import: a plan does not wait for them.
    from eagc_ops.evidence.waterfall.running import train_runs

    started = time.perf_counter()
    with lock(arguments.output / ".lock", arguments.output):
        begin(plan, names)
        if "commands" in arguments:
            from eagc_ops.evidence.sets import left_of

            print(commands_text(left_of(plan.here(now))))
            return 0
        at_a_time = 0 if getattr(arguments, "executor", "") == "none" else arguments.jobs or 1
        failed = train_runs(plan, now, at_a_time, lambda text: print(text, flush=True), slurm)
    print(f"\nevidence: {arguments.output / 'evidence.md'}\n{time.perf_counter() - started:.0f} s in all")
    if failed:
        print(f"{failed} runs failed: run the same command to try them again")
    return 1 if failed else 0


def _plan(arguments: argparse.Namespace) -> tuple[Plan, list[str]]:
    """The plan, and the names of all classes from which its replicates draw."""
    own = {name: value for name, value in vars(arguments).items() if name in OWN}
    if not own:
        if arguments.classes is not None:
            raise ConfigError("--classes belongs to --root: a replicate of glyphs has 60 classes")
        from eagc_ops.training.data.glyphs import class_characters

        return Plan(arguments.output), list(class_characters())
    if "root" not in own:
        raise ConfigError(
            f"{next(iter(own))} belongs to images of your own: name their folder too, with --root",
            next(iter(own)),
        )
    import numpy as np

    from eagc_ops.training.data import read_images  # torchvision takes seconds to import

    images = read_images("folder", own["root"])
    names = list(images.names)
    known = arguments.known or [None]
    if len(known) > 1:
        raise ConfigError("--known of --root is one number")

    def plan_of(settings: dict[str, Any]) -> Plan:
        settings = {name: value for name, value in settings.items() if name != "dataset"}
        trunk = settings.pop("trunk_cache", None)
        problem = own_problem(names, known[0], arguments.classes, **settings)
        return Plan(arguments.output, (problem,), trunk=Path(trunk) if trunk else None)

    counts = dict(zip(names, np.bincount(images.targets, minlength=len(names)).tolist()))
    own["dataset"] = "folder"
    file = arguments.output / "unreadable.json"
    list_unreadable(own, file, lambda rest: _check(plan_of(rest), counts))
    plan = plan_of(own)
    _check(plan, counts)
    return plan, names


def _check(plan: Plan, images: Mapping[str, int]) -> None:
    """Refuse a plan whose every run would fail; `images` is the number of images of each class."""
    (problem,) = plan.problems
    for replicate in range(max(arm.replicates for arm in plan.arms)):
        config = plan.run(problem, plan.arms[0], replicate).config
        if replicate == 0:
            check_run(config.replace(split_file=None), labelled_alone=True)  # the plan writes split files
        split = drawn_split(list(images), problem.known, problem.classes, replicate)
        drawn = split["known_classes"] + split["novel_classes"]
        config.check_sizes(Sizes(known=problem.known, images=sum(images[name] for name in drawn)))
