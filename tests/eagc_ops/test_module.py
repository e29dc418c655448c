"""`EAGC`: running energy reference, state, copies, recording, activation checkpointing."""

import copy
import pickle

import pytest
import torch
from operator_cases import assert_close_to_oracle, make_case
from torch import nn
from torch.utils.checkpoint import checkpoint

from eagc_ops import EAGC, Subspace, eagc_op


def module_of(case, **options) -> EAGC:
    return EAGC(case.subspace, **options)


def test_equals_the_function(impl):
    case = make_case()
    z = case.z.clone().requires_grad_()
    module = module_of(case, lambda_p=3.0, anchor="sum", impl=impl)
    mine = torch.autograd.grad(module(z, case.z_ref, case.mask), z, case.g)[0]
    function = eagc_op(z, case.z_ref, case.mask, module.subspace, lambda_p=3.0, anchor="sum", impl=impl)
    assert torch.equal(mine, torch.autograd.grad(function, z, case.g)[0])


class TestRunningEnergyReference:
    def expected(self, case, before, momentum=0.95):
        z, S = case.z[case.mask].double(), case.matrix.double()
        energy = torch.tensor([(row @ S @ row / (row @ row)).item() for row in z]).mean()
        return momentum * before + (1 - momentum) * energy

    def test_is_updated_from_the_batch_before_it_is_used(self, impl):
        case = make_case(60, 32)
        module = module_of(case, energy_momentum=0.5, impl=impl)
        z = case.z.clone().requires_grad_()
        grad = torch.autograd.grad(module(z, case.z_ref, case.mask), z, case.g)[0]
        after = self.expected(case, case.energy_ref.item(), 0.5)
        assert module.energy_ref.item() == pytest.approx(after.item(), rel=1e-6)
        assert abs(module.energy_ref - case.energy_ref) > 1e-3
        assert_close_to_oracle(grad, case.replace(energy_ref=module.energy_ref))

    def test_stays_in_evaluation_and_without_labelled_or_finite_rows(self):
        case = make_case()
        module = module_of(case, energy_momentum=0.5)
        module.eval()(case.z, case.z_ref, case.mask)
        module.train()(case.z, case.z_ref, torch.zeros_like(case.mask))
        broken = case.z.clone()
        broken[case.mask.nonzero()[0]] = torch.inf
        module(broken, case.z_ref, case.mask)
        assert torch.equal(module.energy_ref, case.energy_ref)
        module(case.z, case.z_ref, case.mask)
        assert not torch.equal(module.energy_ref, case.energy_ref)

    def test_is_updated_without_gradients_in_training(self):
        """As the release does; a no_grad forward of a module in training mode is a forward."""
        case = make_case()
        module = module_of(case, energy_momentum=0.5)
        with torch.no_grad():
            module(case.z, case.z_ref, case.mask)
        assert not torch.equal(module.energy_ref, case.energy_ref)

    def test_two_forwards_before_one_backward_use_their_own_values(self):
        first, second = make_case(seed=0), make_case(seed=1)
        module = module_of(first, energy_momentum=0.5)
        z1, z2 = (case.z.clone().requires_grad_() for case in (first, second))
        out1 = module(z1, first.z_ref, first.mask)
        used1 = module.energy_ref.clone()
        out2 = module(z2, second.z_ref, second.mask)
        used2 = module.energy_ref.clone()
        assert used1 != used2
        grads = torch.autograd.grad([out1, out2], [z1, z2], [first.g, second.g])
        assert_close_to_oracle(grads[0], first.replace(energy_ref=used1))
        assert_close_to_oracle(grads[1], second.replace(matrix=first.matrix, energy_ref=used2))

    def test_a_forward_in_evaluation_keeps_the_value_of_its_time(self):
        """A training forward moves the buffer before the backward of the first."""
        case = make_case(60, 32)
        module = module_of(case, energy_momentum=0.5)
        z = case.z.clone().requires_grad_()
        out = module.eval()(z, case.z_ref, case.mask)
        module.train()(case.z, case.z_ref, case.mask)
        assert abs(module.energy_ref - case.energy_ref) > 1e-3
        assert_close_to_oracle(torch.autograd.grad(out, z, case.g)[0], case)

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_activation_checkpointing_counts_a_batch_once(self, reentrant):
        case = make_case()
        plain, checked = (module_of(case, energy_momentum=0.5) for _ in range(2))
        z1, z2 = (case.z.clone().requires_grad_() for _ in range(2))
        (plain(z1 * 1.0, case.z_ref, case.mask).sin() * case.g).sum().backward()
        out = checkpoint(
            lambda z: checked(z * 1.0, case.z_ref, case.mask).sin() * case.g, z2, use_reentrant=reentrant
        )
        out.sum().backward()
        assert torch.equal(checked.energy_ref, plain.energy_ref)
        assert torch.equal(z1.grad, z2.grad)

    def test_checkpointed_forwards_before_one_backward_keep_their_own_values(self):
        first, second = make_case(seed=0), make_case(seed=1)
        plain, checked = (module_of(first, energy_momentum=0.5) for _ in range(2))
        grads = []
        for module, run in (
            (plain, lambda f, z: f(z)),
            (checked, lambda f, z: checkpoint(f, z, use_reentrant=False)),
        ):
            zs = [case.z.clone().requires_grad_() for case in (first, second)]
            outs = [
                run(lambda z, c=c, m=module: m(z * 1.0, c.z_ref, c.mask).sin(), z)
                for c, z in zip((first, second), zs)
            ]
            grads.append(torch.autograd.grad(outs, zs, [first.g, second.g]))
        for mine, expected in zip(grads[1], grads[0]):
            assert torch.equal(mine, expected)


