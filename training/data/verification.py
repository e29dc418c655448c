"""Compare a data set on disk with the protocol: published counts, unreadable images, a list of faults."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from eagc_ops.training.config.datasets import SPECS
from eagc_ops.training.data.catalog import Images, read_images
from eagc_ops.training.data.image_files import inspect, shown
from eagc_ops.training.data.splits import class_split, labelled_positions, missing_labels


@dataclass(frozen=True)
class Verification:
    """`ok` is False if a line starts with WRONG; lines that start with "warning" or "note" leave it True."""

    lines: tuple[str, ...]
    ok: bool
    home: str | None = None  # folder below which the images lie; None: they could not be listed
    unreadable: Mapping[str, str] = field(default_factory=dict)  # training images: path -> reason

    def __str__(self) -> str:
        return "\n".join(self.lines)


def verify(
    name: str,
    root: str | Path | None = None,
    split_file: str | Path | None = None,
    *,
    deep: bool = False,
    progress: bool = False,
    words: Callable[[Exception], str] = str,
) -> Verification:
    """Check a data set on disk: counts of the training and test part, every file, split file, L and U.

    Args:
        deep: decode all pixels; otherwise the headers and ends of all files are read (see `inspect`).
        progress: show a bar over the files.
        words: the text of an error; a command line names options in it.

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
    check = _Check(name, root, split_file, deep, progress)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check.run()
        except (OSError, ValueError) as error:
            check.lines.append(f"WRONG: {words(error)}")
    lines = check.lines + [
        f"warning: {warning.message}" for warning in caught if issubclass(warning.category, UserWarning)
    ]
    ok = not any(line.startswith("WRONG") for line in lines)
    return Verification(tuple(lines), ok, check.home, check.unreadable)


class _Check:
    """A verification that is under way."""

    def __init__(
        self, name: str, root: str | Path | None, split_file: str | Path | None, deep: bool, progress: bool
    ) -> None:
        self.name, self.root, self.split_file = name, root, split_file
        self.deep, self.progress = deep, progress
        self.lines: list[str] = []
        self.home: str | None = None
        self.unreadable: dict[str, str] = {}

    def run(self) -> None:
        lines = self.lines
        train = read_images(self.name, self.root)  # refuses an unknown name
        spec = SPECS[self.name]
        self.home = train.home
        lines += [f"note: {note}" for note in train.notes]
        lines.append(_count("training images", len(train), spec.train))
        self.unreadable = self._inspect(train)
        if spec.test:
            try:
                test = read_images(self.name, self.root, "test")
                lines.append(_count("test images", len(test), spec.test))
                self._inspect(test)
            except FileNotFoundError as error:
                lines.append(f"note: no test part, which GCD does not use ({error})")
            except ValueError as error:
                lines.append(f"WRONG: {error}")
        split = class_split(self.name, self.split_file, train.names)
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
        if fault := missing_labels(train.targets[labelled], split, train.names):
            lines.append(f"warning: {fault}")

    def _inspect(self, images: Images) -> dict[str, str]:
        """Open the files of a part, note the faults, and return the unreadable ones."""
        if not isinstance(images.source, list):
            return {}
        found = inspect(images.source, self.deep, self.progress)
        self.lines += [f"WRONG: {shown(path)}: {reason}" for path, reason in found.unreadable.items()]
        count = len(found.unreadable)
        how = "all pixels decoded" if self.deep else "headers and ends read; --deep decodes all pixels"
        if count:
            self.lines.append(f"WRONG: {count:,} of {len(images):,} files cannot be read ({how})")
        else:
            self.lines.append(f"ok: {len(images):,} files can be read ({how})")
        if others := {mode: n for mode, n in sorted(found.modes.items()) if mode != "RGB"}:
            listed = ", ".join(f"{n:,} in mode {mode}" for mode, n in others.items())
            grey = all(mode[0] in "1LI" and mode != "LAB" for mode in found.modes)
            hint = "; all are grey, and --channels 1 trains on one channel" if grey else ""
            self.lines.append(f"note: images to be converted to RGB: {listed}{hint}")
        return found.unreadable


def _count(name: str, count: int, published: int) -> str:
    if not published:  # nothing is published for a folder of the user's own
        return f"note: {count:,} {name}"
    if count != published:
        return f"WRONG: {count:,} {name}, expected {published:,}"
    return f"ok: {count:,} {name}"
