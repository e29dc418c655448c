"""The page `discovered.html`: the categories found in unlabelled images.

It opens with a sentence, then shows a card for each category and a map of all images, and lets people name,
merge, split and move what they see. It is made from the files of `eagc discover` (assignments.csv, map.csv,
categories.json) and the images they list. Thumbnails are beside it in `discovered_files`, as sheets that the
browser loads when they come into view.
"""

from __future__ import annotations

import csv
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from eagc_ops.app.files import atomic_write
from eagc_ops.discovery.category_files import plain
from eagc_ops.discovery.places import CATEGORIES_JSON
from eagc_ops.discovery.thumbnails import (
    CARD_SIDE,
    COLUMNS,
    ROWS,
    Sheets,
    folder_size,
    map_side,
    replacing,
)
from eagc_ops.discovery.verdict import accuracy_text, counts, headline, percent, plural, said_aloud
from eagc_ops.training.report.page import templates

__all__ = ["FILES", "PAGE", "image_paths", "page_size", "write_page"]

PAGE, FILES = "discovered.html", "discovered_files"
TYPICAL, DOUBTFUL = 8, 6  # images on a card
GRID = 10_000  # the map's coordinates are whole numbers up to this
LEAST_LIKE = 0.1  # cosine of two centres: below it, they have nothing in common
STATUSES = ("clear", "doubtful", "nowhere", "corrected")


class _Row(NamedTuple):
    """An unlabelled image, from assignments.csv and map.csv."""

    path: str
    category: str
    status: str
    confidence: float
    distance: float
    x: float
    y: float


def write_page(folder: str | Path, progress: bool = False) -> Path:
    """Write `folder`/discovered.html, and its thumbnails in `folder`/discovered_files; returns its path.

    An image that cannot be read gets a placeholder. Both are replaced if they exist.
    """
    folder = Path(folder)
    found = _found(folder)
    rows = _rows(folder, found)
    links = _Links(folder, found["unlabelled"])
    cards = [_card(category) for category in found["categories"]]
    if nowhere := sorted((row for row in rows if row.status == "nowhere"), key=lambda row: -row.distance):
        cards.append(_nowhere_card(nowhere, found["rules"]["nowhere"]))
    side = map_side(len(rows))
    total = len(rows) + sum(len(card["images"]) for card in cards)
    with replacing(folder / FILES) as files, Sheets(files, links.file, progress, total) as sheets:
        for number, card in enumerate(cards):
            card["sheet"] = f"card-{number:04}.webp"
            sheets.write(card["sheet"], card["images"], CARD_SIDE, len(card["images"]))
        for number, start in enumerate(range(0, len(rows), COLUMNS * ROWS)):
            paths = [row.path for row in rows[start : start + COLUMNS * ROWS]]
            sheets.write(f"map-{number:04}.webp", paths, side, COLUMNS)
    size = secrets.token_hex(16)  # placeholder for the page's size, known only when the page is written
    values = {
        "title": "What was found",
        "heading": _unbroken(headline(found)),
        "aloud": said_aloud(found),
        "found": found,
        "answer": found.get("answer"),
        "changes": found.get("changes"),
        "counts": counts(found),
        "accuracy": found["holdout"] and _accuracy(found["holdout"]),
        "cards": cards,
        "link": links.url,
        "name": os.path.basename,
        "number": {row.path: i for i, row in enumerate(rows)},
        "percent": lambda share: _unbroken(percent(share)),
        "short": lambda share: _short(percent(share)),
        "least_like": LEAST_LIKE,
        "plural": plural,
        "unreadable": sheets.unreadable,
        "data": _data(found, rows, cards, links, side),
        "files": FILES,
        "thumbnails": megabytes(folder_size(folder / FILES)),
        "page_size": size,
    }
    html = templates("eagc_ops.discovery").get_template("discovered.html.j2").render(values)
    # "replace": a name that is no text cannot be printed as it is; its link still works.
    content = html.encode("utf-8", "replace")
    stated = megabytes(len(content)).encode()
    atomic_write(folder / PAGE, content.replace(size.encode(), stated))
    return folder / PAGE


def image_paths(folder: str | Path) -> list[str]:
    """The image files of a discovery, in the order of the numbers on its page."""
    folder = Path(folder)
    found = _found(folder)
    links = _Links(folder, found["unlabelled"])
    return [os.path.abspath(links.file(row.path)) for row in _rows(folder, found)]


def page_size(page: Path) -> str:
    """The size of a page and of its thumbnails as text: "1.4 MB, and 26.1 MB of thumbnails in ..."."""
    thumbnails = megabytes(folder_size(page.parent / FILES))
    return f"{megabytes(page.stat().st_size)}, and {thumbnails} of thumbnails in {FILES}"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 50_000 else f"{size / 1e3:.0f} KB"


def _accuracy(holdout: Mapping[str, Any]) -> dict[str, str]:
    texts = accuracy_text(holdout)
    return {"short": _short(texts["share"]), **{name: _unbroken(text) for name, text in texts.items()}}


def _short(text: str) -> str:
    """A share, short enough for a narrow box in large letters."""
    return _unbroken(
        text.replace("less than ", "<\N{NO-BREAK SPACE}").replace("more than ", ">\N{NO-BREAK SPACE}")
    )


