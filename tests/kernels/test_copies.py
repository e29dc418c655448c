"""Derived matrices: made once, renewed when the original changes, gone with it."""

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from eagc_ops import Subspace
from eagc_ops.kernels.copies import _derived, as_dtype, derived


def test_is_made_once_and_follows_the_matrix():
    matrix = torch.eye(8)
    copy = as_dtype(matrix, torch.bfloat16)
    assert as_dtype(matrix, torch.bfloat16) is copy
    assert as_dtype(matrix, torch.float32) is matrix
    matrix.mul_(0.5)
    assert torch.equal(as_dtype(matrix, torch.bfloat16), torch.eye(8, dtype=torch.bfloat16) * 0.5)


def test_another_matrix_at_the_same_address_is_another_matrix():
    first = torch.zeros(64, 64)
    as_dtype(first, torch.float16)
    before = len(_derived)
    del first
    gc.collect()
    assert len(_derived) == before - 1
    second = torch.ones(64, 64)
    assert (as_dtype(second, torch.float16) == 1).all()


def test_writes_that_bump_no_version_are_seen_on_a_cpu():
    """`.data`, and DDP's broadcast of buffers."""
    matrix = torch.eye(8)
    as_dtype(matrix, torch.bfloat16)
    matrix.data.copy_(torch.eye(8) * 0.25)
    assert torch.equal(as_dtype(matrix, torch.bfloat16), torch.eye(8, dtype=torch.bfloat16) * 0.25)
    matrix.data = torch.eye(8) * 0.75
    assert torch.equal(as_dtype(matrix, torch.bfloat16), torch.eye(8, dtype=torch.bfloat16) * 0.75)


@pytest.mark.parametrize(
    "others",
    [
        [
            Subspace.pca(torch.randn(40, 8, generator=torch.Generator().manual_seed(seed)), k=3).matrix
            for seed in range(2)
        ],
        [torch.diag(torch.tensor(diagonal)) for diagonal in ([1.0, 1.0, 0.0], [1.0, 0.0, 1.0])],
        [torch.tensor([[0.5, sign], [sign, 0.5]]) for sign in (0.5, -0.5)],
    ],
    ids=["pca", "axes", "same diagonal"],
)
def test_a_subspace_of_the_same_rank_in_its_place_is_seen_on_a_cpu(others):
    """The trace, the soft rank, is the same before and after."""
    matrix = others[0].clone()
    as_dtype(matrix, torch.float64)
    matrix.data.copy_(others[1])
    assert torch.equal(as_dtype(matrix, torch.float64), others[1].double())


def test_a_graph_capture_makes_its_own(monkeypatch):
    """It must be a part of the graph: what is kept outside may be freed or stale when the graph runs."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with FakeTensorMode():
        matrix = torch.empty(8, 8, device="cuda")
        assert as_dtype(matrix, torch.bfloat16) is not as_dtype(matrix, torch.bfloat16)
    assert matrix not in _derived


def test_a_matrix_of_inference_mode_is_never_remembered():
    """It has no version counter, so a change could not be seen."""
    with torch.inference_mode():
        matrix = torch.ones(4, 4)
        assert derived(matrix, "sum", lambda m: m.sum()) == 16
        matrix.mul_(2)
        assert derived(matrix, "sum", lambda m: m.sum()) == 32
