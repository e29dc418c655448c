"""docs/evidence.md says what docs/evidence.csv holds, by the registered rule, computed here a second time."""

import csv
import itertools
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from documents import ROOT

from eagc_ops.evidence.studies.earlier import take_over
from eagc_ops.evidence.studies.evidence import write_evidence
from eagc_ops.evidence.studies.questions import KEEPS
from eagc_ops.evidence.studies.study import CONFIRMED, Study
from eagc_ops.evidence.waterfall.arms import ARMS, REPLICATES
from eagc_ops.evidence.waterfall.floors import read
from eagc_ops.evidence.waterfall.question import TEXT

PROBLEM = ("method", "known", "classes", "recipe")


class Evidence(NamedTuple):
    folder: Path
    study: Study
    page: str
    runs: list

    def of(self, problem):
        return [run for run in self.runs if tuple(run[name] for name in PROBLEM) == problem]

    def accuracies(self, problem, arm, score):
        """By seed, of an arm; None unless all of its runs are finished."""
        own = [run for run in self.of(problem) if run["arm"] == arm]
        numbers = [int(run["seed"]) for run in own]
        assert numbers == list(range(numbers[0], numbers[0] + len(own)))
        finished = all(run["finished"] == "yes" for run in own)
        return np.array([float(run[score]) for run in own]) if finished else None

    def planned(self):
        """(arm, problem) of the comparisons: EAGC everywhere, the whitened energy where it is trained."""
        problems = dict.fromkeys(tuple(run[name] for name in PROBLEM) for run in self.runs)
        return [
            (arm, problem)
            for problem in problems
            for arm in ("EAGC", "whitened EAGC")
            if any(run["arm"] == arm for run in self.of(problem))
        ]


@pytest.fixture(params=["docs", "docs/confirmation"])
def evidence(request, tmp_path):
    folder = ROOT / request.param
    second = {"regimes": CONFIRMED, "others": (), "question": KEEPS}
    study = Study(tmp_path / "study", **(second if request.param != "docs" else {}))
    with (folder / "evidence.csv").open(encoding="utf-8") as lines:
        runs = list(csv.DictReader(lines))
    return Evidence(folder, study, (folder / "evidence.md").read_text(encoding="utf-8"), runs)


def sign_flip_p(differences):
    flips = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    return np.mean(np.abs(flips @ differences) >= abs(differences.sum()) - 1e-6)


def test_every_planned_run_is_listed(evidence):
    assert [run["run"] for run in evidence.runs] == [run.folder.name for run in evidence.study.runs()]
    assert all(sentence in evidence.page for sentence in evidence.study.question.text)


def test_the_table_is_that_of_the_runs(evidence):
    outcome = evidence.study.question.score
    others = [score for score in ("all", "old", "new") if score != outcome]
    found = {}
    for arm, problem in evidence.planned():
        arms = dict.fromkeys(run["arm"] for run in evidence.of(problem))
        scores = {name: evidence.accuracies(problem, name, outcome) for name in arms}
        if any(score is None for score in scores.values()):
            found[arm, problem] = None
        else:
            differences = scores[arm] - scores["baseline"]
            floor = np.abs(scores["null"] - scores["baseline"]).max()
            found[arm, problem] = differences, sign_flip_p(differences), floor
    seeds = {problem: sum(run["arm"] == "EAGC" for run in evidence.of(problem)) for _, problem in found}
    tested = [key for key in found if seeds[key[1]] >= 6]
    assert len(tested) * 2 / 2**10 < 0.05  # so that ten seeds can decide
    order = sorted((key for key in tested if found[key]), key=lambda key: found[key][1])
    adjusted, largest = {}, 0.0
    for rank, key in enumerate(order):
        largest = adjusted[key] = max(largest, min(1.0, (len(tested) - rank) * found[key][1]))

    rows = [
        line.strip("| ").split(" | ")
        for line in evidence.page.splitlines()
        if re.match(r"\| (whitened )?EAGC \| [a-z]", line)
    ]
    assert len(rows) == len(found)
    for row, (key, comparison) in zip(rows, found.items()):
        arm, problem = key
        assert row[:6] == [arm, *problem, str(seeds[problem])]
        if comparison is None:
            assert row[12] == "not complete"
            continue
        pairs = {
            score: [evidence.accuracies(problem, name, score) for name in ("baseline", arm)]
            for score in (*others, "old_fall")
        }
        beside = [(ours - base).mean() for base, ours in (pairs[score] for score in others)]
        assert list(map(float, row[13].split(", "))) == pytest.approx(beside, abs=0.006)
        falls = [fall.mean() for fall in pairs["old_fall"]]
        assert list(map(float, row[14].split(", "))) == pytest.approx(falls, abs=0.051)
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
    assert f"{complete} of {len(found)} planned comparisons are complete" in evidence.page


