"""`eagc refine` on a real discovery: its files, round after round."""

import csv
import json

import photographs
import pytest
import small_runs

from eagc_ops.app import cli
from eagc_ops.discovery import discover
from eagc_ops.discovery.refinement import refine, sorted_folders


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(folder, content of categories.json, edits, content after them, digests of the photographs)."""
    home = tmp_path_factory.mktemp("photos")
    truth = photographs.write_photographs(home)
    weights = small_runs.write_files(tmp_path_factory.mktemp("weights"))["weights"]
    settings = {
        "backbone": "vit_digits",
        "image_size": 16,
        "weights": weights,
        "device": "cpu",
        "precision": "no",
    }
    output = tmp_path_factory.mktemp("found") / "out"
    before = photographs.digest(home)
    content = discover(
        home / "labelled", home / "new", output, k=5, train=False, say=lambda _: None, **settings
    )
    new = [entry["name"] for entry in content["categories"] if entry["kind"] == "new"]
    path = sorted(truth)[0]
    edits = {
        "version": 1,
        "discovery": content["discovery"],
        "names": {new[0]: "heron"},
        "move": {path: "=otter"},
    }
    (output / "edits.json").write_text(json.dumps(edits))
    place = (output / "map.csv").read_bytes()
    folders = sorted_folders(output, output / "by-category")
    after = refine(output, output / "edits.json", say=lambda _: None)
    return output, content, edits, after, (before, photographs.digest(home)), place, folders


def rows(output):
    with open(output / "assignments.csv", newline="") as file:
        return {row["path"]: row for row in csv.DictReader(file)}


def test_the_answer_follows_the_edits(found):
    output, before, edits, after, *_ = found
    assert json.loads((output / "categories.json").read_text()) == after
    assert list(after) == list(before)
    assert (after["round"], after["answer"]["kind"]) == (1, "refined")
    assert after["discovery"] != before["discovery"]
    named = {entry["name"] for entry in after["categories"] if entry["named"]}
    assert named == {"heron", "=otter"}
    [path] = edits["move"]
    row = rows(output)[path]
    assert (row["category"], row["status"], row["confidence"]) == ("'=otter", "corrected", "1.0000")
    assert after["k"] == len(after["categories"]) and after["empty"] == 0
    assert after["changes"]["corrected"] == 1


def test_the_photographs_and_the_map_stay(found):
    output, *_, (before, after), place, _ = found
    assert before == after
    assert (output / "map.csv").read_bytes() == place


def test_the_folders_have_the_names_of_the_edits(found):
    output, _, edits, *_, folders = found
    assert folders.startswith("Folders of links, one for each category: ")
    homes = {link.resolve(): link.parent.name for link in (output / "by-category").glob("*/*")}
    [path] = edits["move"]
    assert {str(file): home for file, home in homes.items()}[path] == "=otter"
    assert "heron" in homes.values() and len(homes) == 30


def test_a_second_round_keeps_the_first(found, capsys):
    output, _, edits, after, *_ = found
    other = next(
        path for path, row in rows(output).items() if row["category"] == "heron" and path not in edits["move"]
    )
    second = output.parent / "second.json"
    second.write_text(json.dumps({"version": 1, "discovery": after["discovery"], "move": {other: "heron"}}))
    assert cli.main(["refine", str(output), str(second)]) == 0
    content = json.loads((output / "categories.json").read_text())
    assert content["round"] == 2
    assert capsys.readouterr().out.startswith(content["changes"]["sentence"])
    assert {entry["name"] for entry in content["categories"] if entry["named"]} == {"heron", "=otter"}
    status = {path: row["status"] for path, row in rows(output).items()}
    assert status[other] == status[next(iter(edits["move"]))] == "corrected"
    # The same file again is of an earlier answer.
    assert cli.main(["refine", str(output), str(second)]) == 2
    assert "second.json, discovery: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found_", "edits", "message"),
    [
        ("nowhere", "edits.json", "FOUND"),
        (".", "missing.json", "EDITS missing.json: no such file; save edits.json"),
    ],
)
def test_wrong_places(tmp_path, monkeypatch, capsys, found_, edits, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "categories.json").write_text("{}")
    assert cli.main(["refine", found_, edits]) == 2
    error = capsys.readouterr().err
    assert error.startswith("eagc refine: ") and message in error and error.count("\n") == 1
