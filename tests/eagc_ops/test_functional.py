"""`eagc_op`: what the mathematics promises, property by property. The interpreter run takes Triton."""

import warnings

import pytest
import torch
from operator_cases import SETTINGS, assert_close_to_oracle, assert_exercised, make_case
from torch.utils._pytree import tree_leaves

from eagc_ops import EAGC, Subspace, autograd, eagc_op, hints
from eagc_ops.kernels import Execution

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def subspace_of(case) -> Subspace:
    return case.subspace


def gradient(case, impl="torch", g=None, **options):
    """The gradient that reaches z when g arrives at the operator's output."""
    z = case.z.clone().requires_grad_()
    out = eagc_op(z, case.z_ref, case.mask, subspace_of(case), impl=impl, **options)
    return torch.autograd.grad(out, z, case.g if g is None else g)[0]


def test_forward_is_the_identity_without_a_copy(impl):
    case = make_case()
    z = case.z.clone().requires_grad_()
    out = eagc_op(z, case.z_ref, case.mask, subspace_of(case), impl=impl)
    assert out.data_ptr() == z.data_ptr() and torch.equal(out, z) and out.requires_grad


def test_backward_is_the_formula(impl):
    case = make_case(60, 32)
    assert_exercised(case)
    assert_close_to_oracle(gradient(case, impl), case)


def test_backward_is_the_formula_with_an_energy_in_a_basis():
    """By the two quadratic forms, and with rows of several leading dimensions."""
    case = make_case(60, 32, dtype=torch.float64, basis=True)
    z, S, g = case.z, case.matrix.double(), case.g
    M, w = case.inputs.basis.double(), case.inputs.weights.double()
    A, B = M @ w.diag() @ M.T, M @ M.T
    E = torch.stack([(row @ A @ row) / (row @ B @ row) for row in z])
    tau = (1 - E / (case.energy_ref.double() + 1e-6)).clamp(0, 1)
    assert ((tau > 0) & (tau < 1)).double().mean() > 0.5
    expected = torch.where(
        case.mask[:, None],
        g + 0.7 / (case.mask.sum().item() * 32) * (z - case.z_ref),
        g - 0.5 * tau[:, None] * (g @ S),
    )
    torch.testing.assert_close(gradient(case), expected, rtol=0, atol=1e-13)
    views = {"z": z.view(2, 30, 32), "z_ref": case.z_ref.view(2, 30, 32), "mask": case.mask.view(2, 30)}
    out = gradient(case.replace(g=g.view(2, 30, 32), **views))
    torch.testing.assert_close(out.view(60, 32), expected, rtol=0, atol=1e-13)


def test_three_positional_arguments_work_and_warn_once(impl, monkeypatch):
    monkeypatch.setattr(hints, "said", set())
    case = make_case(60, 16)
    z = case.z.clone().requires_grad_()
    with pytest.warns(UserWarning, match="estimates the subspace from the labelled rows"):
        out = eagc_op(z, case.z_ref, case.mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eagc_op(z, case.z_ref, case.mask, impl=impl)
    fitted = Subspace.conceptor(case.z_ref[case.mask])
    expected = eagc_op(z, case.z_ref, case.mask, fitted)
    torch.testing.assert_close(
        torch.autograd.grad(out, z, case.g)[0], torch.autograd.grad(expected, z, case.g)[0], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(40, 16), (10, 40)], ids=["rows>D", "rows<D"])
def test_batch_estimate_without_labelled_rows_projects_nothing(impl, shape):
    case = make_case(*shape, labelled=0.0)
    z = case.z.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = eagc_op(z, case.z_ref, case.mask, impl=impl)
    torch.testing.assert_close(torch.autograd.grad(out, z, case.g)[0], case.g, rtol=0, atol=1e-6)


