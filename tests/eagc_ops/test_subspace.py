"""The conceptor and its energy reference against their definitions."""

import copy
import pickle

import pytest
import torch

from eagc_ops import Subspace
from eagc_ops import subspace as subspace_module
from eagc_ops.subspace import estimate_from_batch, solve_conceptor, solve_woodbury


def features(count=200, dim=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator) * torch.arange(1, dim + 1).rsqrt() + 0.2


def by_definition(z, aperture):
    z = z.double()
    correlation = z.T @ z / len(z)
    return correlation @ torch.linalg.inv(
        correlation + aperture**-2 * torch.eye(z.shape[1], dtype=torch.float64)
    )


def mean_energy(z, matrix):
    z = z.double()
    return sum((row @ matrix @ row / (row @ row)).item() for row in z) / len(z)


@pytest.mark.parametrize("aperture", [0.5, 2.0, 10.0, 100.0])
@pytest.mark.parametrize("count", [10, 23, 24, 200], ids=lambda n: f"N={n}")
def test_conceptor_is_its_definition(count, aperture):
    z = features(count)
    subspace = Subspace.conceptor(z, aperture)
    exact = by_definition(z, aperture)
    torch.testing.assert_close(subspace.matrix.double(), exact, rtol=0, atol=1e-7)
    assert subspace.energy_ref.item() == pytest.approx(mean_energy(z, exact), abs=1e-6)
    assert torch.equal(subspace.matrix, subspace.matrix.T)
    eigenvalues = torch.linalg.eigvalsh(subspace.matrix.double())
    assert eigenvalues.min() > -1e-6 and eigenvalues.max() < 1 + 1e-6


