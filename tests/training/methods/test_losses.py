"""Each loss against the published formula, written out with Python loops in fp64."""

import math

import pytest
import torch

from eagc_ops import Subspace, eagc_op
from eagc_ops.training.methods import losses

IMAGES, CLASSES, DIM = 6, 5, 7
ROWS = 2 * IMAGES


@pytest.fixture
def batch():
    """Logits, unit-norm projections, labels (garbage on unlabelled rows), mask; view-major, 4 of 6 images labelled, one class twice."""
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


# Losses that hold labelled features to the reference model -----------------------------------------------------------------------

ALIGNMENTS = (losses.proximal, losses.gram_distillation, losses.relation_distillation)


@pytest.fixture
def features(batch):
    """z, z_hat (NaN on unlabelled rows), labelled; and both without unlabelled rows, as lists."""
    g, labelled = torch.Generator().manual_seed(1), batch[3]
    z, z_hat = (torch.randn(ROWS, DIM, generator=g, dtype=torch.float64) for _ in range(2))
    z_hat[~labelled] = math.nan
    return z.requires_grad_(), z_hat, labelled, z[labelled].tolist(), z_hat[labelled].tolist()


def cosine(a, b):
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def test_proximal(features):
    z, z_hat, labelled, v, r = features
    expected = sum((a - b) ** 2 for x, y in zip(v, r) for a, b in zip(x, y)) / (2 * len(v) * DIM)
    assert losses.proximal(z, z_hat, labelled).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("lambda_a", [0.7, 30.0])
def test_the_gradient_of_the_proximal_loss_is_the_anchor_term(features, lambda_a):
    z, z_hat, labelled, *_ = features
    subspace = Subspace.conceptor(torch.randn(50, DIM, generator=torch.Generator().manual_seed(2)))

    def method_loss(z):  # of any kind
        return z.pow(4).mean() + z[:, 0].cos().sum()

    def gradient(total):
        return torch.autograd.grad(total, z)[0]

    by_loss = gradient(
        method_loss(eagc_op(z, None, labelled, subspace)) + lambda_a * losses.proximal(z, z_hat, labelled)
    )
    by_gradient = gradient(method_loss(eagc_op(z, z_hat, labelled, subspace, lambda_a=lambda_a)))
    anchor = lambda_a * (z - z_hat)[labelled] / (8 * DIM)  # 4 of 6 images, two views
    assert (by_loss - by_gradient).abs().max() < 1e-12 * anchor.abs().max()
    torch.testing.assert_close(
        by_gradient[labelled] - gradient(method_loss(z))[labelled], anchor, rtol=1e-12, atol=1e-14
    )


def test_gram_distillation(features):
    z, z_hat, labelled, v, r = features
    n = len(v)
    expected = sum((cosine(v[i], v[j]) - cosine(r[i], r[j])) ** 2 for i in range(n) for j in range(n)) / n**2
    assert losses.gram_distillation(z, z_hat, labelled).item() == pytest.approx(expected, rel=1e-12)


def test_relation_distillation(features):
    z, z_hat, labelled, v, r = features
    total = 0.0
    for i in range(len(v)):
        others = [j for j in range(len(v)) if j != i]
        p, q = (softmax([cosine(x[i], x[j]) / 0.1 for j in others]) for x in (v, r))
        total += sum(b * math.log(b / a) for a, b in zip(p, q))
    assert losses.relation_distillation(z, z_hat, labelled).item() == pytest.approx(total / len(v), rel=1e-12)


@pytest.mark.parametrize("loss", ALIGNMENTS)
def test_alignment_losses_move_labelled_rows_alone_and_towards_the_reference(features, loss):
    z, z_hat, labelled, *_ = features
    (gradient,) = torch.autograd.grad(loss(z, z_hat, labelled), z)
    assert gradient.isfinite().all()
    assert gradient[labelled].abs().sum(1).min() > 0
    assert not gradient[~labelled].any()
    same = torch.where(labelled[:, None], z_hat, z.detach()).requires_grad_()
    value = loss(same, z_hat, labelled)
    assert value.item() == pytest.approx(0, abs=1e-14)
    assert torch.autograd.grad(value, same)[0].abs().max() < 1e-14
    assert torch.autograd.gradcheck(lambda z: loss(z, z_hat, labelled), z)


@pytest.mark.parametrize("loss", ALIGNMENTS)
@pytest.mark.parametrize("count", [0, 1])
def test_alignment_losses_without_labelled_rows_or_pairs_are_finite(features, loss, count):
    z, z_hat, labelled, *_ = features
    labelled = torch.arange(ROWS) < count
    value = loss(z, z_hat, labelled)
    (gradient,) = torch.autograd.grad(value, z)
    assert gradient.isfinite().all()
    if count == 0 or loss is not losses.proximal:  # one row has no relations
        assert value.item() == pytest.approx(0, abs=1e-14)
        assert gradient.abs().max() < 1e-14