PLAIN_NAMES = ("matrix", "energy_ref")
BASIS_NAMES = (*PLAIN_NAMES, "basis", "weights")


def other_module(case, **options) -> EAGC:
    """A module with a different subspace of the same kind."""
    own = {} if case.inputs.basis is None else {"basis": torch.eye(24), "weights": torch.ones(24)}
    return EAGC(Subspace(torch.eye(24) * 0.5, 0.1, **own), **options)


class TestState:
    @pytest.mark.parametrize("basis", [False, True], ids=["plain", "basis"])
    def test_round_trip(self, tmp_path, basis):
        case = make_case(basis=basis)
        saved = module_of(case, energy_momentum=0.5)
        saved(case.z, case.z_ref, case.mask)
        torch.save(saved.state_dict(), tmp_path / "state.pt")
        loaded = other_module(case, energy_momentum=0.5)
        loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        for name in BASIS_NAMES if basis else PLAIN_NAMES:
            assert torch.equal(getattr(loaded, name), getattr(saved, name))
        z = case.z.clone().requires_grad_()
        grads = [
            torch.autograd.grad(module.eval()(z, case.z_ref, case.mask), z, case.g)[0]
            for module in (saved, loaded)
        ]
        assert torch.equal(*grads)

    @pytest.mark.parametrize("assign", [False, True], ids=["", "assign"])
    def test_of_another_kind_of_energy_is_refused(self, assign):
        plain, whitened = module_of(make_case()), module_of(make_case(basis=True))
        with pytest.raises(ValueError, match="the state has an energy in a basis, but this EAGC has none"):
            plain.load_state_dict(whitened.state_dict(), assign=assign)
        with pytest.raises(ValueError, match="the state has no energy in a basis, but this EAGC has one"):
            whitened.load_state_dict(plain.state_dict(), assign=assign)
        with pytest.raises(
            ValueError, match="subspace has an energy in a basis but the module has none: fit"
        ):
            plain.set_subspace(whitened.subspace)
        with pytest.raises(
            ValueError, match="subspace has no energy in a basis but the module has one: fit "
        ):
            whitened.set_subspace(plain.subspace)

    def test_fits_into_safetensors(self, tmp_path):
        from safetensors.torch import load_file, save_file

        saved = module_of(make_case())
        save_file(saved.state_dict(), tmp_path / "state.safetensors")
        module_of(make_case()).load_state_dict(load_file(tmp_path / "state.safetensors"))

    @pytest.mark.parametrize(
        "other",
        [
            {"lambda_a": 0.1},
            {"lambda_p": 3.0},
            {"anchor": "sum"},
            {"tau": "uniform"},
            {"energy_momentum": 0.95},
        ],
        ids=str,
    )
    def test_of_other_settings_is_refused_by_name(self, other):
        state = module_of(make_case(), **other).state_dict()
        with pytest.raises(ValueError, match=rf"different settings \({next(iter(other))}: saved"):
            module_of(make_case()).load_state_dict(state)

    def test_a_refused_state_leaves_the_module_as_it_was(self):
        case = make_case()
        module = module_of(case)
        with pytest.raises(ValueError, match="different settings"):
            module.load_state_dict(EAGC(Subspace(torch.eye(24) * 0.5, 0.1), lambda_p=3.0).state_dict())
        assert torch.equal(module.matrix, case.matrix) and torch.equal(module.energy_ref, case.energy_ref)

    def test_of_another_dimension_is_refused(self):
        with pytest.raises(RuntimeError, match="size mismatch for matrix"):
            module_of(make_case(dim=24)).load_state_dict(module_of(make_case(dim=8)).state_dict())

    @pytest.mark.parametrize("cast", ["half", "bfloat16", "double"])
    def test_casts_leave_the_buffers_in_fp32_to_the_bit(self, cast):
        case = make_case()
        model = nn.Sequential(nn.Linear(24, 24), module_of(case))
        getattr(model, cast)()
        assert model[0].weight.dtype != torch.float32
        assert model[1].matrix.dtype == torch.float32 and torch.equal(model[1].matrix, case.matrix)
        assert torch.equal(model[1].energy_ref, case.energy_ref)
        model.to(dtype=torch.float16, device="cpu")
        assert torch.equal(model[1].matrix, case.matrix)
        assert model.to("meta")[1].matrix.device.type == "meta"

    def test_subspace_is_not_shared_with_the_caller(self):
        subspace = Subspace(torch.eye(4) * 0.5, 0.5)
        module = EAGC(subspace, energy_momentum=0.5)
        module(torch.randn(6, 4), None, torch.ones(6, dtype=torch.bool))
        assert subspace.energy_ref == 0.5

    def test_prints_its_settings(self):
        text = repr(module_of(make_case()))
        assert (
            "dim=24, lambda_a=0.7, lambda_p=0.5, anchor='mean', tau='energy', energy_momentum=None, "
            "impl='auto'" in text
        )