def test_eigenvalues_are_the_papers_soft_threshold():
    """lambda -> lambda / (lambda + aperture^-2), the eigenvectors stay."""
    correlation = torch.diag(torch.tensor([4.0, 1.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(
        solve_conceptor(correlation, 2.0),
        torch.diag(torch.tensor([4 / 4.25, 1 / 1.25, 0.0], dtype=torch.float64)),
    )


@pytest.mark.parametrize("dim", [64, 256])
def test_fp64_solve_is_exact_to_1e_10(dim):
    z = features(2 * dim, dim).double()
    correlation = z.T @ z / len(z)
    exact = by_definition(z, 2.0)
    assert (solve_conceptor(correlation, 2.0) - exact).abs().max() < 1e-10
    few = z[: dim // 2]
    assert (solve_woodbury(few, len(few), 2.0) - by_definition(few, 2.0)).abs().max() < 1e-10


def test_fp32_solve_is_more_accurate_than_the_released_inverse():
    """On features of a LayerNorm, |z|^2 = D, as a ViT gives them."""
    z = torch.nn.functional.layer_norm(features(600, 256), (256,))
    correlation = z.T @ z / len(z)
    exact = solve_conceptor(correlation.double(), 2.0)
    released = correlation @ torch.linalg.inv(correlation + 0.25 * torch.eye(256))
    assert (solve_conceptor(correlation, 2.0) - exact).norm() < 0.7 * (released - exact).norm()
    assert Subspace.conceptor(z, dtype=torch.float32).matrix.sub(exact).abs().max() < 1e-5


def test_fp32_that_cannot_resolve_the_conceptor_is_refused():
    z = (torch.nn.functional.layer_norm(features(100, 256), (256,)) * 30).repeat(4, 1)  # rank 100 of 256
    with pytest.raises(ValueError, match=r"dtype=torch.float32 does not resolve .*aperture=30"):
        Subspace.conceptor(z, aperture=30.0, dtype=torch.float32)
    assert torch.linalg.eigvalsh(Subspace.conceptor(z, aperture=30.0).matrix.double()).min() > -1e-6


def test_autocast_does_not_narrow_a_fit():
    for z in (features(10), features(200)):
        with torch.autocast("cpu", torch.bfloat16):
            narrow, pca = Subspace.conceptor(z, dtype=torch.float32), Subspace.pca(z, 5, dtype=torch.float32)
        assert torch.equal(narrow.matrix, Subspace.conceptor(z, dtype=torch.float32).matrix)
        assert torch.equal(pca.matrix, Subspace.pca(z, 5, dtype=torch.float32).matrix)


def test_batches_tensor_and_generator_agree():
    z = features(300)
    whole = Subspace.conceptor(z)
    for batches in (z.split(64), list(z.split(1)), (batch for batch in z.split(128))):
        streamed = Subspace.conceptor(batches)
        torch.testing.assert_close(streamed.matrix, whole.matrix, rtol=0, atol=1e-7)
        torch.testing.assert_close(streamed.energy_ref, whole.energy_ref, rtol=0, atol=1e-7)


def test_a_generator_is_read_once_and_holds_no_features():
    """Memory D x D: a batch is gone when the next one is asked for."""
    import weakref

    alive = weakref.WeakSet()

    class Batch(torch.Tensor):
        pass

    def batches():
        for _ in range(20):
            assert len(alive) <= 1
            batch = features(50).as_subclass(Batch)
            alive.add(batch)
            yield batch
            del batch

    assert Subspace.conceptor(batches()).dim == 24


@pytest.mark.parametrize("strided", [False, True], ids=["whole rows", "slices of wider rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_many_rows_are_summed_in_blocks(monkeypatch, dtype, strided):
    monkeypatch.setattr(subspace_module, "ROWS_AT_ONCE", 64)
    z = features(300, 200).to(dtype)
    given = torch.stack([z, torch.full_like(z, torch.nan)], 1)[:, 0] if strided else z
    subspace, exact = Subspace.conceptor(given), by_definition(z, 2.0)
    torch.testing.assert_close(subspace.matrix.double(), exact, rtol=0, atol=1e-7)
    assert subspace.energy_ref.item() == pytest.approx(mean_energy(z, exact), abs=3e-7)


def test_half_features_are_summed_wide():
    z = features(300)
    narrow = Subspace.conceptor(z.bfloat16())
    torch.testing.assert_close(narrow.matrix, Subspace.conceptor(z.bfloat16().float()).matrix, rtol=0, atol=0)


def test_pca_is_the_projection_on_the_leading_directions():
    z = features(300)
    subspace = Subspace.pca(z, k=5)
    leading = torch.linalg.svd(z.double(), full_matrices=False).Vh[:5]
    torch.testing.assert_close(subspace.matrix.double(), leading.T @ leading, rtol=0, atol=1e-6)
    assert subspace.energy_ref.item() == pytest.approx(mean_energy(z, leading.T @ leading), abs=1e-6)


def test_energy_of_the_fitting_features_averages_to_the_reference():
    z = features(300)
    subspace = Subspace.conceptor(z)
    assert subspace.energy(z).mean().item() == pytest.approx(subspace.energy_ref.item(), abs=1e-6)
    assert subspace.energy(z.view(10, 30, 24)).shape == (10, 30)
    assert subspace.energy(z.double()).dtype == torch.float64


# The whitened energy ----------------------------------------------------------------------------------------


def whitened_by_definition(labelled, everything, ridge, aperture):
    """E as a function of rows, by matrix functions of the definition alone."""
    labelled, everything = labelled.double(), everything.double()
    C = torch.cov(everything.T, correction=0)
    values, vectors = torch.linalg.eigh(C + ridge * C.trace() / len(C) * torch.eye(len(C)).double())
    W = vectors @ values.rsqrt().diag() @ vectors.T
    A, B = W @ by_definition(labelled @ W, aperture) @ W, W @ W
    return lambda z: torch.stack([row @ A @ row / (row @ B @ row) for row in z.double()])


def two_sets(labelled=40, unlabelled=160):
    """Labelled and all features: the labelled ones lie mostly in the first directions."""
    first, second = features(labelled), features(unlabelled, seed=1)
    first[:, 8:] *= 0.3
    return first, torch.cat([first, second])


@pytest.mark.parametrize("count", [10, 40], ids=lambda n: f"N={n}")
@pytest.mark.parametrize(("ridge", "aperture"), [(0.01, 1.0), (0.3, 0.5)])
def test_the_whitened_energy_is_its_definition(count, ridge, aperture):
    labelled, everything = two_sets(count)
    subspace = Subspace.whitened(labelled, everything, 3.0, ridge=ridge, energy_aperture=aperture)
    exact = whitened_by_definition(labelled, everything, ridge, aperture)
    torch.testing.assert_close(subspace.energy(everything.double()), exact(everything), rtol=0, atol=2e-6)
    assert subspace.energy_ref.item() == pytest.approx(exact(labelled).mean().item(), abs=1e-6)
    plain = Subspace.conceptor(labelled, 3.0)
    torch.testing.assert_close(subspace.matrix, plain.matrix, rtol=0, atol=1e-7)
    assert (subspace.energy(everything) - plain.energy(everything)).abs().max() > 0.1
    assert subspace.weights.min() >= 0 and subspace.weights.max() <= 1
    # as large as an orthogonal matrix, so that it fits into 16 bits whatever the scale of the features
    assert torch.linalg.matrix_norm(subspace.basis).item() == pytest.approx(24**0.5)


@pytest.mark.parametrize("scale", [1e-12, 1e-8, 0.3, 1e5])
def test_no_energy_depends_on_the_scale_of_its_basis(scale):
    """Neither by the floor of the denominator nor in 16 bits; a second time nothing changes."""
    draw = torch.Generator().manual_seed(0)
    basis, weights = torch.randn(8, 8, generator=draw, dtype=torch.float64), torch.rand(8, generator=draw)
    z = torch.randn(20, 8, generator=draw, dtype=torch.float64)
    inside = z @ basis * weights @ (z @ basis).T
    expected = inside.diagonal() / (z @ basis).square().sum(1)
    own = Subspace(torch.eye(8), 0.5, basis=scale * basis, weights=weights)
    torch.testing.assert_close(own.energy(z), expected, rtol=1e-5, atol=0)
    assert 0.1 < own.basis.half().abs().max() < 10
    assert torch.equal(Subspace(torch.eye(8), 0.5, basis=own.basis, weights=weights).basis, own.basis)


def test_the_whitened_energy_is_invariant_under_linear_maps():
    """Without a ridge, all features may be multiplied by any invertible matrix."""
    labelled, everything = two_sets()
    generator = torch.Generator().manual_seed(2)
    mix = torch.randn(24, 24, generator=generator).double() + torch.diag(torch.logspace(-1, 1, 24)).double()
    energies = [
        Subspace.whitened(labelled.double() @ T, everything.double() @ T, ridge=0.0).energy(
            everything.double() @ T
        )
        for T in (torch.eye(24).double(), mix)
    ]
    torch.testing.assert_close(*energies, rtol=0, atol=1e-4)  # the basis is kept in fp32
    plain = [Subspace.conceptor(labelled.double() @ T) for T in (torch.eye(24).double(), mix)]
    assert (plain[0].energy(everything) - plain[1].energy(everything.double() @ mix)).abs().max() > 0.1


def test_whitening_by_isotropic_features_is_the_plain_energy():
    """C = I: W is a multiple of the identity, which the aperture takes up."""
    labelled = features(40)
    everything = 24**0.5 * torch.cat([torch.eye(24), -torch.eye(24)])
    plain = Subspace.conceptor(labelled, 1.5)
    subspace = Subspace.whitened(labelled, everything, ridge=0.0, energy_aperture=1.5)
    torch.testing.assert_close(subspace.energy(labelled), plain.energy(labelled), rtol=0, atol=1e-6)
    torch.testing.assert_close(subspace.energy_ref, plain.energy_ref, rtol=0, atol=1e-6)


def test_batches_and_generators_give_the_same_whitened_energy(monkeypatch):
    monkeypatch.setattr(subspace_module, "ROWS_AT_ONCE", 64)
    labelled, everything = two_sets()
    whole = Subspace.whitened(labelled, everything)
    with torch.autocast("cpu", torch.bfloat16):
        streamed = Subspace.whitened((x for x in labelled.split(7)), (x for x in everything.split(90)))
    torch.testing.assert_close(streamed.matrix, whole.matrix, rtol=0, atol=1e-7)
    torch.testing.assert_close(streamed.energy_ref, whole.energy_ref, rtol=0, atol=1e-7)
    torch.testing.assert_close(streamed.energy(everything), whole.energy(everything), rtol=0, atol=1e-6)


def test_the_whitened_subspace_is_copied_moved_and_printed():
    subspace = Subspace.whitened(*two_sets())
    for other in (pickle.loads(pickle.dumps(subspace)), copy.deepcopy(subspace), subspace.to("cpu")):
        assert all(torch.equal(x, vars(subspace)[name]) for name, x in vars(other).items())
        assert len(vars(other)) == 4
    assert {x.device.type for x in vars(subspace.to("meta")).values()} == {"meta"}
    assert f"energy_ref={subspace.energy_ref:.3f} in a basis, device=cpu" in repr(subspace)
    again = Subspace(**vars(subspace))
    assert torch.equal(again.energy(features()), subspace.energy(features()))


@pytest.mark.parametrize("rows", [8, 64], ids=["rows<D", "rows>D"])
def test_batch_estimate_is_the_conceptor_of_the_labelled_rows(rows):
    z = features(rows)
    mask = torch.arange(rows) % 3 != 0
    broken = z.clone()
    broken[~mask] = torch.nan
    matrix, energy_ref = estimate_from_batch(broken, mask)
    exact = Subspace.conceptor(z[mask])
    torch.testing.assert_close(matrix, exact.matrix, rtol=0, atol=1e-6)
    torch.testing.assert_close(energy_ref, exact.energy_ref, rtol=0, atol=1e-6)


def test_copies_pickles_moves_and_prints():
    subspace = Subspace.conceptor(features())
    for other in (pickle.loads(pickle.dumps(subspace)), copy.deepcopy(subspace), subspace.to("cpu")):
        assert torch.equal(other.matrix, subspace.matrix) and torch.equal(
            other.energy_ref, subspace.energy_ref
        )
    assert subspace.to("cpu") is subspace
    assert subspace.to("meta").device.type == "meta"
    assert repr(subspace).startswith("Subspace(dim=24, rank ")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: Subspace.conceptor(features(), aperture=0),
            ValueError,
            "aperture must be a positive number, got 0; the paper uses 2.0",
        ),
        (
            lambda: Subspace.conceptor(features(), aperture=float("inf")),
            ValueError,
            "aperture must be a positive number, got inf",
        ),
        (
            lambda: Subspace.conceptor(features(), aperture="2"),
            ValueError,
            "aperture must be a positive number, got '2'; the paper uses 2.0",
        ),
        (
            lambda: Subspace.conceptor(features()[0]),
            ValueError,
            r"features must be a floating tensor \(N, D\).*got \(24,\)",
        ),
        (
            lambda: Subspace.conceptor(features().long()),
            ValueError,
            r"features must be a floating tensor \(N, D\).*got .*int64",
        ),
        (
            lambda: Subspace.conceptor(features().to_sparse()),
            ValueError,
            r"features must be a floating tensor.*of layout torch.sparse_coo, which .to_dense\(\) makes",
        ),
        (
            lambda: Subspace(torch.eye(3).to_sparse(), 0.5),
            ValueError,
            r"matrix must be a floating tensor.*of layout torch.sparse_coo, which .to_dense\(\) makes",
        ),
        (
            lambda: Subspace.conceptor(features()[:0]),
            ValueError,
            "features has no rows: pass the labelled features",
        ),
        (
            lambda: Subspace.conceptor([]),
            ValueError,
            "features has no rows: pass the labelled features",
        ),
        (
            lambda: Subspace.conceptor(3),
            TypeError,
            r"features must be a tensor \(N, D\) or an iterable of such batches, got int",
        ),
        (
            lambda: Subspace.conceptor([features(), features(dim=8)]),
            ValueError,
            "a batch with D=8 after one with D=24: pass .* one layer",
        ),
        (
            lambda: Subspace.conceptor(features().log()),
            ValueError,
            "features must be finite, but hold NaN or infinite values: drop those rows, or check",
        ),
        (
            lambda: Subspace.conceptor(features(10).log()),
            ValueError,
            "features must be finite, but hold NaN or infinite values: drop those rows, or check",
        ),
        (
            lambda: Subspace.conceptor(features(), dtype=torch.float16),
            ValueError,
            "dtype must be torch.float64 or torch.float32, got torch.float16",
        ),
        (
            lambda: Subspace.conceptor(features(10), dtype=torch.float16),
            ValueError,
            "dtype must be torch.float64 or torch.float32, got torch.float16",
        ),
        (
            lambda: Subspace.pca(features(), k=25),
            ValueError,
            "k must be a whole number between 1 and D=24, got 25",
        ),
        (
            lambda: Subspace.pca(features(), k=2.5),
            ValueError,
            "k must be a whole number between 1 and D=24, got 2.5",
        ),
        (
            lambda: Subspace(torch.ones(2, 3), 0.5),
            ValueError,
            r"matrix must be a floating tensor \(D, D\), got \(2, 3\).*Subspace.conceptor",
        ),
        (
            lambda: Subspace(torch.tensor([[0.5, 0.1], [0, 0.5]]), 0.5),
            ValueError,
            r"matrix must be symmetric.*pass \(matrix \+ matrix.T\) / 2",
        ),
        (
            lambda: Subspace(torch.eye(3) * 1.1, 0.5),
            ValueError,
            "matrix must have .* one above 1; Subspace.conceptor makes a valid one",
        ),
        (
            lambda: Subspace(torch.eye(3) * -0.1, 0.5),
            ValueError,
            "matrix must have .* one negative; Subspace.conceptor makes a valid one",
        ),
        (
            lambda: Subspace(torch.eye(3) * torch.nan, 0.5),
            ValueError,
            r"matrix holds NaN or infinite values; Subspace.conceptor\(features\)",
        ),
        (
            lambda: Subspace.whitened(features(), features(dim=8)),
            ValueError,
            "all_features has D=8 but features has D=24: pass features of one layer",
        ),
        (
            lambda: Subspace.whitened(features(), []),
            ValueError,
            "all_features has no rows: pass labelled and unlabelled features",
        ),
        (
            lambda: Subspace.whitened([], features()),
            ValueError,
            "features has no rows: pass the labelled features",
        ),
        (
            lambda: Subspace.whitened(features(), features().log()),
            ValueError,
            "all_features must be finite, but hold NaN or infinite values",
        ),
        (
            lambda: Subspace.whitened(features(), features()[0]),
            ValueError,
            r"all_features must be a floating tensor \(N, D\).*got \(24,\)",
        ),
        (
            lambda: Subspace.whitened(features(), features(), ridge=-0.1),
            ValueError,
            "ridge must be a number >= 0, got -0.1; the default is 0.01",
        ),
        (
            lambda: Subspace.whitened(features(), features(), energy_aperture=0),
            ValueError,
            "energy_aperture must be a positive number, got 0; the default is 1.0",
        ),
        (
            lambda: Subspace.whitened(features(), features(20), ridge=0),
            ValueError,
            "all_features do not vary in every direction, and ridge=0 does not make up for it: use ridge=",
        ),
        (
            lambda: Subspace.whitened(features(), torch.ones(30, 24)),
            ValueError,
            "all_features do not vary in every direction, and ridge=0.01 does not make up for it",
        ),
        (
            lambda: Subspace(torch.eye(3), 0.5, basis=torch.eye(3)),
            ValueError,
            "basis is given but weights is None: pass both, or none",
        ),
        (
            lambda: Subspace(torch.eye(3), 0.5, weights=torch.ones(3)),
            ValueError,
            "weights is given but basis is None: pass both, or none",
        ),
        (
            lambda: Subspace(torch.eye(3), 0.5, basis=torch.eye(2), weights=torch.ones(3)),
            ValueError,
            r"basis must be a floating tensor \(3, 3\) for this matrix, got \(2, 2\)",
        ),
        (
            lambda: Subspace(torch.eye(3), 0.5, basis=torch.eye(3), weights=torch.ones(3).long()),
            ValueError,
            r"weights must be a floating tensor \(3,\) for this matrix, got .*int64",
        ),
        (
            lambda: Subspace(torch.eye(3), 0.5, basis=torch.eye(3), weights=torch.ones(3, device="meta")),
            ValueError,
            r"weights is on meta but matrix is on cpu: move it with weights.to\(matrix.device\)",
        ),
        (
            lambda: Subspace(torch.eye(3), 0.5, basis=torch.eye(3), weights=torch.tensor([0, 0.5, 2])),
            ValueError,
            r"weights must be in \[0, 1\], got 0 to 2: .* divide them by the largest",
        ),
        (
            lambda: Subspace(torch.eye(3), 0.5, basis=torch.ones(3, 3), weights=torch.ones(3)),
            ValueError,
            "basis must be invertible, but has singular values from .* to 3.0e.00: basis @ basis.T, the form",
        ),
        (
            lambda: Subspace(torch.eye(3), 0.5, basis=torch.eye(3) / 0, weights=torch.ones(3)),
            ValueError,
            "basis holds NaN or infinite values; Subspace.whitened",
        ),
        (
            lambda: Subspace(torch.eye(3), 0.0),
            ValueError,
            r"energy_ref, the mean energy ratio .*, must be one number in \(0, 1\], got 0.0",
        ),
        (
            lambda: Subspace(torch.eye(3), "x"),
            ValueError,
            r"energy_ref, the mean energy ratio .*, must be one number in \(0, 1\], got 'x'",
        ),
        (
            lambda: Subspace(torch.eye(3), torch.ones(2)),
            ValueError,
            r"energy_ref.* must be one number in \(0, 1\], got tensor\(\[1., 1.\]\)",
        ),
        (
            lambda: Subspace(torch.eye(3), 0.5).energy(torch.ones(2, 4)),
            ValueError,
            r"z must be a floating tensor \(..., 3\), got \(2, 4\) torch.float32: pass features of",
        ),
        (
            lambda: Subspace(torch.eye(3), 0.5).energy(torch.ones(2, 3, device="meta")),
            ValueError,
            r"z is on meta but the subspace is on cpu: move it with subspace.to\(z.device\)",
        ),
    ],
)
def test_errors_name_the_argument_and_the_remedy(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_a_projection_and_the_identity_are_valid_matrices():
    basis = torch.linalg.qr(torch.randn(16, 5))[0]
    assert Subspace(basis @ basis.T, 0.5).dim == 16
    assert Subspace(torch.eye(7, dtype=torch.float64), 1.0).matrix.dtype == torch.float32


def test_matrix_and_energy_ref_are_copies():
    matrix, energy_ref = torch.eye(3), torch.tensor(0.5)
    subspace = Subspace(matrix, energy_ref)
    matrix.zero_(), energy_ref.zero_()
    assert torch.equal(subspace.matrix, torch.eye(3)) and subspace.energy_ref == 0.5


def test_prints_without_values():
    """On the meta device there are shapes and no numbers; printing a model there must not ask for any."""
    assert repr(Subspace(torch.eye(3) * 0.5, 0.5).to("meta")) == "Subspace(dim=3, device=meta)"
