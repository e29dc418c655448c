"""`eagc table NAME`.

The output folder holds `runs/`, shared by all tables (a recipe is trained once), and for every table a folder
with `table.md` and `table.html`.
"""

from __future__ import annotations

import argparse
import shlex
import textwrap
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
from eagc_ops.evidence.paper.planning import Order, check_order, plan_text
from eagc_ops.evidence.paper.tables import TABLES
from eagc_ops.evidence.paper.values import PAPER
from eagc_ops.training.commands.common import MOST_SEEDS, list_unreadable
from eagc_ops.training.config import DATASETS, add_config_arguments, as_options

# Settings of the machine
PLACES = ("root", "split_file", "skip_unreadable", "weights", "pixel_cache", "device", "workers")
DEFAULTS: dict[str, Any] = {
    "output": Path("runs/tables"),
    "dry_run": False,
    "preset": "release",
    "seeds": 3,
    "jobs": None,
    "trunk_cache": False,
    "null": False,
    "pretrain_epochs": 10,
    "dataset": None,
    "backbone": None,
}


@command("eagc table", as_options)
def main(argv: list[str]) -> int:
    """Train the missing runs of a table on one data set, and write it with the paper's values beside ours."""
    parser = table_parser()
    options = DEFAULTS | vars(parser.parse_args(argv))
    name, dataset = options["name"], options["dataset"]
    if name == "overhead":  # the benchmarks measure it, and `eagc_ops.app.cli` hands it to them
        parser.error("overhead is measured, not trained: write its name first, eagc table overhead [options]")
    if options["backbone"] is not None:
        parser.error(
            f"--backbone {options['backbone']} is for overhead only: the table {name} defines its own "
            "backbones; leave it out"
        )
    if options["null"] and not any(row.null for row in TABLES[name].rows):
        with_null = [other for other, table in TABLES.items() if any(row.null for row in table.rows)]
        parser.error(
            f"--null: the table {name} has no null runs; leave it out (tables with them: "
            f"{', '.join(with_null)})"
        )
    own = list(dict.fromkeys(group.dataset for group in TABLES[name].groups))
    writable_folder("--output", options["output"])
    slurm = executor(options, options["output"])
    if options["dry_run"]:
        print(f"{name}: {TABLES[name].caption}\n(paper: {PAPER[name].label})")
        for each in [dataset] if dataset else own:
            print(f"\n{plan_text(_order(each, options))}", flush=True)
            if slurm is not None:
                from eagc_ops.evidence.sets import left_of  # as below

                print(slurm_text(left_of(_order(each, options).runs()), slurm), flush=True)
        return 0
    if dataset is None:
        parser.error(
            f"--dataset is missing: the paper has {', '.join(own)}; choose one of them, or digits, which "
            "needs no download"
        )
    file = options["output"] / f"{dataset}.unreadable.json"
    list_unreadable(options, file, lambda rest: check_order(_order(dataset, rest)))
    order = _order(dataset, options)
    check_order(order)
    return _print_commands(order, options) if "commands" in options else _fill(order, options, slurm)


def table_parser() -> Parser:
    """The parser. Only typed options end up in the namespace, because overhead refuses some of them."""
    usage = (
        "eagc table NAME --dataset digits | eagc table NAME --dataset cub --root FOLDER --split-file FILE "
        "[options]"
    )
    parser = Parser(
        prog="eagc table", usage=usage, description=main.__doc__, argument_default=argparse.SUPPRESS
    )
    parser.add_argument("name", choices=TABLES, metavar="NAME", help=", ".join(TABLES))
    parser.add_argument(
        "-o", "--output", type=path, metavar="FOLDER", help="folder for runs and tables [runs/tables]"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show the runs, how many are finished, and the cost; needs no data",
    )
    parser.add_argument(
        "--preset", choices=("paper", "release"), help="recipe of the rows with EAGC [release]"
    )
    parser.add_argument(
        "--seeds", type=whole_number(most=MOST_SEEDS), metavar="N", help="seeds 0 to N - 1 [3]"
    )
    parser.add_argument(
        "--trunk-cache",
        action="store_true",
        help="keep the frozen trunk's tokens on disk (digits: always; SPTNet: never)",
    )
    parser.add_argument(
        "--null",
        action="store_true",
        help="also train null runs, with both lambdas 1e-4: the noise floor of the paired differences",
    )
    parser.add_argument(
        "--pretrain-epochs",
        type=whole_number(),
        metavar="N",
        help="epochs of pretraining, for digits without --weights [10]",
    )
    parser.add_argument(
        "--dataset", choices=DATASETS, help="data set to fill in; glyphs and digits need no download"
    )
    parser.add_argument(
        "--backbone",
        metavar="VIT",
        help="overhead only: ViT to measure [vit_small_patch16_224]; other tables train their own",
    )
    parser.add_argument(
        "--epochs",
        type=whole_number(),
        metavar="N",
        help="epochs of every run [those of its recipe; digits: 6]",
    )
    add_config_arguments(parser, PLACES)
    add_executor_arguments(parser, jobs="one for each GPU; on a CPU one for each core, up to 4")
    return parser


def _order(dataset: str, options: Mapping[str, Any]) -> Order:
    return Order(
        name=options["name"],
        dataset=dataset,
        output=options["output"],
        preset=options["preset"],
        seeds=options["seeds"],
        trunk_cache=options["trunk_cache"],
        null=options["null"],
        settings={"epochs": options["epochs"]} if "epochs" in options else {},
        places={name: options[name] for name in PLACES if name in options},
    )


def _print_commands(order: Order, options: Mapping[str, Any]) -> int:
    from eagc_ops.evidence.paper.filling import missing_encoder  # as below
    from eagc_ops.evidence.sets import left_of

    encoder = missing_encoder(order)
    if encoder is not None and not encoder.exists():
        words = ["--dataset", order.dataset, "--epochs", str(options["pretrain_epochs"]), "-o", str(encoder)]
        print(f"{shlex.join(['eagc', 'pretrain', *words])}\n# when that is done:")
    print(commands_text(left_of(order.runs())))
    return 0


def _fill(order: Order, options: Mapping[str, Any], slurm: Any) -> int:
    # Accelerate, timm and matplotlib take seconds to import: a plan does not wait for them.
    from eagc_ops.evidence.paper.filling import fill
    from eagc_ops.evidence.paper.page import table_note, write_table

    started = time.perf_counter()
    # Tables share their runs: a second command could only wait for those of the first.
    with lock(order.output / ".lock", order.output):
        at_a_time = 0 if options.get("executor") == "none" else options["jobs"]
        say = lambda text: print(text, flush=True)  # noqa: E731
        failed = fill(order, at_a_time, options["pretrain_epochs"], say, slurm)
        caption, table = write_table(order.name, order.home, order.output / "runs")
    print(f"\n{caption}:\n{table.text()}\n\n{textwrap.fill(table_note(order.name), 110)}")
    print(f"\ntable: {order.home / 'table.md'}, {order.home / 'table.html'}")
    seconds = f"{time.perf_counter() - started:.0f} s in all"
    print(f"{seconds}; {failed} runs failed: run the same command to resume them" if failed else seconds)
    return 1 if failed else 0
