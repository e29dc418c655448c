"""SimGCD's heads and its total loss against the published description."""

import pytest
import torch
from no_waiting import NoWaiting
from torch.nn import functional as F

from eagc_ops.training.config import resolve
from eagc_ops.training.methods import METHODS, Problem, Rows, register

PROBLEM = Problem(dim=768, known=100, classes=200, images=5994)


def simgcd(problem=PROBLEM, **switches):
    torch.manual_seed(0)
    return METHODS["simgcd"](resolve("simgcd", "cub", "baseline", **switches), problem)


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_sizes_are_the_published_ones():
    method = simgcd()
    assert count(method.projector) == 6_295_808
    assert count(method.classifier) == 200 * 768
    assert [count(simgcd(mlp_head_layers=n).mlp_head) for n in (0, 1, 2)] == [0, 590_592, 3_148_544]
    assert all(p.requires_grad for p in method.parameters())


def test_initial_weights():
    method = simgcd()
    linears = [layer for layer in method.projector if isinstance(layer, torch.nn.Linear)]
    assert all(abs(layer.weight.std().item() - 0.02) < 5e-4 and not layer.bias.any() for layer in linears)
    assert (
        method.classifier.weight.abs().max() <= 768**-0.5
    )  # PyTorch's uniform init, not the truncated normal


def test_logits_are_cosines_whatever_the_length_of_prototypes_and_features():
    method = simgcd()
    z = torch.randn(6, 768, dtype=torch.float64)
    method.double()
    with torch.no_grad():
        method.classifier.weight *= torch.rand(200, 1) * 5 + 0.1
        logits, h = method(3.0 * z)
    for i in range(6):
        for k in (0, 57, 199):
            v = method.classifier.weight[k]
            assert torch.allclose(logits[i, k], z[i] @ v / (z[i].norm() * v.norm()))
    assert h.shape == (6, 256)
    assert (h.norm(dim=1) - 1).abs().min() > 1e-3  # not normalised by the head


def test_features_after_the_mlp_head_are_not_negative():
    for layers in (1, 2):
        out = simgcd(mlp_head_layers=layers).mlp_head(torch.randn(32, 768))
        assert out.min() == 0
        assert out.max() > 0


def test_total_loss_is_the_published_mix():
    method = simgcd(Problem(16, 3, 5, 100)).double()
    rows = Rows(
        torch.tensor([0, 2, -1, 1, 0, 2, -1, 1]),
        torch.tensor([1, 1, 0, 1] * 2, dtype=torch.bool),
        torch.arange(4).repeat(2),
        3,
        0,
    )
    outputs = method(torch.randn(8, 16, dtype=torch.float64))
    loss = method.loss(outputs, rows)

    # The same from its definition, term by term, with dense one-hot targets instead of masks
    c, h = outputs[0], F.normalize(outputs[1], dim=1)
    lab = rows.mask.nonzero().flatten()
    cls = -(c[lab] / 0.1).log_softmax(1)[range(6), rows.label[lab]].mean()
    same = rows.label[lab][:, None] == rows.label[lab][None]
    sim = (h[lab] @ h[lab].T / 0.07).exp() * (1 - torch.eye(6))
    prob = (sim / sim.sum(1, keepdim=True)).clamp(min=1e-300).log()
    pos = same & ~torch.eye(6, dtype=torch.bool)
    supcon = -((prob * pos).sum(1) / pos.sum(1)).mean()
    t = 0.07 - 0.03 * 3 / 29
    q = (c / t).softmax(1).detach()
    dist = -0.5 * (
        (q[:4] * (c[4:] / 0.1).log_softmax(1)).sum(1).mean()
        + (q[4:] * (c[:4] / 0.1).log_softmax(1)).sum(1).mean()
    )
    p = (c / 0.1).softmax(1).mean(0)
    memax = torch.log(torch.tensor(5.0)) + (p * p.log()).sum()
    e = (h @ h.T).exp() * (1 - torch.eye(8))
    con = -(e[range(8), [4, 5, 6, 7, 0, 1, 2, 3]] / e.sum(1)).log().mean()
    torch.testing.assert_close(loss.supervised, 0.35 * (cls + supcon), rtol=1e-6, atol=0)
    torch.testing.assert_close(loss.unsupervised, 0.65 * (dist + 2.0 * memax + con), rtol=1e-6, atol=0)


def test_a_batch_without_labelled_rows_trains_on_the_unsupervised_part_alone():
    method = simgcd(Problem(16, 3, 5, 100))
    rows = Rows(torch.full((8,), -1), torch.zeros(8, dtype=torch.bool), torch.arange(4).repeat(2), 0, 0)
    loss = method.loss(method(torch.randn(8, 16)), rows)
    (loss.supervised + loss.unsupervised).backward()
    assert loss.supervised.item() == 0
    assert all(torch.isfinite(p.grad).all() for p in method.parameters())


def test_prediction_is_the_nearest_prototype():
    method = simgcd(Problem(16, 3, 5, 100))
    z = method.classifier.weight.detach()[[4, 0, 2, 2]] * 7 + 0.001

    class AllFeatures:
        def unlabelled(self):
            return z, torch.zeros(4)

    assert method.predict(AllFeatures()).tolist() == [4, 0, 2, 2]


def test_parameter_groups():
    method, encoder = simgcd(head_lr=1.0), torch.nn.Sequential(torch.nn.Linear(768, 4), torch.nn.LayerNorm(4))
    encoder[0].weight.requires_grad_(False)  # frozen ones are in no group
    (sgd,) = method.optimizers(encoder)
    found = {(group["lr"], group["weight_decay"], p) for group in sgd.param_groups for p in group["params"]}
    heads = {(1.0, 5e-5 if p.ndim > 1 else 0.0, p) for p in method.parameters()}
    assert found == heads | {(0.1, 0.0, p) for p in (encoder[0].bias, encoder[1].weight, encoder[1].bias)}
    assert all(group["momentum"] == 0.9 and not group["nesterov"] for group in sgd.param_groups)


def test_heads_and_losses_never_wait_for_the_device():
    method = simgcd(Problem(16, 3, 5, 100), mlp_head_layers=1)
    rows = Rows(
        torch.tensor([0, -1, 1, 2] * 2),
        torch.tensor([True, False, True, True] * 2),
        torch.arange(4).repeat(2),
        0,
        0,
    )
    z = torch.randn(8, 16)
    with NoWaiting():
        loss = method.loss(method(z), rows)
        (loss.supervised + loss.unsupervised).backward()
    with pytest.raises(AssertionError, match="boolean index"), NoWaiting():  # the mode does catch one
        z[rows.mask]


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="SimGCD has this name already"):
        register("simgcd")(torch.nn.Linear)
