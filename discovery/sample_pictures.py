"""Sample pictures for a first try: drawn characters as image files, some of them labelled.

They come from the data set `glyphs`, so they need no download, and the bundled encoder suits them: it has
learned from other characters.
"""

from __future__ import annotations

import csv
import io
import shutil
import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from eagc_ops.app.files import atomic_write
from eagc_ops.app.places import PlaceError
from eagc_ops.training.data.glyphs import SIDE, class_characters, draw

__all__ = ["SETTINGS", "SamplePictures", "write_sample_pictures"]

CATEGORIES, KNOWN = 12, 6  # characters, and how many of them are labelled
LABELLED, UNLABELLED = 15, 25  # pictures of a labelled character; and of every character
STRENGTH = 0.7  # of the deformations, as in the data set
SCALE = 4  # files are larger than the drawings, for people to look at
# How `eagc discover` reads them
SETTINGS = {"backbone": "vit_glyphs", "channels": 1, "image_size": 32, "flip": False}


class SamplePictures(NamedTuple):
    """Folders of pictures, and the truth about the unlabelled ones."""

    labelled: Path
    unlabelled: Path
    truth: Path


def write_sample_pictures(home: Path) -> SamplePictures:
    """Draw the pictures into `home`/pictures, unless they are there already."""
    folder = home / "pictures"
    sample = SamplePictures(folder / "labelled", folder / "new", folder / "truth.csv")
    if sample.truth.exists():  # written last
        return sample
    if folder.exists():
        if any(place not in sample for place in folder.iterdir()):
            raise PlaceError(
                f"output {home} has a folder pictures that is not of the demo; name a new folder", "output"
            )
        shutil.rmtree(folder)  # half of a demo
    characters = class_characters()[:CATEGORIES]
    drawings = draw(characters, LABELLED + UNLABELLED, STRENGTH)
    names = [unicodedata.name(character).lower() for character in characters]
    sample.unlabelled.mkdir(parents=True)
    for name, own in zip(names[:KNOWN], drawings):
        (sample.labelled / name).mkdir(parents=True)
        for i, drawing in enumerate(own[:LABELLED], 1):
            _write(drawing, sample.labelled / name / f"{i}.png")
    # Shuffled, so that file names give nothing away
    order = np.random.default_rng(0).permutation(CATEGORIES * UNLABELLED)
    rows = [("path", "class")]
    for i, number in enumerate(order.tolist(), 1):
        category, j = divmod(number, UNLABELLED)
        rows.append((f"{i:03}.png", names[category]))
        _write(drawings[category, LABELLED + j], sample.unlabelled / rows[-1][0])
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    atomic_write(sample.truth, table.getvalue().encode())
    return sample


def _write(drawing: np.ndarray, file: Path) -> None:
    Image.fromarray(drawing).resize((SIDE * SCALE, SIDE * SCALE), Image.Resampling.BICUBIC).save(file)
