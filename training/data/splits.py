"""Which classes are known, and which of their images are labelled.

class_split         known and novel class lists: by formula, or from a split file
drawn_classes       half of the classes, where all are known and some have to play novel
labelled_positions  half of the pooled known-class images, drawn with the split's seed, not the run's
missing_labels      what to say if a known class has no labelled image
label_map           known classes become 0 .. |K|-1 in list order, novel ones follow
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from eagc_ops.training.config.datasets import SPECS
from eagc_ops.training.config.places import check_split_file
from eagc_ops.training.data.pickles import CONTAINERS, INTEGER_SCALARS, read_pickle

BY_FORMULA = "class split made by formula"


class ClassSplit(NamedTuple):
    """Class indices before re-indexing, in list order. The order of `known` decides the label ids."""

    known: tuple[int, ...]
    novel: tuple[int, ...]
    labelled_fraction: float = 0.5
    notes: tuple[str, ...] = ()
    draw: int = 0  # seed of the draw of the labelled images


def class_split(
    name: str,
    split_file: str | Path | None = None,
    names: Sequence[str] = (),
    known: int | None = None,
    labelled_alone: bool = False,
) -> ClassSplit:
    """The class split of the data set `name`; `names` are the class folders of a `folder` tree.

    - CIFAR, ImageNet-100, digits, glyphs: the first classes are known. For glyphs, `names` are its
      characters and `known` is the number of known ones, unless a `split_file` names them, as for `folder`.
    - Herbarium19: a formula, or its published file.
    - CUB, Cars, Aircraft (Semantic Shift Benchmark): `split_file`, the published .pkl or a .json with the
      same keys, {"known_classes": [...], "unknown_classes": {"Hard": [...], "Medium": [...], "Easy": [...]}}.
    - `folder`: `split_file`, a .json or .yaml {"known_classes": [names], "labelled_fraction": 0.5}; the other
      folders are novel, in sorted order, or only those of "novel_classes": the images of the rest are not
      used. "labelled_draw" is the seed of the draw of the labelled images, 0 if left out. `labelled_alone`:
      without a file all images are labelled.

    >>> class_split("cifar10").novel
    (5, 6, 7, 8, 9)
    """
    check_split_file(name, split_file, labelled_alone=labelled_alone)
    path = None if split_file is None else Path(split_file).expanduser()
    if name == "folder" and path is None:
        return ClassSplit(tuple(range(len(names))), (), 1.0, ("no split_file: all images are labelled",))
    if path is not None and name in ("folder", "glyphs"):
        return _named_split(path, names)
    spec = SPECS[name]
    if path is None and name == "herbarium19":
        # This draw gives the published list, order included.
        drawn = np.random.RandomState(0).choice(683, 341, replace=False).tolist()
        novel = sorted(set(range(683)) - set(drawn))
        return ClassSplit(tuple(drawn), tuple(novel), notes=(BY_FORMULA,))
    if path is not None and spec.split_file:
        return _published_split(name, path)
    classes, known = range(len(names) or spec.known + spec.novel), spec.known if known is None else known
    return ClassSplit(tuple(classes[:known]), tuple(classes[known:]), notes=(BY_FORMULA,))


def drawn_classes(names: Sequence[str]) -> list[str]:
    """Half of the classes, but 3 at least: a draw with seed 0, in the order of `names`.

    >>> drawn_classes(["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"])
    ['bee', 'cat', 'gnu', 'hen']
    """
    count = max(3, len(names) // 2)
    return [names[i] for i in sorted(np.random.RandomState(0).permutation(len(names))[:count])]


def labelled_positions(
    targets: np.ndarray, split: ClassSplit, *, permuted: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Positions (int64) of the labelled set L and of the unlabelled set U.

    L is `int(fraction * n)` of the n known-class images, drawn from the pool and not per class, with the
    seed `split.draw`. With `permuted` it stays in drawn order, otherwise it is sorted. U has all other
    positions of the classes of the split, sorted.

    >>> labelled_positions(np.array([1, 0, 1, 0, 2]), ClassSplit((0, 1), (2,)))
    (array([2, 3]), array([0, 1, 4]))
    """
    pool = np.flatnonzero(np.isin(targets, split.known))
    order = np.random.RandomState(split.draw).permutation(len(pool))
    drawn = pool[order[: int(split.labelled_fraction * len(pool))]]
    if len(drawn) == 0:
        raise ValueError(
            f"labelled_fraction={split.labelled_fraction} of {len(pool)} known-class images "
            "leaves none labelled; raise it"
        )
    used = np.flatnonzero(np.isin(targets, split.known + split.novel))
    return drawn if permuted else np.sort(drawn), np.setdiff1d(used, drawn)


