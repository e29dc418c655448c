"""The study: its plan and test on recorded numbers, and the whole of it on a few images."""

import csv
import itertools
import json
import math
import os
import shutil
from dataclasses import replace

import pytest
import small_runs
import torch

from eagc_ops.evidence import sets
from eagc_ops.evidence.comparisons import bootstrap_interval, holm
from eagc_ops.evidence.studies import evidence
from eagc_ops.evidence.studies import study as module
from eagc_ops.evidence.studies.earlier import Earlier, earlier_part
from eagc_ops.evidence.studies.evidence import compare, decision, write_evidence
from eagc_ops.evidence.studies.numbers import COLUMNS, RunNumbers
from eagc_ops.evidence.studies.plan import study_plan
from eagc_ops.evidence.studies.questions import HELPS, KEEPS
from eagc_ops.evidence.studies.running import run_study
from eagc_ops.evidence.studies.study import ARMS, CONFIRMED, REGIMES, Cell, Study, check_study
from eagc_ops.training.config import ConfigError, Glyphs
from eagc_ops.training.data.glyphs import drawn_glyphs
from eagc_ops.training.report.measures import signed
from eagc_ops.training.runs import trained

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")


def recorded(eagc, null=0.3):
    """Ten seeds of every arm: All of EAGC is that of the baseline plus `eagc`, of null runs plus or minus."""
    base = [60.0 + 3 * math.sin(seed) for seed in range(10)]
    more = {"baseline": [0.0] * 10, "null": [null, -null / 2] * 5, "AGA": [0.1] * 10, "EEP": [0.0] * 10}
    more |= {"EAGC": eagc, "whitened EAGC": eagc}
    return {arm: [{"all": b + d} for b, d in zip(base, more[arm])] for arm in ARMS}


def test_the_decision_is_the_registered_one():
    steady = [1.0 + 0.1 * seed for seed in range(10)]
    found = compare(recorded(steady), "EAGC")
    assert found.paired.mean == pytest.approx(1.45)
    assert found.floor == pytest.approx(0.3)
    assert found.paired.p == pytest.approx(2 / 2**10)
    assert 1.2 < found.low < 1.45 < found.high < 1.7
    assert decision(found, 15 * found.paired.p, 15) == "a gain"
    assert decision(compare(recorded([-x for x in steady]), "EAGC"), 0.02, 15) == "a loss"
    assert decision(found, 0.051, 15) == "nothing shown"
    assert decision(compare(recorded(steady, null=1.6), "EAGC"), 0.02, 15) == "below the noise floor"
    assert decision(found, 0.06, 26) == "too few seeds to decide"  # 26 x 2 / 2^10 is above 0.05
    few = {arm: values[:5] for arm, values in recorded(steady).items()}
    assert decision(compare(few, "EAGC"), 0.01, 1) == "too few seeds to decide"


def test_holm_by_its_definition():
    p_values = [0.004, 0.2, 0.03, 0.02, 0.9]
    adjusted = holm(p_values)
    # An adjusted p-value is the level at which the closed test rejects: the largest Bonferroni p-value of
    # all sets of hypotheses that contain it.
    for i, _ in enumerate(p_values):
        sets = [
            chosen for size in range(1, 6) for chosen in itertools.combinations(range(5), size) if i in chosen
        ]
        closed = max(min(1.0, len(chosen) * min(p_values[j] for j in chosen)) for chosen in sets)
        assert adjusted[i] == pytest.approx(closed)
    with_gap = holm([0.01, math.nan, math.nan])
    assert with_gap[0] == pytest.approx(0.03)  # planned comparisons count
    assert math.isnan(with_gap[1])


