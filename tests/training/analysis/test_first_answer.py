"""The first answer on planted features."""

import pytest
import torch

from eagc_ops.training.analysis import first_answer as module
from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.analysis.first_answer import (
    first_answer,
    probabilities_of,
    smoothed,
    spread,
    vote,
)
from tests.support.planted import planted_categories, unequal_categories


@pytest.fixture(scope="module")
def rows():
    return planted_categories(categories=8, known=4, spread=0.7)


def of_free_rows(answer, label, category, known=4):
    free = label < 0
    return accuracy(answer.assignment[free], category[free], known)


def test_categories_are_found_and_labelled_rows_keep_their_class(rows):
    features, label, category = rows
    answer = first_answer(features, label, 8, 4)
    assert of_free_rows(answer, label, category).all > 0.95
    fixed = label >= 0
    assert torch.equal(answer.assignment[fixed], label[fixed])
    assert torch.equal(answer.probabilities[fixed].argmax(1), label[fixed])
    assert answer.quality.empty == () and answer.quality.recognized > 0.9
    torch.testing.assert_close(answer.probabilities.sum(1), torch.ones(len(label)))


def test_same_seed_same_bits(rows):
    features, label, _ = rows
    once, again = (first_answer(features, label, 8, 4, seed=3) for _ in range(2))
    assert torch.equal(once.assignment, again.assignment)
    assert torch.equal(once.probabilities, again.probabilities)
    assert once.quality == again.quality


def test_rotation_length_and_order_of_rows_change_no_category(rows):
    features, label, _ = rows
    generator = torch.Generator().manual_seed(1)
    turn = torch.linalg.qr(torch.randn(48, 48, generator=generator))[0]
    order = torch.randperm(len(label), generator=generator)
    length = torch.rand(len(label), 1, generator=generator) + 0.1
    expected = first_answer(features, label, 8, 4).assignment[order]
    found = first_answer(((length * features) @ turn)[order], label[order], 8, 4).assignment
    assert accuracy(found, expected, 4).all > 0.97


def test_the_metric_and_the_centres_serve_rows_that_come_later(rows):
    features, label, _ = rows
    answer = first_answer(features, label, 8, 4)
    again = probabilities_of(answer.metric(features), answer.centres)
    free = label < 0
    assert (again.argmax(1) == answer.assignment)[free].float().mean() > 0.97


def test_a_sample_stands_for_many_rows(rows, monkeypatch):
    features, label, category = rows
    monkeypatch.setattr(module, "SAMPLE", 150)
    answer = first_answer(features, label, 8, 4)
    assert len(answer.assignment) == len(label)
    assert of_free_rows(answer, label, category).all > 0.85


def test_a_sample_has_every_class_and_both_kinds_of_rows():
    label = torch.cat([torch.arange(30), torch.zeros(500, dtype=torch.int64), torch.full((500,), -1)])
    chosen = module.sample_of_rows(label, seed=0, most=100)
    assert len(chosen) <= 101 and torch.equal(chosen, chosen.sort().values)
    assert set(label[chosen].tolist()) == set(range(-1, 30))


@pytest.mark.parametrize("labelled", [1, 2, 5])
def test_few_labels_are_enough_to_name_known_classes(labelled):
    features, label, category = planted_categories(categories=8, known=4, labelled=labelled, spread=0.5)
    answer = first_answer(features, label, 8, 4)
    assert of_free_rows(answer, label, category).old > 0.9


def test_one_known_class_none_and_k_of_known_classes_alone():
    features, label, category = planted_categories(categories=5, known=1)
    assert of_free_rows(first_answer(features, label, 5, 1), label, category, known=1).all > 0.9
    nothing = first_answer(features, torch.full_like(label, -1), 5, 0)
    assert accuracy(nothing.assignment, category, 0).all > 0.9
    features, label, category = planted_categories(categories=5, known=5)
    assert of_free_rows(first_answer(features, label, 5, 5), label, category, known=5).all > 0.9


def test_nothing_unlabelled():
    features, _, category = planted_categories(categories=4, known=4)
    answer = first_answer(features, category, 4, 4)
    assert torch.equal(answer.assignment, category)
    assert answer.quality.cosine != answer.quality.cosine, "NaN: there is no unlabelled row"


def test_duplicate_rows_share_a_category(rows):
    features, label, _ = rows
    label = torch.cat([label, torch.full_like(label, -1)])
    answer = first_answer(torch.cat([features, features]), label, 8, 4)
    first, second = answer.assignment.chunk(2)
    free = label[: len(first)] < 0
    assert torch.equal(first[free], second[free])


def test_a_nan_is_refused(rows):
    features, label, _ = rows
    with pytest.raises(ValueError, match="finite"):
        first_answer(features.index_fill(0, torch.tensor([0]), torch.nan), label, 8, 4)


def test_smoothing_is_its_formula_in_parts_too(rows, monkeypatch):
    points = torch.nn.functional.normalize(rows[0], dim=1)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 50)
    found = smoothed(points, 3, own=0.25)
    for i in range(0, len(points), 40):
        cosine = points @ points[i]
        cosine[i] = -2
        drawn = 0.25 * points[i] + 0.75 * points[cosine.topk(3).indices].mean(0)
        torch.testing.assert_close(found[i], drawn / drawn.norm(), atol=1e-5, rtol=0)


def test_a_vote_matches_new_clusters_whatever_their_number():
    points = torch.eye(4).repeat(3, 1)
    truth = torch.arange(12) % 4
    other = torch.tensor([0, 1, 3, 2])[truth]
    shares = vote([truth, truth, other], points, 4, known=2)
    assert torch.equal(shares.argmax(1), truth) and shares.amax(1).min() == 1
    with_an_error = truth.clone()
    with_an_error[0] = 1
    assert vote([truth, other, with_an_error], points, 4, known=2)[0].tolist() == pytest.approx(
        [2 / 3, 1 / 3, 0, 0]
    )


def test_a_row_has_half_the_votes_of_the_nearest_sampled_row_and_half_those_of_the_next(monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(module, "NEIGHBOURS", 2)
    generator = torch.Generator().manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(20, 4, generator=generator), dim=1)
    sampled, shares = points[5:], torch.rand(15, 3, generator=generator)
    found = spread(points, sampled, shares)
    for i in range(20):
        order = (sampled @ points[i]).argsort(descending=True)
        assert i < 5 or order[0] == i - 5, "a sampled row is nearest to itself"
        expected = 0.5 * shares[order[0]] + 0.25 * (shares[order[1]] + shares[order[2]])
        torch.testing.assert_close(found[i], expected)


def test_small_clusters_that_are_merged_help_where_categories_differ_in_size(monkeypatch):
    features, label, category = unequal_categories()
    found = of_free_rows(first_answer(features, label, 8, 4), label, category)
    monkeypatch.setattr(module, "merged", lambda *a, **seed: module.constrained_kmeans(*a, **seed).centres)
    assert found.all > of_free_rows(first_answer(features, label, 8, 4), label, category).all + 0.05
