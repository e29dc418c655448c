"""The frame itself: a lost trial shows in the table."""

import faults
import pytest


def report(kind: str, outcome: str, when: str = "call") -> pytest.TestReport:
    return pytest.TestReport("a", ("a", 0, "a"), {}, outcome, None, when, user_properties=[("fault", kind)])


def test_a_lost_trial_is_counted_under_its_kind():
    lines = faults.summary([report("kills", "passed"), report("kills", "failed"), report("disk", "passed")])
    assert [line.split() for line in lines] == [
        ["faults", "tried", "held", "lost"],
        ["disk", "1", "1", "0"],
        ["kills", "2", "1", "1"],
        ["all", "3", "2", "1"],
    ]


def test_a_trial_that_fails_before_it_begins_is_lost_and_its_set_up_alone_is_not_counted():
    lines = faults.summary([report("kills", "passed", "setup"), report("disk", "failed", "setup")])
    assert [line.split() for line in lines][1:] == [["disk", "1", "0", "1"], ["all", "1", "0", "1"]]