def missing_labels(targets: np.ndarray, split: ClassSplit, names: Sequence[str] = ()) -> str | None:
    """A warning if known classes have no labelled image; `targets` are the class indices of L.

    >>> missing_labels(np.array([0, 0]), ClassSplit((0, 1), (2,)), ["ant", "bee", "cat"])
    '1 of 2 known classes have no labelled image (bee): nothing tells a run what they look like'
    """
    present = set(targets.tolist())
    absent = [c for c in split.known if c not in present]
    if not absent:
        return None
    listed = ", ".join(str(names[c]) if names else str(c) for c in absent[:5])
    return (
        f"{len(absent)} of {len(split.known)} known classes have no labelled image ({listed}): "
        "nothing tells a run what they look like"
    )


def label_map(split: ClassSplit) -> np.ndarray:
    """int64 array: class index -> label; -1 for a class that the split leaves out.

    A label is old if it is below `len(split.known)`.

    >>> label_map(ClassSplit((2, 0), (4, 1))).tolist()
    [1, 3, 0, -1, 2]
    """
    classes = split.known + split.novel
    labels = np.full(max(classes) + 1, -1, np.int64)
    labels[list(classes)] = np.arange(len(classes))
    return labels


def _published_split(name: str, path: Path) -> ClassSplit:
    spec = SPECS[name]
    file, published = spec.split_file, spec.split_sha256
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if path.suffix == ".json":
        entries = _parse(path, json.loads)
        note = (
            f"{path} (sha256 {digest}) is JSON: its bytes cannot be compared with {file} (sha256 {published})"
        )
    else:
        entries = read_pickle(content, path, INTEGER_SCALARS if name == "herbarium19" else CONTAINERS)
        note = f"{path} has sha256 {digest}, the published {file} has {published}"
        if digest != published:
            warnings.warn(f"{note}: it may be a different class split", stacklevel=4)
    try:
        if name == "herbarium19":
            known, novel = entries["Old"], entries["New"]
        else:  # novel classes in the order Hard, Medium, Easy, whatever order the file stores
            known = entries["known_classes"]
            novel = [c for level in ("Hard", "Medium", "Easy") for c in entries["unknown_classes"][level]]
        known, novel = _integers(known), _integers(novel)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not have the keys and integer lists of {file}: {error!r}") from error
    if len(known) != spec.known or sorted(known + novel) != list(range(spec.known + spec.novel)):
        raise ValueError(
            f"{path} lists {len(known)} known and {len(novel)} novel classes; {spec.title} needs "
            f"{spec.known} and {spec.novel} that cover 0 .. {spec.known + spec.novel - 1}, each once"
        )
    return ClassSplit(known, novel, notes=(note,))


def _named_split(path: Path, names: Sequence[str]) -> ClassSplit:
    entries = _parse(path, json.loads if path.suffix == ".json" else yaml.safe_load)
    allowed = {"known_classes", "novel_classes", "labelled_fraction", "labelled_draw"}
    if not isinstance(entries, dict) or not {"known_classes"} <= entries.keys() <= allowed:
        raise ValueError(
            f"{path} needs the key 'known_classes' and may have 'novel_classes', 'labelled_fraction' and "
            "'labelled_draw', nothing else"
        )
    known, fraction = entries["known_classes"], entries.get("labelled_fraction", 0.5)
    novel, draw = entries.get("novel_classes"), entries.get("labelled_draw", 0)
    # YAML reads the names 001 and no as a number and a truth value.
    for key, classes in (("known_classes", known), ("novel_classes", novel)):
        if (classes is not None or key == "known_classes") and (
            not isinstance(classes, list) or not all(isinstance(name, str) for name in classes)
        ):
            raise ValueError(
                f"{path}: {key!r} must be a list of folder names; put names such as 001 or no in quotes"
            )
    unknown = [k for k in known if k not in names]
    if unknown or len(set(known)) != len(known) or not 0 < len(known) < len(names):
        raise ValueError(
            f"{path}: 'known_classes' must name some, not all, of {len(names)} folders, each once; "
            f"not among the folders: {unknown[:3]}"
        )
    place = {name: i for i, name in enumerate(names)}
    others = [name for name in names if name not in set(known)] if novel is None else novel
    strange = [name for name in others if name not in place or name in known]
    if strange or len(set(others)) != len(others) or not others:
        raise ValueError(
            f"{path}: 'novel_classes' must name some of the folders that are not known, each once; "
            f"not among these: {strange[:3]}"
        )
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise ValueError(f"{path}: 'labelled_fraction' must be between 0 and 1, got {fraction!r}")
    if isinstance(draw, bool) or not isinstance(draw, int) or not 0 <= draw < 2**32:
        raise ValueError(f"{path}: 'labelled_draw' must be a whole number from 0 to 2^32 - 1, got {draw!r}")
    return ClassSplit(
        tuple(place[name] for name in known),
        tuple(sorted(place[name] for name in others)),
        float(fraction),
        (f"class split read from {path}",),
        draw,
    )


def _parse(path: Path, parser: Any) -> Any:
    try:
        return parser(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be parsed: {error}") from error


def _integers(values: Iterable[Any]) -> tuple[int, ...]:
    values = list(values)
    if any(isinstance(v, bool) or not isinstance(v, int | np.int64) for v in values):
        raise TypeError("class indices must be integers")
    return tuple(int(v) for v in values)
