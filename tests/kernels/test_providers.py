"""Every provider against the fp64 oracle, over shapes, dtypes and layouts. In the interpreter run the provider is Triton."""

from types import SimpleNamespace

import pytest
import torch
from operator_cases import OPTIONS, assert_close_to_oracle, assert_exercised, make_case

from eagc_ops import kernels
from eagc_ops.kernels import torch_path

pytestmark = pytest.mark.usefixtures("poisoned_memory")
SHAPES = [(1, 1), (3, 5), (17, 33), (40, 24), (50, 100), (70, 64), (130, 17)]


def matrix_dtype(impl, dtype):
    """The Triton kernel multiplies half inputs with a half copy of the matrix; the others keep fp32."""
    return dtype if impl == "triton" else torch.float32


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_equals_the_formulas(impl, shape, dtype):
    case = make_case(*shape, dtype=dtype)
    out, energy, weight = kernels.coordinate(*case.inputs(), impl=impl, **OPTIONS)
    assert_close_to_oracle(out, case, matrix_dtype(impl, dtype))
    _, exact_energy, exact_weight = case.oracle(matrix_dtype(impl, dtype))
    unlabelled = ~case.mask
    torch.testing.assert_close(energy[unlabelled].double(), exact_energy[unlabelled], rtol=0, atol=2e-6)
    torch.testing.assert_close(weight[unlabelled].double(), exact_weight[unlabelled], rtol=0, atol=2e-5)
    assert energy[case.mask].isnan().all() and weight[case.mask].isnan().all()


def test_most_rows_of_the_cases_are_really_projected():
    for shape in SHAPES[2:]:
        assert_exercised(make_case(*shape))


@pytest.mark.parametrize("anchor", ["mean", "sum"])
@pytest.mark.parametrize("tau", ["energy", "uniform"])
def test_equals_the_formulas_with_every_option(impl, anchor, tau):
    case = make_case(50, 40)
    options = {"lambda_a": 1.3, "lambda_p": 3.0, "anchor": anchor, "tau": tau}
    scale, count = torch.tensor(1024.0), torch.tensor(13.0)
    out, energy, weight = kernels.coordinate(*case.inputs(), impl=impl, scale=scale, count=count, **options)
    assert_close_to_oracle(out, case, scale=scale.double(), count=count.double(), **options)
    if tau == "uniform":
        assert (weight[~case.mask] == 1).all() and energy.isnan().all()


@pytest.mark.parametrize("labelled", [0.0, 1.0])
def test_batches_of_one_kind_of_row(impl, labelled):
    case = make_case(37, 20, labelled=labelled)
    assert case.mask.all() if labelled else not case.mask.any()
    assert_close_to_oracle(kernels.coordinate(*case.inputs(), impl=impl, **OPTIONS)[0], case)


def test_empty_batch(impl):
    case = make_case(0, 8)
    out, energy, weight = kernels.coordinate(*case.inputs(), impl=impl, **OPTIONS)
    assert out.shape == (0, 8) and energy.shape == weight.shape == (0,)


def test_no_anchor_without_a_reference(impl):
    case = make_case(30, 16)
    g, z, _, mask, matrix, energy_ref = case.inputs()
    out = kernels.coordinate(g, z, None, mask, matrix, energy_ref, impl=impl, **OPTIONS)[0]
    assert torch.equal(out[mask], g[mask])
    exact = case.oracle()[0]
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
    plain = kernels.coordinate(*case.inputs(), impl=impl, **OPTIONS)[0]
    out = kernels.coordinate(
        strided[0], transposed, strided[2], mask, case.matrix, case.energy_ref, impl=impl, **OPTIONS
    )[0]
    assert torch.equal(out, plain) and out.is_contiguous()
    expanded = torch.ones(1, 1).expand(40, 24)
    out = kernels.coordinate(expanded, *case.inputs()[1:], impl=impl, **OPTIONS)[0]
    assert torch.equal(
        out, kernels.coordinate(torch.ones(40, 24), *case.inputs()[1:], impl=impl, **OPTIONS)[0]
    )


