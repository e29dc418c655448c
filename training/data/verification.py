"""Compare a data set on disk with the protocol: published counts, and a list of faults."""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagc_ops.training.config.datasets import SPECS
from eagc_ops.training.data.catalog import Images, read_images
from eagc_ops.training.data.splits import class_split, labelled_positions


@dataclass(frozen=True)
class Verification:
    """`ok` is False if a line starts with WRONG; lines that start with "warning" or "note" leave it True."""

    lines: tuple[str, ...]
    ok: bool

    def __str__(self) -> str:
        return "\n".join(self.lines)


def verify(name: str, root: str | Path | None = None, split_file: str | Path | None = None) -> Verification:
    """Check a data set on disk: files, counts of the training and test part, split file, sizes of L and U.

    >>> print(verify("digits"))
    note: digits come with scikit-learn
    ok: 1,797 training images
    note: class split made by formula
    ok: 5 known classes
    ok: 5 novel classes
    ok: 901 training images of known classes
    ok: 450 labelled (L)
    ok: 451 unlabelled, known class
    ok: 896 unlabelled, novel class
    ok: 1,347 unlabelled (U)
    """
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _check(lines, name, root, split_file)
        except (OSError, ValueError) as error:
            lines.append(f"WRONG: {error}")
    lines += [
        f"warning: {warning.message}" for warning in caught if issubclass(warning.category, UserWarning)
    ]
    return Verification(tuple(lines), not any(line.startswith("WRONG") for line in lines))


def _check(lines: list[str], name: str, root: str | Path | None, split_file: str | Path | None) -> None:
    train = read_images(name, root)
    spec = SPECS[name]
    lines += [f"note: {note}" for note in train.notes]
    lines += [_count("training images", len(train), spec.train), *_absent_files(train)]
    if spec.test:
        try:
            test = read_images(name, root, "test")
            lines += [_count("test images", len(test), spec.test), *_absent_files(test)]
        except FileNotFoundError as error:
            lines.append(f"note: no test part, which GCD does not use ({error})")
        except ValueError as error:
            lines.append(f"WRONG: {error}")
    split = class_split(name, split_file, train.names)
    labelled, unlabelled = labelled_positions(train.targets, split)
    old = int(np.isin(train.targets[unlabelled], split.known).sum())
    half = spec.pool // 2
    lines += [f"note: {note}" for note in split.notes]
    lines += [
        _count("known classes", len(split.known), spec.known),
        _count("novel classes", len(split.novel), spec.novel),
        _count("training images of known classes", len(labelled) + old, spec.pool),
        _count("labelled (L)", len(labelled), half),
        _count("unlabelled, known class", old, spec.pool - half),
        _count("unlabelled, novel class", len(unlabelled) - old, spec.train - spec.pool),
        _count("unlabelled (U)", len(unlabelled), spec.train - half),
    ]


def _count(name: str, count: int, published: int) -> str:
    if not published:  # nothing is published for a folder of the user's own
        return f"note: {count:,} {name}"
    if count != published:
        return f"WRONG: {count:,} {name}, expected {published:,}"
    return f"ok: {count:,} {name}"


def _absent_files(images: Images) -> list[str]:
    if not isinstance(images.source, list):
        return []
    absent = [path for path in images.source if not os.path.isfile(path)]
    return [f"WRONG: {len(absent):,} listed images are missing, the first is {absent[0]}"] if absent else []
