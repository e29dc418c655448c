"""Tables of the paper on a few images of digits, and what they print.

    python small_tables.py UPDATE ARGUMENTS...

is `eagc table ARGUMENTS...` in a process that kills itself at an update.
"""

import json
import os
import re
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO

import numpy as np
import small_runs
from run_facts import some_facts

from eagc_ops.app.cli import main
from eagc_ops.evidence.paper import filling, tables
from eagc_ops.training.data import ImageSubset, open_data
from eagc_ops.training.engine import experiment
from eagc_ops.training.engine import pretraining as pretrain
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.report.measures import measures
from eagc_ops.training.report.runs import read_run

DIGITS = "scikit-learn digits"
SMALL = {"epochs": 2, "reference_epochs": 1, "cache_views": 2, "batch_size": 45}  # 4 steps an epoch
WITH_SUPPORT = os.environ | {"PYTHONPATH": os.path.dirname(__file__)}  # of a process that runs this file


def few_digits():
    data = open_data("digits")

    def part(of):
        return ImageSubset(of.images, of.uq_idx[of.uq_idx < 180].numpy(), np.arange(10))

    return replace(data, labelled=part(data.labelled), unlabelled=part(data.unlabelled))


def make_small(patch):
    """180 images of digits, weak encoders allowed. `patch` is setattr, or undoes itself."""
    few = few_digits()
    for module in (filling, experiment):
        patch(module, "open_data", lambda *_, **__: few)
    patch(pretrain, "NEEDED", 0.1)
    patch(tables, "MINIATURES", {"digits": tables.MINIATURES["digits"]._replace(switches=SMALL)})


def table(*arguments):
    return main(["table", *map(str, arguments)])


def printed(*arguments):
    """(exit code, stdout) of `eagc table`."""
    with redirect_stdout(StringIO()) as out:
        code = table(*arguments)
    return code, out.getvalue()


def cells(text):
    """{first cell: its rows as {heading: cell}} of the first Markdown table in a text."""
    block = re.search(r"(?:^\|.*\n?)+", text, re.MULTILINE)[0]
    head, _, *rows = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.splitlines())
    return _by_first_cell(head, rows)


def aligned_cells(text):
    """The same of the first block of lines that starts with "Method", of a table for the terminal."""
    block = re.search(r"^Method .*\n(?:.+\n)+", text, re.MULTILINE)[0]
    head, *rows = (re.split(r"\s{2,}", line) for line in block.splitlines())
    return _by_first_cell(head, rows)


def _by_first_cell(head, rows):
    by_first = {}
    for row in rows:
        by_first.setdefault(row[0], []).append(dict(zip(head, row, strict=True)))
    return by_first


def runs_of(home, name):
    """(row key, group) -> the records and measures of its runs, by seed."""
    runs = {}
    for row, group, folder in json.loads((home / name / "runs.json").read_text())["digits"]["runs"]:
        run = read_run(home / "runs" / folder)
        runs.setdefault((row, group), {})[run.config.seed] = (run, measures(run))
    return runs


def record_run(path, config, values, starts=None):
    """A finished run of two epochs with these All, Old, New, at its epochs' ends and starts."""
    facts = some_facts(known=100, classes=200, images=5994, labelled=1500, steps_per_epoch=46)
    folder = RunFolder.create(path, config, facts)
    folder.start_logs(0, 0, 0)
    for epoch, (everything, old, new) in enumerate(values.tolist()):
        scores = {"all": everything, "old": old, "new": new}
        if starts is not None:
            scores |= dict(zip(("start_all", "start_old", "start_new"), starts[epoch].tolist()))
        folder.log(
            "epoch",
            46 * (epoch + 1),
            {"epoch": epoch, **scores, "classes_predicted": 200, "steps": 46, "seconds": 1.0},
        )
    folder.close()
    folder.finish(
        {"headline": "last", "last": {}, "best": {}, "warnings": [], "reference_cross_entropy": None}
    )


if __name__ == "__main__":
    make_small(setattr)
    small_runs.kill_at("update", int(sys.argv[1]))
    sys.exit(table(*sys.argv[2:]))
