"""`eagc table NAME`: a table of the paper, from plan to page. It is filled in one data set at a time; what is missing is a dash.

In the output folder: `runs/`, shared by all tables (a recipe is trained once), and for every table a folder with `table.md`, `table.html`.
"""

from __future__ import annotations

import datetime
import html
import statistics
import subprocess
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Iterable, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagc_ops.console import Parser, command
from eagc_ops.training.config import Config, ConfigError, Diagnosis, add_config_arguments, resolve
from eagc_ops.training.data import DATASETS, SPECS, open_data
from eagc_ops.training.data.splits import PUBLISHED
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.paper.tables import TABLES, Run, Table, configuration, plan, steps_per_epoch
from eagc_ops.training.paper.values import A100_EPOCH, PAPER

if TYPE_CHECKING:  # Accelerate and timm take seconds to import: a plan does not wait for them
    from eagc_ops.training.engine.jobs import Job

PLACES = ("root", "split_file", "weights", "device", "workers")  # settings of the machine that may be given
MEASURED = ("dataset", "root", "split_file", "backbone")  # what `eagc bench overhead` is given
PUBLISHERS = {
    "dino_vitb16": "facebookresearch/dino",
    "dinov2_vitb14_reg4": "facebookresearch/dinov2",
}  # GitHub repositories


@command("eagc table")
def main(argv: list[str]) -> int:
    """A table of the paper: trains what is missing of it on one data set, and writes it with the paper's values beside ours."""
    usage = "eagc table NAME --dataset digits | eagc table NAME --dataset cub --root FOLDER --split-file FILE --weights FILE [options]"
    parser = Parser(prog="eagc table", usage=usage, description=main.__doc__)
    parser.add_argument("name", choices=TABLES, metavar="NAME", help=", ".join(TABLES))
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("runs/tables"),
        metavar="FOLDER",
        help="runs and tables [runs/tables]",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the runs, what is finished and the cost; needs no data"
    )
    parser.add_argument(
        "--preset",
        choices=("paper", "release"),
        default="release",
        help="recipe of the rows with EAGC [release]",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 to N - 1 [3]")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="runs at a time [one per GPU; on a CPU one per core, up to 4]"
    )
    parser.add_argument(
        "--trunk-cache",
        action="store_true",
        help="keep the frozen trunk's tokens on disk (digits: always; not SPTNet)",
    )
    parser.add_argument(
        "--pretrain-epochs",
        type=int,
        default=10,
        metavar="N",
        help="digits without --weights: epochs of pretraining [10]",
    )
    parser.add_argument("--dataset", choices=DATASETS, help="data set to fill in; digits needs no download")
    parser.add_argument(
        "--backbone",
        metavar="VIT",
        help="overhead only: ViT to measure [vit_small_patch16_224]; others train their own",
    )
    add_config_arguments(parser, ("epochs", *PLACES))
    given = parser.parse_args(argv)
    for name in ("seeds", "jobs", "pretrain_epochs", "epochs"):
        if getattr(given, name, None) is not None and getattr(given, name) < 1:
            parser.error(f"{_option(name)} must be at least 1, got {getattr(given, name)}")
    table, dataset = TABLES[given.name], given.dataset
    if given.name == "overhead":
        return _overhead(parser, argv, given)
    if given.backbone is not None:
        parser.error(
            f"--backbone {given.backbone} is for overhead only: what {given.name} trains is part of the table; leave it out"
        )
    if given.dry_run:
        print(f"{given.name}: {table.caption}\n(paper: {PAPER[given.name].label})")
        for each in [dataset] if dataset else dict.fromkeys(group.dataset for group in table.groups):
            print("\n".join(_planned(table, each, given)), flush=True)
        return 0
    if dataset is None:
        own = ", ".join(dict.fromkeys(group.dataset for group in table.groups))
        parser.error(
            f"--dataset is missing: the paper has {own}, filled in one at a time; digits needs no download"
        )
    return _fill(table, dataset, given)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _runs(table: Table, dataset: str, given: Namespace) -> list[Run]:
    machine: dict[str, Any] = {name: getattr(given, name) for name in PLACES if hasattr(given, name)}
    if dataset == "digits":
        machine = {
            "weights": str(given.output / "digits.safetensors"),
            "device": "cpu",
            "log_every": 7,
            **machine,
        }
    if dataset == "digits" or given.trunk_cache:
        machine["trunk_cache"] = str(given.output / "trunk" / dataset)
    if table.steps:
        machine["diagnose"] = Diagnosis(every=10 if SPECS[dataset].small else 1, steps=table.steps)
    return plan(
        table,
        dataset,
        given.output,
        preset=given.preset,
        seeds=range(given.seeds),
        given=_epochs(given),
        machine=machine,
    )