def loaded(module, case, assign=False):
    module.load_state_dict(module_of(case).state_dict(), assign=assign)
    return module


def write(module, case):
    """Write to the buffers themselves."""
    for name in ("matrix",) if case.inputs.basis is None else ("matrix", "basis", "weights"):
        getattr(module, name).copy_(getattr(case.inputs, name))


def written(module, case):
    write(module, case)
    module(case.z.bfloat16(), None, case.mask)
    return module


def given(module, case):
    module.set_subspace(case.subspace)
    return module


def written_and_copied(module, case):
    """Written before a copy, which has a different count of writes."""
    write(module, case)
    return copy.deepcopy(module)


class TestHalfCopies:
    """S in 16 bits, for the kernel's products with half features."""

    @pytest.mark.parametrize(
        "change",
        [
            lambda module, case: module_of(case),
            lambda module, case: module_of(case).half(),
            lambda module, case: module_of(case).bfloat16(),
            lambda module, case: module_of(case).double(),
            lambda module, case: copy.deepcopy(module_of(case)),
            lambda module, case: pickle.loads(pickle.dumps(module_of(case))),
            given,
            written,
            written_and_copied,
            loaded,
            lambda module, case: loaded(module, case, assign=True),
            lambda module, case: loaded(module.to("meta"), case, assign=True),
            lambda module, case: loaded(module.to("meta").to_empty(device="cpu"), case),
            lambda module, case: nn.Sequential(loaded(module, case)).to("cpu", torch.float16)[0],
        ],
        ids=[
            *(
                "made",
                "half",
                "bfloat16",
                "double",
                "deepcopy",
                "pickle",
                "set_subspace",
                "written",
                "copied",
            ),
            *("loaded", "assigned", "meta", "empty", "parent"),
        ],
    )
    @pytest.mark.parametrize("basis", [False, True], ids=["plain", "basis"])
    def test_follow_the_subspace(self, change, basis):
        case = make_case(basis=basis)
        module = change(other_module(case), case)
        assert torch.equal(module.matrix, case.matrix)
        for dtype in (torch.bfloat16, torch.float16):
            assert torch.equal(module._half(dtype), case.matrix.to(dtype))
        assert module._half(torch.float32) is None and module._half(torch.float64) is None
        if basis:
            assert torch.equal(module.basis, case.inputs.basis)
            assert torch.equal(module.weights, case.inputs.weights)
            for dtype in (torch.bfloat16, torch.float16):
                assert torch.equal(module._half(dtype, "basis"), case.inputs.basis.to(dtype))
        else:
            assert module._half(torch.float16, "basis") is None

    @pytest.mark.parametrize("change", [given, loaded, written])
    def test_change_in_place_where_a_captured_graph_reads_them(self, change):
        case = make_case(basis=True)
        module = other_module(case)
        names = (
            *BASIS_NAMES,
            *(f"{name}_{kind}" for name in ("matrix", "basis") for kind in ("bf16", "fp16")),
        )
        before = [getattr(module, name).data_ptr() for name in names]
        change(module, case)
        if change is not written:  # a replay runs no Python: the copies are right as soon as S is
            assert torch.equal(module.matrix_bf16, module.matrix.bfloat16())
            assert torch.equal(module.matrix_fp16, module.matrix.half())
            assert torch.equal(module.basis_bf16, module.basis.bfloat16())
            assert torch.equal(module.basis_fp16, module.basis.half())
        assert [getattr(module, name).data_ptr() for name in names] == before

    def test_are_not_in_the_state(self):
        assert set(module_of(make_case()).state_dict()) == {*PLAIN_NAMES, "_extra_state"}
        assert set(module_of(make_case(basis=True)).state_dict()) == {*BASIS_NAMES, "_extra_state"}

    @pytest.mark.interpreter
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_are_what_the_kernels_multiply_with(self, dtype, monkeypatch):
        """Forward and backward; the function, which has no copy, casts S itself to the same bits."""
        from eagc_ops.kernels import launch

        case = make_case(dtype=dtype, basis=True)
        module = module_of(case, energy_momentum=0.5, impl="triton")
        used = []
        operand = launch._operand

        def spy(wide, half, dtype):
            used.append(operand(wide, half, dtype))
            return used[-1]

        monkeypatch.setattr(launch, "_operand", spy)
        z = case.z.clone().requires_grad_()
        grad = torch.autograd.grad(module(z, case.z_ref, case.mask), z, case.g)[0]
        kept = [module._half(dtype, name) for name in ("matrix", "basis")]
        assert [x.data_ptr() for x in used] == [x.data_ptr() for x in kept] * 2
        function = eagc_op(
            z, case.z_ref, case.mask, module.subspace, energy_ref=module.energy_ref, impl="triton"
        )
        assert torch.equal(torch.autograd.grad(function, z, case.g)[0], grad)
        assert used[-1].dtype == dtype and all(map(torch.equal, used[-2:], used[:2]))


