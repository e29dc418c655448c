"""The files of a cache that is built image by image, and that a killed build can go on with.

A directory holds the data, in the order of the images, and `cache.json`: the origin of the data, and how many
images are done. The record is replaced only after the data it counts are on the disk, so a build that was
killed goes on where the record ends. One process builds; others that need the cache wait for it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from eagc_ops.files import atomic_write, remove_partials
from eagc_ops.locks import lock, tidy

__all__ = ["AGAIN", "CacheFiles", "write_at"]

AGAIN = "delete the directory to build the cache again"


class CacheFiles(NamedTuple):
    """A cache on disk."""

    kind: str  # for messages: "trunk cache"
    directory: Path
    data: str  # the name of the file with the data
    made_of: dict[str, Any]  # everything the data depend on, JSON-ready; "images" is their number

    @property
    def path(self) -> Path:
        return self.directory / self.data

    @property
    def images(self) -> int:
        return self.made_of["images"]

    def __str__(self) -> str:
        return f"{self.kind} {self.directory}"

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

    def record(self, done: int) -> None:
        """Note that the data of `done` images are on the disk."""
        atomic_write(
            self.directory / "cache.json", json.dumps({"done": done, "made of": self.made_of}, indent=1)
        )

    def complete(self, build: Callable[[int], None]) -> None:
        """Call `build` with the number of images that are done, if some are missing; others wait."""
        held = self.directory / ".lock"
        if self.done() == self.images:
            tidy(held)
            return
        with lock(held, self, wait=True):
            remove_partials(self.directory)
            if (done := self.done()) < self.images:
                build(done)

    def announce(self, content: str, size: int, left: int, remedy: str, about: str = "") -> None:
        """Say how large the cache will be, and refuse a disk without room for the `left` bytes of it."""
        free = shutil.disk_usage(self.directory).free
        print(
            f"{self}: {content} = {about}{size / 1e9:.3f} GB; {left / 1e9:.3f} GB to write, "
            f"{free / 1e9:.1f} GB free",
            file=sys.stderr,
        )
        if left > free:
            raise OSError(
                f"{self} needs {left / 1e9:.3f} GB, but only {free / 1e9:.3f} GB are free: {remedy}"
            )


def write_at(file: BinaryIO, place: int, content: bytes) -> None:
    """Write `content` at `place`, and wait until it is on the disk.

    Plain writes, not a writable memory map: a full disk then raises an error instead of a SIGBUS.
    """
    file.seek(place)
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
