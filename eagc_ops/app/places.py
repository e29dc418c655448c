"""Folders and files that a command names, checked before any work starts. Nothing is made or left behind.

`what` is the option or setting, as the error names it.

>>> writable_folder("--output", Path(__file__))  # doctest: +ELLIPSIS
Traceback (most recent call last):
eagc_ops.app.places.PlaceError: --output ...places.py is a file; name a folder
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

__all__ = [
    "MissingPlaceError",
    "PlaceError",
    "SettingError",
    "readable_file",
    "readable_folder",
    "writable_file",
    "writable_folder",
]


class SettingError(ValueError):
    """A setting cannot be used.

    `settings` are those settings in the message that are also plain words, such as root. A command line
    writes their first mention, and every setting that is no plain word, as options.
    """

    def __init__(self, message: str, *settings: str) -> None:
        super().__init__(message)
        self.settings = settings


class PlaceError(SettingError):
    """A folder or a file cannot be used. The message is one line that names option, path and remedy."""


class MissingPlaceError(PlaceError, FileNotFoundError):
    """A folder or a file does not exist, or was not named."""


def writable_folder(what: str, folder: Path) -> None:
    """Check that files can be written in `folder`, or that it can be made."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise PlaceError(f"{what} {folder} is {_kind(folder)}; name a folder", what)
    _try_to_write(what, folder, folder)


def writable_file(what: str, file: Path) -> None:
    """Check that `file` can be written, and its folder made."""
    if file.is_dir():
        raise PlaceError(f"{what} {file} is a folder; pass the name of a file", what)
    _try_to_write(what, file, file.absolute().parent)


def readable_folder(what: str, folder: Path, remedy: str = "name an existing folder") -> None:
    """Check that `folder` exists and can be listed."""
    if not folder.is_dir():
        problem = (
            f"is {_kind(folder)}, not a folder"
            if os.path.lexists(folder)
            else "is not a folder: it does not exist"
        )
        raise MissingPlaceError(f"{what} {folder} {problem}; {remedy}", what)
    if not os.access(folder, os.R_OK | os.X_OK):
        raise PlaceError(f"{what} {folder} cannot be read: permission denied; {remedy}", what)


def readable_file(what: str, file: Path, remedy: str = "name an existing file") -> None:
    """Check that `file` exists, is not empty, and can be read."""
    if not os.path.exists(file) and _kind(file) != "a loop of links":
        raise MissingPlaceError(f"{what} {file}: no such file; {remedy}", what)
    if not file.is_file():
        raise PlaceError(f"{what} {file} is {_kind(file)}, not a file; {remedy}", what)
    if not os.access(file, os.R_OK):
        raise PlaceError(f"{what} {file} cannot be read: permission denied; {remedy}", what)
    if file.stat().st_size == 0:
        raise PlaceError(f"{what} {file} is empty (0 bytes); {remedy}", what)


def _try_to_write(what: str, named: Path, folder: Path) -> None:
    """Write a file without a name in `folder`, or in the nearest folder above it that exists."""
    exists = folder.absolute()
    while not os.path.lexists(exists):
        exists = exists.parent
    if not exists.is_dir():
        raise PlaceError(
            f"{what} {named} cannot be written: {exists} is {_kind(exists)}; choose a different place", what
        )
    # Trying is the only test that holds for every file system and for root.
    try:
        tempfile.TemporaryFile(dir=exists).close()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PlaceError(
            f"{what} {named} cannot be written in {exists}: {reason}; choose a different place", what
        ) from error


def _kind(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    if path.is_symlink() and not os.path.exists(path):
        try:
            os.stat(path)
        except OSError as error:
            return "a loop of links" if error.errno == errno.ELOOP else "a broken link"
    return "a file" if path.is_file() else "a special file"
