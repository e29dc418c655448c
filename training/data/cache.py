"""Arrays of images on disk, made once, image by image, so that a killed build goes on where it was.

A directory holds the bytes of all images, one after the other in the order of the data set; an index, for
each image what reading it takes, with checksums; and `cache.json`: what the bytes were made of, and how many
images are done. The record is replaced only after what it counts is on the disk. One process builds; others
that need the cache wait for it. A process compares a checksum when it first reads the bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from typing_extensions import Self

from eagc_ops.app.console import progress_bar
from eagc_ops.app.files import atomic_write, naming_full_disks, remove_partials
from eagc_ops.app.locks import lock, tidy

__all__ = ["AGAIN", "Build", "ImageCache"]

AGAIN = "delete the directory to build the cache again"


class Build(NamedTuple):
    """What makes the images of a cache that are missing."""

    content: str  # the line on the size of the cache, up to the size
    size: int  # bytes of the whole cache
    remedy: str  # what to do if the disk is too small
    parts: Iterator[tuple[list[np.ndarray], np.ndarray]]  # bytes of some images, and their entries


class ImageCache:
    """A cache on disk. A subclass names its files and says how long an image is.

    Args:
        directory: its folder; need not exist.
        made_of: everything the bytes depend on, JSON-ready; "images" is their number.
    """

    kind = data = index = ""  # the kind for messages; names of files

    def __init__(self, directory: Path, made_of: dict[str, Any]) -> None:
        self.directory, self.made_of = directory, made_of
        self.path = directory / self.data

    @property
    def entry(self) -> np.dtype:
        """The type of an image's entry in the index; its field "crc32" has one checksum or several."""
        raise NotImplementedError

    def lengths(self, entries: np.ndarray) -> np.ndarray:
        """Bytes of the images with these entries, (n,) int64."""
        raise NotImplementedError

    def missing(self, done: int) -> Build:
        """What makes the images from `done` on."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.made_of["images"]

    def __str__(self) -> str:
        return f"{self.kind} {self.directory}"

    def __reduce__(self):
        # A worker process maps the file again instead of receiving its content.
        return _opened, (type(self), self.directory, self.made_of)

    def opened(self) -> Self:
        """This cache, complete and ready to be read."""
        if (done := self.done()) < len(self):
            raise ValueError(f"{self} is not complete: {done} of {len(self)} images; build it first")
        self.entries, self.places = self._index(done)
        if (size := _size(self.path)) != self.places[-1]:
            raise ValueError(f"{self.path} is damaged: it has {size} of {self.places[-1]} bytes; {AGAIN}")
        self._compared = np.zeros(self.entries["crc32"].shape, bool)
        return self

    def compare(self, place: int | tuple[int, int], content: np.ndarray, what: str) -> None:
        """Refuse bytes that do not match their checksum, the first time that they are read."""
        if self._compared[place]:
            return
        if zlib.crc32(content.data) != self.entries["crc32"][place]:
            raise ValueError(f"{self.path} is damaged: {what} does not match its checksum; {AGAIN}")
        self._compared[place] = True

    def done(self) -> int:
        """The number of images in the cache. One made of something else is refused."""
        path, made_of = self.directory / "cache.json", self.made_of
        if not path.exists():
            if self.path.exists():
                raise ValueError(
                    f"{self.directory} has a {self.data} but no cache.json: it is not a {self.kind}, or is "
                    "damaged; choose a different directory"
                )
            return 0
        try:
            record = json.loads(path.read_text())
            done, theirs = int(record["done"]), dict(record["made of"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error!r}); {AGAIN}") from error
        differs = [
            f"{key}: {theirs.get(key)} there, {made_of.get(key)} now"
            for key in [*made_of, *(theirs.keys() - made_of)]
            if theirs.get(key) != made_of.get(key)
        ]
        if differs:
            raise ValueError(
                f"{self} is stale ({'; '.join(differs)}): delete it, or choose a different directory"
            )
        return done

    def complete(self, progress: bool) -> Self:
        """Make what is missing, with a bar, and open the cache; other processes wait."""
        held = self.directory / ".lock"
        if self.done() == len(self):
            tidy(held)
            return self.opened()
        with lock(held, self, wait=True):
            remove_partials(self.directory)
            if (done := self.done()) < len(self):
                self._build(done, progress)
        return self.opened()

    def _index(self, done: int) -> tuple[np.ndarray, np.ndarray]:
        """The entries of the images that are done, and where each begins; the end comes last."""
        path = self.directory / self.index
        entries = np.fromfile(path, self.entry) if path.exists() else np.empty(0, self.entry)
        if len(entries) < done:
            raise ValueError(f"{path} is damaged: it has {len(entries)} of {done} entries; {AGAIN}")
        return entries[:done], np.concatenate([[0], np.cumsum(self.lengths(entries[:done]))])

    def _build(self, done: int, progress: bool) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        place = int(self._index(done)[1][-1])
        if _size(self.path) < place:
            raise ValueError(f"{self.path} is shorter than its record says ({done} images); {AGAIN}")
        build = self.missing(done)
        size = max(build.size, place)
        self._announce(build, size, size - place)
        if not done:
            self._record(0)
        index = self.directory / self.index
        self.path.touch()
        index.touch()
        with (
            self.path.open("r+b") as file,
            index.open("r+b") as table,
            progress_bar(
                total=len(self), initial=done, unit="image", desc=self.kind, mininterval=1, shown=progress
            ) as bar,
        ):
            file.truncate(place)  # what a killed build wrote beyond its record
            for new, entries in build.parts:
                content = b"".join(array.data for array in new)
                with naming_full_disks(self.path, max(size - place, 1)):
                    _write_at(file, place, content)
                    _write_at(table, done * self.entry.itemsize, entries.tobytes())
                place, done = place + len(content), done + len(entries)
                self._record(done)
                bar.update(len(entries))

    def _record(self, done: int) -> None:
        """Note that the data of `done` images are on the disk."""
        atomic_write(
            self.directory / "cache.json", json.dumps({"done": done, "made of": self.made_of}, indent=1)
        )

    def _announce(self, build: Build, size: int, left: int) -> None:
        """Say how large the cache will be, and refuse a disk without room for the `left` bytes of it."""
        free = shutil.disk_usage(self.directory).free
        print(
            f"{self}: {build.content} {size / 1e9:.3f} GB; {left / 1e9:.3f} GB to write, "
            f"{free / 1e9:.1f} GB free",
            file=sys.stderr,
        )
        if left > free:
            raise OSError(
                f"{self} needs {left / 1e9:.3f} GB, but only {free / 1e9:.3f} GB are free: {build.remedy}"
            )


def _opened(kind: type[ImageCache], directory: Path, made_of: dict[str, Any]) -> ImageCache:
    return kind(directory, made_of).opened()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _write_at(file: BinaryIO, place: int, content: bytes) -> None:
    """Write `content` at `place`, and wait until it is on the disk.

    Plain writes, not a writable memory map: a full disk then raises an error instead of a SIGBUS.
    """
    file.seek(place)
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