def test_zero_lambdas_are_the_base_method_bit_for_bit(impl):
    case = make_case()
    assert torch.equal(gradient(case, impl, lambda_a=0.0, lambda_p=0.0), case.g)
    case.z_ref[case.mask.nonzero()[0]] = torch.inf  # nobody reads it
    assert torch.equal(gradient(case, impl, lambda_a=0.0, lambda_p=0.0), case.g)


def test_a_given_energy_ref_is_that_of_the_forward(impl):
    case = make_case()
    z, value = case.z.clone().requires_grad_(), case.energy_ref.clone()
    out = eagc_op(z, case.z_ref, case.mask, subspace_of(case), energy_ref=value, impl=impl)
    value.fill_(1e-3)
    assert torch.equal(torch.autograd.grad(out, z, case.g)[0], gradient(case, impl))


def test_labelled_rows_do_not_see_the_subspace(impl):
    case = make_case()
    out = gradient(case, impl, lambda_a=0.0, lambda_p=3.0)
    assert torch.equal(out[case.mask], case.g[case.mask])
    assert not torch.equal(out[~case.mask], case.g[~case.mask])


def test_unlabelled_rows_do_not_see_the_reference(impl):
    case = make_case()
    weak, strong = gradient(case, impl, lambda_a=0.0), gradient(case, impl, lambda_a=100.0)
    assert torch.equal(weak[~case.mask], strong[~case.mask])


def test_projection_is_linear_in_the_gradient(impl):
    case = make_case(60, 32)
    other = torch.randn(60, 32, generator=torch.Generator().manual_seed(7))
    combined = gradient(case, impl, g=2 * case.g - 3 * other, lambda_a=0.0)
    separate = 2 * gradient(case, impl, lambda_a=0.0) - 3 * gradient(case, impl, g=other, lambda_a=0.0)
    torch.testing.assert_close(combined, separate, rtol=0, atol=1e-5)


def test_projection_shortens_the_gradient_inside_the_subspace_only(impl):
    """With a projection S and uniform tau, lambda_p = 1 removes the part inside and keeps the rest."""
    case = make_case(30, 16, labelled=0.0)
    basis = torch.linalg.qr(
        torch.randn(16, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    )[0]
    projection = Subspace((basis @ basis.T).float(), 0.5)
    z = case.z.clone().requires_grad_()
    out = eagc_op(z, None, case.mask, projection, lambda_p=1.0, tau="uniform", impl=impl)
    grad = torch.autograd.grad(out, z, case.g)[0]
    torch.testing.assert_close(grad @ projection.matrix, torch.zeros(30, 16), rtol=0, atol=1e-5)
    outside = torch.eye(16) - projection.matrix
    torch.testing.assert_close(grad @ outside, case.g @ outside, rtol=0, atol=1e-5)


def test_rows_are_independent_and_permute(impl):
    case = make_case(50, 24)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(3))
    z = case.z[order].clone().requires_grad_()
    out = eagc_op(z, case.z_ref[order], case.mask[order], subspace_of(case), impl=impl)
    permuted = torch.autograd.grad(out, z, case.g[order])[0]
    torch.testing.assert_close(permuted, gradient(case, impl)[order], rtol=0, atol=1e-6)


@pytest.mark.parametrize("anchor", ["mean", "sum"])
def test_anchor_is_the_gradient_of_the_proximal_loss(impl, anchor):
    """lambda_a / 2 times the mean (or sum) of squared distances over labelled rows: appendix C.2 of the
    paper.
    """
    case = make_case(40, 24)
    z = case.z.double().requires_grad_()
    distance = (z - case.z_ref.double())[case.mask].square()
    loss = 0.35 * (distance.mean() if anchor == "mean" else distance.sum())
    expected = torch.autograd.grad(loss, z)[0]
    added = gradient(case, impl, g=torch.zeros(40, 24), lambda_p=0.0, anchor=anchor, lambda_a=0.7)
    torch.testing.assert_close(added.double(), expected, rtol=1e-6, atol=1e-9 if anchor == "mean" else 1e-6)


