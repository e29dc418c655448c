"""Atomic writes of files, and fingerprints of content."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def atomic_write(path: Path, data: bytes | str) -> None:
    """Replace `path` with `data`, completely or not at all, even if the process is killed.

    The data goes to a temporary file beside `path`, is flushed to the disk, and is then renamed.
    """
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)  # the rename itself must reach the disk too
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def fingerprint(content: Any) -> str:
    """The sha256 of JSON-ready content.

    >>> fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
