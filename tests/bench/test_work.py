"""FLOPs and bytes by hand; what the released formulation issues."""

import pytest
import torch

from eagc_ops.bench.inputs import make_workload
from eagc_ops.bench.operator import variants
from eagc_ops.bench.throughput import torch_path_on_a_gpu
from eagc_ops.bench.work import count, nominal_work


def test_flops_by_hand():
    """D = 3, two unlabelled rows, one labelled.

    A product of a row with S is 3 dot products of 3 multiplications and 3 additions.
    """
    product = 3 * (3 + 3)
    dot = 3 + 3
    unlabelled = 2 * product + 2 * dot + (3 + 3)  # z S and g S; z . zS and |z|^2; w * gS and g - that
    labelled = 3 + 3 + 3  # z - z_ref; c * that; g + that
    assert nominal_work(2, 1, 3, 4, running=False).flops == 2 * unlabelled + labelled
    energy = product + 2 * dot
    assert nominal_work(2, 1, 3, 4, running=True).flops == 2 * unlabelled + labelled + energy


@pytest.mark.parametrize("itemsize", [2, 4])
def test_bytes_by_hand(itemsize):
    tensors = {
        "S": 9,
        "g": 9,
        "z": 9,
        "z_ref of the labelled row": 3,
        "out": 9,
    }  # elements at D = 3, three rows
    assert (
        nominal_work(2, 1, 3, itemsize, running=False).bytes == itemsize * sum(tensors.values()) + 3
    )  # and a byte of mask per row


def test_paper_size():
    """256 rows, D = 768, half of them labelled: 4 B_u D^2 = 0.30 GFLOP, about 5 MB in fp32."""
    work = nominal_work(128, 128, 768, 4, running=False)
    assert work.flops == pytest.approx(0.302e9, rel=0.01) and work.bytes == pytest.approx(5.1e6, rel=0.02)
    assert work.intensity == work.flops / work.bytes


def test_what_the_hooks_issue():
    """Four values are read: `mask.any()`, the boolean index, the mean energy, the number of labelled rows."""
    issued = count(variants(make_workload(16, 32))["hooks"])
    assert issued.syncs == 4
    assert issued.ops == 29


@pytest.mark.parametrize(
    ("run", "syncs"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: x.unique(), 1),
        (lambda x: bool((x > 0).any()), 1),
        (lambda x: x[torch.arange(2)] + torch.where(x > 0, x, 0)[:2], 0),
    ],
)
def test_what_counts_as_a_sync(run, syncs):
    x = torch.randn(4)
    assert count(lambda: run(x)).syncs == syncs


def test_views_are_free_and_opaque_ops_are_not():
    x = torch.randn(4, 4)
    assert count(lambda: x.t()[2:].unsqueeze(0).expand(3, 2, 4)).ops == 0
    assert count(lambda: x.t() @ x + 1).ops == 2
    inside = count(variants(make_workload(16, 32))["fixed"])
    assert inside.ops > 20  # the products happen inside eagc::coordinate


@pytest.mark.parametrize("running", [False, True])
def test_the_torch_path_reads_nothing_on_a_gpu(running):
    workload = make_workload(16, 32)
    issued = count(lambda: torch_path_on_a_gpu(workload, running))
    assert issued.syncs == 0 and issued.ops > 10
