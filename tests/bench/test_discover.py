"""Draws of the benchmark of discovery, its records and its tables, on planted features."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from planted import planted_categories
from records import records

from eagc_ops.bench import discover, discover_tables, discover_training
from eagc_ops.bench.commands import main
from eagc_ops.bench.discover_sets import SETS, DataSet, features_of, images_of
from eagc_ops.discovery.two_folders import list_folders

DIGITS = SETS["digits"]


@pytest.fixture
def folder(tmp_path):
    """A folder with features of "digits" that were planted."""
    features, _, category = planted_categories(categories=10, known=5, spread=0.7, each=60)
    (tmp_path / "features").mkdir()
    torch.save((features, category), tmp_path / "features" / "digits.pt")
    return tmp_path


def drawn(folder, number=0, condition="usual"):
    return discover.draw(DIGITS, *features_of(DIGITS, folder), number, discover.CONDITIONS[condition])


def test_a_draw_is_of_known_and_new_classes_and_has_its_own_labels(folder):
    one = drawn(folder)
    fixed = one.label >= 0
    assert one.label[fixed].unique().tolist() == list(range(5))
    assert torch.equal(one.label[fixed], one.category[fixed])
    assert one.label[fixed].bincount().tolist() == [40] * 5
    assert one.category[~fixed].bincount().tolist() == [20] * 5 + [60] * 5
    assert torch.equal(one.features, drawn(folder).features)
    assert not torch.equal(one.features, drawn(folder, 1).features)


def test_a_condition_changes_labels_or_sizes_alone(folder):
    usual, few, tail = (drawn(folder, condition=name) for name in ("usual", "5 labels", "long tail"))
    assert few.label[few.label >= 0].bincount().tolist() == [5] * 5
    assert torch.equal(few.features[few.label < 0], usual.features[usual.label < 0])
    sizes = tail.category[tail.label < 0].bincount()
    assert 3 <= sizes.min() < 20 < sizes.max() <= 60
    assert drawn(folder, condition="2 known").known == 2


def test_a_run_goes_on_where_it_was_and_other_rules_are_measured_again(folder, monkeypatch, capsys):
    file = folder / "discover.json"
    argv = ["discover", "--data", str(folder), "--sets", "digits", "--k-draws", "1", "-o", str(file)]
    monkeypatch.setattr(discover, "conditions_of", lambda data: ["usual", "2 known"])
    monkeypatch.setattr(discover, "WAYS", dict(discover.WAYS))
    assert main([*argv, "--draws", "1"]) == 0
    first = json.loads(file.read_text())["records"]
    assert len({discover.key(record) for record in first}) == len(first)
    printed = capsys.readouterr().out
    assert "| digits | true | 1 |" in printed and "| digits | 10 | 1 |" in printed

    made = []
    for way, function in discover.WAYS.items():
        monkeypatch.setitem(discover.WAYS, way, lambda *a, f=function, w=way: made.append(w) or f(*a))
    kept = [record for record in first if record.get("way") != "first answer"]
    kept[0] = {**kept[0], "rules": "others"}
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "records": kept}))
    assert main([*argv, "--draws", "1"]) == 0
    assert set(made) == {"first answer"}  # the estimate with other rules is no way
    assert "1 results of other rules" in capsys.readouterr().out
    again = {discover.key(record): record for record in json.loads(file.read_text())["records"]}
    for record in first:
        assert again[discover.key(record)].get("accuracy") == record.get("accuracy")


def test_tables_name_the_best_simple_clustering_and_what_ranges_hold():
    def cell(way, share):
        return {
            "data": "a",
            "condition": "usual",
            "draw": 0,
            "way": way,
            "K": "true",
            "accuracy": [share, share, share],
            "seconds": 1.0,
        }

    shares = dict(zip(discover.WAYS, (50, 60, 62, 61, 64)))
    estimate = {"data": "a", "draw": 0, "classes": 10, "given": True, "seconds": 1.0}
    rows = [
        *(cell(way, share) for way, share in shares.items()),
        {**estimate, "found": [9, 8, 11]},
        {**estimate, "found": [5, 4, 6], "draw": 1},
        {**estimate, "found": [7, 5, 9], "draw": 2, "given": False},
    ]
    (line,) = records(discover_tables.accuracies(rows))
    assert (line["to the best simple"], line["to published"]) == ("+2.0", "+14.0")
    assert discover_tables.best_simple(rows, "a") == "metric, k-means"
    (line,) = records(discover_tables.estimates(rows))
    assert line["range holds the truth"] == "1 of 2" and line["no estimate"] == "1"
    assert line["estimates"] == "9, 5, 7?" and line["median"] == "7"


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    assert main(["discover", "--data", str(tmp_path / "none")]) == 2
    assert f"--data {tmp_path / 'none'}: there is no such folder" in capsys.readouterr().err


class Knows:
    """An answer that knows the class of every unlabelled image, by the number in its name."""

    kind = "first"

    def __init__(self, paths, category):
        self.assignment = torch.tensor([category[int(Path(path).stem)] for path in paths])

    def record(self, kept):
        return {"holdout": None, "rehearsal": None, "score": None, "empty": 0}


def test_pictures_of_a_draw_are_scored_by_their_own_truth(tmp_path, monkeypatch):
    data = DataSet("digits", classes=6, known=3, labelled=5, unlabelled=4, encoder="own", chosen_on=True)
    category = images_of(data, tmp_path)[1]

    def fake(labelled, unlabelled, output, k, **settings):
        listing = list_folders(labelled, unlabelled, holdout=0.2)
        output.mkdir()
        listing.write(output / "images.json")
        assert k == 6 and len(listing.classes) == 3 and len(listing.unlabelled_images) == 24
        assert len(listing.training) + len(listing.held_out) == 15
        for path, c in listing.training:
            assert category[int(Path(path).stem)] == names[c]
        known = Knows(listing.unlabelled_images, category)
        return [known], known

    one = discover.draw(data, torch.zeros(len(category), 1), torch.tensor(category), 0)
    order = np.random.default_rng([0, *b"digits"]).permutation(10)
    names = order[:3].tolist()
    monkeypatch.setattr(discover_training, "answers", fake)
    monkeypatch.setattr(discover_training, "settings_of", lambda *_: contextlib.nullcontext({}))
    monkeypatch.setitem(discover_training.SETS, "digits", data)
    records = {}
    discover_training.make(tmp_path, ["digits"], 1, records, lambda: None, lambda _: None)
    (record,) = records.values()
    assert record["candidates"]["first"]["accuracy"] == [100, 100, 100]
    assert record["images"] == len(one.label) == 39


def test_the_table_of_training_says_what_was_lost():
    def row(number, first, network, clustering, kept):
        accuracies = {"first": first, "trained": network, "trained-metric": clustering}
        return {
            "data": "a",
            "draw": number,
            "way": "training",
            "kept": kept,
            "minutes": 2,
            "candidates": {kind: {"accuracy": [all_, 0, 0]} for kind, all_ in accuracies.items()},
        }

    rows = [
        row(0, 60, 70, 74, "trained-metric"),
        row(1, 60, 65, 64, "trained-metric"),
        row(2, 61, 50, 66, "first"),
    ]
    (line,) = records(discover_training.table(rows))
    assert line["clustering of its features"].startswith("68.0")
    assert line["kept, to the first answer"] == "+6.0 (+0.0 to +14.0)"
    assert line["kept, below the best: mean, most"] == "2.0, 5.0"