def test_the_table_of_the_second_study_is_that_of_its_evidence():
    def rows(file, begin):
        text = (ROOT / "docs" / file).read_text(encoding="utf-8")
        return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(begin)]

    header, *shown = rows("study.md", ("| known | of |", "| 10 | 60 |", "| 5 | 60 |"))
    names, *found = rows("confirmation/evidence.md", ("| arm | method |", "| EAGC | simgcd |"))
    assert [dict(zip(header, row)) for row in shown] == [
        {name: dict(zip(names, row))[name] for name in header} for row in found
    ]
    counted = rows("study.md", ("| 10 | paper |", "| 10 | release |", "| 5 | paper |", "| 5 | release |"))
    for (known, _, *texts), base, ours in zip(
        counted,
        (row for row in rows("confirmation/evidence.md", "| baseline | ") if row[-1].isdigit()),
        (row for row in rows("confirmation/evidence.md", "| EAGC | ") if row[-1].isdigit()),
        strict=True,
    ):
        images = (15 * int(known), 30 * (60 - int(known)))  # half of the known images are labelled
        more = [float(ours[place].split()[0]) / 100 * n for place, n in zip((2, 4), images)]
        for text, count, n in zip(texts, more, images):
            value, of = text.split(" of ")
            assert (float(value), int(of.replace(",", ""))) == (pytest.approx(count, abs=0.15), n)
        precisions = []
        for row in (base, ours):
            right, wrong = (float(row[place].split()[0]) * n for place, n in zip((1, 3), images))
            precisions.append(100 * right / (right + wrong))
        # The page's shares of novel images have one decimal, of which one unit is up to 2 points here.
        assert [float(part.strip(" %")) for part in texts[2].split("->")] == pytest.approx(precisions, abs=2)


def test_the_page_can_be_taken_over(evidence):
    """So the study can go on from these files alone, whatever became of the machine that trained the runs."""
    study = evidence.study
    take_over(study, evidence.folder)
    write_evidence(study)
    page = (study.output / "evidence.md").read_text(encoding="utf-8")
    ours, theirs = (text.partition("\nWritten on ")[0].splitlines() for text in (page, evidence.page))
    assert len(ours) == len(theirs)
    for ours_line, line in zip(ours, theirs):
        if ours_line != line:  # the probe's AUC is not in the files, and is measured again by the command
            cells = [row.split(" | ") for row in (ours_line, line)]
            assert len(cells[0]) == 15 and cells[0][6] == "-"
            assert cells[0][:6] + cells[0][7:] == cells[1][:6] + cells[1][7:]
    with (study.output / "evidence.csv").open(encoding="utf-8") as lines:
        again = list(csv.DictReader(lines))
    assert len(again) == len(evidence.runs)
    for ours_run, run in zip(again, evidence.runs):
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


def first_study():
    with (ROOT / "docs/evidence.csv").open(encoding="utf-8") as lines:
        return Evidence(ROOT / "docs", None, "", list(csv.DictReader(lines)))