def test_the_bootstrap_interval_is_that_of_all_resamples():
    differences = [0.0, 1.0, 5.0]
    means = sorted(sum(chosen) / 3 for chosen in itertools.product(differences, repeat=3))
    low, high = bootstrap_interval(differences)
    assert (low, high) == pytest.approx((means[0], means[-1]))  # 1 of 27 is more than 2.5 %
    six = [-1.0, 0.5, 0.25, 2.0, -0.75, 1.5]
    means = sorted(sum(chosen) / 6 for chosen in itertools.product(six, repeat=6))
    ends = means[math.ceil(0.025 * 6**6) - 1], means[math.ceil(0.975 * 6**6) - 1]
    assert bootstrap_interval(six) == pytest.approx(ends)
    assert all(math.isnan(end) for end in bootstrap_interval([1.0]))


def test_a_study_from_its_plan_to_its_evidence(study, capsys, monkeypatch):
    assert "no time: the first run gives it" in study_plan(study, earlier_part(study))
    first, _, of_other = study.cells
    said = []
    assert run_study(study, [first], 1, said.append) == 0
    assert said[0] == "3 known of 5 classes, recipe paper: 12 runs, 0 of them finished before"
    assert said[1].startswith("     1 of 1: 3of5-paper-baseline-seed0")
    assert "30 runs, 1 finished; left: about " in said[2]  # the plan again, now with a time
    assert len(said) == 2 + 1 + 11 + 2
    text = (study.output / "evidence.md").read_text()

    assert text.startswith("# When does EAGC help?\n")
    for sentence in HELPS.text:
        assert sentence in text
    assert "2 of 5 planned comparisons are complete: too few seeds to decide (2)." in text
    rows = {
        tuple(line.split(" | ")[1:4]): line.split(" | ")
        for line in text.splitlines()
        if line.startswith("| EAGC | ")
    }
    difference, interval, floor = rows["small", "3", "5"][7:10]
    assert rows["small", "3", "5"][12] == "too few seeds to decide"
    assert said[-2] == (
        f"EAGC - baseline, 3 known of 5 classes, recipe paper: All {difference} points ({interval}), "
        f"noise floor {floor}: too few seeds to decide"
    )
    assert said[-1].startswith("whitened EAGC - baseline, 3 known of 5 classes")
    assert rows["small", "4", "6"][12] == rows["small_legogcd", "3", "5"][12] == "not complete"
    assert 0 <= float(rows["small", "3", "5"][6]) <= 1  # the probe's AUC
    listed = list(csv.DictReader((study.output / "evidence.csv").open()))
    assert [line["run"] for line in listed] == [run.folder.name for run in study.runs()]
    done = [line for line in listed if line["finished"] == "yes"]
    assert [line["run"] for line in done] == [run.folder.name for run in study.runs() if run.cell == first]
    assert {line["all"] for line in listed if line["finished"] == "no"} == {""}
    for line in done:
        assert f" {float(line['all']):.1f} |" in text
        assert line["commit"]
        assert float(line["drift"]) > 0
        assert (line["eep_share"] == "") == (line["arm"] == "baseline")
        assert (line["arm"] in ("AGA", "baseline")) == (float(line["eep_share"] or 0) == 0)
        assert line["arm"] not in ("EEP", "baseline") or float(line["aga_share"] or 0) == 0
    measured = [json.loads(file.read_text()) for file in sorted((study.output / "energies").iterdir())]
    assert len(measured) == 2  # the seeds of EAGC
    mean = sum(one[4]["auc"] for one in measured) / 2
    assert (measured[0][4]["energy"], measured[0][4]["stage"]) == ("whitened", "end")
    assert f"| whitened | end | {mean:.3f} ± " in text
    lines = list(csv.DictReader((study.output / "energies.csv").open()))
    assert {line["run"] for line in lines} == {f"3of5-paper-EAGC-seed{seed}" for seed in (0, 1)}
    assert float(lines[4]["auc"]) == measured[0][4]["auc"]
    named = {line["run"]: line for line in done}  # all arms of the first cell
    for run in (run for run in study.runs()[:12] if run.seed == 0):
        experiment = trained(run.folder)
        with torch.no_grad():
            predictions = experiment.student.method.predict(experiment.features)
        y, known = experiment.data.unlabelled.labels, 3
        found = {name: float(named[run.folder.name][name]) for name in ("own_name", "known_name", "clusters")}
        assert found["own_name"] == pytest.approx(100 * (predictions == y)[y < known].double().mean().item())
        share = (predictions < known)[y >= known].double().mean().item()
        assert found["known_name"] == pytest.approx(100 * share)
        assert found["clusters"] == len(predictions.unique())
    own = {
        arm: [float(named[f"3of5-paper-{arm}-seed{seed}"]["own_name"]) for seed in (0, 1)]
        for arm in ("EAGC", "baseline")
    }
    row = next(line for line in text.partition("own name |")[2].splitlines() if line.startswith("| EAGC |"))
    assert row.startswith(f"| EAGC | {sum(own['EAGC']) / 2:.1f} ± ")
    assert f" | {signed((sum(own['EAGC']) - sum(own['baseline'])) / 2, 2)} (" in row
    for figure in ("differences.svg", "forgetting.svg", "curves-3of5-paper.svg"):
        assert f"(figures/{figure})" in text
        assert (study.output / "figures" / figure).read_text().startswith("<svg")

    corrected = []
    with monkeypatch.context() as patch:
        patch.setattr(module, "LEVEL", 0.6)  # as if two seeds could decide
        patch.setattr(evidence, "holm", lambda p: corrected.extend(p) or [0.123, *[math.nan] * 4])
        assert ", corrected p 0.123: " in write_evidence(study)[0]
    assert corrected[0] == pytest.approx(float(rows["small", "3", "5"][10]), abs=1e-3)
    assert not math.isnan(corrected[1])
    assert all(map(math.isnan, corrected[2:])) and len(corrected) == 5  # those that are not complete count
    assert " | 0.123 | " in (study.output / "evidence.md").read_text()
    write_evidence(study)
    assert (study.output / "evidence.md").read_text() == text  # two seeds cannot: not corrected, no decision

    configs = {run.arm: run.config for run in study.runs() if run.seed == 0 and run.cell == first}
    assert {arm: (c.eagc, c.lambda_a, c.lambda_p) for arm, c in configs.items()} == {
        "baseline": (False, 0.7, 0.5),
        "null": (True, 1e-4, 1e-4),
        "AGA": (True, 0.7, 0.0),
        "EEP": (True, 0.0, 0.5),
        "EAGC": (True, 0.7, 0.5),
        "whitened EAGC": (True, 0.7, 0.5),
    }
    assert [arm for arm, config in configs.items() if config.energy == "whitened"] == ["whitened EAGC"]
    assert all(config.warm_start for config in configs.values())  # the same start
    assert len(list((study.output / "runs" / "references").glob("reference-*.safetensors"))) == 2  # by seed

    # A second command goes on: a killed run is trained again, the others are not.
    run = study.runs()[3].folder
    before = {file: os.stat(file).st_mtime_ns for file in study.output.glob("runs/*/result.json")}
    shutil.rmtree(run)
    write_evidence(study)
    assert "0 of 5 planned comparisons are complete." in (study.output / "evidence.md").read_text()
    said.clear()
    assert run_study(study, [first], 1, said.append) == 0
    assert said[0] == "3 known of 5 classes, recipe paper: 12 runs, 11 of them finished before"
    changed = [file for file, time in before.items() if os.stat(file).st_mtime_ns != time]
    assert [file.parent for file in changed] == [run]
    assert (study.output / "evidence.md").read_text() == text
    assert "30 runs, 12 finished; left: about " in study_plan(study, earlier_part(study))

    # A finished run whose weights cannot be read is counted and named; the evidence of the others is written.
    full = next(run for run in study.runs() if run.arm == "EAGC")
    file, weights = study.late_file(full), full.folder / "last.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:100])
    file.unlink()
    said.clear()
    assert run_study(study, [first], 1, said.append) == 1
    named = f"{full.folder.name} could not be measured: CheckpointError: "
    assert [line for line in said if line.startswith(named)]
    assert "| whitened | end |" not in (study.output / "evidence.md").read_text()
    weights.write_bytes(content)
    assert run_study(study, [first], 1, said.append) == 0
    assert (study.output / "evidence.md").read_text() == text

    # Another method has three arms.
    assert run_study(study, [of_other], 1, said.append) == 0
    text = (study.output / "evidence.md").read_text()
    assert "3 of 5 planned comparisons are complete" in text
    assert "## 3 known of 5 classes, recipe paper, small_legogcd" in text
    assert sorted(folder.name for folder in study.output.glob("runs/*legogcd*")) == sorted(
        f"3of5-paper-small_legogcd-{arm}-seed{seed}"
        for arm in ("baseline", "null", "EAGC")
        for seed in (0, 1)
    )

    # A run that fails is counted, listed and tried again.
    def fail(job):
        raise FloatingPointError("the loss is not finite")

    monkeypatch.setattr(sets, "run_job", fail)
    shutil.rmtree(run)
    assert run_study(study, [first], 1, said.append) == 1
    assert "FAILED: the loss is not finite" in capsys.readouterr().err
    assert "| 3of5-paper | EEP | - | " in (study.output / "evidence.md").read_text()


