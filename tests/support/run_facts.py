"""Facts of runs that were never made, for tests of folders and reports."""

from eagc_ops.training.engine.facts import RunFacts


def some_facts(**changes) -> RunFacts:
    facts = {"split_hash": "5" * 64, "trunk": "7" * 64, "inputs": {"pixels": 16}, "notes": []}
    facts |= {"dim": 96, "known": 3, "classes": 5, "images": 60, "channels": 3, "pixels": 16, "patch": 4}
    facts |= {"labelled": 18, "steps_per_epoch": 7}
    return RunFacts(**{**facts, **changes})
