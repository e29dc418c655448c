"""Backbones that are no ViT: trunk and tail give what the network gives, and the tail alone is trained."""

import pytest
import torch
from torch import nn

from eagc_ops.staged_encoder import StagedEncoder, Stages


def network(last=None):
    stages = [
        nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU()),
        last or nn.Sequential(nn.Conv2d(12, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.Dropout(0.5), nn.ReLU()),
    ]
    net = Stages(stages, image_size=16)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics as after training
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return net


class Flatten(nn.Module):
    def forward(self, x):
        return x.flatten(2).mT  # tokens


@pytest.mark.parametrize("grad_from_block", [0, 1, 2])
def test_trunk_and_tail_are_the_network(grad_from_block):
    torch.manual_seed(0)
    net = network()
    encoder, images = StagedEncoder(net, grad_from_block).train(), torch.randn(5, 3, 16, 16)
    tokens = encoder.trunk(images)
    assert tokens.shape[1:] == encoder.token_shape
    z = encoder.student(tokens)
    # The same by hand, without Stages; batch norm and dropout do what they do in eval mode.
    x = images
    for stage in net.blocks:
        x = stage(x)
    torch.testing.assert_close(z, x.mean((2, 3)))
    assert torch.equal(encoder.student(encoder.trunk(tokens)), z)  # tokens of a trunk cache


def test_tokens_and_vectors_may_stand_between_stages():
    for last, dim in (
        (nn.Sequential(Flatten(), nn.Linear(12, 7)), 7),
        (nn.Sequential(nn.Flatten()), 12 * 16),
    ):
        net = network(last)
        assert net.embed_dim == dim
        images = torch.randn(2, 3, 16, 16)
        assert torch.allclose(StagedEncoder(net, 2, reference=False)(images)[0], net(images))
    pooled = Stages([nn.Flatten(), nn.Linear(48, 6), nn.Linear(6, 4)], image_size=4)
    encoder = StagedEncoder(pooled, 2, reference=False)
    assert encoder.token_shape == (1, 6)
    assert encoder(torch.randn(2, 3, 4, 4))[0].shape == (2, 4)


def test_a_step_changes_the_tail_alone_and_not_the_statistics():
    torch.manual_seed(0)
    encoder = StagedEncoder(network(), 1)
    encoder.train_last(1)
    encoder.set_reference()
    encoder.train()
    before = {name: value.clone() for name, value in encoder.vit.state_dict().items()}
    mark = encoder.trunk_fingerprint()
    z, z_ref = encoder(torch.randn(6, 3, 16, 16), labelled_rows=torch.tensor([1]))
    torch.testing.assert_close(z[1], z_ref[1])
    z.square().sum().backward()
    torch.optim.SGD([p for p in encoder.parameters() if p.requires_grad], 0.1).step()
    changed = {
        name for name, value in encoder.vit.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed == {"blocks.2.0.weight", "blocks.2.0.bias", "blocks.2.1.weight", "blocks.2.1.bias"}
    assert encoder.trunk_fingerprint() == mark
    state = encoder.tail_state()
    other = StagedEncoder(network(), 1)
    other.load_tail(state)
    assert all(torch.equal(state[name], value) for name, value in other.tail_state().items())


def test_stages_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="stages is empty"):
        Stages([], image_size=8)
    with pytest.raises(ValueError, match="stage 0 gives tuple for one image"):
        Stages([_Pair()], image_size=8)
    with pytest.raises(ValueError, match="pool gives"):
        Stages([nn.Conv2d(3, 4, 3)], nn.Identity(), image_size=8)
    with pytest.raises(TypeError, match="wrap its stages"):
        StagedEncoder(nn.Linear(2, 2), 0)


class _Pair(nn.Module):
    def forward(self, x):
        return x, x
