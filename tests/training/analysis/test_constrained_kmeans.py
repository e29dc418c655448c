"""Constrained k-means: its formula, its constraints, its repeatability."""

import pytest
import torch
from torch.nn import functional as F

from eagc_ops.training.analysis import constrained_kmeans as module
from eagc_ops.training.analysis.constrained_kmeans import Starts, constrained_kmeans, lloyd, mean_directions
from tests.support.planted import planted_categories


@pytest.fixture(scope="module")
def rows():
    features, label, category = planted_categories(categories=8, known=4, spread=0.7)
    return F.normalize(features, dim=1), label, category


def by_the_formula(points, label, centres, iterations):
    """Rows and centres, by loops in fp64."""
    points, centres = points.double(), list(centres.double())
    for _ in range(iterations):
        labels = [
            own if own >= 0 else int(torch.stack([row @ c for c in centres]).argmax())
            for row, own in zip(points, label.tolist())
        ]
        for j in range(len(centres)):
            own = [row for row, k in zip(points, labels) if k == j]
            if own:
                total = torch.stack(own).sum(0)
                centres[j] = total / total.norm()
    return torch.tensor(labels), torch.stack(centres)


def test_lloyd_is_its_formula(rows):
    points, label, _ = rows
    first = points[:8]
    labels, centres = by_the_formula(points, label, first, 3)
    found = lloyd(points, label, first, iterations=3)
    assert torch.equal(found.labels, labels)
    torch.testing.assert_close(found.centres, centres.float(), atol=1e-5, rtol=0)
    assert found.objective == pytest.approx((points * found.centres[labels]).sum(1).mean().item(), abs=1e-6)


def test_labelled_rows_keep_their_class_wherever_they_lie(rows):
    points, label, _ = rows
    wrong = label[torch.randperm(len(label), generator=torch.Generator().manual_seed(0))]
    found = constrained_kmeans(points, wrong, 8, 4)
    assert torch.equal(found.labels[wrong >= 0], wrong[wrong >= 0])


def test_categories_are_found(rows):
    points, label, category = rows
    found = constrained_kmeans(points, label, 8, 4).labels
    for c in range(8):
        values, counts = found[category == c].unique(return_counts=True)
        assert counts.max() > 0.9 * counts.sum()
        assert c >= 4 or values[counts.argmax()] == c, "a known class has its own number"


def test_iterations_never_lower_the_objective(rows):
    points, label, _ = rows
    objectives = [lloyd(points, label, points[:8], iterations=i).objective for i in (1, 2, 4, 50)]
    assert objectives == sorted(objectives) and objectives[0] < objectives[-1]


def test_same_seed_same_bits_and_more_starts_are_no_worse(rows):
    points, label, _ = rows
    once, again = (constrained_kmeans(points, label, 12, 4, seed=5) for _ in range(2))
    assert torch.equal(once.labels, again.labels) and torch.equal(once.centres, again.centres)
    assert constrained_kmeans(points, label, 12, 4, seed=5, restarts=9).objective >= once.objective


def test_starts_for_one_number_do_not_depend_on_those_asked_before(rows):
    points, label, _ = rows
    starts = Starts(points, label, 4, seed=2)
    for k in (20, 6):
        starts.clusters(k)
    assert torch.equal(starts.clusters(9).labels, Starts(points, label, 4, seed=2).clusters(9).labels)


def test_a_rotation_changes_no_cluster(rows):
    points, label, _ = rows
    turn = torch.linalg.qr(torch.randn(48, 48, generator=torch.Generator().manual_seed(1)))[0]
    expected = constrained_kmeans(points, label, 8, 4)
    found = constrained_kmeans(points @ turn, label, 8, 4)
    assert (found.labels == expected.labels).float().mean() > 0.99


def test_as_many_clusters_as_known_classes(rows):
    points, label, _ = rows
    found = constrained_kmeans(points, label, 4, 4)
    assert found.labels.max() == 3 and found.centres.shape == (4, 48)


def test_duplicates_and_fewer_distinct_rows_than_clusters():
    points = F.normalize(torch.eye(3).repeat(5, 1), dim=1)
    label = torch.full((15,), -1)
    label[0] = 0
    found = constrained_kmeans(points, label, 6, 1)
    assert found.objective == pytest.approx(1)
    for c in range(3):
        assert torch.equal(found.labels[c::3], found.labels[c].expand(5)), "equal rows are together"


@pytest.mark.parametrize("labelled", [True, False])
def test_all_rows_labelled_or_none(rows, labelled):
    points, _, category = rows
    label = category if labelled else torch.full_like(category, -1)
    found = constrained_kmeans(points, label, 8, 8 if labelled else 0)
    if labelled:
        assert torch.equal(found.labels, category)
    else:
        assert len(found.labels.unique()) == 8


def test_wards_sample_stands_for_many_rows(rows, monkeypatch):
    points, label, category = rows
    monkeypatch.setattr(module, "WARD_ROWS", 60)
    found = constrained_kmeans(points, label, 8, 4, restarts=0).labels
    assert (found[category < 4] == category[category < 4]).float().mean() > 0.9


def test_mean_directions_of_rows_in_parts(rows, monkeypatch):
    points, _, category = rows
    expected, empty = mean_directions(points, category, 9)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    torch.testing.assert_close(mean_directions(points, category, 9)[0], expected)
    assert empty.tolist() == [False] * 8 + [True]


@pytest.mark.parametrize(
    ("change", "k", "message"),
    [
        (lambda x, y: (x.index_fill(0, torch.tensor([3]), torch.nan), y), 8, "NaN"),
        (lambda x, y: (x[:0], y[:0]), 8, "N >= 1"),
        (lambda x, y: (x, y.int()), 8, "int64"),
        (lambda x, y: (x, torch.where(y == 2, -1, y)), 8, "every class"),
        (lambda x, y: (x, y), 3, "k must be between"),
        (lambda x, y: (x, y), 10**4, "k must be between"),
    ],
)
def test_bad_input_is_refused(rows, change, k, message):
    points, label, _ = rows
    with pytest.raises(ValueError, match=message):
        constrained_kmeans(*change(points, label), k, 4)
