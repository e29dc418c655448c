"""The rule by which an answer is kept, on planted answers; and the classes that play novel."""

import pytest
import torch

from eagc_ops.discovery.answer_files import Answer
from eagc_ops.discovery.candidates import (
    Candidate,
    found_together,
    hidden_classes,
    keep,
    kept_line,
    rehearsal_of,
)
from eagc_ops.discovery.frozen import FEATURES, Clustering, Features


def candidate(kind, holdout, rehearsal, used=4):
    """With images in the first `used` of four categories."""
    rows = torch.zeros(8, 2)
    features = Features(rows[:4], rows[:0], rows, torch.tensor([0, 0, 1, 1]), torch.tensor([]), "")
    probabilities = torch.eye(4)[torch.arange(8) % used]
    answer = Answer(rows, probabilities, rows[:4], probabilities[:0])
    clustering = Clustering(kind, FEATURES, 2, 4, 0, False, None, "")
    return Candidate(kind, answer, clustering, features, 1.0, holdout, rehearsal)


FIRST = candidate("first", (80, 100), (60, 100))


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        ([((90, 100), (70, 100), 4)], "trained"),  # 10 points more; the standard error is 4
        ([((82, 100), (62, 100), 4)], "first"),  # two points
        ([((82, 100), (62, 100), 4), ((78, 100), (58, 100), 4)], "trained-metric"),  # usual: not much worse
        ([((70, 100), (50, 100), 4), ((70, 100), (50, 100), 4)], "first"),  # much worse
        ([((90, 100), (70, 100), 4), ((80, 100), (60, 100), 4)], "trained"),  # much better than the usual
        ([((90, 100), (70, 100), 4), ((95, 100), (75, 100), 4)], "trained-metric"),
        ([((100, 100), (100, 100), 3), ((100, 100), (100, 100), 3)], "first"),  # empty categories
        ([((90, 100), None, 4), ((90, 100), None, 4)], "first"),  # nothing to compare
    ],
)
def test_the_answer_that_is_kept(others, kept):
    made = [candidate(kind, *facts) for kind, facts in zip(("trained", "trained-metric"), others)]
    assert keep([FIRST, *made]).kind == kept


def test_one_empty_category_of_many_is_no_collapse():
    """As on 50 kinds of sketches, where the clustering of trained features was 4 points better."""

    def of(used, k=50):
        rows = torch.zeros(k, 2)
        features = Features(rows[:2], rows[:0], rows, torch.tensor([0, 1]), torch.tensor([]), "")
        probabilities = torch.eye(k)[torch.arange(k) % used]
        answer = Answer(rows, probabilities, rows[:2], probabilities[:0])
        clustering = Clustering("trained-metric", FEATURES, 2, k, 0, False, None, "")
        return Candidate("trained-metric", answer, clustering, features, 1.0, (90, 100), (70, 100))

    assert keep([FIRST, of(used=49)]).kind == keep([FIRST, of(used=48)]).kind == "trained-metric"
    assert keep([FIRST, of(used=47)]) is FIRST
    assert keep([FIRST, of(used=9, k=10)]) is FIRST


def test_the_line_names_a_collapse_and_the_numbers_of_all():
    collapsed = candidate("trained", (100, 100), (100, 100), used=2)
    line = kept_line([FIRST, collapsed], keep([FIRST, collapsed]))
    why = "because training left categories empty, which is a collapse"
    assert line.startswith(f"kept: the first answer, {why} (")
    assert "60 of 100 images of hidden categories" in line and "2 of 4 categories empty" in line


def test_a_record_has_what_the_page_reads():
    assert FIRST.record(True) == {
        "kind": "first",
        "name": "first answer",
        "kept": True,
        "seconds": 1.0,
        "empty": 0,
        "holdout": {"right": 80, "images": 100},
        "rehearsal": {"right": 60, "images": 100},
        "score": 0.7,
    }


def test_classes_that_play_novel():
    assert [len(hidden_classes(known)) for known in (1, 2, 3, 5, 6, 50)] == [0, 0, 1, 1, 2, 16]
    hidden = hidden_classes(6)
    order = sorted(range(6), key=lambda c: c in hidden)
    classes = torch.tensor(order).repeat_interleave(2)
    features = Features(torch.zeros(12, 3), torch.zeros(0, 3), torch.zeros(5, 3), classes, classes[:0], "")
    rehearsal = rehearsal_of(features, 6)
    assert rehearsal.count == 8 and rehearsal.label.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] + [-1] * 9
    assert rehearsal_of(features, 2) is None


def test_one_cluster_of_all_hidden_classes_counts_for_one_of_them():
    hidden = hidden_classes(6)
    order = sorted(range(6), key=lambda c: c in hidden)
    classes = torch.tensor(order).repeat_interleave(2)
    features = Features(torch.zeros(12, 3), torch.zeros(0, 3), torch.zeros(5, 3), classes, classes[:0], "")
    rehearsal = rehearsal_of(features, 6)
    assert found_together(torch.tensor([0] * 8 + [7] * 4), rehearsal) == (2, 4)
    assert found_together(torch.tensor([0] * 8 + [7, 7, 5, 5]), rehearsal) == (4, 4)
    assert found_together(torch.tensor([0] * 8 + [1, 1, 5, 5]), rehearsal) == (2, 4)  # 1 is a visible class