def test_a_second_study_asks_again_what_the_first_one_found(study):
    """Old decides, of other seeds, and only the arms that it takes are trained."""
    regime = replace(study.regimes[0], first_seed=10, arms=("baseline", "null", "EAGC"))
    second = replace(study, regimes=(regime,), others=(), question=KEEPS)
    said = []
    assert run_study(second, second.cells, 1, said.append) == 0
    page = (second.output / "evidence.md").read_text()
    assert page.startswith("# Does EAGC keep the known classes?\n")
    assert all(sentence in page for sentence in KEEPS.text)
    with (second.output / "evidence.csv").open() as lines:
        runs = {(line["arm"], line["seed"]): line for line in csv.DictReader(lines)}
    assert set(runs) == {(arm, seed) for arm in regime.arms for seed in ("10", "11")}
    old = {arm: [float(runs[arm, seed]["old"]) for seed in ("10", "11")] for arm in regime.arms}
    mean = sum(old["EAGC"]) / 2 - sum(old["baseline"]) / 2
    floor = max(abs(a - b) for a, b in zip(old["null"], old["baseline"]))
    assert f"recipe paper: Old {signed(mean, 2)} points (" in said[-1]
    assert f"noise floor {floor:.2f}" in said[-1]
    (row,) = [line.split(" | ") for line in page.splitlines() if line.startswith("| EAGC | small |")]
    assert (row[7], row[9]) == (signed(mean, 2), f"{floor:.2f}")
    assert "|  | arm | seed 10 | seed 11 |" in page
    assert f"| 3of5-paper | EAGC | {old['EAGC'][0]:.1f} | {old['EAGC'][1]:.1f} |" in page
    with pytest.raises(ConfigError, match="holds a study with other data"):
        check_study(replace(second, question=HELPS))


