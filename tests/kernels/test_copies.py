"""Derived matrices: made once, renewed when the original changes, gone with it."""

import gc

import torch

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


def test_a_matrix_of_inference_mode_is_never_remembered():
    """It has no version counter, so a change could not be seen."""
    with torch.inference_mode():
        matrix = torch.ones(4, 4)
        assert derived(matrix, "sum", lambda m: m.sum()) == 16
        matrix.mul_(2)
        assert derived(matrix, "sum", lambda m: m.sum()) == 32
