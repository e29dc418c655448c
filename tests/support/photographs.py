"""Small folders of photographs as a user has them: labelled class folders, and a tree without any truth."""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

KINDS = ("bee", "cat", "dog", "elk", "fox")
KNOWN = KINDS[:3]


def write_photographs(home: Path, labelled: int = 8, unlabelled: int = 6) -> dict[str, str]:
    """`home`/labelled/{bee,cat,dog}/*.png and `home`/new/**/*.png, of all five kinds.

    Returns the kind of every unlabelled image by its absolute path.
    """
    random, truth = np.random.RandomState(0), {}
    for number, kind in enumerate(KINDS):
        base = random.randint(0, 256, (5, 5, 3))

        def write(path: Path, base=base) -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.clip(base + random.randint(-40, 40, base.shape), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).resize((20, 20)).save(path)

        for i in range(labelled if kind in KNOWN else 0):
            write(home / "labelled" / kind / f"{i}.png")
        for i in range(unlabelled):
            path = home / "new" / ("2024" if i % 2 else "2025/march") / f"{number}{i}.png"
            write(path)
            truth[str(path)] = kind
    return truth


def digest(folder: Path) -> str:
    """Of the names, the content and the times of all files below a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found.update(repr((str(path), status.st_mode, status.st_mtime_ns)).encode() + content)
    return found.hexdigest()
