"""Every implementation against the fp64 oracle, over shapes, dtypes and layouts. The interpreter run takes
Triton.
"""

from types import SimpleNamespace

import pytest
import torch
from operator_cases import SETTINGS, assert_close_to_oracle, assert_exercised, coordinate, make_case

from eagc_ops import kernels
from eagc_ops.kernels import Coordination, Execution, torch_path

pytestmark = pytest.mark.usefixtures("poisoned_memory")
SHAPES = [(1, 1), (3, 5), (17, 33), (40, 24), (50, 100), (70, 64), (130, 17)]


def matrix_dtype(impl, dtype):
    """The Triton kernel multiplies half inputs with a half copy of the matrix; the others keep fp32."""
    return dtype if impl == "triton" else torch.float32


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_equals_the_formulas(impl, shape, dtype):
    case = make_case(*shape, dtype=dtype)
    out, energy, weight = coordinate(case, impl)
    assert_close_to_oracle(out, case, matrix_dtype(impl, dtype))
    _, exact_energy, exact_weight = case.oracle(matrix_dtype(impl, dtype))
    unlabelled = ~case.mask
    torch.testing.assert_close(energy[unlabelled].double(), exact_energy[unlabelled], rtol=0, atol=2e-6)
    torch.testing.assert_close(weight[unlabelled].double(), exact_weight[unlabelled], rtol=0, atol=2e-5)
    assert energy[case.mask].isnan().all() and weight[case.mask].isnan().all()


def test_most_rows_of_the_cases_are_really_projected():
    for shape in SHAPES[2:]:
        assert_exercised(make_case(*shape))
        assert_exercised(make_case(*shape, basis=True))


