"""The panels of S: made once, renewed when S changes, gone with it."""

import gc

import pytest
import torch

from eagc_ops import Subspace
from eagc_ops.kernels.panels import PANEL, _kept, kept_for, upper_panels


def full(panels):
    """The symmetric matrix that panels stand for."""
    dim = panels[-1].shape[0]
    out = torch.zeros(dim, dim, dtype=panels[0].dtype)
    for start, panel in zip(range(0, dim, PANEL), panels):
        rows, columns = panel.shape
        out[:start, start : start + columns] = panel[:start] / 2
        out[start:rows, start : start + columns] = panel[start:]
    lower = out.T.clone()
    for start in range(0, dim, PANEL):
        lower[start : start + PANEL, start : start + PANEL] = 0
    return out + lower


@pytest.mark.parametrize("dim", [1, 100, PANEL, 300])
def test_stand_for_the_whole_matrix(dim):
    matrix = torch.randn(dim, dim, generator=torch.Generator().manual_seed(dim))
    matrix = matrix + matrix.T
    assert torch.equal(full(upper_panels(matrix, torch.float64)), matrix.double())


def test_are_made_once_and_follow_the_matrix():
    matrix = torch.eye(8)
    panels = upper_panels(matrix, torch.float32)
    assert upper_panels(matrix, torch.float32) is panels
    assert panels[0].data_ptr() != matrix.data_ptr()
    assert upper_panels(matrix, torch.float64)[0].dtype == torch.float64
    assert len(kept_for(matrix)) == 2
    matrix.mul_(0.5)
    assert torch.equal(upper_panels(matrix, torch.float32)[0], torch.eye(8) * 0.5)
    assert len(kept_for(matrix)) == 1


def test_another_matrix_at_the_same_address_is_another_matrix():
    gc.collect()  # the matrices of other tests
    first = torch.zeros(64, 64)
    upper_panels(first, torch.float32)
    before = len(_kept)
    del first
    gc.collect()
    assert len(_kept) == before - 1
    second = torch.ones(64, 64)
    assert kept_for(second) == [] and (upper_panels(second, torch.float32)[0] == 1).all()


def test_writes_that_bump_no_version_are_seen():
    """`.data`, and DDP's broadcast of buffers."""
    matrix = torch.eye(8)
    upper_panels(matrix, torch.float32)
    matrix.data.copy_(torch.eye(8) * 0.25)
    assert torch.equal(upper_panels(matrix, torch.float32)[0], torch.eye(8) * 0.25)
    matrix.data = torch.eye(8) * 0.75
    assert torch.equal(upper_panels(matrix, torch.float32)[0], torch.eye(8) * 0.75)


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
def test_a_subspace_of_the_same_rank_in_its_place_is_seen(others):
    """The trace, the soft rank, is the same before and after."""
    matrix = others[0].clone()
    upper_panels(matrix, torch.float64)
    matrix.data.copy_(others[1])
    assert torch.equal(upper_panels(matrix, torch.float64)[0], others[1].double())


def test_those_of_inference_mode_are_never_kept():
    """Such a matrix has no version counter, so a change could not be seen."""
    with torch.inference_mode():
        matrix = torch.ones(4, 4)
        assert upper_panels(matrix, torch.float32)[0].sum() == 16
        matrix.mul_(2)
        assert upper_panels(matrix, torch.float32)[0].sum() == 32
        assert kept_for(matrix) == []