def test_a_subspace_of_a_different_size_is_refused():
    module = module_of(make_case(dim=24))
    with pytest.raises(ValueError, match="subspace has D=8 but the module has D=24"):
        module.set_subspace(Subspace(torch.eye(8) * 0.5, 0.5))
    with pytest.raises(TypeError, match="subspace must be a Subspace, got Tensor"):
        module.set_subspace(torch.eye(24))


class TestRecording:
    def test_keeps_energy_and_tau_of_the_last_call(self, impl):
        case = make_case(60, 32)
        module = module_of(case, record=True, impl=impl)
        assert module.last_energy is None
        z = case.z.clone().requires_grad_()
        out = module(z, case.z_ref, case.mask)
        out.backward(case.g)
        _, energy, weight = case.oracle()
        torch.testing.assert_close(
            module.last_energy[~case.mask].double(), energy[~case.mask], rtol=0, atol=2e-6
        )
        torch.testing.assert_close(
            module.last_tau[~case.mask].double(), weight[~case.mask], rtol=0, atol=2e-5
        )
        assert module.last_tau[case.mask].isnan().all()

    def test_a_copy_records_for_itself(self):
        case = make_case()
        module = module_of(case, record=True)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            z = case.z.clone().requires_grad_()
            other(z, case.z_ref, case.mask).backward(case.g)
            assert other.last_tau is not None and module.last_tau is None

    def test_is_off_by_default(self):
        case = make_case()
        module = module_of(case)
        z = case.z.clone().requires_grad_()
        module(z, case.z_ref, case.mask).backward(case.g)
        assert module.last_tau is None


