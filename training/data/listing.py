"""A file that lists images: labelled ones with their classes, and unlabelled ones without a truth.

It is the split file of the data set `discover`, whose images lie in two folders of the user's.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagc_ops.app.files import atomic_write, fingerprint

__all__ = ["Listing"]

VERSION = 1


@dataclass(frozen=True)
class Listing:
    """Images in two folders. Paths are absolute; an image of `training` or `held_out` has its class."""

    labelled: str  # folder of the class folders
    unlabelled: str  # folder, or list of paths
    options: dict[str, Any]  # with which it was made, JSON-ready
    classes: tuple[str, ...]  # names of the known classes, sorted; the position is the label
    training: list[tuple[str, int]]  # labelled images to train on
    held_out: list[tuple[str, int]]  # labelled images that training never sees
    unlabelled_images: list[str]
    unreadable: dict[str, str]  # images that were left out: path -> reason
    duplicates: list[tuple[str, str]]  # (unlabelled, labelled) with the same content
    notes: list[str]  # for the user

    @property
    def split_hash(self) -> str:
        """The sha256 of the classes and of the images below their folders."""
        known = [
            [[os.path.relpath(path, self.labelled), c] for path, c in part]
            for part in (self.training, self.held_out)
        ]
        others = [os.path.relpath(path, self.unlabelled) for path in self.unlabelled_images]
        return fingerprint([self.classes, known, others])

    def write(self, file: Path) -> None:
        """Keep it as JSON."""
        atomic_write(file, json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=1) + "\n")

    @classmethod
    def read(cls, file: Path) -> Listing:
        """What `write` kept."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.pop("version") != VERSION:
                raise ValueError("it was written by a different version of this package")
            pairs: dict[str, Any] = {
                name: [(str(a), b) for a, b in content.pop(name)]
                for name in ("training", "held_out", "duplicates")
            }
            return cls(**{**content, "classes": tuple(content["classes"])}, **pairs)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file} is damaged ({error}): restore a copy, or start the discovery in a different folder"
            ) from error