@pytest.mark.parametrize("shape", [(3, 5), (40, 24), (20, 70)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_equals_the_formulas_with_an_energy_in_a_basis(impl, shape, dtype):
    case = make_case(*shape, dtype=dtype, basis=True)
    out, energy, _ = coordinate(case, impl)
    assert_close_to_oracle(out, case, matrix_dtype(impl, dtype))
    exact = case.oracle(matrix_dtype(impl, dtype)).energy
    torch.testing.assert_close(energy[~case.mask].double(), exact[~case.mask], rtol=0, atol=2e-6)
    inputs = case.inputs._replace(energy_ref=case.energy_ref.clone())
    sums, _ = kernels.labelled_energy(inputs, 0.95, Execution(impl))
    rounded = case.inputs.rounded(matrix_dtype(impl, dtype)).widened(torch.float64)
    exact = kernels.formulas.labelled_energy(rounded)
    torch.testing.assert_close(sums.double(), exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("anchor", ["mean", "sum"])
@pytest.mark.parametrize("tau", ["energy", "uniform"])
def test_equals_the_formulas_with_every_option(impl, anchor, tau):
    case = make_case(50, 40)
    settings = Coordination(lambda_a=1.3, lambda_p=3.0, anchor=anchor, tau=tau)
    case = case.replace(scale=torch.tensor(1024.0), labelled=torch.tensor(13.0))
    out, energy, weight = coordinate(case, impl, settings)
    assert_close_to_oracle(out, case, settings=settings)
    if tau == "uniform":
        assert (weight[~case.mask] == 1).all() and energy.isnan().all()


@pytest.mark.parametrize("labelled", [0.0, 1.0])
def test_batches_of_one_kind_of_row(impl, labelled):
    case = make_case(37, 20, labelled=labelled)
    assert case.mask.all() if labelled else not case.mask.any()
    assert_close_to_oracle(coordinate(case, impl).gradient, case)


def test_empty_batch(impl):
    case = make_case(0, 8)
    out, energy, weight = coordinate(case, impl)
    assert out.shape == (0, 8) and energy.shape == weight.shape == (0,)


def test_no_anchor_without_a_reference(impl):
    case = make_case(30, 16)
    out, mask = coordinate(case.replace(z_ref=None), impl).gradient, case.mask
    assert torch.equal(out[mask], case.g[mask])
    exact = case.oracle().gradient
    torch.testing.assert_close(out[~mask].double(), exact[~mask], rtol=0, atol=1e-6)


def test_strided_and_expanded_inputs(impl):
    case = make_case(40, 24)
    wide = torch.full((40, 60), torch.nan)
    strided = []
    for x in (case.g, case.z, case.z_ref):
        wide = torch.full((40, 60), torch.nan)
        wide[:, 8:32] = x
        strided.append(wide[:, 8:32])
    transposed = case.z.T.contiguous().T
    mask = torch.stack([case.mask, ~case.mask], 1)[:, 0]
    plain = coordinate(case, impl).gradient
    for z in (strided[1], transposed):  # rows apart, and columns apart
        changed = case.replace(g=strided[0], z=z, z_ref=strided[2], mask=mask)
        out = coordinate(changed, impl).gradient
        assert torch.equal(out, plain) and out.is_contiguous()
    expanded = torch.ones(1, 1).expand(40, 24)
    out = coordinate(case.replace(g=expanded), impl).gradient
    assert torch.equal(out, coordinate(case.replace(g=torch.ones(40, 24)), impl).gradient)


def test_reference_features_of_a_different_dtype(impl):
    case = make_case(30, 16)
    narrow = case.z_ref.to(torch.bfloat16)
    out = coordinate(case.replace(z_ref=narrow), impl).gradient
    same = coordinate(case.replace(z_ref=narrow.float()), impl).gradient
    assert torch.equal(out, same)


def test_inputs_are_not_written_to(impl):
    case = make_case(40, 24)
    before = [x.clone() for x in case.tensors()]
    coordinate(case, impl)
    for x, y in zip(case.tensors(), before):
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_rows_stay_non_finite_and_alone(impl, bad):
    case = make_case(40, 24)
    plain = coordinate(case, impl).gradient
    unlabelled, labelled = (~case.mask).nonzero()[3].item(), case.mask.nonzero()[2].item()
    for row, name in ((unlabelled, "z"), (unlabelled, "g"), (labelled, "z"), (labelled, "z_ref")):
        broken = getattr(case, name).clone()
        broken[row, 5] = bad
        out = coordinate(case.replace(**{name: broken}), impl).gradient
        assert not torch.isfinite(out[row]).all(), f"{bad} in {name} was lost"
        others = torch.arange(40) != row
        assert torch.equal(out[others], plain[others])


def test_zero_rows_have_energy_0_and_tau_1(impl):
    case = make_case(20, 12, labelled=0.0)
    case.z[4] = 0
    out, energy, weight = coordinate(case, impl)
    assert energy[4] == 0 and weight[4] == 1
    assert_close_to_oracle(out, case)


def test_the_floors_hold_for_tiny_rows_and_a_tiny_energy_reference(impl):
    """Rows with |z|^2 below 1e-12 and Ebar below 1e-6, so that both floors count, against the formulas with
    the numbers written out.
    """
    case = make_case(20, 12, labelled=0.0)
    z, energy_ref = case.z * 1e-10, torch.tensor(2e-7)
    _, energy, weight = coordinate(case.replace(z=z, z_ref=None, energy_ref=energy_ref), impl)
    wide = z.double()
    exact = ((wide @ case.matrix.double()) * wide).sum(1) / 1e-12
    exact_weight = 1 - exact / (2e-7 + 1e-6)
    assert (exact > 0).all() and (exact_weight > 0.1).all() and (exact_weight < 0.99).any()
    torch.testing.assert_close(energy.double(), exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(weight.double(), exact_weight, rtol=1e-5, atol=0)


def test_same_bits_every_time(impl):
    case = make_case(130, 48)
    first = coordinate(case, impl).gradient
    for _ in range(5):
        assert torch.equal(coordinate(case, impl).gradient, first)


@pytest.mark.parametrize("labelled", [0.0, 0.5, 1.0])
def test_running_energy_reference(impl, labelled):
    case = make_case(70, 40, labelled=labelled)
    energy_ref = torch.tensor(0.3)
    inputs = case.inputs._replace(energy_ref=energy_ref)
    sums, used = kernels.labelled_energy(inputs, 0.95, Execution(impl))
    exact = kernels.formulas.labelled_energy(case.inputs.widened(torch.float64))
    torch.testing.assert_close(sums.double(), exact, rtol=1e-6, atol=0)
    expected = 0.95 * 0.3 + 0.05 * (exact[0] / exact[1]) if labelled else torch.tensor(0.3)
    assert used.item() == energy_ref.item() == pytest.approx(expected.item(), rel=1e-6)
    assert used.data_ptr() != energy_ref.data_ptr()


def test_running_energy_reference_ignores_a_non_finite_batch(impl):
    case = make_case(40, 24)
    case.z[case.mask.nonzero()[0]] = torch.nan
    energy_ref = torch.tensor(0.3)
    inputs = case.inputs._replace(energy_ref=energy_ref)
    _, used = kernels.labelled_energy(inputs, 0.95, Execution(impl))
    assert used == energy_ref == torch.tensor(0.3)


def test_autocast_around_backward_does_not_narrow_the_products(impl):
    case = make_case(40, 24)
    plain = coordinate(case, impl).gradient
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(coordinate(case, impl).gradient, plain)


class TestTorchPath:
    """What is special to the CPU path: blocks of rows, the triangle, and the dense form it replaces."""

    def test_dense_form_equals_the_formulas(self):
        case = make_case(50, 40, dtype=torch.bfloat16)
        assert_close_to_oracle(torch_path.dense(case.g, case.inputs, SETTINGS), case)

    def test_many_blocks_of_rows_equal_one(self, monkeypatch):
        case = make_case(70, 24)
        whole = coordinate(case, "torch")
        sums = torch_path.labelled_energy(case.inputs)
        monkeypatch.setattr(torch_path, "ROWS_AT_ONCE", 7)
        for x, y in zip(coordinate(case, "torch"), whole):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(torch_path.labelled_energy(case.inputs), sums)

    @pytest.mark.parametrize("dim", [1, 63, 64, 65, 300, 768])
    def test_energy_from_the_triangle_is_the_whole_quadratic_form(self, dim):
        case = make_case(30, dim)
        exact = kernels.formulas.energy_ratio(case.z.double(), case.matrix.double())
        torch.testing.assert_close(
            torch_path.energy_ratio(case.z.clone(), case.matrix).double(), exact, rtol=0, atol=1e-6
        )

    def test_fp64_stays_fp64(self):
        case = make_case(40, 24, dtype=torch.float64)
        assert_close_to_oracle(torch_path.compute(case.g, case.inputs, SETTINGS), case)


def test_an_implementation_that_cannot_be_honoured_raises():
    cpu = torch.device("cpu")
    for arguments, error, words in [
        ((Execution("fast"), cpu, torch.float32), ValueError, "impl must be one of .*, got 'fast'"),
        (
            (Execution(precision="low"), cpu, torch.float32),
            ValueError,
            "precision must be one of .*, got 'low'",
        ),
        ((Execution("triton"), cpu, torch.float64), RuntimeError, "the kernel takes float32"),
        ((Execution("triton"), torch.device("mps"), torch.float32), RuntimeError, "z is on 'mps'"),
        ((Execution("torch", "tf32"), cpu, torch.float32), ValueError, "'tf32' is for the Triton kernel"),
    ]:
        with pytest.raises(error, match=words):
            kernels.implementation(*arguments)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"):
        kernels.implementation(Execution("triton"), cpu, torch.float32)


@pytest.mark.parametrize(
    ("name", "refused"),
    [("gfx1100", True), ("gfx1201", True), ("gfx90a:sramecc+:xnack-", False), ("gfx950", False)],
)
def test_amd_gpus_that_the_fence_is_not_written_for_take_torch(monkeypatch, name, refused):
    pytest.importorskip("triton", reason="Triton has no wheels for this platform")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName=name))
    gpu = torch.device("cuda")
    assert kernels.implementation(Execution("auto"), gpu, torch.float32) == ("torch" if refused else "triton")
    if refused:
        with pytest.raises(
            RuntimeError,
            match=rf"written for CDNA \(gfx9\.\.\.\), but the GPU is {name}; use impl=.torch. or .auto.",
        ):
            kernels.implementation(Execution("triton"), gpu, torch.float32)
    else:
        assert kernels.implementation(Execution("triton"), gpu, torch.float32) == "triton"