def test_deepcopy_is_independent():
    case = make_case()
    module = module_of(case, energy_momentum=0.5)
    other = copy.deepcopy(module)
    other(case.z, case.z_ref, case.mask)
    assert torch.equal(module.energy_ref, case.energy_ref) and not torch.equal(
        other.energy_ref, case.energy_ref
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"energy_momentum": 1.0}, "energy_momentum must be None or a number in .*, got 1.0"),
        ({"impl": "fast"}, "impl must be one of .*, got 'fast'"),
        ({"precision": "low"}, "precision must be one of .*, got 'low'"),
        ({"lambda_a": -1}, "lambda_a must be a finite number >= 0, got -1"),
    ],
)
def test_errors_at_construction(options, words):
    with pytest.raises(ValueError, match=words):
        module_of(make_case(), **options)
    with pytest.raises(TypeError, match="subspace must be a Subspace, got Tensor"):
        EAGC(torch.eye(3))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("energy_momentum", 7, "energy_momentum must be None or a number in .*, got 7"),
        ("lambda_p", -3.0, "lambda_p must be a finite number >= 0, got -3.0"),
        ("anchor", "summ", r"anchor must be one of \('mean', 'sum'\), got 'summ'"),
        ("tau", "even", r"tau must be one of \('energy', 'uniform'\), got 'even'"),
    ],
)
def test_a_setting_that_is_set_later_is_checked_too(name, value, words):
    case = make_case()
    module = module_of(case, energy_momentum=0.5)
    setattr(module, name, value)
    with pytest.raises(ValueError, match=words):
        module(case.z.clone().requires_grad_(), case.z_ref, case.mask)
    assert torch.equal(module.energy_ref, case.energy_ref)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"z": torch.ones(40, 16)}, "D=16 but the subspace has D=24"),
        ({"loss_scale": 2.0, "return_token": True}, "both set the scale"),
    ],
)
def test_bad_input_does_not_move_the_running_energy_reference(change, words):
    case = make_case(40, 24)
    module = module_of(case, energy_momentum=0.5)
    with pytest.raises(ValueError, match=words):
        module(**{"z": case.z, "z_ref": None, "mask": case.mask, **change})
    assert torch.equal(module.energy_ref, case.energy_ref)


def test_pickling_a_module_with_a_process_group_says_what_to_save_instead():
    module = module_of(make_case())
    module.process_group = object()  # any handle
    with pytest.raises(TypeError, match=r"process group cannot be pickled.*state_dict\(\)"):
        pickle.dumps(module)