def test_the_outcome_that_is_asked_for_decides(study, monkeypatch):
    """All falls and Old rises: a gain for the question of Old, a loss for that of All."""
    cell = study.cells[0]._replace(
        regime=replace(study.regimes[0], seeds=10, arms=("baseline", "null", "EAGC"))
    )
    second = replace(study, regimes=(cell.regime,), others=())
    values = {"baseline": (60.0, 80.0), "null": (60.0, 80.0), "EAGC": (58.0, 84.0)}
    numbers = {
        run.folder.name: RunNumbers(
            {**dict.fromkeys(COLUMNS, math.nan), "all": all_, "old": old, "new": 50.0, "old_fall": 1.0},
            "commit",
        )
        for run in second.runs()
        for all_, old in [values[run.arm]]
    }
    taken = Earlier(numbers, {cell: f"## {cell}"}, {cell: "<svg>"}, "Written on")
    monkeypatch.setattr(evidence, "earlier_part", lambda study: taken)
    for question, shown in ((HELPS, "All -2.00 points"), (KEEPS, "Old +4.00 points")):
        (line,) = write_evidence(replace(second, question=question))
        assert shown in line
        assert line.endswith({HELPS: "a loss", KEEPS: "a gain"}[question])


def test_the_second_study_has_other_characters_and_seeds():
    first = {character for regime in (5, 10, 20) for character in characters(REGIMES[regime])}
    for regime in CONFIRMED:
        assert len(characters(regime)) == 60
        assert first.isdisjoint(characters(regime))
        assert set(regime.all_seeds).isdisjoint(REGIMES[regime.known].all_seeds)
        assert (regime.classes, regime.seeds) == (60, 10)
    second = Study(small_runs.Path("x"), CONFIRMED, others=(), question=KEEPS)
    assert [(cell.key, arm) for cell, arm in second.tested] == [
        (f"{known}of60-{recipe}", "EAGC") for known in (10, 5) for recipe in ("paper", "release")
    ]
    # But for these, its runs are those of the first study.
    runs = {(run.cell.key, run.arm, run.seed): run.config for run in Study(small_runs.Path("x")).runs()}
    for run in second.runs():
        theirs = runs[run.cell.key, run.arm, run.seed - 10].recipe()
        differing = {name for name, value in run.config.recipe().items() if value != theirs[name]}
        assert differing == {"glyphs", "seed"}


