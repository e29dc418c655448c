"""Pictures made of images: samples of a data set, and the categories that a run discovered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch.nn import functional as F

from eagc_ops.training.data import Images
from eagc_ops.training.report import drawing
from eagc_ops.training.runs import trained

__all__ = ["Category", "categories", "write_samples", "write_sheet"]

COLUMNS, TYPICAL = 5, 6  # of the sheet; images of a category


def write_samples(file: Path, images: Images, classes: int = 12, each: int = 16, side: int = 36) -> None:
    """Draw a row of the first `each` images of each of the first `classes` classes of a data set."""
    rows, mode = [], "L" if images.image(0).mode == "L" else "RGB"
    for target in range(min(classes, int(images.targets.max()) + 1)):
        positions = np.flatnonzero(images.targets == target)[:each]
        row = [images.image(i).convert(mode).resize((side, side)) for i in positions]
        row += [Image.new(mode, (side, side), "white")] * (each - len(row))
        rows.append(np.concatenate([np.asarray(image) for image in row], 1))
    Image.fromarray(np.concatenate(rows)).save(file, "PNG", optimize=True)


class Category(NamedTuple):
    """A category that a run discovered."""

    images: list[np.ndarray]  # the most typical ones: uint8 (H, W) or (H, W, 3) of one size
    count: int  # images in it
    name: str  # the true class that most of them belong to
    share: float  # of the images that do
    known: bool  # whether that class is a known one


def categories(run: Path) -> list[Category]:
    """The categories of a run's unlabelled images. Typical images lie near the mean direction of theirs."""
    experiment = trained(run)
    data, side = experiment.data, experiment.data.image_size
    with torch.no_grad():
        predicted = experiment.student.method.predict(experiment.features).cpu()
        z, label = (x.cpu() for x in experiment.features.unlabelled())
    z, names = F.normalize(z, dim=1), data.images.names
    true_names = {}
    for at, position in zip(label.tolist(), data.unlabelled.uq_idx.tolist()):
        target = int(data.images.targets[position])
        true_names[at] = names[target] if names else str(target)
    found = []
    for category in predicted.unique().tolist():
        rows = (predicted == category).nonzero().flatten()
        most = int(label[rows].mode().values)
        near = rows[(z[rows] @ z[rows].mean(0)).argsort(descending=True)[:TYPICAL]].tolist()
        images = [np.asarray(data.unlabelled[i][0].resize((side, side))) for i in near]
        share = (label[rows] == most).float().mean().item()
        found.append(Category(images, len(rows), true_names[most], share, most < data.known))
    return found


def write_sheet(file: Path, found: Sequence[Category], title: str) -> None:
    """Draw the categories, those with most images first."""
    ordered = sorted(found, key=lambda category: -category.count)
    rows = -(-len(ordered) // COLUMNS)
    with drawing.style():
        figure = Figure(figsize=(13, 0.62 * rows + 0.6), layout="constrained")
        figure.suptitle(title, fontsize=10)
        panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
        for panel in panels:
            panel.axis("off")
        for panel, category in zip(panels, ordered):
            blank = [np.full_like(category.images[0], 255)] * (TYPICAL - len(category.images))
            panel.imshow(
                np.concatenate(category.images + blank, 1), cmap="gray", vmin=0, vmax=255, aspect="equal"
            )
            kind = "known" if category.known else "novel"
            text = f"{category.name}  {category.share:.0%} of {category.count}, {kind}"
            colour = drawing.COLOURS[1 if category.share < 0.5 else 0 if category.known else 2]
            panel.set_title(text, fontsize=8, color=colour, loc="left", pad=2)
        figure.savefig(file, format="png", dpi=90)
