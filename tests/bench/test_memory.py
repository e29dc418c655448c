"""Memory against sums made by hand."""

import torch
from torch import nn

from eagc_ops.bench.memory import Alive, Memory, Saved, measure_step, optimizer_state, resident, size


def test_a_small_model_by_hand():
    """Linear(8, 16), ReLU, Linear(16, 4) on 32 rows.

    The input is saved, but it is the batch and does not count. The ReLU's output is saved; it is also the
    second layer's input, in one storage. Most memory is alive in the ReLU's backward.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(32, 8)

    def finish(loss):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def forward():
        return model(x).sum()

    finish(forward())  # the optimizer has its state
    parameters = 4 * (8 * 16 + 16 + 16 * 4 + 4)
    assert size(resident(model)) == parameters
    assert size(optimizer_state(optimizer)) == parameters
    held = [*resident(model), *optimizer_state(optimizer)]
    saved, alive = measure_step(forward, finish, held, [x])
    assert saved == 4 * 32 * 16
    assert (
        measure_step(forward, finish, held, [])[0] == 4 * 32 * 16 + x.nbytes
    )  # the batch, when it is not named
    hidden, second_layer, scalars = 4 * 32 * 16, 4 * (16 * 4 + 4), 4 + 4
    assert (
        alive == 3 * hidden + second_layer + scalars
    )  # output and two gradients of the ReLU; gradients of layer 2; loss and its gradient


def test_a_view_keeps_its_whole_storage():
    """norm(x)[:, 0] keeps every token of every row alive, so the released step is larger than it looks."""
    tokens, weight = torch.randn(4, 10, 8), torch.randn(8, requires_grad=True)
    with Saved() as saved:
        (tokens[:, 0] * weight).sum()
    assert saved.bytes == tokens.nbytes
    with Saved() as saved:
        (tokens[:, 0].contiguous() * weight).sum()
    assert saved.bytes == tokens.nbytes // 10


def test_shared_storages_count_once():
    x = torch.randn(8, 8)
    assert size([x, x.t(), x[1:], x.detach()]) == x.nbytes
    tied = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
    tied[1].weight = tied[0].weight
    assert size(resident(tied)) == 64


def test_alive_follows_what_is_freed():
    with Alive() as alive:
        a = torch.ones(256)  # 1 KB
        b = a + 1  # 2
        del a  # 1
        c = torch.ones(512)  # 3
        del b, c  # 0
        torch.ones(256)
    assert alive.peak == 3072


def test_alive_leaves_out_what_was_there_and_in_place_work():
    x = torch.ones(1024)
    with Alive([x]) as alive:
        x.mul_(2).add_(x)
        x.view(32, 32).t()
    assert alive.peak == 0


def test_kept_is_the_sum_of_its_parts():
    assert Memory(parameters=1, optimizer=2, saved=4, peak=100).kept == 7
