"""Sentences of the pages about accuracy, computed again from the files beside them."""

import csv
import re

import numpy as np
import pytest
from documents import ROOT
from scipy.stats import spearmanr

from eagc_ops.training.analysis.paired import paired_difference

SIXTY = [(known, recipe) for known in (5, 10, 20) for recipe in ("paper", "release")]
FEW = [(known, recipe) for known in (5, 10) for recipe in ("paper", "release")]
ALL = [*SIXTY, *((known, recipe) for known in (50, 100) for recipe in ("paper", "release"))]
OTHERS = ("legogcd", "selex", "sptnet")


class Runs:
    """The measures of a table of runs, by problem, recipe, method and arm."""

    def __init__(self, folder):
        with (ROOT / folder / "evidence.csv").open(encoding="utf-8") as lines:
            self.rows = list(csv.DictReader(lines))

    def __call__(self, measure, arm, problem, method="simgcd"):
        asked = (str(problem[0]), problem[1], method, arm)
        own = [
            row for row in self.rows if tuple(row[k] for k in ("known", "recipe", "method", "arm")) == asked
        ]
        return np.array([float(row[measure] or "nan") for row in own])

    def difference(self, measure, arm, problem, method="simgcd", base="baseline"):
        return self(measure, arm, problem, method) - self(measure, base, problem, method)


STUDY, SECOND, CIFAR = Runs("docs"), Runs("docs/confirmation"), Runs("docs/cifar10")


def page(name):
    """The text of a page, in one line."""
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def said(name, pattern):
    """The numbers of a sentence: every one of `#` in the pattern."""
    found = re.search(
        re.escape(pattern).replace(r"\#", r"([+-]?\d+(?:\.\d+)?)"), page(name).replace("**", "")
    )
    assert found, f"{name} does not say: {pattern}"
    return [float(number) for number in found.groups()]


def close(numbers, computed, digits):
    assert numbers == pytest.approx([float(x) for x in computed], abs=0.5 * 10**-digits + 1e-9)


def ends(values):
    return min(values), max(values)


def test_the_fall_of_old():
    def fall(arm, *problems, method="simgcd"):
        return [STUDY("old_fall", arm, problem, method).mean() for problem in problems]

    beginning = "Old rises, and then falls: by # to # points with 5 known classes, # to # with 10"
    five, ten = (fall("baseline", (n, "paper"), (n, "release")) for n in (5, 10))
    others = {method: fall("baseline", (10, "paper"), method=method)[0] for method in OTHERS}
    close(said("study.md", beginning), [*ends(five), *ends([*ten, others["legogcd"]])], 0)
    close(said("study.md", "SelEx # and SPTNet #)"), [others["selex"], others["sptnet"]], 1)
    twenty = fall("baseline", (20, "paper"), (20, "release"))
    close(said("study.md", "# to # with 20"), ends(twenty), 0)
    (most,) = said("study.md", "with 20, and # or less beyond")
    assert max(fall("baseline", *ALL[6:])) <= most
    kept = [ours / base for ours, base in zip(fall("EAGC", *FEW), fall("baseline", *FEW), strict=True)]
    close(said("study.md", "it falls by # to # % of that"), 100 * np.array(ends(kept)), 0)


def test_old_with_few_known_classes():
    gains = {problem: STUDY.difference("old", "EAGC", problem) for problem in FEW}
    lego = STUDY.difference("old", "EAGC", (10, "paper"), "legogcd")
    assert min(min(gain) for gain in [*gains.values(), lego]) > 0  # "in every seed"
    five, ten = ([gain.mean() for (n, _), gain in gains.items() if n == known] for known in (5, 10))
    sentence = "Old ends # to # points higher with 5 known classes and # to # with 10"
    close(said("study.md", sentence), [*ends(five), *ends([*ten, lego.mean()])], 0)
    by_arm = [
        ends([STUDY.difference("old", arm, problem).mean() for problem in FEW])
        for arm in ("AGA", "EEP", "EAGC")
    ]
    sentence = "AGA alone raises Old by # to # points, EEP alone by # to #, both by # to #"
    close(said("study.md", sentence), np.ravel(by_arm), 1)
    ours, base = (SECOND("old", arm, (10, "paper")) for arm in ("EAGC", "baseline"))
    less = sorted(ours - base)[:3]
    assert less[0] > -9.5 and less[2] < -7.5 and 0 <= sorted(ours - base)[3] <= max(ours - base) <= 4.001


