"""The benchmark of many images: its data, and the ways that it compares."""

import torch
from records import records

from eagc_ops.bench import scale, tables


def test_the_planted_rows_are_half_known_with_20_labels_a_class():
    data = scale.labelled(2_400, 24)
    assert data.label[data.label >= 0].bincount().tolist() == [20] * 12
    assert torch.equal(data.label[:20], torch.zeros(20).long()) and len(data.features) == 2_400


def test_every_way_of_k_means_is_as_good_but_for_a_hundredth(monkeypatch):
    monkeypatch.setattr(scale, "ROWS", 6_000)
    monkeypatch.setitem(scale.SIZES, 100_000, 16)
    rows = scale.kmeans_rows(False)
    assert [row["way"] for row in rows][:3] == ["here", "MiniBatchKMeans", "KMeans"]
    best = max(row["cosine"] for row in rows)
    assert all(best - 0.02 < row["cosine"] <= 1 for row in rows) and best > 0.2
    assert [line["CPU s"] for line in records(tables.kmeans(rows))] == [
        f"{row['seconds']:.1f}" for row in rows
    ]


def test_a_size_has_its_seconds_and_its_memory(monkeypatch):
    monkeypatch.setattr(scale, "DIM", 24)
    row = scale.measured(480, 8)
    assert row["features"] == 480 * 24 * 4 and row["more"] >= 0
    assert row["seconds"]["K"] > 0 and row["seconds"]["answer"] > 0
    (line,) = records(tables.scale([{**row, "seconds": {"K": 0.06, "answer": 2.14}}]))
    assert (line["images"], line["its CPU s"], line["first answer, CPU s"]) == ("480", "0.1", "2.1")
