"""The page `discovered.html`: what was found in images that nobody had labelled.

It opens with a sentence, then shows a card for each category and a map of all images. It is made from the
files that `eagc discover` writes, assignments.csv, map.csv and categories.json, and from the images that they
name. Thumbnails lie beside it in `discovered_files`, as sheets that the browser loads when they are seen.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from PIL import Image, ImageDraw, ImageOps
from tqdm import tqdm

from eagc_ops.files import atomic_write, naming_full_disks
from eagc_ops.training.data.image_files import read_image
from eagc_ops.training.progress import bar as progress_bar
from eagc_ops.training.report.page import templates

__all__ = ["page_size", "write_page"]

PAGE, FILES = "discovered.html", "discovered_files"
TYPICAL, DOUBTFUL = 8, 6  # images on a card
CARD_SIDE = 112  # pixels of an image on a card
MAP_SIDES = ((5_000, 96), (None, 64))  # (images at most, pixels): 64 of a photograph are 1 to 2 KB
COLUMNS = ROWS = 16  # images on a sheet of the map
GRID = 10_000  # the map's coordinates are whole numbers up to this
STATUSES = ("clear", "doubtful", "nowhere")
_THREADS = 8  # PIL releases the interpreter's lock while it decodes
_WEBP = {"quality": 70, "method": 4}


class _Row(NamedTuple):
    """An unlabelled image, as assignments.csv and map.csv have it."""

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
    # A score that does not exist may stand as NaN.
    text = (folder / "categories.json").read_text(encoding="utf-8")
    found = json.loads(text, parse_constant=lambda _: None)
    found["categories"].sort(key=_importance)
    rows = _rows(folder, found)
    links = _Links(folder, found["unlabelled"])
    cards = [_card(category) for category in found["categories"]]
    if nowhere := sorted((row for row in rows if row.status == "nowhere"), key=lambda row: -row.distance):
        cards.append(_nowhere_card(nowhere, found["rules"]["nowhere"]))
    side = next(side for most, side in MAP_SIDES if most is None or len(rows) <= most)
    total = len(rows) + sum(len(card["images"]) for card in cards)
    with _replacing(folder / FILES) as files, _Sheets(files, links, progress, total) as sheets:
        for number, card in enumerate(cards):
            card["sheet"] = f"card-{number:04}.webp"
            sheets.write(card["sheet"], card["images"], CARD_SIDE, len(card["images"]))
        for number, start in enumerate(range(0, len(rows), COLUMNS * ROWS)):
            paths = [row.path for row in rows[start : start + COLUMNS * ROWS]]
            sheets.write(f"map-{number:04}.webp", paths, side, COLUMNS)
    values = {
        "title": "What was found",
        "heading": _headline(found),
        "found": found,
        "counts": _counts(found),
        "cards": cards,
        "link": links.url,
        "name": os.path.basename,
        "percent": percent,
        "unreadable": sheets.unreadable,
        "data": _data(rows, cards, links, side),
        "files": FILES,
        "thumbnails": megabytes(_size(folder / FILES)),
    }
    template = templates("eagc_ops.training.report").get_template("discovered.html.j2")
    # "replace": a name that is no text cannot be printed as it is; its link still works.
    size = len(template.render(values, page_size=megabytes(0)).encode("utf-8", "replace"))
    html = template.render(values, page_size=megabytes(size)).encode("utf-8", "replace")
    atomic_write(folder / PAGE, html)
    return folder / PAGE


def page_size(page: Path) -> str:
    """The size of a page and of its thumbnails as text: "1.4 MB, and 26.1 MB of thumbnails in ..."."""
    thumbnails = megabytes(_size(page.parent / FILES))
    return f"{megabytes(page.stat().st_size)}, and {thumbnails} of thumbnails in {FILES}"


def percent(share: float) -> str:
    """A share in words that do not round it away.

    >>> percent(0.043), percent(0.003), percent(0.999), percent(0), percent(1)
    ('4 %', 'less than 1 %', 'more than 99 %', '0 %', '100 %')
    """
    if 0 < share < 0.01:
        return "less than 1 %"
    return "more than 99 %" if 0.99 < share < 1 else f"{round(100 * share)} %"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 50_000 else f"{size / 1e3:.0f} KB"


# The files of `eagc discover` -------------------------------------------------------------------------------


def _rows(folder: Path, found: Mapping[str, Any]) -> list[_Row]:
    """The images, those of a category together, in the order of the categories: they share sheets."""
    order = {category["name"]: number for number, category in enumerate(found["categories"])}
    places = {line["path"]: line for line in _lines(folder / "map.csv")}
    rows = []
    for line in _lines(folder / "assignments.csv"):
        if (place := places.get(line["path"])) is None:
            raise ValueError(f"{folder / 'map.csv'} has no line for the image {line['path']!r}")
        if line["category"] not in order:
            raise ValueError(f"{folder / 'categories.json'} has no category {line['category']!r}")
        numbers = (float(line["confidence"]), float(line["distance"]), float(place["x"]), float(place["y"]))
        rows.append(_Row(line["path"], line["category"], line["status"], *numbers))
    return sorted(rows, key=lambda row: order[row.category])


def _lines(file: Path) -> Iterator[dict[str, str]]:
    # surrogateescape: a file name may be no text at all.
    with open(file, newline="", encoding="utf-8", errors="surrogateescape") as lines:
        yield from csv.DictReader(lines)


class _Links:
    """Images as files, and as links from the page: relative ones, so that page and images move together.

    A path that is not absolute lies inside the folder of unlabelled images, or else inside that of the page.
    """

    def __init__(self, folder: Path, unlabelled: str) -> None:
        self._folder, self._unlabelled = os.path.realpath(folder), os.path.join(folder, unlabelled)

    def file(self, path: str) -> str:
        inside = os.path.join(self._unlabelled, path)
        return inside if os.path.exists(inside) else os.path.join(self._folder, path)

    def url(self, path: str) -> str:
        return quote(os.fsencode(os.path.relpath(os.path.abspath(self.file(path)), self._folder)))


# What the page says -----------------------------------------------------------------------------------------


def _headline(found: Mapping[str, Any]) -> str:
    new = [c for c in found["categories"] if c["kind"] == "new" and c["size"]]
    doubtful = sum(c["doubtful"] for c in new)
    text = f"{len(new)} new categories" if len(new) != 1 else "1 new category"
    if not new:
        text = "No new category"
    elif doubtful == len(new):
        text += ", and it is doubtful" if doubtful == 1 else ", all of them doubtful"
    elif doubtful:
        text += f", {doubtful} of them doubtful"
    images = found["images"]
    for count, words in ((images["nowhere"], "fit nowhere"), (images["doubtful"], "are doubtful")):
        if count:
            return f"{text}; {percent(count / images['unlabelled'])} of the images {words}"
    return f"{text}; every image has a clear place"


def _importance(category: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """New categories first, the largest of them first, and those without an image last."""
    return not category["size"], category["kind"] != "new", -category["size"]


def _counts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Categories and shares of the unlabelled images, by kind."""
    categories = [c for c in found["categories"] if c["size"]]
    total = max(found["images"]["unlabelled"], 1)
    kinds = {kind: [c for c in categories if c["kind"] == kind] for kind in ("known", "new")}
    counts = {kind: len(members) for kind, members in kinds.items()}
    shares = {f"{kind}_share": sum(c["size"] for c in kinds[kind]) / total for kind in kinds}
    given = sum(c["kind"] == "known" for c in found["categories"])
    return {**counts, **shares, "given": given}


