"""Loops that are wrong in a way that no error shows: each gets one warning, and a right loop gets none."""

import copy
import pickle
import subprocess
import sys
import warnings

import pytest
import torch
from no_waiting import NoWaiting
from operator_cases import make_case
from torch import nn

from eagc_ops import EAGC, Subspace, eagc_op, functional, hints

pytestmark = pytest.mark.fault("wrong loops")
TOKEN = "z, token = eagc\\(z, z_ref, mask, return_token=True\\)"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(hints, "said", set())
    monkeypatch.setattr(functional, "_watch", hints.ScaleWatch())  # the calls of other files count too
    monkeypatch.setattr(hints, "_searched", True)


@pytest.fixture
def case():
    return make_case(32, 12)


def call(case, eagc=None, **options):
    """(z, out) of a call; without `eagc` of the function."""
    z = case.z.clone().requires_grad_()
    if eagc is None:
        return z, eagc_op(z, case.z_ref, case.mask, case.subspace, **options)
    return z, eagc(z, case.z_ref, case.mask, **options)


def silent(function):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function()


class TestScale:
    @pytest.mark.parametrize("module", [True, False])
    def test_fp16_autocast_without_a_scale(self, case, module):
        eagc = EAGC(case.subspace) if module else None
        with torch.autocast("cpu", torch.float16):
            with pytest.warns(
                UserWarning, match=f"computes in fp16, which needs a GradScaler.*{TOKEN}"
            ) as seen:
                call(case, eagc)
            assert [warning.filename for warning in seen] == [__file__]  # the line of the call
            silent(lambda: call(case, eagc))  # once

    def test_right_calls_are_silent(self, case):
        def right():
            with torch.autocast("cpu", torch.float16):
                call(case, return_token=True)
                call(case, loss_scale=torch.tensor(2.0))
                call(case, lambda_a=0.0)
                call(case.replace(z_ref=None))
                with torch.no_grad():
                    call(case)
            with torch.autocast("cpu", torch.bfloat16):  # needs no GradScaler
                call(case)

        silent(right)

    def test_accelerates_accumulation_without_a_scale(self, case):
        accelerate = pytest.importorskip("accelerate")
        accelerate.state.GradientState._reset_state()
        silent(lambda: call(case))
        accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
        try:
            silent(lambda: call(case, return_token=True))
            with pytest.warns(UserWarning, match=f"Accelerate divides the loss by 4.*{TOKEN}"):
                call(case)
        finally:
            accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
            accelerate.state.GradientState._reset_state()

    @pytest.mark.parametrize("compiled", [False, True])
    def test_a_grad_scaler_in_the_process(self, case, compiled, monkeypatch):
        """It multiplies the loss by the same number in every step, so no gradient shows it."""
        eagc = EAGC(case.subspace)
        if compiled:
            torch.compiler.reset()
        model = torch.compile(eagc, backend="eager", fullgraph=True) if compiled else eagc
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        monkeypatch.setattr(hints, "_searched", False)
        silent(lambda: call(case, model))
        scaler = torch.amp.GradScaler("cpu")
        monkeypatch.setattr(hints, "_searched", False)
        if compiled:
            torch.compiler.reset()
        silent(lambda: call(case, eagc, return_token=True))
        with pytest.warns(UserWarning, match=f"has a torch.amp.GradScaler.*{TOKEN}"):
            call(case, model)
        del scaler

    def test_a_grad_scaler_made_after_another_loop(self, case):
        """As in a notebook: a first loop had none, and the second has a module of its own."""
        call(case, EAGC(case.subspace))[1].sum().backward()
        scaler = torch.amp.GradScaler("cpu")
        with pytest.warns(UserWarning, match=f"has a torch.amp.GradScaler.*{TOKEN}"):
            call(case, EAGC(case.subspace))
        del scaler

    def test_a_compiled_call_under_fp16_autocast(self, case):
        torch.compiler.reset()
        eagc = EAGC(case.subspace)
        model = torch.compile(eagc, backend="aot_eager", fullgraph=True)
        with torch.autocast("cpu", torch.float16):
            with pytest.warns(UserWarning, match=f"computes in fp16.*{TOKEN}") as seen:
                call(case, model)
            assert [warning.filename for warning in seen] == [__file__]
            silent(lambda: call(case, model))

    def test_an_overflow_that_a_loop_survives(self, case):
        """GradScaler begins too high, skips the step and halves the scale."""
        eagc = EAGC(case.subspace)
        for factor in (float("inf"), 2.0):
            out = call(case, eagc)[1]
            (out * case.g).sum().mul(factor).backward()
        with pytest.warns(UserWarning, match=f"changed its scale.*GradScaler.*{TOKEN}"):
            call(case, eagc)

    @pytest.mark.parametrize("factor", [65536.0, 1 / 65536])
    def test_a_jump_of_the_incoming_gradient(self, case, factor):
        eagc = EAGC(case.subspace)
        for scale in (1.0, 3.0, 0.4, factor):
            out = silent(lambda: call(case, eagc))[1]
            (out * case.g).sum().mul(scale).backward()
        with pytest.warns(UserWarning, match=f"changed its scale.*{TOKEN}"):
            call(case, eagc)

    def test_a_real_grad_scaler_is_noticed(self, case):
        torch.manual_seed(0)
        encoder, head = nn.Linear(12, 12), nn.Linear(12, 5)
        optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=1e-3)
        eagc = EAGC(case.subspace)

        def train(scaler, steps):
            for _ in range(steps):
                z = eagc(encoder(case.z), case.z_ref, case.mask)
                scaler.scale(head(z).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

        silent(lambda: train(torch.amp.GradScaler("cpu", enabled=False), 5))
        # 2^140 overflows fp32, as 2^16 does fp16
        with pytest.warns(UserWarning, match=f"changed its scale.*{TOKEN}"):
            train(torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=10**6), 20)

    def test_a_loop_that_converges_is_silent(self, case):
        def train():
            eagc, z = EAGC(case.subspace), case.z.clone().requires_grad_()
            for _ in range(2 * hints.EVERY):
                loss = eagc(z, case.z_ref, case.mask).square().sum()
                z.grad = None
                loss.backward()
                with torch.no_grad():
                    z -= 0.1 * z.grad

        silent(train)

    def test_a_token_that_was_added_twice(self, case):
        eagc = EAGC(case.subspace)
        for number in (1, 2):
            out, token = silent(lambda: call(case, eagc, return_token=True))[1]
            ((out * case.g).sum() + number * token).backward()
        with pytest.warns(UserWarning, match="exactly 2.*twice.*Add it once: loss = loss \\+ token"):
            call(case, eagc, return_token=True)

    def test_later_calls_are_not_looked_at(self, case):
        eagc = EAGC(case.subspace)
        looked = [bool(call(case, eagc)[1]._backward_hooks) for _ in range(hints.EVERY + 4)]
        assert [i + 1 for i, seen in enumerate(looked) if seen][hints.FIRST :] == [
            hints.EVERY,
            hints.EVERY + 1,
        ]
        assert all(looked[: hints.FIRST])

    def test_the_host_does_not_wait(self, case):
        """Under a mode that refuses it: what runs on the device in backward, on meta tensors."""
        watch = hints.ScaleWatch()
        with NoWaiting():
            for _ in range(3):
                watch._see(torch.ones(4, 3, device="meta"))
            watch._see_token(torch.ones((), device="meta"))
        assert len(watch._answers) == 3

    def test_a_watched_module_is_copied_and_pickled(self, case):
        eagc = EAGC(case.subspace)
        call(case, eagc)[1].sum().backward()
        for other in (copy.deepcopy(eagc), pickle.loads(pickle.dumps(eagc))):
            call(case, other)[1].sum().backward()
            assert other._watch._calls == 1


