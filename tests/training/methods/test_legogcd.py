"""LegoGCD's two terms against the published formulas in fp64 Python, and its running mean prediction."""

import functools
import math

import pytest
import torch
from no_waiting import NoWaiting
from small_runs import published

from eagc_ops.training.config import resolve
from eagc_ops.training.methods import METHODS, Problem, Rows
from eagc_ops.training.methods.legogcd import confident_known, dual_view_kl, local_entropy

IMAGES, CLASSES, KNOWN = 4, 5, 3
ROWS = 2 * IMAGES


@pytest.fixture
def logits():
    return torch.rand(ROWS, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1


def legogcd(**switches):
    torch.manual_seed(0)
    return METHODS["legogcd"](
        resolve("legogcd", "cub", **{"preset": "baseline", **switches}), Problem(16, KNOWN, CLASSES, 100)
    ).double()


def batch(epoch=0):
    labelled = torch.tensor([True, False, True, False] * 2)
    return Rows(torch.tensor([0, -1, 2, -1] * 2), labelled, torch.arange(IMAGES).repeat(2), epoch, 0)


def softmax(row):
    exps = [math.exp(v) for v in row]
    return [e / sum(exps) for e in exps]


def ler_by_loops(c, selected, qhat):
    total = 0.0
    for i, row in enumerate(c):
        if selected[i]:
            p = softmax([v / 0.05 for v in row])
            r = softmax([v / 0.05 + 0.4 * math.log(q) for v, q in zip(row, qhat)])
            total -= sum(a * math.log(b) for a, b in zip(p, r))
    return total / len(c)


def dkl_by_loops(c):
    total = 0.0
    for i in range(len(c) // 2):
        p1, p2 = (softmax([v / 0.1 for v in c[i + view * len(c) // 2]]) for view in (0, 1))
        total += sum(a * (math.log(b) - math.log(d)) for a, b, d in zip(p1, softmax(p1), softmax(p2)))
    return total / (len(c) // 2)


def differences(function, c, step=1e-6):
    """Gradient by central differences."""
    gradient = torch.zeros_like(c)
    for i in range(c.shape[0]):
        for k in range(c.shape[1]):
            up, down = c.clone(), c.clone()
            up[i, k] += step
            down[i, k] -= step
            gradient[i, k] = (function(up.tolist()) - function(down.tolist())) / (2 * step)
    return gradient


def test_local_entropy_and_its_gradient_through_both_factors(logits):
    selected = torch.tensor([False, True, True, False, True, False, False, False])
    qhat = torch.tensor([0.5, 0.1, 0.2, 0.15, 0.05], dtype=torch.float64)
    c = logits.requires_grad_()
    loss = local_entropy(c, selected, qhat)
    assert loss.item() == pytest.approx(
        ler_by_loops(c.tolist(), selected, qhat.tolist()), rel=1e-12
    )  # divided by 8 rows, not by 3
    (gradient,) = torch.autograd.grad(loss, c)
    expected = differences(lambda rows: ler_by_loops(rows, selected, qhat.tolist()), c.detach())
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-8)
    assert not gradient[~selected].any()


def test_local_entropy_with_an_even_qhat_is_the_entropy_at_temperature_005(logits):
    p = (logits / 0.05).softmax(1)
    entropy = -(p * p.log()).sum(1).mean()
    torch.testing.assert_close(
        local_entropy(logits, torch.ones(ROWS, dtype=torch.bool), torch.full((5,), 0.2).double()), entropy
    )


def test_rows_are_selected_that_are_unlabelled_confident_and_known():
    def row(top, probability):  # softmax(c / 0.1) gives `top` this probability
        c = torch.zeros(CLASSES, dtype=torch.float64)
        c[top] = 0.1 * math.log(probability / (1 - probability) * (CLASSES - 1))
        return c

    cases = [
        (row(2, 0.9), False, True),
        (row(2, 0.9), True, False),  # labelled
        (row(2, 0.7), False, False),  # not confident
        (row(3, 0.9), False, False),  # a novel class
        (row(0, 0.81), False, True),
        (row(0, 0.79), False, False),
    ]
    logits, labelled, expected = (
        torch.stack([c[0] for c in cases]),
        torch.tensor([c[1] for c in cases]),
        [c[2] for c in cases],
    )
    assert confident_known(logits, labelled, KNOWN, 0.8).tolist() == expected
    even = torch.zeros(
        1, 4, dtype=torch.float64
    )  # a probability of exactly 1/4: the threshold itself is enough
    assert confident_known(even, labelled[:1], KNOWN, 0.25).item()


def test_dual_view_kl_and_its_gradient(logits):
    c = logits.requires_grad_()
    loss = dual_view_kl(c)
    assert loss.item() == pytest.approx(dkl_by_loops(c.tolist()), rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, c)
    torch.testing.assert_close(gradient, differences(dkl_by_loops, c.detach()), rtol=1e-5, atol=1e-8)
    assert gradient[:IMAGES].any()
    assert gradient[IMAGES:].any()  # neither view is a constant
    assert dual_view_kl(c.roll(IMAGES, 0)).item() != pytest.approx(loss.item(), rel=1e-3)  # one direction


@pytest.mark.parametrize("dual", [True, False])
def test_total_loss_is_the_published_mix(dual):
    method, plain = (
        legogcd(dual_view_kl=dual, threshold=0.3),
        METHODS["simgcd"](resolve("simgcd", "cub", "baseline"), Problem(16, 3, 5, 1)),
    )
    outputs = method(torch.randn(ROWS, 16, dtype=torch.float64))
    c = outputs[0].tolist()
    loss, simgcd = method.loss(outputs, batch()), plain.loss(outputs, batch())
    selected = [
        not batch().mask[i] and max(p := softmax([v / 0.1 for v in c[i]])) >= 0.3 and p.index(max(p)) < 3
        for i in range(ROWS)
    ]
    assert 0 < sum(selected) < 4
    extra = 2.0 * ler_by_loops(c, selected, [0.2] * 5) + (0.65 * dkl_by_loops(c) if dual else 0.0)
    assert loss.supervised.item() == simgcd.supervised.item()
    assert (loss.unsupervised - simgcd.unsupervised).item() == pytest.approx(
        extra, rel=1e-6
    )  # qhat was made in fp32
    assert loss.terms["ler_rows"].item() == pytest.approx(sum(selected) / ROWS)
    assert ("dkl" in loss.terms) == dual


def test_qhat_is_a_running_mean_that_is_updated_after_its_use():
    method = legogcd(threshold=0.0)
    assert method.qhat.tolist() == pytest.approx([0.2] * 5, rel=1e-6)
    expected = method.qhat.tolist()
    for step in range(3):
        outputs = method(torch.randn(ROWS, 16, dtype=torch.float64))
        c = outputs[0].tolist()
        loss = method.loss(outputs, batch())
        selected = [not batch().mask[i] and row.index(max(row)) < 3 for i, row in enumerate(c)]
        assert loss.terms["ler"].item() == pytest.approx(ler_by_loops(c, selected, expected), rel=1e-12), step
        means = [sum(column) / ROWS for column in zip(*(softmax(row) for row in c))]  # temperature 1
        expected = [0.999 * q + 0.001 * m for q, m in zip(expected, means)]
        assert method.qhat.tolist() == pytest.approx(expected, rel=1e-12)
    assert max(expected) - min(expected) > 1e-5
    method.eval().loss(outputs, batch())
    assert method.qhat.tolist() == pytest.approx(expected, rel=1e-12)  # only training updates it
    assert "qhat" in method.state_dict()


def test_a_row_of_probability_one_has_finite_gradients():
    logits = (
        torch.tensor([[1.0, -1.0, -1.0]] * 4) * 20
    )  # beyond any cosine: softmax(c / 0.05) is exactly one-hot
    logits.requires_grad_()
    everything = torch.ones(4, dtype=torch.bool)
    (local_entropy(logits, everything, torch.full((3,), 1 / 3)) + dual_view_kl(logits)).backward()
    assert torch.isfinite(logits.grad).all()


def test_the_loss_never_waits_for_the_device():
    method, z = legogcd(), torch.randn(ROWS, 16, dtype=torch.float64)
    rows = batch()
    with NoWaiting():
        loss = method.loss(method(z), rows)
        (loss.supervised + loss.unsupervised).backward()


def test_presets_of_the_published_tables():
    column = functools.partial(published, "legogcd")
    for preset in ("baseline", "paper", "release"):
        assert column(preset, "threshold") == [0.7, 0.85, 0.9, 0.85, 0.8, 0.7, 0.95]
        assert column(preset, "memax_weight") == [2, 1, 1, 2, 1, 1, 1]
        assert column(preset, "lambda_p") == [0.5] * 7
        assert column(preset, "dual_view_kl") == [preset != "release"] * 7
        assert column(preset, "eagc") == [preset != "baseline"] * 7
    release = resolve("legogcd", "cub", "release")
    assert (release.warm_start, release.mlp_head_layers, release.backbone_lr, release.head_lr) == (
        True,
        1,
        0.1,
        1.0,
    )
    assert (release.epochs, release.teacher_temp_epochs, release.weight_decay, release.sup_weight) == (
        200,
        30,
        5e-5,
        0.35,
    )
