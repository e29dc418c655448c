"""Thumbnails of the page: sheets of many images, which the browser loads when they come into view."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps
from tqdm import tqdm

from eagc_ops.app.console import progress_bar
from eagc_ops.app.files import naming_full_disks
from eagc_ops.training.data.image_files import opened, read_image

__all__ = [
    "CARD_SIDE",
    "COLUMNS",
    "ROWS",
    "Sheets",
    "folder_size",
    "map_side",
    "replacing",
    "upright_picture",
]

CARD_SIDE = 112  # pixels of an image on a card
MAP_SIDES = ((5_000, 96), (None, 64))  # (images at most, pixels): 64 of a photograph are 1 to 2 KB
COLUMNS = ROWS = 16  # images on a sheet of the map
_THREADS = 8  # PIL releases the interpreter's lock while it decodes
_WEBP = {"quality": 70, "method": 4}


def map_side(images: int) -> int:
    """The side of an image on the map, in pixels."""
    return next(side for most, side in MAP_SIDES if most is None or images <= most)


class Sheets:
    """Writes sheets of thumbnails, and counts the images that cannot be read."""

    def __init__(self, folder: Path, file: Callable[[str], str], progress: bool, total: int) -> None:
        self.unreadable: set[str] = set()
        self._folder, self._file = folder, file
        self._pool = ThreadPoolExecutor(_THREADS)
        self._bar: tqdm = progress_bar(total=total, desc="thumbnails", unit="image", shown=progress)

    def write(self, name: str, paths: Sequence[str], side: int, columns: int) -> None:
        """Paste the images row by row; a sheet without images is not written."""
        if not paths:
            return
        sheet = Image.new("RGB", (side * columns, side * -(-len(paths) // columns)))
        tiles: Iterable[Image.Image | None] = self._pool.map(
            partial(_thumbnail, side=side), map(self._file, paths)
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

    def __enter__(self) -> Sheets:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._bar.close()


def _thumbnail(file: str, side: int) -> Image.Image | None:
    """The middle of the upright image; None if it cannot be read."""
    try:
        return ImageOps.fit(upright_picture(file, 2 * side), (side, side))
    except Exception:  # a damaged file can make PIL raise almost anything
        return None


def upright_picture(file: str, least: int) -> Image.Image:
    """The upright image; one with many more than `least` pixels a side may come smaller."""
    with opened(file) as image:
        if image.format == "JPEG":  # decoded at a fraction of its size, many times faster
            image.draft("RGB", (least, least))
            return ImageOps.exif_transpose(image.convert("RGB"))
    return read_image(file, upright=True)


def _placeholder(side: int) -> Image.Image:
    """A grey square with a cross."""
    tile = Image.new("RGB", (side, side), "#b8bec8")
    draw, edge = ImageDraw.Draw(tile), side // 3
    for ends in (((edge, edge), (side - edge, side - edge)), ((edge, side - edge), (side - edge, edge))):
        draw.line(ends, fill="#6b7280", width=max(2, side // 24))
    return tile


class replacing:
    """A new folder under a temporary name, which replaces `folder` once all is written."""

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


def folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