def _epochs(given: Namespace) -> dict[str, int]:
    return {"epochs": given.epochs} if hasattr(given, "epochs") else {}


# Filling in ------------------------------------------------------------------------------------------------------------------------


def _fill(table: Table, dataset: str, given: Namespace) -> int:
    runs, home, started = _runs(table, dataset, given), given.output / given.name, time.perf_counter()
    _check_needs(dataset, runs[0].config)
    import torch

    from eagc_ops.environment import describe
    from eagc_ops.training.engine.jobs import default_jobs, run_jobs, unfinished
    from eagc_ops.training.paper.page import record, write_table
    from eagc_ops.training.runs import run_job

    torch.set_num_threads(1)  # as in every process of `run_jobs`
    if dataset == "digits" and not hasattr(given, "weights"):
        from eagc_ops.training.engine.pretraining import pretrained_encoder

        encoder = pretrained_encoder(Path(runs[0].config.weights), open_data("digits"), given.pretrain_epochs)
        print(encoder, flush=True)
        if encoder.fault:
            raise ConfigError(f"{encoder.fault} (delete {encoder.file}, and raise --pretrain-epochs)")
    jobs = _jobs(runs)
    left, at_a_time = unfinished(jobs), given.jobs or default_jobs(runs[0].config.device)
    title = SPECS[dataset].title
    print(
        f"{given.name} on {title}: {len(jobs)} runs, {len(jobs) - len(left)} of them finished before; {at_a_time} at a time",
        flush=True,
    )
    failed = 0
    for done, (job, result) in enumerate(run_jobs(left, at_a_time, run_job), 1):
        if isinstance(result, Exception):
            failed += 1
            if not isinstance(result, (ValueError, FloatingPointError, BrokenExecutor)):
                traceback.print_exception(result)
            print(
                f"   {done:3} of {len(left)}: {job.folder.name} FAILED: {' '.join(str(result).split())}",
                file=sys.stderr,
                flush=True,
            )
            continue
        last = " ".join(
            f"{name.capitalize()} {_percent(result['last'][name])}" for name in ("all", "old", "new")
        )
        print(
            f"   {done:3} of {len(left)}: {job.folder.name}  {last}  after {time.perf_counter() - started:.0f} s",
            flush=True,
        )
    found = describe()
    machine = (
        ", ".join(found["machine"]["gpus"])
        or f"{found['machine']['cores']} cores of {found['machine']['cpu']}"
    )
    conditions = {
        "date": datetime.date.today().isoformat(),
        "machine": machine,
        "commit": found["commit"],
        "preset": given.preset,
    }
    record(home, dataset, conditions, ((run.row.key, run.group.title, run.folder) for run in runs))
    print(
        f"\n{write_table(given.name, home, given.output / 'runs')}\n\ntable: {home / 'table.md'}, {home / 'table.html'}"
    )
    print(
        f"{time.perf_counter() - started:.0f} s in all"
        + (f"; {failed} runs failed: the same command resumes them" if failed else "")
    )
    return 1 if failed else 0


def _jobs(runs: Sequence[Run]) -> list[Job]:
    """A job for every different run. What several share (trunk cache, reference model, subspace) is made by one before the others."""
    from eagc_ops.training.engine.experiment import Experiment
    from eagc_ops.training.engine.jobs import Job

    facts: dict[tuple, dict[str, Any]] = {}
    maker: dict[tuple, Path] = {}
    jobs: dict[Path, Job] = {}
    for run in runs:
        config, folder = run.config, run.folder
        blocks = (config.trainable_blocks, config.blocks_of_reference)
        if blocks not in facts:  # builds the trunk cache too
            found = Experiment(config.replace(k=None)).facts
            facts[blocks] = {"split_hash": found.split_hash, "trunk": found.trunk}
        shared = []
        if config.has_operator or config.warm_start:
            shared.append(
                (
                    config.seed,
                    *blocks,
                    *(v for name, v in config.to_json().items() if name.startswith("reference_")),
                )
            )
        if config.has_operator:
            shared.append((*shared[0], config.subspace, config.pca_k, config.aperture))
        start = getattr(config, "init", None)
        after = {maker.setdefault(key, folder) for key in shared} | ({Path(start)} if start else set())
        jobs.setdefault(folder, Job(config, folder, facts[blocks], tuple(after - {folder})))
    return list(jobs.values())


