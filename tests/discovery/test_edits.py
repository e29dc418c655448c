"""What edits.json may hold: an error names the field and the remedy."""

import json

import pytest

from eagc_ops.app.places import PlaceError
from eagc_ops.discovery.edits import Edits, checked_edits, read_edits

FOUND = {
    "discovery": "3f2a9c0d51b7e846",
    "categories": [
        {"name": "cat", "kind": "known"},
        {"name": "fox", "kind": "known"},
        *({"name": f"new-{i}", "kind": "new"} for i in range(1, 6)),
    ],
}
PATHS = ["/photos/new/7.jpg", "/photos/new/8.jpg"]
DOCUMENTED = {  # docs/discover.md
    "version": 1,
    "discovery": "3f2a9c0d51b7e846",
    "names": {"new-1": "heron"},
    "merge": [["new-2", "new-3"]],
    "split": {"new-4": 2},
    "move": {"/photos/new/7.jpg": "cat"},
    "not_one_category": ["new-5"],
}


def test_what_is_documented_is_read():
    edits = checked_edits(DOCUMENTED, FOUND, PATHS)
    assert edits.names == {"new-1": "heron"}
    assert not edits.empty
    assert checked_edits({"version": 1, "discovery": FOUND["discovery"]}, FOUND, PATHS) == Edits()


def test_moves_may_make_categories_that_are_merged():
    moved = {**DOCUMENTED, "move": {PATHS[0]: "otter"}, "merge": [["new-2", "otter"]]}
    assert checked_edits(moved, FOUND, PATHS).merge == [["new-2", "otter"]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"version": 2}, "version: must be 1"),
        ({"discovery": "00"}, "discovery: '00' is another answer"),
        ({"names": ["new-1"]}, "names: must be an object"),
        ({"names": {"new-9": "x"}}, "names: there is no category 'new-9'; use the names of categories.json"),
        ({"names": {"cat": "x"}}, "names: 'cat' is a known category"),
        ({"names": {"new-1": " "}}, "names: a category needs a name in one line"),
        ({"names": {"new-1": "a\nb"}}, "names: a category needs a name in one line"),
        ({"merge": [["new-2"]]}, "merge: must be lists of two or more names"),
        ({"merge": [["new-2", "otter"]]}, "merge: there is no category 'otter'"),
        ({"split": {"new-4": 1}}, "split: 'new-4' must be split into 2 to 50 parts, got 1"),
        ({"split": {"new-4": True}}, "split: 'new-4' must be split into 2 to 50 parts, got True"),
        ({"split": {"fox": 2}}, "split: 'fox' is a known category"),
        ({"split": {"new-3": 2}}, "split: 'new-3' is merged too"),
        ({"move": {"7.jpg": "cat"}}, "move: '7.jpg' is no unlabelled image .* use the paths of assign"),
        ({"move": {PATHS[0]: 3}}, "move: a category needs a name in one line, got 3"),
        ({"move": {PATHS[0]: "New-5"}}, "not_one_category: images are moved to 'new-5'"),
        ({"not_one_category": ["cat"]}, "not_one_category: 'cat' is a known category"),
        ({"not_one_category": ["new-1"]}, "not_one_category: 'new-1' stands in names too"),
        ({"not_one_category": ["new-2"]}, "not_one_category: 'new-2' stands in merge too"),
    ],
)
def test_errors_name_the_field_and_the_remedy(tmp_path, changed, message):
    file = tmp_path / "edits.json"
    file.write_text(json.dumps({**DOCUMENTED, **changed}))
    with pytest.raises(PlaceError, match=message) as error:
        read_edits(file, FOUND, PATHS)
    assert str(error.value).startswith(f"{file}, ")
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_json(tmp_path):
    (tmp_path / "edits.json").write_text("{")
    with pytest.raises(PlaceError, match=r"EDITS .*edits\.json is no JSON .*; save it on the page again"):
        read_edits(tmp_path / "edits.json", FOUND, PATHS)