def _card(category: Mapping[str, Any]) -> dict[str, Any]:
    typical, doubtful = category["typical"][:TYPICAL], category["doubtful_images"][:DOUBTFUL]
    return {**category, "typical": typical, "doubtful_images": doubtful, "images": [*typical, *doubtful]}


def _nowhere_card(rows: Sequence[_Row], why: str) -> dict[str, Any]:
    """A card of the images that fit nowhere, the farthest first."""
    paths = [row.path for row in rows[: TYPICAL + DOUBTFUL]]
    card = {"name": "Fit nowhere", "kind": "nowhere", "size": len(rows), "doubtful": False, "why": why}
    nothing = {"labelled": 0, "confidence": None, "nearest_known": None, "doubtful_images": []}
    return {**card, **nothing, "typical": paths, "images": paths}


def _data(
    rows: Sequence[_Row], cards: Sequence[Mapping[str, Any]], links: _Links, side: int
) -> dict[str, Any]:
    """The map's data for the script: columns of whole numbers, and links that share their beginning."""
    urls = [links.url(row.path) for row in rows]
    base = f"{os.path.commonpath(map(os.path.dirname, urls))}/" if urls else ""
    numbers = {card["name"]: i for i, card in enumerate(cards) if card["kind"] != "nowhere"}
    xs, ys = [row.x for row in rows], [row.y for row in rows]
    span = max((max(v) - min(v) for v in (xs, ys) if v), default=0) or 1.0  # one scale for both axes
    return {
        "files": FILES,
        "side": side,
        "columns": COLUMNS,
        "perSheet": COLUMNS * ROWS,
        "grid": GRID,
        "base": base,
        "categories": [[card["name"], card["kind"], bool(card["doubtful"])] for card in cards],
        "url": [url[len(base) :] for url in urls],
        "x": [round(GRID * ((x - min(xs)) / span)) for x in xs] if xs else [],
        "y": [round(GRID * ((y - min(ys)) / span)) for y in ys] if ys else [],
        "category": [numbers[row.category] for row in rows],
        "status": [STATUSES.index(row.status) for row in rows],
        "confidence": [round(100 * row.confidence) for row in rows],
    }


