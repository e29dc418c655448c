"""Two gloo processes with b rows each equal one process with 2b rows; DDP with its buffer broadcast."""

import subprocess
import sys
from pathlib import Path

import operator_cases
import pytest
import torch

RANK = '''
import copy, datetime, sys
import torch
import torch.distributed as dist
from torch import nn
sys.path.insert(0, {tests!r})
from operator_cases import make_case
from eagc_ops import EAGC, Subspace

rank, world = int(sys.argv[1]), int(sys.argv[2])
minute = datetime.timedelta(seconds=60)
dist.init_process_group("gloo", init_method="file://{store}", rank=rank, world_size=world, timeout=minute)
share = slice(rank * 12 // world, (rank + 1) * 12 // world)

def batches():
    """Two micro-batches of 12 rows; few labelled rows on the first half, so that the ranks' counts differ."""
    for seed in (0, 1):
        case = make_case(12, 8, dtype=torch.float64, seed=seed)
        mask = case.mask.clone()
        mask[:6], mask[6:] = False, True
        mask[seed], mask[7] = True, False
        z_ref = torch.randn(12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(9 + seed))
        yield case, z_ref, mask

class Model(nn.Module):
    def __init__(self, eagc):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head = (nn.Linear(8, n, dtype=torch.float64) for n in (8, 3))
        self.eagc = eagc

    def forward(self, x, z_ref, mask):
        z, token = self.eagc(self.encoder(x), z_ref, mask, return_token=True)
        return self.head(z).square().mean() + token

out = {{}}
for mode in ("fixed", "ema", "no group"):
    first = next(batches())[0]
    group = None if mode == "no group" else dist.group.WORLD
    momentum = 0.5 if mode == "ema" else None
    settings = dict(lambda_a=20.0, energy_momentum=momentum, process_group=group)
    eagc = EAGC(Subspace(first.matrix, first.energy_ref), **settings)
    model = Model(copy.deepcopy(eagc))  # a copy keeps its ranks
    run = nn.parallel.DistributedDataParallel(model, broadcast_buffers=True) if world > 1 else model
    # Two forwards, then one backward: DDP writes the buffers in place before the second forward.
    losses = [run(case.z[share], z_ref[share], mask[share]) for case, z_ref, mask in batches()]
    sum(losses).backward()
    seen = [torch.zeros(()) for _ in range(world)]
    dist.all_gather(seen, model.eagc.energy_ref)
    out[mode] = dict(grad=model.encoder.weight.grad, energy_ref=torch.stack(seen))

# What one rank does alone: a collective in it would wait for the other, or be taken for its next one.
alone = []
if rank == 0:
    case, z_ref, mask = next(batches())
    for momentum in (None, 0.5):
        for options, given, grad, training in (
            (dict(), z_ref, False, False),  # validation
            (dict(), z_ref, True, False),  # features without gradient
            (dict(anchor="sum"), z_ref, True, momentum is None),  # nothing to count
            (dict(lambda_a=0.0), z_ref, True, momentum is None),
            (dict(), None, True, momentum is None),
        ):
            settings = dict(options, energy_momentum=momentum, process_group=dist.group.WORLD)
            eagc = EAGC(Subspace(case.matrix, case.energy_ref), **settings)
            z = case.z.clone().requires_grad_(bool(options) or given is None or not grad)
            with torch.set_grad_enabled(grad):
                h = eagc.train(training)(z, given, mask)
            alone.append(torch.autograd.grad(h, z, case.g)[0] if grad and z.requires_grad else h.detach())
            assert torch.equal(eagc.energy_ref, case.energy_ref)
out["alone"] = alone

# DDP broadcasts rank 0's buffers before a forward; the 16-bit copies of S come with S.
own = EAGC(Subspace(torch.eye(8) * (0.25 + rank / 2), 0.5))
model = nn.Sequential(nn.Linear(8, 8)).append(own)
model.forward = lambda x: own(model[0](x), None, torch.zeros(len(x), dtype=torch.bool))
run = nn.parallel.DistributedDataParallel(model) if world > 1 else model
with torch.no_grad():
    own.set_subspace(Subspace(torch.eye(8) * (0.5 + rank / 4), 0.5))
run(torch.ones(4, 8)).sum().backward()
halves = torch.stack([own._half(dtype).float() for dtype in (torch.bfloat16, torch.float16)])
seen = [torch.empty_like(halves) for _ in range(world)]
dist.all_gather(seen, halves)
out["halves"] = torch.stack(seen)

fitted = torch.randn(40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
rows = slice(0, 15) if rank == 0 else slice(15, 40)
subspace = Subspace.conceptor(fitted[rows] if world > 1 else fitted, process_group=dist.group.WORLD)
out["fit"] = dict(matrix=subspace.matrix, energy_ref=subspace.energy_ref)
some = slice(0, 9) if rank == 0 else slice(9, 12)
whitened = Subspace.whitened(
    fitted[:12][some] if world > 1 else fitted[:12],
    fitted[rows] if world > 1 else fitted,
    process_group=dist.group.WORLD,
)
out["whitened"] = dict(energy=whitened.energy(fitted), energy_ref=whitened.energy_ref)
if rank == 0:
    torch.save(out, {out!r})
dist.destroy_process_group()
'''


def run(folder, world: int) -> dict:
    store, out = folder / f"store{world}", folder / f"out{world}.pt"
    script = RANK.format(tests=str(Path(operator_cases.__file__).parent), store=store, out=str(out))
    ranks = [
        subprocess.Popen([sys.executable, "-c", script, str(r), str(world)], stderr=subprocess.PIPE)
        for r in range(world)
    ]
    for rank in ranks:
        errors = rank.communicate(timeout=180)[1].decode()
        assert rank.returncode == 0, errors
    return torch.load(out, weights_only=True)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return run(folder, 1), run(folder, 2)


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize(
    ("mode", "bound"), [("fixed", 1e-12), ("ema", 1e-6)]
)  # the running reference is stored in fp32
def test_two_ranks_equal_one(ranks, mode, bound):
    one, two = (result[mode] for result in ranks)
    assert relative(two["grad"], one["grad"]) < bound
    torch.testing.assert_close(two["energy_ref"], one["energy_ref"].expand(2), rtol=1e-6, atol=0)


def test_the_half_copies_come_with_the_subspace_in_ddp(ranks):
    for result in ranks:
        assert (result["halves"] == torch.eye(8) * 0.5).all()


def test_a_subspace_fitted_by_two_ranks_equals_that_of_one(ranks):
    one, two = (result["fit"] for result in ranks)
    torch.testing.assert_close(two["matrix"], one["matrix"], rtol=0, atol=1e-7)
    torch.testing.assert_close(two["energy_ref"], one["energy_ref"], rtol=0, atol=1e-7)
    for name, value in ranks[0]["whitened"].items():
        torch.testing.assert_close(ranks[1]["whitened"][name], value, rtol=0, atol=1e-6)


def test_one_rank_may_validate_alone(ranks):
    """Without gradients, or where nothing is counted over ranks, a call meets nobody; and its values are
    those of one process.
    """
    one, two = (result["alone"] for result in ranks)
    assert len(two) == 10
    for mine, expected in zip(two, one):
        assert torch.equal(mine, expected)


def test_without_a_process_group_the_ranks_weigh_their_labelled_rows_differently(ranks):
    """The control: local means are far off, so the first test can fail."""
    one, two = (result["no group"] for result in ranks)
    assert relative(two["grad"], one["grad"]) > 0.01