def _check_needs(dataset: str, config: Config) -> None:
    if dataset == "digits" and config.backbone != "vit_digits":
        raise ConfigError(
            f"{config.backbone} needs photographs, and digits are drawings of 8 x 8 pixels: choose another --dataset"
        )
    needs = []
    if dataset != "digits" and config.root is None:
        source = (
            "; the small version of the Herbarium Challenge 2019, FGVC6" if dataset == "herbarium19" else ""
        )
        needs.append(f"--root (a folder with {SPECS[dataset].layout}{source})")
    if dataset in ("cub", "scars", "aircraft") and config.split_file is None:
        where = (
            "published in the GitHub repository sgvaze/generalized-category-discovery, folder data/ssb_splits"
        )
        needs.append(f"--split-file ({PUBLISHED[dataset][0]}, {where})")
    if dataset == "folder" and config.split_file is None:
        needs.append("--split-file (a .json or .yaml that names the known classes)")
    if config.weights is None:
        from eagc_ops.training.models.backbones import BACKBONES  # imports timm

        needs.append(
            f"--weights ({BACKBONES[config.backbone][1]}, published in the GitHub repository {PUBLISHERS[config.backbone]})"
        )
    if needs:
        raise ConfigError(
            f"{SPECS[dataset].title} with {config.backbone} needs {', '.join(needs)}; --dry-run shows the plan without them"
        )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


# The plan --------------------------------------------------------------------------------------------------------------------------


def _planned(table: Table, dataset: str, given: Namespace) -> list[str]:
    planned = _runs(table, dataset, given)
    runs = list({run.folder: run for run in planned}.values())  # rows may share runs
    states = {run.folder: _state(run.folder) for run in runs}
    finished = [run for run in runs if states[run.folder] is None]
    lines = [
        f"\n{SPECS[dataset].title}: {len(runs)} runs, {len(finished)} finished, {sum(map(bool, states.values()))} begun"
    ]
    for row in dict.fromkeys((run.row.key, run.group) for run in planned):
        own = [run for run in planned if (run.row.key, run.group) == row]
        config, group = own[0].config, own[0].group
        recipe = configuration(table, own[0].row, group, given.preset, _epochs(given))
        plain = resolve(config.method, dataset, config.preset)
        changes = [
            f"{name}={value}" for name, value in recipe.to_json().items() if value != getattr(plain, name)
        ]
        done = sum(states[run.folder] is None for run in own)
        seeds = f"seeds {', '.join(str(run.seed) for run in own)}" + (f" ({done} finished)" if done else "")
        title = row[0] if group.method is None else f"{row[0]} ({group.title})"
        lines.append(
            f"  {title:28} {config.method}, preset {config.preset}{''.join(f', {change}' for change in changes)}; {seeds}"
        )
    return [*lines, *_cost(dataset, runs, states, given.output)]


def _state(folder: Path) -> int | None:
    """Epochs done; None: all of them."""
    if (folder / "result.json").exists():
        return None
    return (
        sum(line["kind"] == "epoch" for line in RunFolder.open(folder).metrics())
        if (folder / "run.json").exists()
        else 0
    )