def _unbroken(text: str) -> str:
    """Keep numbers on one line with their unit."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%").replace("than ", "than\N{NO-BREAK SPACE}")


# The files of `eagc discover` -------------------------------------------------------------------------------


def _found(folder: Path) -> dict[str, Any]:
    """categories.json, with categories in the order of the page."""
    # A score that does not exist may stand as NaN.
    text = (folder / CATEGORIES_JSON).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
    found["categories"].sort(key=_importance)
    return found


def _importance(category: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """New categories first, by size; categories without an image last."""
    return not category["size"], category["kind"] != "new", -category["size"]


def _rows(folder: Path, found: Mapping[str, Any]) -> list[_Row]:
    """The images, grouped by category so that these share sheets, in the order of the categories.

    Within a category, the most typical image comes first.
    """
    order = {category["name"]: number for number, category in enumerate(found["categories"])}
    places = {line["path"]: line for line in _lines(folder / "map.csv")}
    rows = []
    for line in _lines(folder / "assignments.csv"):
        if (place := places.get(line["path"])) is None:
            raise ValueError(f"{folder / 'map.csv'} has no line for the image {line['path']!r}")
        category = plain(line["category"])
        if category not in order:
            raise ValueError(f"{folder / CATEGORIES_JSON} has no category {line['category']!r}")
        numbers = (float(line["confidence"]), float(line["distance"]), float(place["x"]), float(place["y"]))
        rows.append(_Row(line["path"], category, line["status"], *numbers))
    return sorted(rows, key=lambda row: (order[row.category], row.distance))


def _lines(file: Path) -> Iterator[dict[str, str]]:
    # surrogateescape: a file name may be no text at all.
    with open(file, newline="", encoding="utf-8", errors="surrogateescape") as lines:
        yield from csv.DictReader(lines)


class _Links:
    """Images as files, and as links from the page: relative ones, so that page and images move together.

    A relative path is inside the folder of unlabelled images, or else inside the page's folder.
    """

    def __init__(self, folder: Path, unlabelled: str) -> None:
        self._folder, self._unlabelled = os.path.realpath(folder), os.path.join(folder, unlabelled)

    def file(self, path: str) -> str:
        inside = os.path.join(self._unlabelled, path)
        return inside if os.path.exists(inside) else os.path.join(self._folder, path)

    def url(self, path: str) -> str:
        return quote(os.fsencode(os.path.relpath(os.path.abspath(self.file(path)), self._folder)))


# What the page says -----------------------------------------------------------------------------------------


def _card(category: Mapping[str, Any]) -> dict[str, Any]:
    typical, doubtful = category["typical"][:TYPICAL], category["doubtful_images"][:DOUBTFUL]
    return {**category, "typical": typical, "doubtful_images": doubtful, "images": [*typical, *doubtful]}


def _nowhere_card(rows: Sequence[_Row], why: str) -> dict[str, Any]:
    """A card of the images that fit nowhere, the farthest first."""
    paths = [row.path for row in rows[: TYPICAL + DOUBTFUL]]
    card = {"name": "Fit nowhere", "kind": "nowhere", "size": len(rows), "doubtful": False, "why": why}
    nothing: dict[str, Any] = {
        "labelled": 0,
        "confidence": None,
        "nearest_known": None,
        "doubtful_images": [],
    }
    return {**card, **nothing, "typical": paths, "images": paths}


def _data(
    found: Mapping[str, Any],
    rows: Sequence[_Row],
    cards: Sequence[Mapping[str, Any]],
    links: _Links,
    side: int,
) -> dict[str, Any]:
    """The data for the script: columns of whole numbers; links and paths without their common beginning."""
    urls = [links.url(row.path) for row in rows]
    base = f"{os.path.commonpath(map(os.path.dirname, urls))}/" if urls else ""
    base = "" if base == "/" else base
    ends = [unquote(url[len(base) :], errors="surrogateescape") for url in urls]
    root = rows[0].path.removesuffix(ends[0]) if rows else ""
    moved = {move["path"] for move in (found.get("changes") or {}).get("moved", ())}
    numbers = {card["name"]: i for i, card in enumerate(cards) if card["kind"] != "nowhere"}
    xs, ys = ([round(GRID * v) for v in _shares([getattr(row, axis) for row in rows])] for axis in "xy")
    return {
        "discovery": found.get("discovery", ""),
        "files": FILES,
        "side": side,
        "columns": COLUMNS,
        "perSheet": COLUMNS * ROWS,
        "grid": GRID,
        "base": base,
        "root": root,
        "categories": [[card["name"], card["kind"], bool(card["doubtful"])] for card in cards],
        "url": [url[len(base) :] for url in urls],
        # paths, as assignments.csv has them, that are not root + the end of the link
        "path": {i: row.path for i, (row, end) in enumerate(zip(rows, ends)) if row.path != root + end},
        "x": xs,
        "y": ys,
        "category": [numbers[row.category] for row in rows],
        "status": [STATUSES.index(row.status) for row in rows],
        "confidence": [round(100 * row.confidence) for row in rows],
        "moved": [i for i, row in enumerate(rows) if row.path in moved],  # by the last `eagc refine`
    }


def _shares(values: Sequence[float]) -> list[float]:
    """Scale to 0 at the least value and 1 at the greatest."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / ((high - low) or 1.0) for value in values]