def test_anchor_vanishes_where_student_and_reference_agree(impl):
    case = make_case(40, 24)
    z = case.z.clone().requires_grad_()
    out = eagc_op(z, case.z, case.mask, subspace_of(case), lambda_a=100.0, anchor="sum", impl=impl)
    grad = torch.autograd.grad(out, z, case.g)[0]
    assert torch.equal(grad[case.mask], case.g[case.mask])


def test_leading_dimensions_are_rows(impl):
    case = make_case(40, 24)
    z = case.z.view(2, 5, 4, 24).clone().requires_grad_()
    out = eagc_op(z, case.z_ref.view(2, 5, 4, 24), case.mask.view(2, 5, 4), subspace_of(case), impl=impl)
    assert out.shape == z.shape
    grad = torch.autograd.grad(out, z, case.g.view(2, 5, 4, 24))[0]
    assert torch.equal(grad.view(40, 24), gradient(case, impl))
    single = case.z[0].clone().requires_grad_()
    out = eagc_op(single, case.z_ref[0], case.mask[0], subspace_of(case), impl=impl)
    assert torch.autograd.grad(out.sum(), single)[0].shape == (24,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_features_keep_their_dtype(impl, dtype):
    case = make_case(40, 24, dtype=dtype)
    out = gradient(case, impl)
    assert_close_to_oracle(out, case, dtype if impl == "triton" else torch.float32)


def test_energy_ref_may_be_given(impl):
    case = make_case(60, 32)
    low = case.energy_ref / 2
    for value in (low, low.item()):
        out = gradient(case, impl, energy_ref=value)
        assert_close_to_oracle(out, case.replace(energy_ref=low))


def test_zero_gradient_of_a_sum_is_not_lost(impl):
    """loss.sum() sends an expanded, zero-stride gradient."""
    case = make_case(40, 24)
    z = case.z.clone().requires_grad_()
    eagc_op(z, case.z_ref, case.mask, subspace_of(case), impl=impl).sum().backward()
    assert torch.equal(z.grad, gradient(case, impl, g=torch.ones(40, 24)))


def test_features_without_gradient_stay_without():
    case = make_case()
    assert not eagc_op(case.z, case.z_ref, case.mask, subspace_of(case)).requires_grad


def test_two_backward_passes_add_the_anchor_twice():
    case = make_case()
    z = case.z.clone().requires_grad_()
    out = eagc_op(z, case.z_ref, case.mask, subspace_of(case), lambda_p=0.0)
    zeros = torch.zeros_like(out)
    out.backward(zeros, retain_graph=True)
    once = z.grad.clone()
    out.backward(zeros)
    assert once.abs().max() > 0 and torch.equal(z.grad, 2 * once)


@pytest.mark.parametrize("way", ["function", "fixed", "running", "token", "loss_scale", "count"])
def test_memory_kept_for_backward_is_the_inputs(way):
    """z, z_ref, mask and the matrix, each by reference, and the numbers of the call: no copy, no energy of a
    row, no product.
    """
    case = make_case()
    z, subspace = case.z.clone().requires_grad_(), subspace_of(case)
    module, inputs = (
        EAGC(subspace, energy_momentum=0.9 if way == "running" else None),
        (z, case.z_ref, case.mask),
    )
    matrix = subspace.matrix if way in ("function", "count") else module.matrix
    calls = {
        "function": lambda: eagc_op(*inputs, subspace),
        "token": lambda: module(*inputs, return_token=True)[0],
        "loss_scale": lambda: module(*inputs, loss_scale=torch.tensor(2.0)),
        "count": lambda: autograd.attach(
            case.inputs._replace(z=z, matrix=matrix, labelled=torch.tensor(3.0)), SETTINGS, Execution()
        ),
    }
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        out = calls.get(way, lambda: module(*inputs))()
    assert [(x.data_ptr(), x.shape) for x in kept] == [(x.data_ptr(), x.shape) for x in inputs]
    attributes = [x for x in tree_leaves(vars(out.grad_fn)) if isinstance(x, torch.Tensor)]
    numbers = [x for x in attributes if x.ndim == 0]
    assert [(x.data_ptr(), x.shape) for x in attributes if x.ndim > 0] == [(matrix.data_ptr(), matrix.shape)]
    assert len(numbers) == (
        2 if way in ("loss_scale", "count") else 1
    )  # the energy reference, and what was given
    assert all(
        x.untyped_storage().nbytes() == x.itemsize for x in numbers
    )  # not one element of something larger


def test_functorch_grad_is_coordinated_too():
    case = make_case()
    loss = lambda z: (eagc_op(z, case.z_ref, case.mask, subspace_of(case)) * case.g).sum()  # noqa: E731
    assert torch.equal(torch.func.grad(loss)(case.z), gradient(case))


def test_functorch_vjp_is_coordinated_too(impl):
    """Its backward runs when the transform has ended."""
    case = make_case()
    call = lambda z: eagc_op(z, case.z_ref, case.mask, subspace_of(case), impl=impl)  # noqa: E731
    assert torch.equal(torch.func.vjp(call, case.z)[1](case.g)[0], gradient(case, impl))


@pytest.mark.parametrize("basis", [False, True])
@pytest.mark.parametrize("rows", [40, 600])
def test_lambda_p_zero_is_the_identity_on_unlabelled_rows_whatever_they_hold(impl, rows, basis):
    """An infinite z has no energy, and 0 times a NaN is NaN."""
    case = make_case(rows, 24, basis=basis)
    expected = gradient(case, impl, lambda_p=0.0)
    unlabelled = (~case.mask).nonzero().flatten()
    case.z[unlabelled[0]], case.z[unlabelled[-1]] = torch.inf, torch.nan
    out = gradient(case, impl, lambda_p=0.0)
    assert torch.equal(out[~case.mask], case.g[~case.mask]) and torch.equal(out, expected)
    assert gradient(case, impl)[unlabelled[0]].isnan().all()  # the control
    case.g[unlabelled[1]] = torch.inf
    assert torch.equal(gradient(case, impl, lambda_p=0.0)[~case.mask], case.g[~case.mask])


def test_gradient_arriving_at_the_output_is_not_written_to(impl):
    case = make_case()
    before = case.g.clone()
    gradient(case, impl)
    assert torch.equal(case.g, before)


class TestErrors:
    """Bad input: the message names the argument and the remedy."""

    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            (
                {"mask": lambda c: c.mask[:20]},
                ValueError,
                r"mask has shape \(20,\) but z has rows \(40,\).*half the rows.*mask.repeat\(2\)",
            ),
            (
                {"mask": lambda c: c.mask[:7]},
                ValueError,
                r"mask has shape \(7,\) but z has rows \(40,\): pass one value for each row of z$",
            ),
            (
                {"mask": lambda c: c.mask[:, None]},
                ValueError,
                r"mask has shape \(40, 1\).*pass one value for each row of z",
            ),
            (
                {"mask": lambda c: c.mask.long()},
                TypeError,
                r"mask must be torch.bool .*, got torch.int64: pass mask.bool\(\)$",
            ),
            (  # labels with -1 for "none", of which .bool() would make labelled rows
                {"mask": lambda c: torch.where(c.mask, 3, -1)},
                TypeError,
                r"got torch.int64: these look like labels, so pass labels >= 0 if unlabelled rows have -1",
            ),
            (
                {"mask": lambda c: c.mask.float()},
                TypeError,
                "got torch.float32: pass True for labelled rows and False for the others",
            ),
            (
                {"z": lambda c: c.z.view(20, 2, 24), "mask": lambda c: c.mask[:20], "z_ref": lambda c: None},
                ValueError,
                r"mask has shape \(20,\) but z has rows \(20, 2\).*views.*mask\[:, None\].expand\(20, 2\)",
            ),
            (
                {"mask": lambda c: c.mask.tolist()},
                TypeError,
                "mask must be a tensor, got list; torch.as_tensor makes one",
            ),
            (
                {"z_ref": lambda c: c.z_ref[:1]},
                ValueError,
                r"z_ref has shape \(1, 24\) but z has \(40, 24\): the shapes must be equal",
            ),
            (
                {"z_ref": lambda c: c.mask[:, None].expand(40, 24)},
                TypeError,
                r"z_ref must be floating, got torch.bool: pass the reference model's features",
            ),
            (
                {"z_ref": lambda c: c.z.clone().requires_grad_()},
                ValueError,
                r"z_ref requires grad.*torch.no_grad\(\), or pass z_ref.detach\(\)",
            ),
            (
                {"z": lambda c: c.z.long()},
                ValueError,
                r"z must be a floating tensor.*got \(40, 24\) torch.int64: pass features as fp32, bf16",
            ),
            (
                {"z": lambda c: c.z.to(torch.float8_e4m3fn)},
                ValueError,
                r"16 bits or more, got .*float8_e4m3fn: pass features as fp32, bf16",
            ),
            (
                {"z": lambda c: c.z[:, :0]},
                ValueError,
                r"z has shape \(40, 0\), so D=0: pass features \(..., D\) with D >= 1",
            ),
            *(
                (
                    {name: lambda c, name=name: getattr(c, name).to_sparse()},
                    TypeError,
                    rf"{name} must be a dense tensor, got .*sparse_coo: .*{name}.to_dense\(\)",
                )
                for name in ("z", "z_ref", "mask")
            ),
            ({"z": lambda c: None}, TypeError, "z must be a tensor, got NoneType; torch.as_tensor makes one"),
            (
                {"z_ref": lambda c: c.z_ref.to("meta")},
                ValueError,
                r"z_ref is on meta but z is on cpu: move it with z_ref.to\(z.device\)",
            ),
            (
                {"subspace": lambda c: Subspace(torch.eye(8), 0.5)},
                ValueError,
                "z has D=24 but the subspace has D=8: fit it to features of the same layer",
            ),
            (
                {"subspace": lambda c: c.matrix},
                TypeError,
                r"subspace must be a Subspace, got Tensor; .*Subspace\(matrix, energy_ref\)",
            ),
            (
                {"subspace": lambda c: None, "z_ref": lambda c: None},
                ValueError,
                r"subspace and z_ref are both None: pass subspace=Subspace.conceptor.*, or z_ref",
            ),
            ({"lambda_a": lambda c: -1.0}, ValueError, "lambda_a must be a finite number >= 0, got -1.0"),
            (
                {"lambda_p": lambda c: float("nan")},
                ValueError,
                "lambda_p must be a finite number >= 0, got nan",
            ),
            ({"anchor": lambda c: "max"}, ValueError, r"anchor must be one of \('mean', 'sum'\), got 'max'"),
            (
                {"tau": lambda c: "hard"},
                ValueError,
                r"tau must be one of \('energy', 'uniform'\), got 'hard'",
            ),
            (
                {"impl": lambda c: "cuda"},
                ValueError,
                r"impl must be one of \('auto', 'triton', 'torch', 'fp64'\), got 'cuda'",
            ),
            (
                {"precision": lambda c: "fast"},
                ValueError,
                r"precision must be one of \('auto', 'high'.*, got 'fast'",
            ),
            (
                {"energy_ref": lambda c: torch.ones(2)},
                ValueError,
                r"energy_ref must be a number or a 0-d floating tensor on cpu, got \(2,\)",
            ),
            (
                {"loss_scale": lambda c: torch.ones(1)},
                ValueError,
                r"loss_scale must be a number or a 0-d floating tensor on cpu, got \(1,\)",
            ),
            (
                {"loss_scale": lambda c: float("nan")},
                ValueError,
                "loss_scale must be a finite number >= 0 .*, got nan",
            ),
            (
                {"loss_scale": lambda c: "x"},
                ValueError,
                "loss_scale must be a finite number >= 0 .*, got 'x'",
            ),
            (
                {"energy_ref": lambda c: -3.0},
                ValueError,
                "energy_ref must be a finite number >= 0 .*, got -3.0",
            ),
            (
                {"energy_ref": lambda c: 5.0},
                ValueError,
                "energy_ref, the mean energy ratio of labelled features, must be at most 1, got 5.0",
            ),
            (
                {"loss_scale": lambda c: 2.0, "return_token": lambda c: True},
                ValueError,
                "loss_scale and return_token=True both .* use one of them",
            ),
        ],
        ids=lambda x: "+".join(x) if isinstance(x, dict) else "",
    )
    def test_names_the_argument_and_the_remedy(self, change, error, words):
        case = make_case(40, 24)
        arguments = {"z": case.z, "z_ref": case.z_ref, "mask": case.mask, "subspace": subspace_of(case)}
        arguments.update({name: value(case) for name, value in change.items()})
        with pytest.raises(error, match=words):
            eagc_op(**arguments)

    def test_features_of_inference_mode(self):
        case = make_case()
        with torch.inference_mode():
            z_ref = case.z_ref.clone()
        with pytest.raises(ValueError, match=r"z_ref was made under torch.inference_mode\(\).*torch.no_grad"):
            eagc_op(case.z.clone().requires_grad_(), z_ref, case.mask, subspace_of(case))

    def test_second_derivative(self):
        case = make_case()
        z = case.z.clone().requires_grad_()
        out = eagc_op(z, case.z_ref, case.mask, subspace_of(case))
        first = torch.autograd.grad(out.square().sum(), z, create_graph=True)[0]
        with pytest.raises(NotImplementedError, match="no second derivative"):
            first.sum().backward()

    def test_vmap(self):
        case = make_case()
        with pytest.raises(NotImplementedError, match="no vmap rule"):
            torch.func.vmap(lambda z: eagc_op(z, case.z_ref, case.mask, subspace_of(case)))(
                case.z.expand(3, 40, 24)
            )

    @pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "hessian"])
    def test_jacobians(self, transform):
        """In words of ours, and without harm to the calls that follow."""
        case = make_case()
        call = lambda z: eagc_op(z, case.z_ref, case.mask, subspace_of(case))  # noqa: E731
        function = call if transform != "hessian" else lambda z: call(z).square().sum()
        words = "no Jacobian" if transform == "jacrev" else "no forward-mode derivative"
        with pytest.raises(NotImplementedError, match=f"{words}.*of the model without the operator"):
            getattr(torch.func, transform)(function)(case.z)
        loss = lambda z: (call(z) * case.g).sum()  # noqa: E731
        assert torch.equal(torch.func.grad(loss)(case.z), gradient(case))

    def test_in_place_on_the_output(self):
        case = make_case()
        z = case.z.clone().requires_grad_() * 1.0
        out = eagc_op(z, case.z_ref, case.mask, subspace_of(case))
        with pytest.raises(RuntimeError, match="view"):
            torch.relu_(out)

    def test_dtensor(self, tmp_path):
        import torch.distributed as dist
        from torch.distributed.tensor import DTensor, init_device_mesh

        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            case = make_case()
            z = DTensor.from_local(case.z, init_device_mesh("cpu", (1,)))
            with pytest.raises(TypeError, match=r"z must be a plain tensor, got a DTensor.*to_local"):
                eagc_op(z, case.z_ref, case.mask, subspace_of(case))
        finally:
            dist.destroy_process_group()


def test_defaults_are_the_papers():
    case = make_case()
    assert torch.equal(gradient(case), gradient(case, **SETTINGS._asdict()))
