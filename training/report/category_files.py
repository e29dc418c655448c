"""The files of a discovery: assignments.csv, map.csv, categories.json, and folders of links."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from eagc_ops.files import atomic_write
from eagc_ops.training.analysis.categories import Categories, Category, Placed
from eagc_ops.training.config.places import LINKS

__all__ = [
    "ASSIGNMENTS",
    "assignment_rows",
    "category_entry",
    "csv_text",
    "sort_into",
    "write_json",
    "write_map",
]

ASSIGNMENTS = ("path", "category", "kind", "confidence", "margin", "distance", "status")
MAP = ("path", "x", "y")
DIGITS = 4


def assignment_rows(paths: Sequence[str], placed: Placed, found: Categories) -> list[tuple[str, ...]]:
    """The rows of assignments.csv, in the order of `paths`."""
    columns = zip(paths, *(column.tolist() for column in placed[:4]), placed.status)
    return [
        (
            path,
            found.names[k],
            "known" if k < found.known else "new",
            *(f"{value:.{DIGITS}f}" for value in numbers),
            status,
        )
        for path, k, *numbers, status in columns
    ]


def csv_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    """A CSV file. A path whose bytes are no text is written with these bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def write_map(file: Path, paths: Sequence[str], points: Tensor) -> None:
    """map.csv, of points (N, 2)."""
    rows = ((path, f"{x:.{DIGITS}f}", f"{y:.{DIGITS}f}") for path, (x, y) in zip(paths, points.tolist()))
    atomic_write(file, csv_text(MAP, rows))


def category_entry(category: Category, paths: Sequence[str]) -> dict[str, Any]:
    """An entry of categories.json; `paths` are those of the unlabelled images."""
    nearest = category.nearest_known
    return {
        **category._asdict(),
        "confidence": round(category.confidence, DIGITS),
        "nearest_known": nearest and {"name": nearest[0], "similarity": round(nearest[1], DIGITS)},
        "typical": [paths[i] for i in category.typical],
        "doubtful_images": [paths[i] for i in category.doubtful_images],
    }


def write_json(file: Path, content: dict[str, Any]) -> None:
    atomic_write(file, json.dumps(content, indent=1, allow_nan=False) + "\n")


def sort_into(folder: Path, rows: Iterable[Sequence[str]]) -> None:
    """Links to the images of assignment rows, in one folder for each category.

    Links that were made here before are removed first. Nothing but links is removed or made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LINKS).touch()
    for inner in [entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]:
        for link in [entry for entry in inner.iterdir() if entry.is_symlink()]:
            link.unlink()
        if not any(inner.iterdir()):
            inner.rmdir()
    used: Counter[str] = Counter()  # how often a category has a file name already
    for path, category, *_ in rows:
        (folder / category).mkdir(exist_ok=True)
        stem, extension = os.path.splitext(os.path.basename(path))
        first = link = folder / category / f"{stem}{extension}"
        while os.path.lexists(link):  # photo.jpg, photo-2.jpg, ...
            used[str(first)] += 1
            link = first.with_name(f"{stem}-{used[str(first)] + 1}{extension}")
        os.symlink(path, link)
