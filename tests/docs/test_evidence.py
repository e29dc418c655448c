"""docs/evidence.md says what docs/evidence.csv holds, by the registered rule, computed here a second time."""

import csv
import itertools
import re

import numpy as np
import pytest
from documents import ROOT

from eagc_ops.training.studies.earlier import take_over
from eagc_ops.training.studies.evidence import write_evidence
from eagc_ops.training.studies.questions import HELPS
from eagc_ops.training.studies.study import Study

PAGE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
RUNS = list(csv.DictReader((ROOT / "docs" / "evidence.csv").open(encoding="utf-8")))
PROBLEM = ("method", "known", "classes", "recipe")


def accuracies(problem, arm, score="all"):
    """By seed, of an arm; None unless all of its runs are finished."""
    own = [run for run in RUNS if tuple(run[name] for name in PROBLEM) == problem and run["arm"] == arm]
    assert [int(run["seed"]) for run in own] == list(range(len(own)))
    return np.array([float(run[score]) for run in own]) if all(r["finished"] == "yes" for r in own) else None


def sign_flip_p(differences):
    flips = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    return np.mean(np.abs(flips @ differences) >= abs(differences.sum()) - 1e-6)


def planned():
    """(arm, problem) of the planned comparisons: EAGC everywhere, the whitened energy where it is trained."""
    problems = list(dict.fromkeys(tuple(run[name] for name in PROBLEM) for run in RUNS))
    arms = {
        problem: {run["arm"] for run in RUNS if tuple(run[n] for n in PROBLEM) == problem}
        for problem in problems
    }
    return [(arm, p) for p in problems for arm in ("EAGC", "whitened EAGC") if arm in arms[p]]


def test_every_planned_run_is_listed():
    assert [run["run"] for run in RUNS] == [run.folder.name for run in Study(ROOT / "x").runs()]
    assert all(sentence in PAGE for sentence in HELPS.text)


def test_the_table_is_that_of_the_runs():
    found = {}
    for arm, problem in planned():
        base, null, with_arm = (accuracies(problem, name) for name in ("baseline", "null", arm))
        complete = all(
            accuracies(problem, run["arm"]) is not None
            for run in RUNS
            if tuple(run[name] for name in PROBLEM) == problem
        )
        if complete:
            differences = with_arm - base
            found[arm, problem] = differences, sign_flip_p(differences), np.abs(null - base).max()
        else:
            found[arm, problem] = None
    seeds = {
        problem: len([r for r in RUNS if tuple(r[n] for n in PROBLEM) == problem and r["arm"] == "EAGC"])
        for _, problem in found
    }
    tested = [key for key in found if seeds[key[1]] >= 6]
    assert len(tested) * 2 / 2**10 < 0.05  # so that ten seeds can decide
    order = sorted((key for key in tested if found[key]), key=lambda key: found[key][1])
    adjusted, largest = {}, 0.0
    for rank, key in enumerate(order):
        largest = adjusted[key] = max(largest, min(1.0, (len(tested) - rank) * found[key][1]))

    rows = [
        line.strip("| ").split(" | ")
        for line in PAGE.splitlines()
        if re.match(r"\| (whitened )?EAGC \| [a-z]", line)
    ]
    assert len(rows) == len(found)
    for row, (key, comparison) in zip(rows, found.items()):
        arm, (method, known, classes, recipe) = key
        assert row[:6] == [arm, method, known, classes, recipe, str(seeds[key[1]])]
        if comparison is None:
            assert row[12] == "not complete"
            continue
        old, new = (
            (accuracies(key[1], arm, score) - accuracies(key[1], "baseline", score)).mean()
            for score in ("old", "new")
        )
        assert tuple(map(float, row[13].split(", "))) == pytest.approx((old, new), abs=0.006)
        falls = [accuracies(key[1], of, "old_fall").mean() for of in ("baseline", arm)]
        assert tuple(map(float, row[14].split(", "))) == pytest.approx(falls, abs=0.051)
        differences, p, floor = comparison
        assert float(row[7]) == pytest.approx(differences.mean(), abs=0.006)
        low, high = map(float, row[8].split(" to "))
        assert differences.min() - 0.006 <= low <= differences.mean() + 0.006
        assert differences.mean() - 0.006 <= high <= differences.max() + 0.006
        assert float(row[9]) == pytest.approx(floor, abs=0.006)
        assert float(row[10]) == pytest.approx(p, abs=0.0006)
        if key not in adjusted:
            assert row[11:13] == ["-", "too few seeds to decide"]
            continue
        assert float(row[11]) == pytest.approx(adjusted[key], abs=0.0006)
        shown = adjusted[key] < 0.05 and abs(differences.mean()) > floor
        word = ("a gain" if differences.mean() > 0 else "a loss") if shown else None
        assert row[12] == word if word else row[12] in ("nothing shown", "below the noise floor")
    complete = sum(comparison is not None for comparison in found.values())
    assert f"{complete} of {len(found)} planned comparisons are complete" in PAGE


def test_the_page_can_be_taken_over(tmp_path):
    """So the study can go on from these files alone, whatever became of the machine that trained the runs."""
    study = Study(tmp_path / "study")
    take_over(study, ROOT / "docs")
    write_evidence(study)
    page = (study.output / "evidence.md").read_text(encoding="utf-8")
    ours, theirs = (text.partition("\nWritten on ")[0].splitlines() for text in (page, PAGE))
    assert len(ours) == len(theirs)
    for ours_line, line in zip(ours, theirs):
        if ours_line != line:  # the probe's AUC is not in the files, and is measured again by the command
            cells = [row.split(" | ") for row in (ours_line, line)]
            assert len(cells[0]) == 15 and cells[0][6] == "-"
            assert cells[0][:6] + cells[0][7:] == cells[1][:6] + cells[1][7:]
    with (study.output / "evidence.csv").open(encoding="utf-8") as lines:
        again = list(csv.DictReader(lines))
    assert len(again) == len(RUNS)
    for ours_run, run in zip(again, RUNS):
        for name, value in run.items():
            assert ours_run[name] == value or float(ours_run[name]) == float(value), (run["run"], name)


def test_the_table_of_cifar10_is_that_of_its_runs():
    runs = list(csv.DictReader((ROOT / "docs" / "cifar10" / "evidence.csv").open(encoding="utf-8")))
    assert len(runs) == 36 and {run["finished"] for run in runs} == {"yes"}
    page = (ROOT / "docs" / "cifar10.md").read_text(encoding="utf-8")
    for arm in dict.fromkeys(run["arm"] for run in runs):
        own = [run for run in runs if run["arm"] == arm]
        means = [np.mean([float(run[score]) for run in own]) for score in ("all", "old", "new")]
        (row,) = re.findall(rf"^\| {arm} \| (.*) \|$", page, re.MULTILINE)
        shown = row.split(" | ")
        assert [float(value) for value in shown[:3]] == pytest.approx(means, abs=0.051)
        assert float(shown[4]) == pytest.approx(np.mean([float(run["drift"]) for run in own]), abs=0.0051)
        if arm != "baseline":
            base = [run for run in runs if run["arm"] == "baseline"]
            differences = [float(a["all"]) - float(b["all"]) for a, b in zip(own, base)]
            assert float(shown[3].split(" ")[0]) == pytest.approx(np.mean(differences), abs=0.006)
            assert "EAGC" not in arm or max(differences) < 0  # "in every seed"
