"""A picture of the categories that a run discovered, by their typical images."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from markupsafe import escape
from matplotlib.figure import Figure
from torch.nn import functional as F

from eagc_ops.app.files import atomic_write
from eagc_ops.training.report import drawing
from eagc_ops.training.runs import trained

__all__ = ["Category", "categories", "write_part", "write_sheet"]

COLUMNS, TYPICAL = 5, 6  # of the sheet; images of a category


class Category(NamedTuple):
    """A category that a run discovered."""

    images: list[np.ndarray]  # the most typical ones: uint8 (H, W) or (H, W, 3) of one size
    count: int  # type: ignore[assignment]  # images in it; a tuple's own `count` is not used
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


def write_part(file: Path, sheet: Path, title: str) -> None:
    """Write the sheet as a part of a report: HTML that holds the picture itself."""
    picture = base64.b64encode(sheet.read_bytes()).decode("ascii")
    heading, _, note = (escape(text) for text in title.partition(", "))
    atomic_write(
        file,
        f"<h3>{heading}</h3>\n<p>{note}</p>\n"
        f'<img alt="{heading}" style="max-width: 100%" src="data:image/png;base64,{picture}">\n',
    )
