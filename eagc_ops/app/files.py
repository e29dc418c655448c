"""Atomic writes of files, full disks, and fingerprints of content."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from .locks import lock, tidy

Made = TypeVar("Made")


class DiskFullError(OSError):
    """A file did not fit on its disk; the message names the folder and the space that is needed."""


def atomic_write(path: Path, data: bytes | str) -> None:
    """Replace `path` with `data`, completely or not at all, even if the process is killed.

    The data goes to a temporary file beside `path`, is flushed to the disk, and is then renamed. Its name has
    a random part, so two processes that write one file do not meet.
    """
    content = data.encode() if isinstance(data, str) else data
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    with naming_full_disks(path, len(content)):
        try:
            with open(partial, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)  # half a file must not fill the disk
            raise
    if hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        folder = os.open(path.parent, os.O_RDONLY)  # the rename itself must reach the disk too
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def made_once(file: Path, make: Callable[[], Made]) -> Made | None:
    """Call `make`, which writes `file`, if the file does not exist; returns what it returned, or else None.

    Of several processes that need the file one makes it, and the others wait.
    """
    held = file.with_name(f"{file.name}.lock")
    if file.exists():
        tidy(held)
        return None
    with lock(held, file, wait=True):
        remove_partials(file.parent, file.name)
        return None if file.exists() else make()


def remove_partials(folder: Path, name: str = "") -> None:
    """Remove temporary files that killed processes left, of all files or of `name`.

    Only whoever holds the lock of the folder, or of the file, knows that nobody is writing them.
    """
    for partial in folder.glob(f"{name}*.partial"):
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def removed_if_refused(*files: Path, unless: Path) -> Iterator[None]:
    """Remove `files` that are made here if the work is refused, unless there is already the file `unless`.

    Folders that were made for them go too.
    """
    new = [file for file in files if not file.exists()]
    folders = [folder for file in new for folder in file.absolute().parents if not folder.exists()]
    try:
        yield
    except (ValueError, OSError):  # as every error about a setting, a place or a download is
        if not unless.exists():
            with contextlib.suppress(OSError):
                for file in new:
                    file.unlink(missing_ok=True)
                for folder in folders:  # the innermost first; one that holds more stays
                    folder.rmdir()
        raise


@contextlib.contextmanager
def naming_full_disks(path: Path, need: int) -> Iterator[None]:
    """Raise a `DiskFullError` that names the folder if `path` does not find room for `need` bytes."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        reason = "your quota of the disk of" if error.errno == errno.EDQUOT else "the disk of"
        free = shutil.disk_usage(path.parent).free
        more = f"make room for {_size(max(need - free, 1))} more" if free < need else "make room"
        raise DiskFullError(
            f"{reason} {path.parent} is full: {path.name} needs {_size(need)}, {_size(free)} are free; {more}"
        ) from error


def fingerprint(content: Any) -> str:
    """The sha256 of JSON-ready content.

    >>> fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _size(count: int) -> str:
    """Bytes for people, rounded up.

    >>> _size(1), _size(2_300_000), _size(7_600_000_000)
    ('1 kB', '2.3 MB', '7.6 GB')
    """
    if count <= 1e6:
        return f"{-(-count // 1000)} kB"
    unit, name = (1e6, "MB") if count < 1e9 else (1e9, "GB")
    return f"{-(-count // (unit / 10)) / 10:.1f} {name}"