def _cost(dataset: str, runs: Sequence[Run], states: dict[Path, int | None], home: Path) -> list[str]:
    """Steps, and seconds where finished runs of this folder or the paper tell how long a step takes."""
    left = [(run.config, (run.config.epochs - (states[run.folder] or 0)) * steps_per_epoch(run.config))
            for run in runs if states[run.folder] is not None]  # fmt: skip
    if not SPECS[dataset].train:
        return [
            f"  left: {sum(config.epochs for config, _ in left):,} epochs; steps follow from the folder's number of images"
        ]
    lines = [f"  left: {sum(steps for _, steps in left):,} optimiser steps in {len(left)} runs"]
    measured = {
        method: _seconds_per_step(home, dataset, method)
        for method in dict.fromkeys(config.method for config, _ in left)
    }
    here = [steps * measured[config.method] for config, steps in left if measured[config.method]]
    if here:
        lines.append(
            f"  ESTIMATE {_duration(here)} for {len(here)} runs, one at a time, by the steps of finished runs in {home}"
        )
    paper = [steps * A100_EPOCH[dataset, config.eagc] / steps_per_epoch(config) for config, steps in left
             if config.method == "simgcd" and (dataset, config.eagc) in A100_EPOCH and not measured["simgcd"]]  # fmt: skip
    if paper:
        lines.append(
            f"  ESTIMATE {_duration(paper)} for the {len(paper)} runs of SimGCD, one at a time, by the paper's epochs on one A100"
        )
    if rest := len(left) - len(here) - len(paper):
        lines.append(
            f"  {rest} runs have no time estimate: none of their method is finished in {home}, and the paper gives none"
        )
    return (
        [*lines, "  (training steps only: reference models, evaluations and diagnoses come on top)"]
        if here or paper
        else lines
    )


def _seconds_per_step(home: Path, dataset: str, method: str) -> float | None:
    folders = [file.parent for file in (home / "runs").glob(f"{dataset}-{method}-*/result.json")]
    lines = [
        line for folder in folders for line in RunFolder.open(folder).metrics() if line["kind"] == "epoch"
    ]
    return statistics.median(line["seconds"] / line["steps"] for line in lines) if lines else None


def _duration(seconds: Iterable[float]) -> str:
    total = sum(seconds)
    return (
        f"{total:.0f} s"
        if total < 120
        else f"{total / 60:.0f} min"
        if total < 7200
        else f"{total / 3600:.1f} h"
    )


# Overhead --------------------------------------------------------------------------------------------------------------------------


def _overhead(parser: Parser, argv: list[str], given: Namespace) -> int:
    """Measured by `eagc bench overhead`, in a process of its own: it restarts itself with the allocator pinned."""
    from eagc_ops.bench.commands.overhead import parse

    asked = vars(parser.parse_args(argv, Namespace(**dict.fromkeys(vars(given)))))  # None: not given
    for name, value in asked.items():
        if value is not None and name not in ("name", "output", "dry_run", *MEASURED):
            use = f"leave it out; there are {', '.join(map(_option, MEASURED))}, and `eagc bench overhead` has more"
            parser.error(
                f"{_option(name)} is for training, but overhead is measured (on the GPU if there is one): {use}"
            )
    home = given.output / "overhead"
    options = [word for name in MEASURED if getattr(given, name, None) is not None
               for word in (_option(name), str(getattr(given, name)))]  # fmt: skip
    options += ["-o", str(home / "table.json"), "--picture", str(home / "overhead.svg")]
    parse(options)  # refuses what does not fit together, before anything is started
    print(
        f"overhead (paper: {PAPER['overhead'].label}) is measured by: eagc bench overhead {' '.join(options)}",
        flush=True,
    )
    if given.dry_run:
        print(
            "ESTIMATE 5 min on one core of a CPU with ViT-S: 9 rounds of about 25 s, and the epochs; nothing is trained"
        )
        return 0
    home.mkdir(parents=True, exist_ok=True)
    lines = []
    with subprocess.Popen(
        [sys.executable, "-m", "eagc_ops.cli", "bench", "overhead", *options],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode == 0:
        from eagc_ops.training.report.page import page

        text = "".join(lines)
        (home / "table.md").write_text(f"# {TABLES['overhead'].caption}\n\n{text}", encoding="utf-8")
        picture = (home / "overhead.svg").read_text(encoding="utf-8")
        body = "".join(_block(block) for block in text.split("\n\n")) + picture[picture.index("<svg") :]
        (home / "table.html").write_text(
            page("EAGC table: overhead", TABLES["overhead"].caption, body), encoding="utf-8"
        )
        print(f"table: {home / 'table.md'}, {home / 'table.html'}")
    return process.returncode


def _block(text: str) -> str:
    """A Markdown table, or a paragraph, as HTML."""
    if not text.strip().startswith("|"):
        return f"<p>{html.escape(text)}</p>"
    head, _, *rows = (
        [html.escape(cell.strip()) for cell in line.strip().strip("|").split("|")]
        for line in text.strip().splitlines()
    )
    lines = [
        f"<tr><th>{'</th><th>'.join(head)}</th></tr>",
        *(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows),
    ]
    return f"<table>{''.join(lines)}</table>"
