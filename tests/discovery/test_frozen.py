"""What a discovery keeps of its answer: records survive a file, and another answer can be made of them."""

import pytest
import torch

from eagc_ops.discovery.frozen import FEATURES, Clustering, Features
from eagc_ops.discovery.places import ANSWER
from eagc_ops.training.analysis.first_answer import first_answer, probabilities_of
from eagc_ops.training.engine.checkpoint import CheckpointError


def planted():
    """Three categories, the first two of them known."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.eye(12)[torch.arange(90) % 3] + 0.2 * torch.randn(90, 12, generator=generator)
    label = torch.arange(90) % 3
    known = label < 2
    labelled, held, rest = (known & (torch.arange(90) < 30), known & (torch.arange(90) >= 72), ~known)
    return Features(rows[labelled], rows[held], rows[rest], label[labelled], label[held], "of this test")


def test_both_records_survive_a_file(tmp_path):
    features = planted()
    answer = first_answer(features.rows, features.label, 3, 2)
    kept = Clustering("first", FEATURES, 2, 3, 7, True, (3, 4), "text", answer.metric, answer.centres)
    features.write(tmp_path / FEATURES)
    kept.write(tmp_path / ANSWER)
    again, read = Features.read(tmp_path / FEATURES), Clustering.read(tmp_path)
    assert torch.equal(again.rows, features.rows) and torch.equal(again.label, features.label)
    assert torch.equal(again.held_out, features.held_out) and again.encoder == "of this test"
    assert (read.kind, read.k, read.seed, read.k_range) == ("first", 3, 7, (3, 4))
    placed = probabilities_of(read.metric(again.held_out), read.centres)
    assert torch.equal(placed, probabilities_of(answer.metric(features.held_out), answer.centres))


def test_a_correction_is_a_label_of_another_first_answer():
    """As the docstring says: an unlabelled row that is put into the new category stays there."""
    features = planted()
    label = features.label.clone()
    label[len(features.labelled) + 4] = 2
    answer = first_answer(features.rows, label, 3, 3)
    assert answer.assignment[len(features.labelled) + 4] == 2


def test_a_missing_record_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"answer\.safetensors does not exist"):
        Clustering.read(tmp_path)
