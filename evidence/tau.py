"""Which energy tells novel from known rows best? AUC of tau on frozen features whose truth is known.

    python -m eagc_ops.evidence.tau cub.pt cifar10.pt -o docs/coordinator/tau.csv

Each file holds (features (N, D), class (N,)), as `torch.save` wrote them. A draw makes half of the classes
known and half of their rows labelled; the AUC is that of the other rows. Beside the energies of the operator
there are those of the metric that labels teach (`LabelMetric`), in whose points a row of a known class lies
near a mean.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from eagc_ops import Subspace, hints
from eagc_ops.app.files import atomic_write
from eagc_ops.app.table import Row, Table
from eagc_ops.evidence.energies import Fit, conceptor, nearest_class, whitened
from eagc_ops.metric import LabelMetric

__all__ = ["ENERGIES", "Draw", "drawn", "measure", "page"]

DRAWS = 4


class Draw(NamedTuple):
    """The rows of one draw of known classes and labelled rows."""

    labelled: Tensor
    label: Tensor
    unlabelled: Tensor
    is_known: Tensor  # of `unlabelled`

    @property
    def rows(self) -> Tensor:
        return torch.cat([self.labelled, self.unlabelled])


def drawn(features: Tensor, label: Tensor, draw: int) -> Draw:
    """Half of the classes are known, and a row of theirs is labelled with probability one half."""
    generator = torch.Generator().manual_seed(draw)
    classes = label.unique()
    known = classes[torch.randperm(len(classes), generator=generator)[: len(classes) // 2]]
    of_known = torch.isin(label, known)
    labelled = of_known & (torch.rand(len(label), generator=generator) < 0.5)
    return Draw(features[labelled], label[labelled], features[~labelled], of_known[~labelled])


def of_draw(fit: Fit) -> Callable[[Draw], Tensor]:
    """The energy of the unlabelled rows of a draw."""
    return lambda draw: fit(draw.labelled, draw.label, draw.rows)(draw.unlabelled)


def unit_conceptor(aperture: float) -> Callable[[Draw], Tensor]:
    """The conceptor of rows of norm sqrt(D): its aperture does not depend on the encoder's scale."""

    def energy(draw: Draw) -> Tensor:
        labelled, unlabelled = (
            F.normalize(rows, dim=1) * rows.shape[1] ** 0.5 for rows in (draw.labelled, draw.unlabelled)
        )
        return Subspace.conceptor(labelled, aperture).energy(unlabelled)

    return energy


def pca(k: int) -> Callable[[Draw], Tensor]:
    return lambda draw: Subspace.pca(draw.labelled, k).energy(draw.unlabelled)


def in_metric(energy: Callable[[Draw], Tensor], directions: int | None = None) -> Callable[[Draw], Tensor]:
    """An energy of the points of the label metric."""

    def of_points(draw: Draw) -> Tensor:
        label = torch.cat([draw.label, draw.label.new_full((len(draw.unlabelled),), -1)])
        points = LabelMetric.fit(draw.rows, label, directions=directions)(draw.rows)
        n = len(draw.labelled)
        return energy(draw._replace(labelled=points[:n], unlabelled=points[n:]))

    return of_points


def class_mean(draw: Draw) -> Tensor:
    """The largest cosine to the mean of a labelled class."""
    labelled, unlabelled = F.normalize(draw.labelled, dim=1), F.normalize(draw.unlabelled, dim=1)
    means = torch.stack([labelled[draw.label == c].mean(0) for c in draw.label.unique()])
    return (unlabelled @ F.normalize(means, dim=1).T).amax(1)


ENERGIES: dict[str, Callable[[Draw], Tensor]] = {
    "conceptor, aperture 2 (the operator's)": of_draw(conceptor(2.0)),
    **{f"conceptor, aperture {a:g}": of_draw(conceptor(a)) for a in (0.3, 1.0, 4.0)},
    "conceptor of unit rows, aperture 4": unit_conceptor(4.0),
    "PCA-32": pca(32),
    "whitened by all rows, ridge 1%, aperture 1 (an option)": of_draw(whitened(0.01, 1.0)),
    "whitened by all rows, ridge 10%, aperture 1": of_draw(whitened(0.1, 1.0)),
    "nearest class, aperture 0.3": of_draw(nearest_class(0.3)),
    "largest cosine to a class mean": class_mean,
    "label metric: conceptor of unit rows, aperture 4": in_metric(unit_conceptor(4.0)),
    "label metric: conceptor of unit rows, aperture 8": in_metric(unit_conceptor(8.0)),
    "label metric: largest cosine to a class mean": in_metric(class_mean),
    "label metric, 64 directions: conceptor of unit rows, aperture 4": in_metric(unit_conceptor(4.0), 64),
    "label metric, 64 directions: largest cosine to a class mean": in_metric(class_mean, 64),
}


@hints.muted()
def measure(features: Tensor, label: Tensor, draws: int = DRAWS) -> dict[str, list[float]]:
    """The AUC of every energy, by draw."""
    found: dict[str, list[float]] = {name: [] for name in ENERGIES}
    for number in range(draws):
        draw = drawn(features.float(), label, number)
        for name, energy in ENERGIES.items():
            found[name].append(float(roc_auc_score(draw.is_known, energy(draw).float())))
    return found


def page(found: dict[str, dict[str, list[float]]]) -> Table:
    """Means over the draws, the energy of the highest mean over the data sets first."""
    means = {
        name: [sum(by_energy[name]) / len(by_energy[name]) for by_energy in found.values()]
        for name in ENERGIES
    }
    order = sorted(means, key=lambda name: -sum(means[name]))
    rows = [Row([name, *(f"{x:.3f}" for x in means[name])]) for name in order]
    return Table(["energy", *found], rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eagc_ops.evidence.tau", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="(features, class) of a data set")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="CSV")
    parser.add_argument("--draws", type=int, default=DRAWS, metavar="N")
    arguments = parser.parse_args()
    found = {}
    for file in arguments.files:
        features, label = torch.load(file, weights_only=True)
        found[file.stem] = measure(features, label, arguments.draws)
        print(page(found).text(), flush=True)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["data", "energy", "draw", "auc"])
    for data, by_energy in found.items():
        for name, values in by_energy.items():
            lines.writerows([data, name, i, f"{value:.6f}"] for i, value in enumerate(values))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(arguments.output, text.getvalue())


if __name__ == "__main__":
    main()