def test_intervals_of_few_seeds_are_those_of_all_resamples():
    """Up to six seeds: the 2.5 % and 97.5 % quantiles of the means of all n^n resamples."""
    study, found = first_study(), 0
    for line in (ROOT / "docs/evidence.md").read_text(encoding="utf-8").splitlines():
        row = line.strip("| ").split(" | ")
        if row[0] not in ("EAGC", "whitened EAGC") or len(row) < 14 or row[5] != "5":
            continue
        ours, base = (study.accuracies(tuple(row[1:5]), arm, "all") for arm in (row[0], "baseline"))
        means = np.array([sum(picked) / 5 for picked in itertools.product(ours - base, repeat=5)])
        low, high = map(float, row[8].split(" to "))
        assert (low, high) == pytest.approx(tuple(np.quantile(means, (0.025, 0.975))), abs=0.03), line
        found += 1
    assert found == 8


def test_the_waterfall_page_says_how_much_is_finished():
    folder = ROOT / "docs/waterfall"
    runs = (folder / "runs.csv").read_text(encoding="utf-8").splitlines()[1:]
    page = (ROOT / "docs/waterfall.md").read_text(encoding="utf-8")
    evidence = (folder / "evidence.md").read_text(encoding="utf-8")
    pairs = [sum(f",{arm}," in run for run in runs) for arm in ("warm start", "EAGC")]
    assert f"{min(pairs)} of {REPLICATES} replicates" in page.splitlines()[0]
    planned = sum(arm.replicates for arm in ARMS.values())
    assert f"{len(runs)} of {planned} planned runs are finished." in evidence
    assert f"of {planned} registered runs on birds and {3 * planned} on glyphs" in page
    assert runs or "none is finished" in page
    assert all(sentence in evidence for sentence in TEXT)


def paired(ours, base):
    """Mean difference with Student's 95 % interval, as the page writes it."""
    return np.subtract(ours, base).mean(), 2.201 * np.subtract(ours, base).std(ddof=1) / 12**0.5


def test_the_main_comparison_on_birds_follows_from_its_runs():
    with open(ROOT / "docs/waterfall/runs.csv", newline="", encoding="utf-8") as opened:
        runs = {(run["recipe"], int(run["replicate"])): run for run in csv.DictReader(opened)}
    page = (ROOT / "docs/waterfall.md").read_text(encoding="utf-8")
    cells = {"warm start": [], "EAGC": [], "difference": []}
    for name, digits in {"all": 1, "own_name": 1, "old": 1, "new": 1, "drift": 2, "soc_release": 2}.items():
        of = {arm: np.array([float(runs[arm, r][name]) for r in range(12)]) for arm in ("warm start", "EAGC")}
        for arm, values in of.items():
            cells[arm].append(f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}")
        mean, half = paired(of["EAGC"], of["warm start"])
        ends = f"{mean - half:+.{digits}f} to {mean + half:+.{digits}f}"
        cells["difference"].append(f"{mean:+.{digits}f} ({ends})")
    assert f"| warm start, no operator | {' | '.join(cells['warm start'])} |" in page
    assert f"| EAGC | {' | '.join(cells['EAGC'])} |" in page
    assert f"| difference, paired (95 %) | {' | '.join(cells['difference'])} |" in page


def test_the_clusterings_on_birds_follow_from_their_file():
    found = read(ROOT / "docs/waterfall/floors.csv")
    page = (ROOT / "docs/waterfall.md").read_text(encoding="utf-8")
    all_of = {}
    lines = {
        "published k-means, features before training": ("EAGC", "k-means"),
        "first answer of `eagc discover`, features before training": ("EAGC", "first"),
        "warm start: the network's classifier": ("warm-start", "network"),
        "warm start: clustering of its features": ("warm-start", "clustering"),
        "EAGC: the network's classifier": ("EAGC", "network"),
        "EAGC: clustering of its features": ("EAGC", "clustering"),
    }
    for text, (recipe, way) in lines.items():
        scores = np.array([found[f"50of100-{recipe}-{r}"][way] for r in range(12)])
        all_of[recipe, way] = scores[:, 0]
        shown = " | ".join(f"{part.mean():.1f} ± {part.std(ddof=1):.1f}" for part in scores.T)
        assert f"| {text} | {shown} |" in page
    mean, half = paired(all_of["EAGC", "clustering"], all_of["warm-start", "clustering"])
    up = int((all_of["EAGC", "clustering"] > all_of["warm-start", "clustering"]).sum())
    assert f"EAGC is {mean:.1f} points above the warm start" in page
    assert f"({mean - half:+.1f} to {mean + half:+.1f}, {up} of 12 replicates)" in page
    above = [all_of[recipe, "clustering"] - all_of[recipe, "network"] for recipe in ("EAGC", "warm-start")]
    assert np.min(above) > 0 and f"is {np.mean(above):.1f} points\nabove it in the mean, in every run" in page


