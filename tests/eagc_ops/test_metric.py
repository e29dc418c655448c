"""LabelMetric against its formula, and what it must not depend on."""

import pytest
import torch
from torch.nn import functional as F

from eagc_ops.metric import LabelMetric, usual_directions
from tests.support.planted import planted_categories


@pytest.fixture(scope="module")
def rows():
    features, label, _ = planted_categories(categories=8, known=4)
    return features, label


def by_the_formula(features, label, directions, prior_rows, prior_power):
    """The points, in fp64, by loops."""
    unit = F.normalize(features.double(), dim=1)
    mean = unit.mean(0)
    variances, basis = torch.linalg.eigh(torch.cov(unit.T, correction=0))
    variances, basis = variances.flip(0)[:directions], basis.flip(1)[:, :directions]
    coordinates = (unit - mean) @ basis
    scatter, freedom = torch.zeros(directions, directions, dtype=torch.float64), 0
    for c in label[label >= 0].unique():
        own = coordinates[label == c]
        scatter += (own - own.mean(0)).T @ (own - own.mean(0))
        freedom += len(own) - 1
    prior = torch.diag(variances**prior_power)
    prior *= scatter.trace() / freedom / prior.trace()
    within = (scatter + prior_rows * prior) / (freedom + prior_rows)
    # W^(-1/2) is symmetric; any other root differs by a rotation, which cosines do not see
    points = coordinates @ torch.linalg.inv(torch.linalg.cholesky(within)).T
    return F.normalize(points, dim=1)


def cosines(points):
    return points @ points.T


@pytest.mark.parametrize(
    ("directions", "prior_rows", "prior_power"), [(48, 100, 0.5), (20, 10, 0.0), (20, 0, 1.0)]
)
def test_points_are_those_of_the_formula(rows, directions, prior_rows, prior_power):
    settings = {"directions": directions, "prior_rows": prior_rows, "prior_power": prior_power}
    points = LabelMetric.fit(*rows, **settings)(rows[0])
    truth = by_the_formula(*rows, directions, prior_rows, prior_power)
    torch.testing.assert_close(cosines(points), cosines(truth).float(), atol=2e-5, rtol=0)


def test_fewer_rows_than_dimensions_give_the_same_formula():
    features, label, _ = planted_categories(categories=4, known=2, each=9, labelled=4, dim=64)
    points = LabelMetric.fit(features, label, directions=20)(features)
    truth = by_the_formula(features, label, 20, 100, 0.5)
    torch.testing.assert_close(cosines(points), cosines(truth).float(), atol=1e-4, rtol=0)


def test_rotation_and_length_of_the_features_change_no_cosine(rows):
    features, label = rows
    turn = torch.linalg.qr(torch.randn(48, 48, generator=torch.Generator().manual_seed(1)))[0]
    length = torch.rand(len(features), 1, generator=torch.Generator().manual_seed(2)) + 0.1
    expected = cosines(LabelMetric.fit(features, label)(features))
    moved = 1000 * length * (features @ turn)
    torch.testing.assert_close(cosines(LabelMetric.fit(moved, label)(moved)), expected, atol=1e-4, rtol=0)


def test_order_of_rows_and_names_of_classes_change_nothing(rows):
    features, label = rows
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(1))
    other = torch.where(label >= 0, 7 - label, label)
    expected = LabelMetric.fit(features, label)(features)
    found = LabelMetric.fit(features[order], other[order])(features[order])
    torch.testing.assert_close(cosines(found), cosines(expected[order]), atol=1e-4, rtol=0)


def test_labelled_classes_scatter_alike_in_all_directions(rows):
    """Without a prior W is the scatter itself: whitened, it is the identity."""
    features, label = rows
    metric = LabelMetric.fit(features, label, directions=20, prior_rows=0)
    fixed = label >= 0
    points = (F.normalize(features[fixed], dim=1) - metric.mean) @ metric.matrix
    residuals = torch.cat([own - own.mean(0) for own in (points[label[fixed] == c] for c in range(4))])
    torch.testing.assert_close(
        residuals.T @ residuals / (len(residuals) - 4), torch.eye(20), atol=1e-3, rtol=0
    )