@pytest.mark.parametrize(
    ("row", "one", "other"),
    [
        ("AGA, without EEP", "AGA", "baseline"),
        ("AGA, with EEP", "EAGC", "EEP"),
        ("EEP, without AGA", "EEP", "baseline"),
        ("EEP, with AGA", "EAGC", "AGA"),
        ("both", "EAGC", "baseline"),
    ],
)
def test_the_arms_as_a_two_by_two_design(row, one, other):
    cells = re.search(rf"\| {row} \| (.+?) \| (.+?) \| (.+?) \|", page("study.md")).groups()
    for cell, score in zip(cells, ("all", "old", "new"), strict=True):
        by_problem = [STUDY.difference(score, one, problem, base=other) for problem in SIXTY]
        paired = paired_difference(np.concatenate(by_problem), np.zeros(60))
        p = "p < 0.001" if paired.p < 0.001 else f"p {paired.p:.3f}"
        assert cell == f"{paired.mean:+.2f}, {p}"
        means = [problem.mean() for problem in by_problem]
        if score == "all" and row in ("AGA, without EEP", "EEP, with AGA"):
            words = "for AGA without EEP" if one == "AGA" else "for EEP with AGA"
            close(said("study.md", f"# {words}"), [paired_difference(means, np.zeros(6)).p], 3)
            short = "AGA alone is # above" if one == "AGA" else "EEP on top of AGA takes # off"
            close(said("study.md", short), [abs(paired.mean)], 2)


def test_drift_and_shares():
    ours = [STUDY("drift", "EAGC", problem).mean() for problem in ALL]
    ours += [STUDY("drift", "EAGC", (10, "paper"), method).mean() for method in OTHERS]
    base = [STUDY("drift", "baseline", problem).mean() for problem in ALL]
    base += [STUDY("drift", "baseline", (10, "paper"), method).mean() for method in OTHERS[:2]]
    sentence = "drift from the reference model by # to # % (SPTNet: # %) instead of # to # %"
    close(said("study.md", sentence), 100 * np.array([*ends(ours[:-1]), ours[-1], *ends(base)]), 0)
    removed = [STUDY("eep_share", "EEP", problem).mean() for problem in ALL]
    sentence = "EEP alone removes # to # % of the unlabelled gradient"
    close(said("study.md", sentence), 100 * np.array(ends(removed)), 1)
    assert max(abs(STUDY.difference("all", "EEP", problem).mean()) for problem in ALL) < 1
    shares = (
        (STUDY("eep_share", arm, problem).mean() for arm in ("whitened EAGC", "EAGC")) for problem in ALL
    )
    assert min(ratios := [more / less for more, less in shares]) >= 2 and max(ratios) <= 4


def test_what_null_runs_move():
    def moved(score, problems, method="simgcd"):
        return max(abs(STUDY.difference(score, "null", problem, method)).max() for problem in problems)

    paper, release = ([p for p in ALL if p[1] == recipe] for recipe in ("paper", "release"))
    assert max(moved("old", paper), *(moved("old", [(10, "paper")], m) for m in ("legogcd", "sptnet"))) < 1e-9
    sentence = "moved it by up to # points under `release`, and by up to # by SelEx"
    selex = [moved(score, [(10, "paper")], "selex") for score in ("old", "all")]
    close(said("study.md", sentence), [moved("old", release), selex[0]], 1)
    close(
        said("study.md", "All moved by up to #, # and #"),
        [moved("all", paper), moved("all", release), selex[1]],
        1,
    )