def test_what_is_said_of_groceries_follows_from_its_file():
    found = read(ROOT / "docs/waterfall/floors-grocery.csv")
    page = (ROOT / "docs/waterfall.md").read_text(encoding="utf-8")
    scores = {
        (recipe, way): np.array([found[f"40of81-{recipe}-{r}"][way][0] for r in range(5)])
        for recipe in ("EAGC", "warm-start")
        for way in ("first", "network", "clustering")
    }
    for (recipe, way), name in {
        ("EAGC", "first"): "first answer, features before training",
        ("warm-start", "clustering"): "warm start: clustering of its features",
        ("EAGC", "clustering"): "EAGC: clustering of its features",
    }.items():
        values = scores[recipe, way]
        assert f"| {name} | {values.mean():.1f} ± {values.std(ddof=1):.1f} |" in page
    operator = scores["EAGC", "clustering"] - scores["warm-start", "clustering"]
    training = (scores["EAGC", "clustering"] + scores["warm-start", "clustering"]) / 2 - scores[
        "EAGC", "first"
    ]
    for text, difference in (("EAGC minus warm start", operator), ("before training", training)):
        half = 2.776 * difference.std(ddof=1) / 5**0.5
        mean = difference.mean()
        assert f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f}, p" in page, text
    assert f"Training is worth {training.mean():.0f} points" in page


def test_what_each_step_adds_on_birds_follows_from_its_files():
    """Six replicates: start and head rate, the operator, and smaller rates without it."""
    with open(ROOT / "docs/waterfall/runs.csv", newline="", encoding="utf-8") as opened:
        runs = {(run["recipe"], int(run["replicate"])): run for run in csv.DictReader(opened)}
    found = read(ROOT / "docs/waterfall/floors.csv")
    page = (ROOT / "docs/waterfall.md").read_text(encoding="utf-8")
    rates = [f"warm start, rate {rate}" for rate in ("0.03", "0.01")]

    def of(recipe, measure):
        if measure == "clustered":
            return np.array([found[runs[recipe, r]["run"]]["clustering"][0] for r in range(6)])
        return np.array([float(runs[recipe, r][measure]) for r in range(6)])

    for recipe in ("own recipe", "warm start", *rates, "EAGC"):
        means = [of(recipe, name).mean() for name in ("all", "own_name", "old", "new", "clustered")]
        assert f"| {recipe} | {' | '.join(f'{mean:.1f}' for mean in means)} |" in page
    steps = {
        "start and head rate": ("warm start", "own recipe"),
        "EAGC on top of them": ("EAGC", "warm start"),
        "rate 0.03 instead of 0.1, no operator": (rates[0], "warm start"),
        "rate 0.01 instead of 0.1, no operator": (rates[1], "warm start"),
        "EAGC, against rate 0.03 without it": ("EAGC", rates[0]),
    }
    for name, (ours, base) in steps.items():
        cells = []
        for measure in ("all", "own_name", "clustered"):
            more = of(ours, measure) - of(base, measure)
            half = 2.571 * more.std(ddof=1) / 6**0.5
            cells.append(f"{more.mean():+.1f} ({more.mean() - half:+.1f} to {more.mean() + half:+.1f})")
        assert f"| {name} | {' | '.join(cells)} |" in page
    assert (of("warm start", "all") > of("own recipe", "all")).all()  # "in every replicate"