def characters(regime):
    return drawn_glyphs(Glyphs(**regime.settings["glyphs"], per_class=2)).characters


def test_seeds_and_epochs_are_fixed_when_a_study_begins(study):
    module.begin_study(study)
    check_study(study)
    more = replace(study, regimes=[replace(regime, seeds=3) for regime in study.regimes])
    for other in (more, replace(study, settings={"epochs": 2})):
        with pytest.raises(ConfigError, match="holds a study with other data, seeds or epochs"):
            check_study(other)
    (study.output / "study.json").write_text("{")
    with pytest.raises(ConfigError, match=r"study\.json is damaged"):
        check_study(study)


def test_the_regimes_and_recipes_of_the_command():
    regimes = {known: (regime.classes, regime.seeds) for known, regime in module.REGIMES.items()}
    assert regimes == {10: (60, 10), 5: (60, 10), 20: (60, 10), 50: (100, 5), 100: (200, 5)}
    assert json.loads(json.dumps(Study(small_runs.Path("x")).design))["recipes"] == ["paper", "release"]
    study = Study(small_runs.Path("x"))
    assert study.cells[0] == Cell(module.REGIMES[10], "paper", "simgcd")
    assert [cell.key for cell in study.cells[-3:]] == [
        f"10of60-paper-{method}" for method in ("legogcd", "selex", "sptnet")
    ]
    assert len(study.tested) == 3 * 2 * 2 + 3  # three regimes, two recipes, two arms; three methods
    assert module.can_decide(10, len(study.tested))
    assert [cell.method for cell in study.cells if study.starts(cell)] == ["sptnet"]
    starts = [run for run in study.runs() if (run.cell, run.arm) == (study.cells[0], "baseline")]
    assert study.starts(study.cells[-1]) == starts
    begun = {run.config.init for run in study.runs() if run.cell.method == "sptnet" and run.seed == 3}
    assert begun == {f"{starts[3].folder}"}  # the same one for all arms


def test_diagnoses_of_sptnet_see_both_phases(tmp_path):
    config = next(run.config for run in Study(tmp_path).runs() if run.cell.method == "sptnet")
    batches = REGIMES[10].images // config.batch_size
    steps = range(0, config.epochs * batches, config.diagnose.every)
    phases = [
        (step % batches + 1) // config.phase_batches % 2 for step in steps
    ]  # 1: the last block is trained
    assert len(steps) == 8 and phases.count(1) >= 4


def test_runs_with_one_trunk_cache_train_the_same_blocks(tmp_path):
    configs = [run.config for run in Study(tmp_path).runs()]
    trained = {(c.trunk_cache, c.trainable_blocks, c.blocks_of_reference) for c in configs if c.trunk_cache}
    assert len(trained) == len({cache for cache, *_ in trained}) == 6  # five regimes, and SelEx at the first
    assert {c.method for c in configs if not c.trunk_cache} == {"sptnet"}