def test_the_price_in_images():
    """By the tables of names, whose values by run were not kept."""
    ratios = {}
    for folder in ("docs", "docs/confirmation"):
        text = (ROOT / folder / "evidence.md").read_text(encoding="utf-8")
        for section in re.split(r"^## ", text, flags=re.M):
            found = re.match(r"(5|10) known of 60 classes, recipe \w+\n", section)
            row = re.search(
                r"^\| EAGC \| [\d.]+ ± [\d.]+ \| (\S+) \(.*? ± [\d.]+ \| (\S+) \(.*\|$", section, re.M
            )
            if found and row:
                known = int(found[1])
                kept, taken = float(row[1]) * 15 * known, float(row[2]) * 30 * (60 - known)
                ratios.setdefault(folder, []).append(taken / kept)
    assert [len(ratios[folder]) for folder in ratios] == [4, 4]
    close(said("study.md", "that it keeps, # to # more novel images"), ends(ratios["docs/confirmation"]), 1)
    close(said("study.md", "In the first study it was # to #."), ends(ratios["docs"]), 1)


def test_what_a_refit_changes():
    text = (ROOT / "docs/evidence.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (conceptor|whitened) \| (end|refitted) \| ([\d.]+) ± ", text, re.M)
    auc = [float(value) for *_, value in rows]
    pairs = [(name, *auc[i : i + 2]) for i, (name, stage, _) in enumerate(rows) if stage == "end"]
    assert len(pairs) == 24  # ten problems of SimGCD, and two other methods
    (most,) = said("study.md", "(AUC within #)")
    assert max(abs(end - again) for name, end, again in pairs if name == "conceptor") < most
    lost = sorted(pairs, key=lambda pair: pair[2] - pair[1])[:2]
    sentence = "from # to # with 50 of 100, from # to # with 100 of 200"
    close(said("study.md", sentence), [*lost[1][1:], *lost[0][1:]], 2)


def test_cifar10():
    problem = (5, "paper")
    lost = CIFAR.difference("all", "EAGC", problem)
    close(said("study.md", "EAGC lowered All by # points"), [-lost.mean()], 1)
    assert lost.max() < 0
    for arm in ("AGA", "EEP", "EAGC", "whitened EAGC"):
        row = re.search(rf"\| {arm} \| [\d.]+ \|.*?\) \| [\d.]+ \| (.+?) \| (.+?) \|", page("cifar10.md"))
        for text, share in zip(row.groups(), ("eep_share", "aga_share"), strict=True):
            if text != "-":
                close([float(text.strip(" %"))], [100 * CIFAR(share, arm, problem).mean()], 0)


def test_the_probe_beside_runs():
    rows = re.findall(
        r"^\| (glyphs|CIFAR-10) \| (\d+) \| \d+ \| .*? \| ([\d.]+) % \| (\d+) % \| (\d+) % \| (\d+) % \|$",
        (ROOT / "docs/probe.md").read_text(encoding="utf-8"),
        re.M,
    )
    assert len(rows) == 6
    release = [STUDY("aga_share", "EAGC", problem).mean() for problem in ALL if problem[1] == "release"]
    sentence = "share was #, #, #, # and # % with 5 to 100 known classes"
    close(said("probe.md", sentence), 100 * np.array(release), 0)
    others = [STUDY("aga_share", "EAGC", (10, "paper"), method).mean() for method in OTHERS]
    close(said("probe.md", "(10 known, `paper`), with #, # and # %"), 100 * np.array(others), 0)
    estimates = {(data, int(known)): float(aga) / 100 for data, known, _, aga, *_ in rows}
    ratios = [ran / estimates["glyphs", n] for ran, n in zip(release, (5, 10, 20, 50, 100), strict=True)]
    ratios += [ran / estimates["glyphs", 10] for ran in others]
    off = [max(ratio, 1 / ratio) for ratio in ratios]
    close(said("probe.md", "was off by a factor of up to #."), [max(off)], 1)
    for data, known, eep, _, *others in rows:
        runs, problem = (STUDY if data == "glyphs" else CIFAR), (int(known), "paper")
        close([float(eep)], [100 * runs("eep_share", "EAGC", problem).mean()], eep.count("."))
        close(
            [float(x) for x in others],
            [100 * runs(name, "EAGC", problem).mean() for name in ("aga_share", "drift")],
            0,
        )


