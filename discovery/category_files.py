"""The files of a discovery: assignments.csv, map.csv, categories.json, and folders of links."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from eagc_ops.app.files import atomic_write
from eagc_ops.discovery.categories import Categories, Category, Placed
from eagc_ops.discovery.places import LINKS

__all__ = [
    "ASSIGNMENTS",
    "assignment_rows",
    "category_entry",
    "csv_text",
    "plain",
    "quoted",
    "sort_into",
    "write_json",
    "write_map",
]

ASSIGNMENTS = ("path", "category", "kind", "confidence", "margin", "distance", "status")
MAP = ("path", "x", "y")
DIGITS = 4
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet may compute what begins so


def assignment_rows(paths: Sequence[str], placed: Placed, found: Categories) -> list[tuple[str, ...]]:
    """The rows of assignments.csv, in the order of `paths`."""
    columns = zip(paths, *(column.tolist() for column in placed[:4]), placed.status)
    return [
        (
            path,
            quoted(found.names[k]),
            "known" if k < found.known else "new",
            *(f"{value:.{DIGITS}f}" for value in numbers),
            status,
        )
        for path, k, *numbers, status in columns
    ]


def quoted(name: str) -> str:
    """A category's name for a CSV file: an apostrophe goes before what a spreadsheet would compute.

    >>> quoted("=1+1"), quoted("'-x"), quoted("it's"), plain("'=1+1")
    ("'=1+1", "''-x", "it's", '=1+1')
    """
    return f"'{name}" if name.lstrip("'").startswith(_FORMULA) else name


def plain(name: str) -> str:
    """The name behind `quoted`."""
    return name[1:] if name.startswith("'") and name.lstrip("'").startswith(_FORMULA) else name


def csv_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    """A CSV file. If the bytes of a path are not text, they are written as they are."""
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


def sort_into(folder: Path, rows: Iterable[Sequence[str]]) -> bool:
    """Link the images of assignment rows into one folder per category; copy where links are impossible.

    Returns whether all are links. First removes what an earlier call made here, and nothing else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / LINKS  # the copies made here, one name per line
    _remove_made(folder, made)
    used: Counter[str] = Counter()  # how often a category has a file name already
    homes: dict[str, str] = {}
    linked = True
    with open(made, "w", encoding="utf-8", errors="surrogateescape", newline="") as copies:
        for path, name, *_ in rows:
            category = plain(name)
            if category not in homes:
                homes[category] = _folder_name(category, homes.values())
                (folder / homes[category]).mkdir(exist_ok=True)
            stem, extension = os.path.splitext(os.path.basename(path))
            first = link = folder / homes[category] / f"{stem}{extension}"
            while os.path.lexists(link):  # photo.jpg, photo-2.jpg, ...
                used[str(first)] += 1
                link = first.with_name(f"{_short(stem)}-{used[str(first)] + 1}{extension}")
            try:
                os.symlink(path, link)
            except (OSError, NotImplementedError):  # as on Windows, and on disks of cameras
                linked = False
                copies.write(f"{link.relative_to(folder).as_posix()}\n")
                copies.flush()
                shutil.copyfile(path, link)
    return linked


def _remove_made(folder: Path, made: Path) -> None:
    if made.exists():
        for line in made.read_text(encoding="utf-8", errors="surrogateescape").split("\n"):
            home, _, name = line.partition("/")
            if home not in ("", "..") and name and "/" not in name:
                (folder / home / name).unlink(missing_ok=True)
    for inner in [entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]:
        for link in [entry for entry in inner.iterdir() if entry.is_symlink()]:
            link.unlink()
        if not any(inner.iterdir()):
            inner.rmdir()


def _short(name: str) -> str:
    """The name, or its first 200 bytes: file systems allow 255, and a number may be added."""
    content = name.encode("utf-8", "surrogateescape")
    return name if len(content) <= 200 else content[:200].decode("utf-8", "ignore").rstrip(". ")


def _folder_name(name: str, taken: Iterable[str]) -> str:
    """A folder name that is valid on any system and leads nowhere else.

    >>> _folder_name("grey heron", []), _folder_name("../a:b", []), _folder_name("Fox", ["fox"])
    ('grey heron', '_a_b', 'Fox-2')
    >>> _folder_name("nul", []), len(_folder_name("x" * 300, []))
    ('_nul', 200)
    """
    safe = _short(re.sub(r'[\\/:*?"<>|\x00-\x1f]', "_", name).strip(". ")) or "_"
    if re.fullmatch(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", safe, re.IGNORECASE):  # devices of Windows
        safe = f"_{safe}"
    used = {other.casefold() for other in taken}
    names = (f"{safe}-{i}" if i > 1 else safe for i in itertools.count(1))
    return next(one for one in names if one.casefold() not in used)
