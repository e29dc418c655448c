"""The anchor has the loss's scale: GradScaler, accumulation, loss weights, through the token and through
loss_scale, in fp64.
"""

import pytest
import torch
from operator_cases import make_case
from torch import nn
from torch.utils.checkpoint import checkpoint

from eagc_ops import EAGC, Subspace, eagc_op

STEPS = 4


class Loop:
    """Encoder -> EAGC -> head; `grad(...)` is the encoder's gradient of the mean loss over STEPS
    micro-batches.
    """

    def __init__(self, way: str):
        self.way = way
        self.cases = [make_case(16, 12, dtype=torch.float64, seed=seed) for seed in range(STEPS)]
        self.encoder = nn.Linear(12, 12, dtype=torch.float64)
        self.head = nn.Linear(12, 5, dtype=torch.float64)
        for seed, layer in enumerate((self.encoder, self.head)):
            nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(seed))
            nn.init.zeros_(layer.bias)
        self.eagc = EAGC(Subspace(self.cases[0].matrix, self.cases[0].energy_ref), lambda_a=50.0)

    def loss(self, case, scale):
        z, target = self.encoder(case.z), case.g[:, :5]
        if self.way == "token":
            z, token = self.eagc(z, case.z_ref, case.mask, return_token=True)
            assert token == 0 and token.ndim == 0
            return (self.head(z) - target).square().mean() + token
        z = self.eagc(z, case.z_ref, case.mask, loss_scale=scale)
        return (self.head(z) - target).square().mean()

    def grad(self, factor=1.0, as_tensor=False):
        """Multiply every micro-batch's loss by `factor` before backward, and divide the result by it."""
        self.encoder.zero_grad()
        scale = torch.tensor(factor, dtype=torch.float64) if as_tensor else factor
        for case in self.cases:
            (self.loss(case, scale) * factor).backward()
        return self.encoder.weight.grad / factor


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("way", ["token", "loss_scale", "loss_scale tensor"])
@pytest.mark.parametrize(
    "factor", [65536.0, 1 / STEPS, 0.35, 65536.0 * 0.35 / STEPS], ids=["AMP", "accumulation", "weight", "all"]
)
def test_scaled_losses_give_the_unscaled_gradient(way, factor):
    loop = Loop("token" if way == "token" else "loss_scale")
    plain = loop.grad()
    loop.eagc.lambda_a = 0.0
    assert relative(loop.grad(), plain) > 0.1, "the anchor is too weak for this test to see it"
    loop.eagc.lambda_a = 50.0
    assert relative(loop.grad(factor, as_tensor=way.endswith("tensor")), plain) <= 1e-14


def test_without_a_scale_the_anchor_would_be_wrong():
    """The control: the same loop that forgets the scale is far off, so the test above can fail."""
    loop = Loop("loss_scale")
    plain = loop.grad()
    loop.encoder.zero_grad()
    for case in loop.cases:
        (loop.loss(case, None) * 65536.0).backward()
    assert relative(loop.encoder.weight.grad / 65536.0, plain) > 0.1


@pytest.mark.parametrize("way", ["token", "loss_scale"])
def test_grad_scaler_and_autocast(way):
    """The real objects: torch.amp.GradScaler around autocast; the gradient after unscale_ is the plain one,
    to bf16's precision.
    """
    torch.manual_seed(0)
    case = make_case(32, 12)
    encoder, head = nn.Linear(12, 12), nn.Linear(12, 5)
    eagc = EAGC(Subspace(case.matrix, case.energy_ref), lambda_a=50.0)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)

    def grad(scaler, autocast, **options):
        optimizer.zero_grad()
        scale = scaler.scale(torch.ones(()))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            z = encoder(case.z)
            if way == "token":
                z, token = eagc(z, case.z_ref, case.mask, return_token=True)
            else:
                z, token = eagc(z, case.z_ref, case.mask, loss_scale=scale), 0
            loss = head(z).float().square().mean() + token
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        return encoder.weight.grad.clone()

    on = {"init_scale": 2.0**16, "enabled": True}
    plain = grad(torch.amp.GradScaler("cpu", enabled=False), autocast=False)
    assert relative(grad(torch.amp.GradScaler("cpu", **on), autocast=False), plain) < 1e-6
    assert relative(grad(torch.amp.GradScaler("cpu", **on), autocast=True), plain) < 2e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_token_of_half_features_can_hold_a_loss_scale(dtype):
    case = make_case(16, 12, dtype=dtype)
    z = case.z.clone().requires_grad_()
    out, token = eagc_op(z, case.z_ref, case.mask, Subspace(case.matrix, case.energy_ref), return_token=True)
    assert token.dtype == torch.float32
    (65536.0 * 2 * token + out.float().sum() * 0).backward()
    assert torch.isfinite(z.grad).all() and z.grad.abs().max() > 1


def test_a_token_that_reaches_no_loss_is_an_error():
    case = make_case()
    z = case.z.clone().requires_grad_()
    out, _ = eagc_op(z, case.z_ref, case.mask, Subspace(case.matrix, case.energy_ref), return_token=True)
    with pytest.raises(RuntimeError, match=r"token reached no loss.*loss = loss \+ token"):
        out.sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_token_forgotten_under_activation_checkpointing_is_no_missing_anchor(reentrant):
    """Reentrant, torch hands the token a zero: labelled rows are NaN. A token that was added, and a zero
    loss, are not taken for it.
    """
    case = make_case()
    eagc = EAGC(Subspace(case.matrix, case.energy_ref), lambda_a=50.0)

    def grad(loss, checkpointed=True):
        z = case.z.clone().requires_grad_()
        run = lambda z: eagc(z * 1.0, case.z_ref, case.mask, return_token=True)  # noqa: E731
        out, token = checkpoint(run, z, use_reentrant=reentrant) if checkpointed else run(z)
        loss((out * case.g).sum(), token).backward()
        return z.grad

    plain = grad(lambda loss, token: loss + token, checkpointed=False)
    assert torch.equal(grad(lambda loss, token: loss + token), plain)
    assert (grad(lambda loss, token: 0 * (loss + token)) == 0).all()
    if not reentrant:
        with pytest.raises(RuntimeError, match="token reached no loss"):
            grad(lambda loss, token: loss)
        return
    forgotten = grad(lambda loss, token: loss)
    assert forgotten[case.mask].isnan().all() and torch.equal(forgotten[~case.mask], plain[~case.mask])


def test_a_token_of_weight_zero_is_no_anchor():
    """A loss term that is switched off for now: the scale is what reaches the token, and a zero did."""
    case = make_case()
    z = case.z.clone().requires_grad_()
    out, token = eagc_op(z, case.z_ref, case.mask, Subspace(case.matrix, case.energy_ref), return_token=True)
    ((out * case.g).sum() + 0.0 * token).backward()
    assert torch.equal(z.grad[case.mask], case.g[case.mask])


def test_token_alone_carries_the_anchor():
    case = make_case()
    z = case.z.clone().requires_grad_()
    _, token = eagc_op(z, case.z_ref, case.mask, Subspace(case.matrix, case.energy_ref), return_token=True)
    (3 * token).backward()
    expected = case.replace(scale=torch.tensor(3.0)).oracle().gradient - case.g.double()
    torch.testing.assert_close(z.grad[case.mask].double(), expected[case.mask], rtol=1e-6, atol=1e-8)
    assert (z.grad[~case.mask] == 0).all()