def test_the_probe_does_not_predict_all():
    """Its AUC falls with the number of known classes, so that both have one correlation but for the sign."""
    shown = dict(
        re.findall(r"\| EAGC \| simgcd \| (\d+) \| \d+ \| paper \| \d+ \| ([\d.]+) \|", page("evidence.md"))
    )
    auc = [float(shown[str(known)]) for known, _ in ALL]
    for score, sentence in (("all", "(Spearman #)"), ("old", "With Old it has one (#)")):
        gains = [STUDY.difference(score, "EAGC", problem).mean() for problem in ALL]
        close(said("probe.md", sentence), [spearmanr(auc, gains).statistic], 2)
        assert spearmanr([known for known, _ in ALL], gains).statistic == pytest.approx(
            -spearmanr(auc, gains).statistic
        )


def test_the_trials_of_other_coordinators():
    """Every row of the table, and that what the rule asks for is confirmed or does not exist."""
    with (ROOT / "docs/coordinator/trials.csv").open(encoding="utf-8") as lines:
        runs = list(csv.DictReader(lines))
    scores = ("all", "old", "new")
    found = {
        variant: np.array([[float(run[s]) for s in scores] for run in runs if run["variant"] == variant])
        for variant in dict.fromkeys(run["variant"] for run in runs)
    }
    assert {len(values) for values in found.values()} == {3}
    assert [run["draw"] for run in runs] == ["0", "1", "2"] * len(found)
    rows = re.findall(
        r"^\| ([^|]+) \| ([\d.]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$",
        (ROOT / "docs/coordinator.md").read_text(encoding="utf-8"),
        re.M,
    )
    assert [name for name, *_ in rows] == list(found)
    plain, eagc, *_ = found
    passed = []
    for name, of_all, *cells in rows:
        close([float(of_all)], [found[name][:, 0].mean()], 1)
        for base, by_draw, beside in zip((plain, eagc), cells[:2], cells[2:], strict=True):
            more = found[name] - found[base]
            if name != base:
                numbers = [float(x) for x in re.findall(r"[+-]?\d+\.\d", f"{by_draw} {beside}")]
                close(numbers, [more[:, 0].mean(), *more[:, 0], *more[:, 1:].mean(0)], 1)
        above = [(found[name] - found[base])[:, 0] for base in (plain, eagc)]
        if all(more.mean() >= 1 and more.min() > 0 for more in above):
            passed.append(name)
    assert passed == []  # the page says so
    above = {name: (values - found[eagc])[:, 0] for name, values in found.items()}
    numbers = said("coordinator.md", "EAGC itself is # to # points from the recipe without the operator")
    close(numbers, ends(-above[plain]), 1)
    assert all((values - found[plain])[1, 0] < 0 for name, values in found.items() if name != plain)
    better = [f"{name} ({more.mean():+.1f})" for name, more in above.items() if more.min() > 0]
    assert f"In every draw above EAGC are {', '.join(better)}." in page("coordinator.md")
    nearest = found[rows[2][0]]
    sentence = (
        "All # above the recipe without the operator and # above EAGC in the mean, Old # and #, but All # in"
    )
    by_base = [nearest - found[base] for base in (plain, eagc)]
    values = [more.mean(0)[i] for i in (0, 1) for more in by_base]
    close(said("coordinator.md", sentence), [*values, by_base[0][:, 0].min()], 1)
