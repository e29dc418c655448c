"""Each alignment loss against its formula, written out with Python loops in fp64."""

import math

import pytest
import torch

from eagc_ops import Subspace, eagc_op
from eagc_ops.training.methods.alignment import (
    ALIGNMENTS,
    gram_distillation,
    proximal,
    relation_distillation,
)

IMAGES, DIM = 6, 7
ROWS = 2 * IMAGES
MASK = torch.tensor([True, True, True, False, True, False]).repeat(2)  # view-major, 4 of 6 images labelled


@pytest.fixture
def features():
    """z, z_ref (NaN on unlabelled rows), mask; and both without unlabelled rows, as lists."""
    g, mask = torch.Generator().manual_seed(1), MASK
    z, z_ref = (torch.randn(ROWS, DIM, generator=g, dtype=torch.float64) for _ in range(2))
    z_ref[~mask] = math.nan
    return z.requires_grad_(), z_ref, mask, z[mask].tolist(), z_ref[mask].tolist()


def softmax(row):
    exps = [math.exp(v) for v in row]
    return [e / sum(exps) for e in exps]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def cosine(a, b):
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def test_proximal(features):
    z, z_ref, mask, v, r = features
    expected = sum((a - b) ** 2 for x, y in zip(v, r) for a, b in zip(x, y)) / (2 * len(v) * DIM)
    assert proximal(z, z_ref, mask).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("lambda_a", [0.7, 30.0])
def test_the_gradient_of_the_proximal_loss_is_the_anchor_term(features, lambda_a):
    z, z_ref, mask, *_ = features
    subspace = Subspace.conceptor(torch.randn(50, DIM, generator=torch.Generator().manual_seed(2)))

    def method_loss(z):  # of any kind
        return z.pow(4).mean() + z[:, 0].cos().sum()

    def gradient(total):
        return torch.autograd.grad(total, z)[0]

    by_loss = gradient(method_loss(eagc_op(z, None, mask, subspace)) + lambda_a * proximal(z, z_ref, mask))
    by_gradient = gradient(method_loss(eagc_op(z, z_ref, mask, subspace, lambda_a=lambda_a)))
    anchor = lambda_a * (z - z_ref)[mask] / (8 * DIM)  # 4 of 6 images, two views
    assert (by_loss - by_gradient).abs().max() < 1e-12 * anchor.abs().max()
    torch.testing.assert_close(
        by_gradient[mask] - gradient(method_loss(z))[mask], anchor, rtol=1e-12, atol=1e-14
    )


def test_gram_distillation(features):
    z, z_ref, mask, v, r = features
    n = len(v)
    expected = sum((cosine(v[i], v[j]) - cosine(r[i], r[j])) ** 2 for i in range(n) for j in range(n)) / n**2
    assert gram_distillation(z, z_ref, mask).item() == pytest.approx(expected, rel=1e-12)


def test_relation_distillation(features):
    z, z_ref, mask, v, r = features
    total = 0.0
    for i in range(len(v)):
        others = [j for j in range(len(v)) if j != i]
        p, q = (softmax([cosine(x[i], x[j]) / 0.1 for j in others]) for x in (v, r))
        total += sum(b * math.log(b / a) for a, b in zip(p, q))
    assert relation_distillation(z, z_ref, mask).item() == pytest.approx(total / len(v), rel=1e-12)


@pytest.mark.parametrize("loss", ALIGNMENTS.values())
def test_alignment_losses_move_labelled_rows_alone_and_towards_the_reference(features, loss):
    z, z_ref, mask, *_ = features
    (gradient,) = torch.autograd.grad(loss(z, z_ref, mask), z)
    assert gradient.isfinite().all()
    assert gradient[mask].abs().sum(1).min() > 0
    assert not gradient[~mask].any()
    same = torch.where(mask[:, None], z_ref, z.detach()).requires_grad_()
    value = loss(same, z_ref, mask)
    assert value.item() == pytest.approx(0, abs=1e-14)
    assert torch.autograd.grad(value, same)[0].abs().max() < 1e-14
    assert torch.autograd.gradcheck(lambda z: loss(z, z_ref, mask), z)


@pytest.mark.parametrize("loss", ALIGNMENTS.values())
@pytest.mark.parametrize("count", [0, 1])
def test_alignment_losses_without_labelled_rows_or_pairs_are_finite(features, loss, count):
    z, z_ref, mask, *_ = features
    mask = torch.arange(ROWS) < count
    value = loss(z, z_ref, mask)
    (gradient,) = torch.autograd.grad(value, z)
    assert gradient.isfinite().all()
    if count == 0 or loss is not proximal:  # one row has no relations
        assert value.item() == pytest.approx(0, abs=1e-14)
        assert gradient.abs().max() < 1e-14