class TestUse:
    """The operator is called, and does nothing, or not what is meant."""

    def test_an_output_that_the_loss_does_not_contain(self, case):
        eagc, head = EAGC(case.subspace), nn.Linear(12, 3)

        def step():
            z = case.z.clone().requires_grad_()
            eagc(z, case.z_ref, case.mask)
            head(z).sum().backward()

        for _ in range(hints.ENOUGH - 1):
            silent(step)
        with pytest.warns(
            UserWarning, match="none has come back to it.*z = eagc\\(z, z_ref, mask\\)"
        ) as seen:
            step()
        assert [warning.filename for warning in seen] == [__file__]
        silent(step)

    def test_features_that_need_no_gradient(self, case):
        eagc = EAGC(case.subspace)
        with pytest.warns(UserWarning, match="see that z requires a gradient"):
            [eagc(case.z, case.z_ref, case.mask) for _ in range(hints.ENOUGH)]

    def test_validation_without_gradients_is_silent(self, case):
        eagc = EAGC(case.subspace)
        with torch.no_grad():
            silent(lambda: [eagc(case.z, case.z_ref, case.mask) for _ in range(2 * hints.ENOUGH)])

    def test_a_token_without_its_z(self, case):
        z, (_, token) = call(case, return_token=True)
        with pytest.warns(UserWarning, match="the token, but not the z that the operator returned"):
            (z.sum() + token).backward()

    @pytest.mark.parametrize("module", [True, False])
    def test_features_that_are_their_own_reference(self, case, module):
        z = case.z.clone().requires_grad_()
        eagc = EAGC(case.subspace) if module else lambda *inputs: eagc_op(*inputs, case.subspace)
        with pytest.warns(UserWarning, match="z_ref is z itself, so the anchor is zero"):
            eagc(z, z.detach(), case.mask)
        silent(lambda: eagc(z, z.detach().clone(), case.mask))

    @pytest.mark.parametrize("factor", [30.0, 1 / 30])
    def test_features_of_another_scale_than_their_reference(self, case, factor):
        """Normalised z, for example, and a reference that is not."""
        call(case, EAGC(case.subspace))
        z_ref = factor * case.z_ref * (case.z[case.mask].norm() / case.z_ref[case.mask].norm())
        eagc, z = EAGC(case.subspace), case.z.clone().requires_grad_()
        eagc(z, z_ref, case.mask)
        with pytest.warns(UserWarning, match="more than a factor of 10.*normalise both or neither"):
            eagc(z, z_ref, case.mask)
        eagc, near = EAGC(case.subspace), z_ref / factor * (8 if factor > 1 else 1 / 8)
        hints.said.clear()
        silent(lambda: [eagc(z, near, case.mask) for _ in range(3)])

    def test_two_calls_one_after_the_other(self, case):
        eagc = EAGC(case.subspace)
        out = call(case, eagc)[1]
        with pytest.warns(UserWarning, match="coordinated twice"):
            eagc(out, case.z_ref, case.mask)

    @pytest.mark.parametrize(
        ("labelled", "text"), [(True, "every row .* was labelled"), (False, "no row .* was labelled")]
    )
    def test_a_mask_of_one_value(self, case, labelled, text):
        eagc, mask = EAGC(case.subspace), torch.full_like(case.mask, labelled)

        def step(mask):
            z = case.z.clone().requires_grad_()
            eagc(z, case.z_ref, mask).sum().backward()

        def train():
            for _ in range(hints.ENOUGH + 1):
                step(mask)

        with pytest.warns(UserWarning, match=text):
            train()
        eagc = EAGC(case.subspace)
        hints.said.clear()
        step(case.mask)  # one batch of both kinds
        silent(train)


