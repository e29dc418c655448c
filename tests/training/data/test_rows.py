"""The rows of a step, made from a loader's batch."""

import torch

from eagc_ops.training.data import open_data, train_loader
from eagc_ops.training.data.rows import rows_of


def a_batch():
    return next(train_loader(open_data("digits"), batch_size=32, seed=0).epoch(3))


def test_rows_are_view_major_and_hide_the_labels_of_unlabelled_images():
    batch = a_batch()
    rows = rows_of(batch, "cpu", epoch=3, position=7)
    assert 0 < rows.mask.sum() < 64
    for v in range(2):
        for i in range(32):
            row = 32 * v + i
            assert torch.equal(torch.cat(rows.views)[row], batch.views[v][i])
            assert rows.mask[row] == batch.mask[i]
            assert rows.uq_idx[row] == batch.uq_idx[i]
            assert rows.label[row] == (batch.label[i] if batch.mask[i] else -1)
    assert (rows.epoch, rows.position) == (3, 7)


def test_labelled_rows_are_the_true_entries_of_the_mask():
    rows = rows_of(a_batch(), "cpu")
    assert torch.equal(rows.labelled_rows, rows.mask.nonzero().flatten())