# Thumbnails -------------------------------------------------------------------------------------------------


class _Sheets:
    """Writes sheets of thumbnails, and counts the images that cannot be read."""

    def __init__(self, folder: Path, links: _Links, progress: bool, total: int) -> None:
        self.unreadable: set[str] = set()
        self._folder, self._links = folder, links
        self._pool = ThreadPoolExecutor(_THREADS)
        self._bar: tqdm = progress_bar(total=total, desc="thumbnails", unit="image", shown=progress)

    def write(self, name: str, paths: Sequence[str], side: int, columns: int) -> None:
        """Paste the images row by row; a sheet without images is not written."""
        if not paths:
            return
        sheet = Image.new("RGB", (side * columns, side * -(-len(paths) // columns)))
        tiles: Iterable[Image.Image | None] = self._pool.map(
            partial(_thumbnail, side=side), map(self._links.file, paths)
        )
        for i, (path, tile) in enumerate(zip(paths, tiles)):
            if tile is None:
                self.unreadable.add(path)
            sheet.paste(tile or _placeholder(side), (side * (i % columns), side * (i // columns)))
            self._bar.update()
        data = io.BytesIO()
        sheet.save(data, "WEBP", **_WEBP)
        with naming_full_disks(self._folder / name, data.tell()):
            (self._folder / name).write_bytes(data.getvalue())

    def __enter__(self) -> _Sheets:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._bar.close()


def _thumbnail(file: str, side: int) -> Image.Image | None:
    """The middle of the image as people see it, upright; None if it cannot be read."""
    try:
        with Image.open(file) as image:
            if image.format == "JPEG":  # decoded at a fraction of its size, many times faster
                image.draft("RGB", (2 * side, 2 * side))
                picture = image.convert("RGB")
            else:
                picture = read_image(file)
        return ImageOps.fit(ImageOps.exif_transpose(picture), (side, side))
    except Exception:  # a damaged file can make PIL raise almost anything
        return None


def _placeholder(side: int) -> Image.Image:
    """A grey square with a cross."""
    tile = Image.new("RGB", (side, side), "#b8bec8")
    draw, edge = ImageDraw.Draw(tile), side // 3
    for ends in (((edge, edge), (side - edge, side - edge)), ((edge, side - edge), (side - edge, edge))):
        draw.line(ends, fill="#6b7280", width=max(2, side // 24))
    return tile


class _replacing:
    """A new folder under a temporary name; it takes the place of `folder` when all is written."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._partial = folder, folder.with_name(f"{folder.name}.partial")

    def __enter__(self) -> Path:
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir()
        return self._partial

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._partial.rename(self._folder)
        else:
            shutil.rmtree(self._partial, ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