def test_batched_gradients_are_left_alone(case):
    z, out = call(case)
    g = torch.stack([case.g, 2 * case.g])
    (batched,) = torch.autograd.grad(out, z, g, is_grads_batched=True)
    assert batched.shape == g.shape
    silent(lambda: call(case))


class TestSubspace:
    @pytest.mark.parametrize("way", ["set_subspace", "load_state_dict", "assigned", "written"])
    def test_replaced_between_forward_and_backward(self, case, way):
        eagc = EAGC(case.subspace)
        out = call(case, eagc)[1]
        other = Subspace(case.matrix * 0.5, 0.3)
        if way == "set_subspace":
            eagc.set_subspace(other)
        elif way == "written":
            eagc.matrix.copy_(other.matrix)
        else:
            eagc.load_state_dict(EAGC(other).state_dict(), assign=way == "assigned")
        with pytest.raises(RuntimeError, match=r"replaced between forward and backward.*between two steps"):
            out.sum().backward()
        call(case, eagc)[1].sum().backward()  # the next step is right

    def test_of_the_function_written_to_between_forward_and_backward(self, case):
        subspace = case.subspace
        out = eagc_op(case.z.clone().requires_grad_(), case.z_ref, case.mask, subspace)
        subspace.matrix.mul_(0.5)
        with pytest.raises(RuntimeError, match=r"replaced between forward and backward.*between two steps"):
            out.sum().backward()

    def test_of_a_compiled_module_replaced_between_forward_and_backward(self, case):
        """The graph does not come back to our backward: torch's own count of writes must tell."""
        torch.compiler.reset()
        eagc = EAGC(case.subspace)
        compiled = torch.compile(eagc, backend="aot_eager", fullgraph=True)
        out = call(case, compiled)[1]
        eagc.set_subspace(Subspace(case.matrix * 0.5, 0.3))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
        call(case, compiled)[1].sum().backward()

    def test_of_unit_norm_features(self):
        """The aperture that the warning names gives the subspace of features with a mean square of 1."""
        draw = torch.Generator().manual_seed(0)
        features = torch.randn(300, 64, generator=draw) * torch.linspace(2, 0.3, 64)
        unit = nn.functional.normalize(features)
        silent(lambda: Subspace.conceptor(features))
        with pytest.warns(UserWarning, match=r"own energy: their scale is too small for aperture=2") as seen:
            Subspace.conceptor(unit)
        assert seen[0].filename == __file__
        aperture = float(str(seen[0].message).split(", or aperture=")[1].split(",")[0])
        fitted = silent(lambda: Subspace.conceptor(unit, aperture=aperture))
        with_mean_square_1 = Subspace.conceptor(unit / unit.square().mean().sqrt())
        torch.testing.assert_close(fitted.matrix, with_mean_square_1.matrix, rtol=0, atol=0.02)

    def test_of_unit_norm_features_with_a_whitened_energy(self):
        """Its energy depends on no scale, but S does."""
        draw = torch.Generator().manual_seed(0)
        features = torch.randn(300, 64, generator=draw)
        silent(lambda: Subspace.whitened(features, features))
        unit = nn.functional.normalize(features)
        with pytest.warns(UserWarning, match=r"own energy: their scale is too small for aperture=2"):
            Subspace.whitened(unit, unit)

    @pytest.mark.parametrize("rows", [300, 40])
    def test_of_large_features(self, rows):
        draw = torch.Generator().manual_seed(0)
        features = torch.randn(rows, 64, generator=draw) * torch.linspace(2, 0.3, 64)
        if rows < 64:  # some directions are empty, so tau can act
            silent(lambda: Subspace.conceptor(300 * features))
            return
        with pytest.warns(UserWarning, match=r"rank 64.0 of 64\) captures every direction.*aperture=0\.005"):
            Subspace.conceptor(300 * features)

    @pytest.mark.parametrize("rows", [300, 40])
    def test_of_zeros(self, rows):
        for fit in (Subspace.conceptor, Subspace.pca):
            with pytest.warns(UserWarning, match="all features are zero.*EAGC protects nothing"):
                fit(torch.zeros(rows, 64))

    @pytest.mark.parametrize(("scale", "text"), [(0.0, "are zero"), (1.0, "too small"), (40.0, None)])
    def test_that_a_call_estimates_from_its_batch(self, scale, text):
        draw = torch.Generator().manual_seed(0)
        z_ref = scale * nn.functional.normalize(torch.randn(40, 64, generator=draw))
        mask = torch.arange(40) % 2 == 0
        with pytest.warns(UserWarning, match="estimates the subspace") as seen:
            eagc_op(torch.ones(40, 64), z_ref.masked_fill(~mask[:, None], torch.nan), mask)
        texts = [str(warning.message) for warning in seen]
        assert [text in said for said in texts[1:]] == ([True] if text else [])
        assert {warning.filename for warning in seen} == {__file__}
        silent(lambda: eagc_op(torch.ones(40, 64), z_ref, mask))