def test_with_few_labels_the_prior_decides(rows):
    """One label a class has no scatter; two of one class hardly move the metric; all labels do."""
    features, label = rows
    none, one, two = torch.full_like(label, -1), torch.full_like(label, -1), torch.full_like(label, -1)
    for c in range(4):
        one[(label == c).nonzero()[0]] = c
        two[(label == c).nonzero()[: 2 if c == 0 else 1, 0]] = c
    points = [
        cosines(metric(features)) for metric in LabelMetric.fit_several(features, [none, one, two, label])
    ]
    assert torch.equal(points[0], points[1])
    assert (points[2] - points[0]).abs().mean() < 0.2 * (points[3] - points[0]).abs().mean()


def test_several_labellings_at_once_are_fitted_as_one_by_one(rows):
    features, label = rows
    half = torch.where(label < 2, label, -1)
    for metric, own in zip(LabelMetric.fit_several(features, [label, half]), (label, half)):
        assert torch.equal(metric.matrix, LabelMetric.fit(features, own).matrix)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_every_floating_dtype_gives_points_of_unit_norm_in_fp32(rows, dtype):
    features, label = rows
    points = LabelMetric.fit(features.to(dtype), label)(features.to(dtype))
    assert points.dtype == torch.float32
    torch.testing.assert_close(points.norm(dim=1), torch.ones(len(points)), atol=1e-5, rtol=0)


def test_a_mean_row_is_the_origin_and_alike_labelled_rows_are_no_division_by_zero(rows):
    metric = LabelMetric.fit(*rows)
    assert torch.isfinite(metric(torch.zeros(1, 48))).all()
    features = rows[0].clone()
    features[:9] = features[0]
    label = torch.where(torch.arange(len(features)) < 9, 0, -1)
    for prior_rows in (0, 100):
        assert torch.isfinite(LabelMetric.fit(features, label, prior_rows=prior_rows)(features)).all()


def test_default_directions():
    assert [usual_directions(n) for n in (2, 640, 10**6)] == [32, 64, 256]
    features, label, _ = planted_categories(categories=2, known=1, each=5, labelled=2)
    assert LabelMetric.fit(features, label).matrix.shape == (48, 9), "ten rows span nine directions"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda z, y: (z.index_fill(0, torch.tensor([3]), torch.nan), y), "finite"),
        (lambda z, y: (z.long(), y), "floating"),
        (lambda z, y: (z[:1], y[:1]), "N >= 2"),
        (lambda z, y: (z, y[:-1]), "label must hold"),
        (lambda z, y: (z, y.float()), "label must hold"),
        (lambda z, y: (z[:1].expand(len(z), -1), y), "one direction"),
    ],
)
def test_bad_rows_are_refused(rows, change, message):
    with pytest.raises(ValueError, match=message):
        LabelMetric.fit(*change(*rows))


@pytest.mark.parametrize(
    "settings",
    [
        {"directions": 0},
        {"directions": 2.5},
        {"prior_rows": -1},
        {"prior_rows": float("inf")},
        {"prior_power": 2},
    ],
)
def test_bad_settings_are_named(rows, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        LabelMetric.fit(*rows, **settings)


def test_without_labels_the_prior_must_weigh_something(rows):
    with pytest.raises(ValueError, match="prior_rows=0"):
        LabelMetric.fit(rows[0], torch.full_like(rows[1], -1), prior_rows=0)


def test_a_row_of_another_length_is_refused(rows):
    with pytest.raises(ValueError, match=r"\(N, 48\)"):
        LabelMetric.fit(*rows)(torch.zeros(2, 47))
