"""Each loss against the published formula, written out with Python loops in fp64."""

import math

import pytest
import torch

from eagc_ops.training.methods import losses

IMAGES, CLASSES, DIM = 6, 5, 7
ROWS = 2 * IMAGES


@pytest.fixture
def batch():
    """Logits, unit-norm projections, labels (garbage on unlabelled rows), mask; 4 of 6 images labelled."""
    g = torch.Generator().manual_seed(0)
    logits = torch.rand(ROWS, CLASSES, generator=g, dtype=torch.float64) * 2 - 1
    h = torch.nn.functional.normalize(torch.randn(ROWS, DIM, generator=g, dtype=torch.float64), dim=1)
    label = torch.tensor([0, 2, 0, 999, 1, 888]).repeat(2)
    labelled = torch.tensor([True, True, True, False, True, False]).repeat(2)
    return logits.requires_grad_(), h.requires_grad_(), label, labelled


def softmax(row):
    exps = [math.exp(v) for v in row]
    return [e / sum(exps) for e in exps]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def test_classification(batch):
    logits, _, label, labelled = batch
    terms = [
        -math.log(softmax([c / 0.1 for c in logits[i].tolist()])[label[i]])
        for i in range(ROWS)
        if labelled[i]
    ]
    assert losses.classification(logits, label, labelled).item() == pytest.approx(
        sum(terms) / len(terms), rel=1e-12
    )


def test_info_nce(batch):
    h = batch[1].tolist()
    terms = []
    for i in range(ROWS):
        negatives_and_positive = [math.exp(dot(h[i], h[j]) / 0.3) for j in range(ROWS) if j != i]
        positive = (i + IMAGES) % ROWS
        terms.append(-math.log(math.exp(dot(h[i], h[positive]) / 0.3) / sum(negatives_and_positive)))
    assert losses.info_nce(batch[1], 0.3).item() == pytest.approx(sum(terms) / ROWS, rel=1e-12)


def test_sup_con(batch):
    _, h, label, labelled = batch
    rows = [i for i in range(ROWS) if labelled[i]]
    v = h.tolist()
    anchors = []
    for i in rows:
        others = [j for j in rows if j != i]
        denominator = sum(math.exp(dot(v[i], v[j]) / 0.07) for j in others)
        positives = [j for j in others if label[j] == label[i]]
        anchors.append(
            -sum(math.log(math.exp(dot(v[i], v[j]) / 0.07) / denominator) for j in positives) / len(positives)
        )
    assert losses.sup_con(h, label, labelled).item() == pytest.approx(sum(anchors) / len(anchors), rel=1e-12)


def test_self_distillation(batch):
    logits = batch[0]
    c = logits.tolist()
    total = 0.0
    for teacher_view, student_view in ((0, 1), (1, 0)):
        for i in range(IMAGES):
            q = softmax([x / 0.05 for x in c[teacher_view * IMAGES + i]])
            p = softmax([x / 0.1 for x in c[student_view * IMAGES + i]])
            total += -sum(qk * math.log(pk) for qk, pk in zip(q, p)) / IMAGES
    assert losses.self_distillation(logits, 0.05).item() == pytest.approx(total / 2, rel=1e-12)


def test_self_distillation_stops_the_teachers_gradient(batch):
    logits = batch[0]
    (gradient,) = torch.autograd.grad(losses.self_distillation(logits, 0.05), logits)
    for row in (0, IMAGES + 2):  # d CE(q, softmax(c / t)) / dc = (p - q) / t, with q a constant
        other = logits[(row + IMAGES) % ROWS].tolist()
        p, q = softmax([x / 0.1 for x in logits[row].tolist()]), softmax([x / 0.05 for x in other])
        expected = [(a - b) / 0.1 / ROWS for a, b in zip(p, q)]
        assert gradient[row].tolist() == pytest.approx(expected, rel=1e-9)


def test_teacher_temperature_is_linspace_then_constant():
    table = [0.07 - 0.03 * i / 29 for i in range(30)]
    assert [losses.teacher_temperature(e) for e in range(30)] == pytest.approx(table, rel=1e-12)
    assert losses.teacher_temperature(30) == losses.teacher_temperature(199) == 0.04
    assert [losses.teacher_temperature(e, warmup_epochs=0) for e in (0, 5)] == [0.04, 0.04]
    assert [losses.teacher_temperature(e, warmup_epochs=1) for e in (0, 1)] == [0.07, 0.04]


def test_mean_entropy(batch):
    rows = [softmax([x / 0.1 for x in row]) for row in batch[0].tolist()]
    mean = [sum(row[k] for row in rows) / ROWS for k in range(CLASSES)]
    expected = math.log(CLASSES) + sum(p * math.log(p) for p in mean)
    assert losses.mean_entropy(batch[0]).item() == pytest.approx(expected, rel=1e-12)


def test_mean_entropy_of_an_even_batch_is_zero_and_of_one_class_is_log_k():
    assert losses.mean_entropy(torch.eye(4, dtype=torch.float64)).item() == pytest.approx(0, abs=1e-12)
    assert losses.mean_entropy(torch.eye(4, dtype=torch.float64)[[0, 0]] * 100).item() == pytest.approx(
        math.log(4), rel=1e-9
    )


def test_mean_entropy_has_a_finite_gradient_where_a_class_has_probability_zero():
    logits = torch.tensor(
        [[0.0, 500.0, 510.0]], requires_grad=True
    )  # softmax(c / 0.1) underflows to exactly 0
    losses.mean_entropy(logits).backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("labelled", [[False] * ROWS, [True] + [False] * (ROWS - 1)])
def test_supervised_losses_without_labelled_rows_or_pairs_are_finite(batch, labelled):
    logits, h, label, _ = batch
    mask = torch.tensor(labelled)
    total = losses.sup_con(h, label, mask) + losses.classification(logits, label.clamp(max=4), mask)
    gradients = torch.autograd.grad(total, (logits, h))
    assert all(torch.isfinite(g).all() for g in gradients)
    assert losses.sup_con(h, label, mask).item() == 0
    if not any(labelled):
        assert total.item() == 0
        assert not any(g.any() for g in gradients)


def test_labels_of_unlabelled_rows_change_nothing(batch):
    logits, h, label, labelled = batch
    other = torch.where(labelled, label, 1)
    assert torch.equal(
        losses.classification(logits, label, labelled), losses.classification(logits, other, labelled)
    )
    assert torch.equal(losses.sup_con(h, label, labelled), losses.sup_con(h, other, labelled))


def test_an_odd_number_of_rows_is_refused():
    with pytest.raises(ValueError, match="got 3 rows"):
        losses.info_nce(torch.randn(3, 4))
