"""The formulas against explicit loops over rows and columns, and at their limits."""

import pytest
import torch
from operator_cases import SETTINGS, assert_exercised, make_case

from eagc_ops.kernels import formulas


def by_loops(case, lambda_a, lambda_p, anchor, tau, scale=1.0):
    """Section 3 of the paper, one number at a time."""
    g, z, z_ref, S = (x.double().tolist() for x in (case.g, case.z, case.z_ref, case.matrix))
    mask, energy_ref = case.mask.tolist(), case.energy_ref.item()
    dim, labelled = len(S), max(sum(mask), 1)
    out = []
    for i, row in enumerate(g):
        if mask[i]:
            c = 1 / (labelled * dim) if anchor == "mean" else 1
            out.append([row[j] + scale * c * lambda_a * (z[i][j] - z_ref[i][j]) for j in range(dim)])
            continue
        inside = sum(z[i][j] * S[j][k] * z[i][k] for j in range(dim) for k in range(dim))
        energy = min(max(inside / max(sum(x * x for x in z[i]), 1e-12), 0), 1)
        weight = 1 if tau == "uniform" else min(max(1 - energy / (energy_ref + 1e-6), 0), 1)
        out.append(
            [row[k] - lambda_p * weight * sum(row[j] * S[j][k] for j in range(dim)) for k in range(dim)]
        )
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("anchor", ["mean", "sum"])
@pytest.mark.parametrize("tau", ["energy", "uniform"])
def test_formulas_equal_explicit_loops(anchor, tau):
    case = make_case(rows=20, dim=7)
    assert_exercised(case)
    out = (
        case.replace(scale=torch.tensor(3.0))
        .oracle(settings=SETTINGS._replace(anchor=anchor, tau=tau))
        .gradient
    )
    torch.testing.assert_close(out, by_loops(case, 0.7, 0.5, anchor, tau, scale=3.0), rtol=0, atol=1e-14)


def test_energy_ratio_is_1_inside_and_0_outside_a_projection_and_0_for_a_zero_row():
    projection = torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))
    z = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert formulas.energy_ratio(z, projection).tolist() == [1.0, 0.0, 0.0]


def test_the_energy_in_a_basis_is_a_ratio_of_quadratic_forms():
    """z A z^T / z B z^T with A = M diag(w) M^T and B = M M^T."""
    case = make_case(rows=20, dim=7, basis=True)
    assert_exercised(case)
    inputs = case.inputs.widened(torch.float64)
    A, B = inputs.basis @ inputs.weights.diag() @ inputs.basis.T, inputs.basis @ inputs.basis.T
    by_forms = torch.stack([(row @ A @ row) / (row @ B @ row) for row in inputs.z])
    torch.testing.assert_close(formulas.energy_of(inputs), by_forms, rtol=0, atol=1e-14)
    sums = torch.stack([by_forms[case.mask].sum(), case.mask.sum()])
    torch.testing.assert_close(formulas.labelled_energy(inputs), sums, rtol=0, atol=1e-13)
    assert (by_forms - formulas.energy_ratio(inputs.z, inputs.matrix)).abs().max() > 0.1


def test_the_plain_energy_is_that_in_the_eigenvectors_of_S():
    case = make_case(rows=20, dim=7)
    weights, basis = torch.linalg.eigh(case.matrix.double())
    for scale in (1, 1e3):  # a ratio has none
        same = case.replace(basis=scale * basis, weights=weights).oracle(torch.float64)
        for mine, plain in zip(same, case.oracle(torch.float64)):
            torch.testing.assert_close(mine, plain, rtol=0, atol=1e-13)


def test_a_zero_row_has_no_energy_in_a_basis():
    zero = torch.zeros(1, 2, dtype=torch.float64)
    weights = torch.ones(2, dtype=torch.float64)
    assert formulas.energy_in_basis(zero, torch.eye(2, dtype=torch.float64), weights).tolist() == [0.0]


def test_tau_falls_with_energy_and_stays_in_0_1():
    energy = torch.linspace(0, 1, 11, dtype=torch.float64)
    weight = formulas.projection_weight(energy, torch.tensor(0.5, dtype=torch.float64))
    assert weight[0] == 1 and (weight[6:] == 0).all() and weight[5] == pytest.approx(0, abs=3e-6)
    assert (weight.diff() <= 0).all()


def test_running_energy_reference_is_left_alone_by_a_batch_without_finite_labelled_energy():
    before = torch.tensor(0.4, dtype=torch.float64)
    for sums in ([0.0, 0.0], [float("nan"), 3.0], [float("inf"), 3.0]):
        assert formulas.updated_energy_ref(before, torch.tensor(sums, dtype=torch.float64), 0.95) == before
        assert formulas.updated_number(0.4, *sums, 0.95) == 0.4
    after = formulas.updated_energy_ref(before, torch.tensor([1.8, 3.0], dtype=torch.float64), 0.95)
    assert after.item() == pytest.approx(0.95 * 0.4 + 0.05 * 0.6)
    assert formulas.updated_number(0.4, 1.8, 3.0, 0.95) == pytest.approx(after.item(), rel=1e-15)


def test_labelled_count_of_all_ranks_replaces_the_local_one():
    case = make_case(rows=12, dim=5)
    count = torch.tensor(float(case.mask.sum()) / 2, dtype=torch.float64)
    alone = SETTINGS._replace(lambda_p=0.0)
    anchor = case.oracle(settings=alone).gradient - case.g
    doubled = case.replace(labelled=count).oracle(settings=alone).gradient - case.g
    torch.testing.assert_close(doubled[case.mask], 2 * anchor[case.mask], rtol=1e-12, atol=1e-15)