def test_lambda_p_above_one(case):
    with pytest.warns(UserWarning, match=r"lambda_p=3.0 is above 1.*turned round"):
        EAGC(case.subspace, lambda_p=3.0)
    silent(lambda: EAGC(case.subspace, lambda_p=1.0))


RANKS = """
import sys, warnings
import torch, torch.distributed as dist
from eagc_ops import EAGC, Subspace
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2)
subspace = Subspace(torch.eye(4) * 0.5, 0.5)
z, mask = torch.ones(6, 4, requires_grad=True), torch.arange(6) % 2 == 0
z_ref = torch.zeros(6, 4)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    EAGC(subspace, process_group=dist.group.WORLD)(z, z_ref, mask)
    EAGC(subspace, anchor="sum")(z, z_ref, mask)
    EAGC(subspace)(z, None, mask)
    EAGC(subspace)(z.detach(), z_ref, mask)
EAGC(subspace)(z, z_ref, mask)
EAGC(subspace)(z, z_ref, mask)
dist.destroy_process_group()
"""


def test_several_ranks_without_a_process_group(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS, str(rank), str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        errors = rank.communicate(timeout=300)[1]
        assert rank.returncode == 0, errors
        assert (
            errors.count("the operator was given none") == 1 and "process_group=torch.distributed" in errors
        )