def test_reference_features_of_another_dtype(impl):
    case = make_case(30, 16)
    g, z, z_ref, mask, matrix, energy_ref = case.inputs()
    narrow = z_ref.to(torch.bfloat16)
    out = kernels.coordinate(g, z, narrow, mask, matrix, energy_ref, impl=impl, **OPTIONS)[0]
    same = kernels.coordinate(g, z, narrow.float(), mask, matrix, energy_ref, impl=impl, **OPTIONS)[0]
    assert torch.equal(out, same)


def test_inputs_are_not_written_to(impl):
    case = make_case(40, 24)
    before = [x.clone() for x in case.inputs()]
    kernels.coordinate(*case.inputs(), impl=impl, **OPTIONS)
    for x, y in zip(case.inputs(), before):
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_rows_stay_non_finite_and_alone(impl, bad):
    case = make_case(40, 24)
    plain = kernels.coordinate(*case.inputs(), impl=impl, **OPTIONS)[0]
    unlabelled, labelled = (~case.mask).nonzero()[3].item(), case.mask.nonzero()[2].item()
    for row, name in ((unlabelled, "z"), (unlabelled, "g"), (labelled, "z"), (labelled, "z_ref")):
        broken = {name: x.clone() for name, x in zip(("g", "z", "z_ref"), case.inputs())}
        broken[name][row, 5] = bad
        out = kernels.coordinate(*broken.values(), *case.inputs()[3:], impl=impl, **OPTIONS)[0]
        assert not torch.isfinite(out[row]).all(), f"{bad} in {name} was lost"
        others = torch.arange(40) != row
        assert torch.equal(out[others], plain[others])


def test_zero_rows_have_energy_0_and_tau_1(impl):
    case = make_case(20, 12, labelled=0.0)
    case.z[4] = 0
    out, energy, weight = kernels.coordinate(*case.inputs(), impl=impl, **OPTIONS)
    assert energy[4] == 0 and weight[4] == 1
    assert_close_to_oracle(out, case)


