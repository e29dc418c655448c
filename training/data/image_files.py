"""Image files: reading one, finding those that cannot be read, and the list of them that a run leaves out."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from eagc_ops.app.console import progress_bar
from eagc_ops.app.files import atomic_write
from eagc_ops.app.places import PlaceError

__all__ = [
    "HEIC",
    "ImageError",
    "Inspection",
    "find_unreadable",
    "image_size",
    "inspect",
    "listed_paths",
    "opened",
    "read_image",
    "read_list",
    "reads_heic",
    "shown",
    "write_list",
]

# The bytes that end a complete file. Other formats have no such mark.
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB\x60\x82"}
_ORIENTATION = 0x0112  # the EXIF tag: how the camera was held
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
HEIC = (".heic", ".heif")  # as many telephones store photographs
_THREADS = 8  # PIL releases the interpreter's lock while it reads and decodes


class ImageError(OSError):
    """An image file cannot be read. The message is one line that names the file and the reason."""


def read_image(path: str, *, upright: bool = False) -> Image.Image:
    """The image in RGB, 8 bits per channel, decoded by PIL.

    Grey, CMYK, palette and 1-bit images are converted, and transparency is dropped, all as PIL does it.
    16-bit grey values are divided by 256; PIL itself would cut them off at 255. The EXIF orientation is
    ignored, as in the published loaders: a photograph that only says how the camera was held stays as it was
    stored. `upright` turns it as people see it. A file that is not whole is an `ImageError`.
    """
    try:
        with opened(path) as image:
            orientation = _orientation(image) if upright else 1
            if image.mode in ("I", "F"):
                raise ValueError(f"32 bits per pixel (mode {image.mode}) have no fixed range; store 8 or 16")
            if image.mode.startswith("I;16"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            picture = image.convert("RGB")
    except Exception as error:  # a damaged file can make PIL raise almost anything
        raise _unreadable(path, error) from error
    turn = _TURNS.get(orientation)
    return picture if turn is None else picture.transpose(turn)


def image_size(path: str, *, upright: bool = False) -> tuple[int, int]:
    """(width, height) of an image, from its header; `upright`: as for `read_image`."""
    try:
        with opened(path) as image:
            lying = upright and _orientation(image) in (5, 6, 7, 8)
            return image.size[::-1] if lying else image.size
    except Exception as error:  # as in `read_image`
        raise _unreadable(path, error) from error


def _orientation(image: Image.Image) -> int:
    try:
        if image.format == "TIFF":  # PIL turns these itself as it reads the pixels, and takes the note away
            image.load()
        return image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged note beside the picture does not damage the picture
        return 1


def _unreadable(path: str, error: Exception) -> ImageError:
    return ImageError(
        f"cannot read the image {shown(path)}: {_reason(error)}; `eagc data verify --deep` lists such "
        "files, and --skip-unreadable leaves them out"
    )


class Inspection(NamedTuple):
    """What `inspect` found."""

    unreadable: dict[str, str]  # path -> reason, in the order of the paths
    modes: Counter[str]  # PIL's modes of the readable images


def inspect(paths: Sequence[str], deep: bool = False, progress: bool = False) -> Inspection:
    """Open every file and read its header; `deep` decodes all pixels.

    Without `deep`, a file is decoded only if it does not end as its format does: this finds files that were
    cut off. Damage in the middle takes `deep`, and not every format notices it.
    """
    unreadable: dict[str, str] = {}
    modes: Counter[str] = Counter()
    with (
        ThreadPoolExecutor(_THREADS) as pool,
        progress_bar(total=len(paths), desc="images", unit="image", mininterval=1, shown=progress) as bar,
    ):
        for path, (mode, fault) in zip(paths, pool.map(lambda path: _inspect_one(path, deep), paths)):
            if fault is None:
                modes[mode] += 1
            else:
                unreadable[path] = fault
            bar.update()
    return Inspection(unreadable, modes)


def find_unreadable(paths: Sequence[str], skip: bool, progress: bool = False) -> dict[str, str]:
    """The files that cannot be read, path -> reason: an error that names them, unless they are skipped.

    To skip all of them, all pixels are decoded; otherwise headers and ends are read, see `inspect`.
    """
    unreadable = inspect(paths, deep=skip, progress=progress).unreadable
    if unreadable and not skip:
        named = [f"{shown(path)} ({reason})" for path, reason in unreadable.items()]
        more = f" and {len(named) - 3:,} more" if len(named) > 3 else ""
        raise ImageError(
            f"{len(named):,} of {len(paths):,} images cannot be read: {'; '.join(named[:3])}{more}; repair "
            "them, or leave them out with skip_unreadable"
        )
    return unreadable


def _inspect_one(path: str, deep: bool) -> tuple[str, str | None]:
    try:
        with opened(path) as image:
            mode, end = image.mode, _ENDS.get(image.format or "")
            whole = end is not None and _ends_with(path, end)
        if deep or not whole or mode in ("I", "F"):
            read_image(path)
        if deep:
            with opened(path) as image:
                image.verify()  # the checksums of a PNG, which decoding does not compare
        return mode, None
    except ImageError as error:
        return "", _reason(error.__cause__)
    except Exception as error:  # as in `read_image`
        return "", _reason(error)


def reads_heic() -> bool:
    """Whether HEIC pictures can be read, which takes the package pillow-heif."""
    try:
        from pillow_heif import register_heif_opener
    except ModuleNotFoundError:
        return False
    register_heif_opener()
    return True


def opened(path: str) -> Image.Image:
    """An image file whose header is read, HEIC too where pillow-heif is installed."""
    if os.path.getsize(path) == 0:
        raise ValueError("the file is empty")
    if path.lower().endswith(HEIC) and not reads_heic():
        raise ValueError("HEIC pictures take the package pillow-heif: pip install pillow-heif")
    return Image.open(path)


def _ends_with(path: str, end: bytes) -> bool:
    with open(path, "rb") as file:
        file.seek(-len(end), os.SEEK_END)
        return file.read() == end


def _reason(error: BaseException | None) -> str:
    """An error of PIL or of the operating system in a few words, without the path."""
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image, or damaged at its beginning"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def listed_paths(file: Path) -> list[str]:
    """The absolute paths in a text file of one path per line; relative ones begin at its folder.

    Windows writes such files with a mark of their encoding, which is no part of the first path.
    """
    content = file.read_bytes()
    utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = content.decode("utf-16") if utf_16 else content.decode("utf-8-sig", "surrogateescape")
    if "\0" in text:
        raise PlaceError(f"{file} is no text file; name a folder, or a text file with one path per line")
    lines = (line.strip() for line in re.split("\r?\n", text))
    return [os.path.normpath(os.path.join(file.absolute().parent, line)) for line in lines if line]


def shown(path: str) -> str:
    """A path that can be printed in one line, whatever bytes its name has."""
    return path.encode("utf-8", "backslashreplace").decode().replace("\n", "\\n")


# The list of files to leave out -----------------------------------------------------------------------------


def write_list(file: Path, home: str | Path, unreadable: dict[str, str]) -> None:
    """Write {"unreadable": {path: reason}}. Paths are relative to `home`, so the data set can be moved."""
    content = {"unreadable": {os.path.relpath(path, home): reason for path, reason in unreadable.items()}}
    atomic_write(file, json.dumps(content, indent=1) + "\n")


def read_list(file: str | Path) -> list[str]:
    """The relative paths in a list that `write_list` wrote, or one that was written by hand."""
    file = Path(file).expanduser()
    try:
        paths = json.loads(file.read_text(encoding="utf-8"))["unreadable"]
        if not isinstance(paths, (dict, list)) or not all(isinstance(path, str) for path in paths):
            raise TypeError("its value must be an object or a list of paths")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"skip_unreadable {str(file)!r} is not a list of unreadable files, as `eagc data verify "
            f'-o FILE` writes it, {{"unreadable": {{"path": "reason"}}}}: {error!r}'
        ) from error
    return list(paths)
