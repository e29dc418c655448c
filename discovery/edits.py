"""Read and check edits.json, a person's changes on the page of a discovery. Nothing here needs torch.

>>> categories = [{"name": "cat", "kind": "known"}, {"name": "new-1", "kind": "new"}]
>>> found = {"discovery": "3f2a", "categories": categories}
>>> content = {"version": 1, "discovery": "3f2a", "names": {"new-1": "heron"}, "move": {"a.jpg": "heron"}}
>>> checked_edits(content, found, ["a.jpg"])
Edits(names={'new-1': 'heron'}, merge=[], split={}, move={'a.jpg': 'heron'}, not_one_category=[])
>>> checked_edits({**content, "names": {"new-2": "heron"}}, found, ["a.jpg"])  # doctest: +ELLIPSIS
Traceback (most recent call last):
eagc_ops.app.places.PlaceError: edits.json, names: there is no category 'new-2'; use the names of cat...
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagc_ops.app.places import PlaceError, readable_file

__all__ = ["EDITS", "Edits", "checked_edits", "read_edits", "same_name"]

EDITS, VERSION = "edits.json", 1
MOST_PARTS = 50


@dataclass(frozen=True)
class Edits:
    """The changes, by the names in categories.json."""

    names: dict[str, str] = field(default_factory=dict)  # of new categories
    merge: list[list[str]] = field(default_factory=list)
    split: dict[str, int] = field(default_factory=dict)  # into how many
    move: dict[str, str] = field(default_factory=dict)  # path -> category, one that exists or a new one
    not_one_category: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.names or self.merge or self.split or self.move or self.not_one_category)


def read_edits(file: Path, found: Mapping[str, Any], paths: Collection[str]) -> Edits:
    """The edits in `file`, made to the answer in `found` and `paths`: see `checked_edits`."""
    readable_file("EDITS", file, "save edits.json on the page, or run `eagc open`")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PlaceError(f"EDITS {file} is no JSON ({error}); save it on the page again") from error
    return checked_edits(content, found, paths, str(file))


def checked_edits(content: Any, found: Mapping[str, Any], paths: Collection[str], file: str = EDITS) -> Edits:
    """Check the content of a file. An error is one line that names the field and the remedy.

    Args:
        found: the content of categories.json.
        paths: the unlabelled images, as in assignments.csv.
    """
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise PlaceError(f"{file}, version: must be {VERSION}; save the file on the page again")
    if content.get("discovery") != found["discovery"]:
        raise PlaceError(
            f"{file}, discovery: {content.get('discovery')!r} is another answer, or an earlier one, than "
            f"{found['discovery']!r}; edit the page as it is now, and save again"
        )
    shapes = {"names": dict, "merge": list, "split": dict, "move": dict, "not_one_category": list}
    parts = {name: content.get(name) or shape() for name, shape in shapes.items()}
    for name, shape in shapes.items():
        if not isinstance(parts[name], shape):
            kind = "an object" if shape is dict else "a list"
            raise PlaceError(f"{file}, {name}: must be {kind}, got {parts[name]!r}; see docs/discover.md")
    edits = Edits(**parts)
    kinds = {category["name"]: category["kind"] for category in found["categories"]}
    _check_shapes(edits, file)
    _check_names(edits, kinds, file)
    _check_agreement(edits, file)
    there = set(paths)
    for path in edits.move:
        if path not in there:
            raise PlaceError(
                f"{file}, move: {path!r} is no unlabelled image of this discovery; use the paths of "
                "assignments.csv"
            )
    return edits


def same_name(name: str) -> str:
    """A key that is equal for names that people read as the same."""
    return " ".join(name.split()).casefold()


def _check_shapes(edits: Edits, file: str) -> None:
    for name, value in (
        *(("names", v) for v in edits.names.values()),
        *(("move", v) for v in edits.move.values()),
    ):
        if not isinstance(value, str) or not value.strip() or any(ord(letter) < 32 for letter in value):
            raise PlaceError(f"{file}, {name}: a category needs a name in one line, got {value!r}")
    for group in edits.merge:
        if not isinstance(group, list) or len(group) < 2 or not all(isinstance(name, str) for name in group):
            raise PlaceError(f"{file}, merge: must be lists of two or more names, got {group!r}")
    for name, count in edits.split.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 2 <= count <= MOST_PARTS:
            raise PlaceError(
                f"{file}, split: {name!r} must be split into 2 to {MOST_PARTS} parts, got {count!r}"
            )
    if not all(isinstance(name, str) for name in edits.not_one_category):
        raise PlaceError(f"{file}, not_one_category: must be names, got {edits.not_one_category!r}")


def _check_names(edits: Edits, kinds: Mapping[str, str], file: str) -> None:
    used = {
        "names": edits.names,
        "merge": [name for group in edits.merge for name in group],
        "split": edits.split,
        "not_one_category": edits.not_one_category,
    }
    made = {same_name(name) for name in edits.move.values()}
    for entry, names in used.items():
        for name in names:
            if name not in kinds and not (entry == "merge" and same_name(name) in made):
                raise PlaceError(
                    f"{file}, {entry}: there is no category {name!r}; use the names of categories.json"
                )
            if entry != "merge" and kinds[name] == "known":
                raise PlaceError(
                    f"{file}, {entry}: {name!r} is a known category, which keeps its name and stays whole"
                )


def _check_agreement(edits: Edits, file: str) -> None:
    """Refuse edits of a category that exclude each other: dissolved, split, merged, named."""
    merged = {name for group in edits.merge for name in group}
    for name in edits.not_one_category:
        for entry, others in (("names", edits.names), ("split", edits.split), ("merge", merged)):
            if name in others:
                raise PlaceError(
                    f"{file}, not_one_category: {name!r} stands in {entry} too; take it out of one of them"
                )
        if any(same_name(name) == same_name(to) for to in edits.move.values()):
            raise PlaceError(
                f"{file}, not_one_category: images are moved to {name!r}; take it out of one of them"
            )
    for name in edits.split:
        if name in merged:
            raise PlaceError(f"{file}, split: {name!r} is merged too; take it out of one of them")