def test_the_floors_hold_for_tiny_rows_and_a_tiny_energy_reference(impl):
    """Rows with |z|^2 below 1e-12 and Ebar below 1e-6, so that both floors count, against the formulas with the numbers written out."""
    case = make_case(20, 12, labelled=0.0)
    z, energy_ref = case.z * 1e-10, torch.tensor(2e-7)
    _, energy, weight = kernels.coordinate(
        case.g, z, None, case.mask, case.matrix, energy_ref, impl=impl, **OPTIONS
    )
    wide = z.double()
    exact = ((wide @ case.matrix.double()) * wide).sum(1) / 1e-12
    exact_weight = 1 - exact / (2e-7 + 1e-6)
    assert (exact > 0).all() and (exact_weight > 0.1).all() and (exact_weight < 0.99).any()
    torch.testing.assert_close(energy.double(), exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(weight.double(), exact_weight, rtol=1e-5, atol=0)


def test_same_bits_every_time(impl):
    case = make_case(130, 48)
    first = kernels.coordinate(*case.inputs(), impl=impl, **OPTIONS)[0]
    for _ in range(5):
        assert torch.equal(kernels.coordinate(*case.inputs(), impl=impl, **OPTIONS)[0], first)


@pytest.mark.parametrize("labelled", [0.0, 0.5, 1.0])
def test_running_energy_reference(impl, labelled):
    case = make_case(70, 40, labelled=labelled)
    energy_ref = torch.tensor(0.3)
    sums, used = kernels.labelled_energy(case.z, case.mask, case.matrix, energy_ref, momentum=0.95, impl=impl)
    exact = kernels.formulas.labelled_energy(case.z.double(), case.mask, case.matrix.double())
    torch.testing.assert_close(sums.double(), exact, rtol=1e-6, atol=0)
    expected = 0.95 * 0.3 + 0.05 * (exact[0] / exact[1]) if labelled else torch.tensor(0.3)
    assert used.item() == energy_ref.item() == pytest.approx(expected.item(), rel=1e-6)
    assert used.data_ptr() != energy_ref.data_ptr()


def test_running_energy_reference_ignores_a_non_finite_batch(impl):
    case = make_case(40, 24)
    case.z[case.mask.nonzero()[0]] = torch.nan
    energy_ref = torch.tensor(0.3)
    _, used = kernels.labelled_energy(case.z, case.mask, case.matrix, energy_ref, momentum=0.95, impl=impl)
    assert used == energy_ref == torch.tensor(0.3)


def test_autocast_around_backward_does_not_narrow_the_products(impl):
    case = make_case(40, 24)
    plain = kernels.coordinate(*case.inputs(), impl=impl, **OPTIONS)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(kernels.coordinate(*case.inputs(), impl=impl, **OPTIONS)[0], plain)


class TestTorchPath:
    """What is special to the CPU path: blocks of rows, the triangle, and the dense form it replaces."""

    def test_dense_form_equals_the_formulas(self):
        case = make_case(50, 40, dtype=torch.bfloat16)
        assert_close_to_oracle(torch_path.dense(*case.inputs(), **OPTIONS)[0], case)

    def test_many_blocks_of_rows_equal_one(self, monkeypatch):
        case = make_case(70, 24)
        whole = torch_path.coordinate(*case.inputs(), **OPTIONS)
        sums = torch_path.labelled_energy(case.z, case.mask, case.matrix)
        monkeypatch.setattr(torch_path, "ROWS_AT_ONCE", 7)
        for x, y in zip(torch_path.coordinate(*case.inputs(), **OPTIONS), whole):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(torch_path.labelled_energy(case.z, case.mask, case.matrix), sums)

    @pytest.mark.parametrize("dim", [1, 63, 64, 65, 300, 768])
    def test_energy_from_the_triangle_is_the_whole_quadratic_form(self, dim):
        case = make_case(30, dim)
        exact = kernels.formulas.energy_ratio(case.z.double(), case.matrix.double())
        torch.testing.assert_close(
            torch_path.energy_ratio(case.z.clone(), case.matrix).double(), exact, rtol=0, atol=1e-6
        )

    def test_fp64_stays_fp64(self):
        case = make_case(40, 24, dtype=torch.float64)
        assert_close_to_oracle(torch_path.coordinate(*case.inputs(), **OPTIONS)[0], case)


def test_an_implementation_that_cannot_be_honoured_raises():
    cpu = torch.device("cpu")
    for arguments, error, words in [
        (("fast", cpu, torch.float32), ValueError, "impl='fast' is none of"),
        (("auto", cpu, torch.float32, "low"), ValueError, "precision='low' is none of"),
        (("triton", cpu, torch.float64), RuntimeError, "the kernel takes float32"),
        (("triton", torch.device("mps"), torch.float32), RuntimeError, "z is on 'mps'"),
        (("torch", cpu, torch.float32, "tf32"), ValueError, "precision='tf32' is for the Triton kernel"),
    ]:
        with pytest.raises(error, match=words):
            kernels.provider(*arguments)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"):
        kernels.provider("triton", cpu, torch.float32)


@pytest.mark.parametrize(
    ("name", "refused"),
    [("gfx1100", True), ("gfx1201", True), ("gfx90a:sramecc+:xnack-", False), ("gfx950", False)],
)
def test_amd_gpus_that_the_fence_is_not_written_for_take_torch(monkeypatch, name, refused):
    pytest.importorskip("triton", reason="Triton has no wheels for this platform")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName=name))
    gpu = torch.device("cuda")
    assert kernels.provider("auto", gpu, torch.float32) == ("torch" if refused else "triton")
    if refused:
        with pytest.raises(
            RuntimeError,
            match=rf"written for CDNA \(gfx9\.\.\.\), the GPU is {name}; use impl=.torch. or .auto.",
        ):
            kernels.provider("triton", gpu, torch.float32)
    else:
        assert kernels.provider("triton", gpu, torch.float32) == "triton"
