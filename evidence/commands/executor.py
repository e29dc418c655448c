"""Where the runs of a table, a study or a waterfall are trained: here, by Slurm, or by hand."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagc_ops.app.console import whole_number
from eagc_ops.training.commands.common import MOST_JOBS
from eagc_ops.training.config import ConfigError
from eagc_ops.training.config.options import train_command

__all__ = ["add_executor_arguments", "commands_text", "executor", "slurm_text"]

_OF_SLURM = ("partition", "time", "gpus", "array_size", "sbatch")


def add_executor_arguments(parser: argparse.ArgumentParser, jobs: str) -> None:
    """Add the options; only those that the user writes end up in the namespace, and --jobs.

    `jobs`: the runs at a time without that option, for its help text.
    """
    group = parser.add_argument_group("where the runs are trained")
    own: dict[str, Any] = {"default": argparse.SUPPRESS}
    group.add_argument(
        "--executor",
        choices=("local", "slurm", "none"),
        help="local: on this machine; slurm: one job for each run, which continues by itself after a "
        "preemption; none: train nothing, collect finished runs [local]",
        **own,
    )
    group.add_argument(
        "--jobs", type=whole_number(most=MOST_JOBS), metavar="N", help=f"runs at a time [{jobs}]"
    )
    group.add_argument("--partition", metavar="NAME", help="Slurm partition [the cluster's default]", **own)
    group.add_argument(
        "--time",
        type=whole_number(),
        metavar="MINUTES",
        help="time limit of a Slurm job; a longer run continues in the next job [240]",
        **own,
    )
    group.add_argument(
        "--gpus", type=whole_number(least=0), metavar="N", help="GPUs per run, with Slurm [1]", **own
    )
    group.add_argument(
        "--array-size", type=whole_number(), metavar="N", help="jobs in one Slurm array [1000]", **own
    )
    group.add_argument(
        "--sbatch",
        nargs="+",
        metavar="NAME=VALUE",
        help="more options of sbatch, such as account=birds mem=32G",
        **own,
    )
    group.add_argument(
        "--commands",
        action="store_true",
        help="print a command for each run that is left, for other schedulers, and train nothing; run again, "
        "such a command continues its run",
        **own,
    )


def executor(options: Mapping[str, Any], output: Path) -> Any:
    """The `Slurm` of --executor slurm, else None."""
    given = [name for name in _OF_SLURM if name in options]
    if options.get("executor", "local") != "slurm":
        if given:
            flag = given[0].replace("_", "-")
            raise ConfigError(f"--{flag} belongs to --executor slurm: name that too, or leave --{flag} out")
        return None
    more = dict[str, str]()
    for word in options.get("sbatch", ()):
        name, sign, value = word.lstrip("-").partition("=")
        if not (name and sign and value):
            raise ConfigError(f"--sbatch takes NAME=VALUE, got {word}: as account=birds")
        more[name] = value
    from eagc_ops.evidence.slurm import Slurm  # torch takes seconds to import

    named = {"time": "minutes", "array_size": "array", "partition": "partition", "gpus": "gpus"}
    asked = {named[name]: options[name] for name in given if name in named}
    slurm = Slurm((output / "slurm").absolute(), at_a_time=options.get("jobs"), more=more, **asked)
    if not options.get("dry_run"):  # before anything is trained that the jobs need
        slurm.check()
    return slurm


def commands_text(jobs: Sequence[Any]) -> str:
    """A command for each job; those that others wait for come first, and a comment says which they are."""
    from eagc_ops.evidence.slurm import submissions

    lines = list[str]()
    for own, after in submissions(jobs, max(len(jobs), 1)):
        lines += [f"# when these are done: {', '.join(folder.name for folder in after)}"] if after else []
        lines += [shlex.join(train_command(job.config, str(job.folder))) for job in own]
    return "\n".join(lines)


def slurm_text(jobs: Sequence[Any], slurm: Any) -> str:
    """What would be submitted: a line for each array, and one for each of its runs."""
    from eagc_ops.evidence.slurm import submissions

    lines = list[str]()
    for own, after in submissions(jobs, slurm.array):
        waits = f", when {', '.join(folder.name for folder in after)} have ended" if after else ""
        lines += [
            f"{slurm}: {len(own)} job{'s' * (len(own) > 1)}, {slurm.at_a_time or len(own)} at a time{waits}"
        ]
        lines += [f"  {job.folder.name}" for job in own]
    return "\n".join(lines)
