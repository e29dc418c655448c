"""What a clustering finds in the features of finished runs, before and after training. Not registered.

    python -m eagc_ops.evidence.waterfall.floors runs/birds -o docs/waterfall/floors.csv

Features of the encoder as it came: the published k-means of unit-norm features, and the first answer of
`eagc discover`. Features of the trained encoder: that answer again, beside the network's own. The number of
clusters is that of the classes. Runs that the file has are not looked at again.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.app.files import atomic_write
from eagc_ops.app.table import Row, Table
from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.analysis.first_answer import first_answer
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods.clustering import semi_supervised_kmeans
from eagc_ops.training.report.measures import plus_minus

__all__ = ["WAYS", "floors", "measure", "read"]

WAYS = {
    "k-means": "published k-means, frozen features",
    "first": "first answer, frozen features",
    "network": "trained network",
    "clustering": "first answer, trained features",
}
COLUMNS = ("run", "way", "all", "old", "new")

Scores = dict[str, tuple[float, float, float]]  # way -> All, Old, New in percent


@torch.no_grad()
def measure(run: Path) -> Scores:
    """The scores of every way for a complete run."""
    folder = RunFolder.open(run)
    experiment = Experiment(folder.config)
    student, known, classes = experiment.student, experiment.facts.known, experiment.facts.classes
    truth = experiment.features.unlabelled()[1].numpy()
    count = experiment.facts.labelled

    def looked_at() -> tuple[Tensor, Tensor]:
        student.eval()
        labelled, unlabelled = experiment.features.labelled(), experiment.features.unlabelled()
        label = torch.cat([labelled[1], torch.full_like(unlabelled[1], -1)])
        return torch.cat([labelled[0], unlabelled[0]]), label

    def scored(rows: Tensor) -> tuple[float, float, float]:
        all_, old, new = (100 * share for share in accuracy(rows.numpy(), truth, known))
        return all_, old, new

    def answer() -> Tensor:
        return first_answer(features, label, classes, known, seed=folder.config.seed).assignment[count:]

    features, label = looked_at()
    generator = torch.Generator().manual_seed(folder.config.seed)
    unit = F.normalize(features, dim=1)
    published = semi_supervised_kmeans(
        unit, label, classes, generator=generator, restarts=10, iterations=50
    ).labels
    found = {"k-means": scored(published[count:]), "first": scored(answer())}
    student.load(experiment.read_checkpoint(folder.last)[0])
    features, label = looked_at()
    found["network"] = scored(student.method.predict(experiment.features))
    return {**found, "clustering": scored(answer())}


def read(file: Path) -> dict[str, Scores]:
    """The scores that a file has, by run."""
    found: dict[str, Scores] = {}
    with file.open(encoding="utf-8", newline="") as opened:
        for row in csv.DictReader(opened):
            scores = (float(row["all"]), float(row["old"]), float(row["new"]))
            found.setdefault(row["run"], {})[row["way"]] = scores
    return found


def floors(found: Mapping[str, Scores]) -> Table:
    """One line for each problem and recipe: mean and deviation over its replicates."""
    groups: dict[str, list[Scores]] = {}
    for run, scores in found.items():
        groups.setdefault(run.rpartition("-")[0], []).append(scores)
    rows = []
    for group, replicates in groups.items():
        problem, _, recipe = group.partition("-")
        for way, text in WAYS.items():
            parts = zip(*(scores[way] for scores in replicates))
            cells = [plus_minus(part, 1) for part in parts]
            rows.append(Row([problem, recipe.replace("-", " "), str(len(replicates)), text, *cells]))
    return Table(["problem", "recipe", "replicates", "way", "All", "Old", "New"], rows)


def _table(found: Mapping[str, Scores]) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for run in sorted(found):
        lines.writerows([run, way, *(f"{x:.6f}" for x in found[run][way])] for way in WAYS)
    return text.getvalue()


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m eagc_ops.evidence.waterfall.floors", description=__doc__)
    parser.add_argument("folder", type=Path, help="the output folder of `eagc waterfall`")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="CSV")
    parser.add_argument("--recipes", nargs="+", metavar="KEY", help="as in the names of runs [all]")
    arguments = parser.parse_args(None if argv is None else list(argv))
    torch.set_num_threads(1)
    found = read(arguments.output) if arguments.output.exists() else {}
    for result in sorted((arguments.folder / "runs").glob("*/result.json")):
        run = result.parent
        recipe = run.name.partition("-")[2].rpartition("-")[0]
        if run.name in found or (arguments.recipes and recipe not in arguments.recipes):
            continue
        found[run.name] = measure(run)
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(arguments.output, _table(found))
    print(floors(found).text())


if __name__ == "__main__":
    main()
