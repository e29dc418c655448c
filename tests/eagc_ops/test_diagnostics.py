"""GDC, SOC, rho_grad and rho_in against brute force, and at their limits."""

import math

import pytest
import torch

from eagc_ops.diagnostics import (
    collapse_coefficient,
    gradient_deviation,
    gradient_dominance,
    subspace_overlap,
)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_gradient_deviation_is_one_minus_the_cosine():
    a, b = normal(3, 4), normal(3, 4, seed=1)
    dot = sum(x * y for x, y in zip(a.flatten().tolist(), b.flatten().tolist()))
    expected = 1 - dot / math.sqrt(
        sum(x * x for x in a.flatten().tolist()) * sum(x * x for x in b.flatten().tolist())
    )
    assert gradient_deviation(a, b).item() == pytest.approx(expected, rel=1e-12)
    assert gradient_deviation([a[0], a[1:]], (part for part in (b[0], b[1:]))).item() == pytest.approx(
        expected, rel=1e-12
    )


def test_a_small_deviation_of_many_parameters_is_exact():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(1_000_000, generator=generator)
    b = a + 0.03 * torch.randn(1_000_000, generator=generator)
    exact = 1 - torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0).item()
    assert 1e-4 < exact < 1e-3
    assert gradient_deviation(a, b).item() == pytest.approx(
        exact, rel=1e-6
    )  # with fp32 sums it is off by 4 percent


def test_gradient_deviation_at_its_limits():
    g = normal(50)
    assert gradient_deviation(g, 3 * g).item() == pytest.approx(0, abs=1e-12)
    assert gradient_deviation(g, -g).item() == pytest.approx(2)
    assert gradient_deviation(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])) == 1
    assert gradient_deviation(torch.zeros(3), torch.ones(3)) == 1
    tiny = (g / g.norm() * 1e-9).float()
    assert gradient_deviation(tiny, tiny).item() == pytest.approx(0, abs=1e-6)


def brute_force_overlap(old, new, k, release):
    """Projection by Gram-Schmidt on eigenvectors, one row at a time."""
    if release:
        old, new = old / old.norm(dim=1, keepdim=True), new / new.norm(dim=1, keepdim=True)
        centre = old.mean(0)
        old, new = old - centre, new - centre
    directions = torch.linalg.eigh(old.T @ old).eigenvectors[:, -k:].T
    inside = sum((row @ v).item() ** 2 for row in new for v in directions)
    return inside / sum((row @ row).item() for row in new)


@pytest.mark.parametrize("mode", ["paper", "release"])
@pytest.mark.parametrize("k", [1, 4, 16])
def test_subspace_overlap_equals_brute_force(mode, k):
    old, new = normal(40, 20) + 0.5, normal(30, 20, seed=1)
    expected = brute_force_overlap(old, new, k, mode == "release")
    assert subspace_overlap(old, new, k, mode).item() == pytest.approx(expected, rel=1e-10)


def test_subspace_overlap_at_its_limits():
    basis = torch.linalg.qr(normal(12, 12))[0]
    old, outside = normal(30, 4) @ basis[:4], normal(30, 4, seed=1) @ basis[8:]
    assert subspace_overlap(old, normal(9, 4) @ basis[:4], k=4).item() == pytest.approx(1)
    assert subspace_overlap(old, outside, k=4).item() == pytest.approx(0, abs=1e-12)


def test_gradient_dominance_is_the_known_rows_share_of_the_norms():
    g = normal(2, 6, 5)
    known = torch.tensor([[1, 0, 1, 0, 0, 1], [0, 0, 1, 1, 0, 0]]).bool()
    norms = [[math.sqrt(sum(x * x for x in row)) for row in view] for view in g.tolist()]
    inside = sum(n for view, flags in zip(norms, known.tolist()) for n, flag in zip(view, flags) if flag)
    assert gradient_dominance(g, known).item() == pytest.approx(inside / sum(map(sum, norms)), rel=1e-12)
    assert gradient_dominance(g, torch.ones_like(known)) == 1
    assert gradient_dominance(g, torch.zeros_like(known)) == 0


def test_collapse_coefficient_is_the_energy_of_the_whole_set():
    z, half = normal(8, 5), normal(5, 5, seed=1)
    S = half @ half.T / 50
    inside = sum((row @ S @ row).item() for row in z)
    assert collapse_coefficient(z, S).item() == pytest.approx(inside / z.square().sum().item(), rel=1e-12)
    assert collapse_coefficient(z, torch.eye(5)) == 1


def test_half_inputs_are_measured_in_fp32():
    g = normal(1000).half()
    assert gradient_deviation(g, g).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gradient_deviation(torch.ones(3), torch.ones(4)), "supervised has 3 values, total 4"),
        (
            lambda: gradient_deviation([], torch.ones(4)),
            "supervised must be a tensor or a non-empty iterable",
        ),
        (lambda: gradient_deviation(torch.ones(3), [torch.ones(3), None]), "total must be a tensor"),
        (lambda: subspace_overlap(torch.ones(3, 4), torch.ones(3, 5)), "old and new must be"),
        (
            lambda: subspace_overlap(torch.ones(3, 4), torch.ones(3, 4), k=4),
            r"k must be between 1 and min\(N_old, D\)=3, got 4",
        ),
        (
            lambda: subspace_overlap(torch.ones(3, 4), torch.ones(3, 4), k=1, mode="raw"),
            "mode must be .*, got 'raw'",
        ),
        (lambda: gradient_dominance(torch.ones(3, 4), torch.ones(3)), "known must be a bool tensor"),
        (lambda: collapse_coefficient(torch.ones(3, 4), torch.eye(3)), "matrix has shape"),
    ],
)
def test_errors_name_the_argument(call, words):
    with pytest.raises(ValueError, match=words):
        call()
