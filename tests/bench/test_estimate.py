"""The planted features, and the rows and the table of the two searches for K."""

import torch
from records import records

from eagc_ops.bench import estimate, tables
from eagc_ops.training.analysis.estimate_k import estimate_k


def test_planted_classes_are_half_known_and_half_labelled():
    data = estimate.planted("many", 40, each=50, dim=32, spread=0.8, noise=0.3, uneven=True)
    assert (data.known, data.classes) == (20, 40)
    labelled = data.label[data.label >= 0]
    assert labelled.unique().tolist() == list(range(20))
    assert 0.2 < len(labelled) / len(data.label) < 0.3
    sizes = labelled.bincount()
    assert sizes.min() < 0.7 * sizes.float().mean() < 1.3 * sizes.float().mean() < sizes.max()
    # Without noise k-means finds what was planted
    exact = estimate.planted("exact", 16, each=20, dim=32, spread=0.8, noise=0.05)
    assert estimate_k(exact.features, exact.label, 8).accuracy > 0.95


def test_a_row_has_the_k_of_every_seed():
    data = estimate.planted("few", 16, each=8, dim=8, spread=0.8, noise=0.5)
    rows = [*estimate.rows_of(data, 2), *estimate.rows_of(data._replace(large=True), 1)]
    assert [row["way"] for row in rows] == ["published", "here", "here"]
    for row in rows:
        options = {"published": row["way"] == "published"}
        again = [estimate_k(data.features, data.label, 8, seed=seed, **options).k for seed in (0, 1)]
        assert row["found"] == again[: len(row["found"])]
    assert torch.equal(data.features, estimate.planted("few", 16, each=8, dim=8, spread=0.8, noise=0.5)[1])
    table = records(tables.estimate(rows))
    assert table[0]["features"] == "few, 128 x 8"
    assert table[1]["known / all classes"] == "8 / 16"
    assert table[2]["K by seed"] == str(rows[2]["found"][0])
