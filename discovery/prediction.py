"""Trained runs on other images: their categories, and the network as a file that needs only torch.

>>> header, rows = predict("found", ["photos/today"])  # doctest: +SKIP
>>> export("found", "model.pt2")  # doctest: +SKIP
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from eagc_ops.app.files import atomic_write
from eagc_ops.app.places import PlaceError
from eagc_ops.discovery.categories import place, read_categories
from eagc_ops.discovery.category_files import ASSIGNMENTS, assignment_rows, quoted
from eagc_ops.discovery.places import CATEGORIES
from eagc_ops.discovery.predictor import Predictor, predictor_of
from eagc_ops.training.data.catalog import image_files
from eagc_ops.training.data.image_files import find_unreadable, listed_paths, shown

__all__ = ["export", "find_images", "predict"]

Row = tuple[str, ...]
FACTS = "eagc.json"  # name of the file inside of a .pt2 that says what the network was trained for


def predict(
    run: str | Path,
    images: Iterable[str | Path],
    *,
    skip_unreadable: bool = False,
    progress: bool = False,
    **changes: Any,
) -> tuple[Row, list[Row]]:
    """The header and the rows of a table: one row for every image, in the order of `images`.

    The columns are those of assignments.csv. A run that is not a discovery has no distance and no status; its
    categories are the names of class folders (new-1, ... for the other clusters), or class numbers if the
    data set has no folders.

    Args:
        run: folder of a complete run, of any method.
        images: files, folders and lists of paths (`@list.txt`), see `find_images`.
        skip_unreadable: leave out images that cannot be read, instead of an error that names them.
        progress: show bars.
        **changes: settings of the machine, such as weights, device and workers.
    """
    paths = find_images(images)
    unreadable = find_unreadable(paths, skip_unreadable, progress)
    paths = [path for path in paths if path not in unreadable]
    if not paths:
        raise PlaceError("images: none is left that can be read")
    predictor = predictor_of(run, **changes)
    found = predictor(paths, "images" if progress else None)
    file = Path(run) / CATEGORIES
    if file.exists():
        known = read_categories(file)
        return ASSIGNMENTS, assignment_rows(paths, place(known, found.points, found.probabilities), known)
    best = found.probabilities.topk(min(2, predictor.classes), 1)
    rows: list[tuple[str, ...]] = []
    for path, k, (first, *second) in zip(paths, best.indices[:, 0].tolist(), best.values.tolist()):
        kind = "known" if k < predictor.known else "new"
        rows.append((path, quoted(_name(predictor, k)), kind, f"{first:.4f}", f"{first - sum(second):.4f}"))
    return ASSIGNMENTS[:5], rows


def find_images(images: Iterable[str | Path]) -> list[str]:
    """Absolute paths of files, of all images below folders, and of the lines of lists (`@list.txt`)."""
    paths: list[str] = []
    named: list[str] = []  # those that no folder held
    for word in map(str, images):
        if word.startswith("@"):
            named += (lines := listed_paths(Path(word[1:])))
            paths += lines
        elif os.path.isdir(word):
            found = image_files(Path(os.path.abspath(word))).paths
            if not found:
                raise PlaceError(f"images {word}: the folder has no images")
            paths += found
        else:
            named.append(os.path.abspath(word))
            paths.append(os.path.abspath(word))
    # A broken link in a folder is an unreadable image.
    missing = [path for path in named if not os.path.isfile(path)]
    if missing:
        raise PlaceError(f"images: {len(missing):,} files do not exist, the first is {shown(missing[0])}")
    return paths


def export(run: str | Path, file: str | Path, **changes: Any) -> None:
    """Write the network of a complete run to `file`, for `torch.export.load`.

    The network maps images (B, C, H, W), any B >= 1, float32 under the test transform, to scores (B, K):
    cosine logits, or negative distances to the clusters (SelEx). The largest wins. The file "eagc.json" in
    it has sizes, normalization, temperature and names.
    """
    predictor = predictor_of(run, **{**changes, "device": "cpu"})
    module, pixels = predictor.network, predictor.pixels
    images = torch.randn(3, predictor.channels, pixels, pixels, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        batch = torch.export.Dim("batch", min=1)
        shapes = {"images": {0: batch}}
        program = torch.export.export(module, (images[:2],), dynamic_shapes=shapes, strict=False)
        torch.testing.assert_close(program.module()(images), module(images))
    content = io.BytesIO()
    facts = json.dumps(_facts(predictor, Path(run)), indent=1)
    torch.export.save(program, content, extra_files={FACTS: facts})
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    atomic_write(Path(file), content.getvalue())


def _facts(predictor: Predictor, run: Path) -> dict[str, Any]:
    normalize, categories = predictor.transform.transforms[-1], run / CATEGORIES
    names: Sequence[str] = [_name(predictor, k) for k in range(predictor.classes)]
    return {
        "method": predictor.kind,
        "input": [None, predictor.channels, predictor.pixels, predictor.pixels],
        "transform": str(predictor.transform),
        "mean": list(normalize.mean),
        "std": list(normalize.std),
        "temperature": predictor.network.temperature,
        "known": predictor.known,
        "names": read_categories(categories).names if categories.exists() else names,
    }


def _name(predictor: Predictor, k: int) -> str:
    if predictor.known_names is None:
        return str(k)
    return predictor.known_names[k] if k < predictor.known else f"new-{k - predictor.known + 1}"
