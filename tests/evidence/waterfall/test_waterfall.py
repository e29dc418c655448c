"""The waterfall: the draws of its replicates, the order of its runs, and what its page says."""

import csv
import json
import shutil

import numpy as np
import pytest
from commands import call
from photographs import write_photographs
from run_facts import some_facts

from eagc_ops.evidence.waterfall.arms import ARMS, EAGC, OWN, RATES, STEPS, WARM
from eagc_ops.evidence.waterfall.page import write_page
from eagc_ops.evidence.waterfall.plan import GLYPHS, Plan, begin, drawn_split
from eagc_ops.training.config import ConfigError
from eagc_ops.training.data.image_files import read_list
from eagc_ops.training.engine.run_folder import RunFolder

NAMES = [f"class{i:03}" for i in range(200)]


@pytest.fixture
def plan(tmp_path):
    return Plan(tmp_path / "out", GLYPHS[:1])


def finish(plan, arm, replicate, points):
    """Write a run of the plan that ended with `points` percent of All, and 2 less of own names."""
    run = plan.run(plan.problems[0], ARMS[arm], replicate)
    folder = RunFolder.create(run.folder, run.config, some_facts()).path
    scores = {"epoch": run.config.epochs - 1, "all": points / 100, "old": points / 100, "new": points / 100}
    line = {"kind": "epoch", **scores, "name_own": points / 100 - 0.02, "seconds": 1.0, "steps": 1}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    result = {"headline": "last", "last": scores, "best": scores, "warnings": []}
    (folder / "result.json").write_text(json.dumps(result))


def rows(plan, begin):
    """The cells of the page's table lines that begin so."""
    text = write_page(plan).read_text(encoding="utf-8")
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(f"| {begin}")]


def test_a_replicate_has_classes_known_classes_and_labels_of_its_own():
    few, more = (drawn_split(NAMES, known, 60, replicate=3) for known in (5, 20))
    assert few["known_classes"] == more["known_classes"][:5]
    assert {*few["known_classes"], *few["novel_classes"]} == {*more["known_classes"], *more["novel_classes"]}
    assert len({*few["known_classes"], *few["novel_classes"]}) == 60
    others = [drawn_split(NAMES, 5, 60, replicate) for replicate in range(12)]
    assert len({tuple(other["known_classes"]) for other in others}) == 12
    assert [other["labelled_draw"] for other in others] == list(range(12))


def test_the_main_comparison_is_trained_first_and_all_arms_share_the_split(plan):
    runs = plan.runs()
    assert [run.arm.name for run in runs[:24]] == [WARM, EAGC] * 12
    assert [run.replicate for run in runs[:24]] == [i // 2 for i in range(24)]
    for replicate in range(12):
        own = [run.config for run in runs if run.replicate == replicate]
        assert len({config.split_file for config in own}) == 1
        assert {config.seed for config in own} == {replicate}
    longer = next(run.config for run in runs if run.arm.name == "own recipe, longer")
    assert longer.epochs == runs[0].config.epochs + longer.reference_epochs


def test_every_step_switches_one_thing(plan):
    """A rate of the head, a start, a strength, a head: the settings that differ, and no others."""
    allowed = {
        "head rate 1.0": {"preset", "head_lr"},
        "warm start": {"warm_start"},
        "AGA": {"eagc", "lambda_p"},
        "EEP after AGA": {"lambda_p"},
        "EEP": {"eagc", "lambda_a"},
        "AGA after EEP": {"lambda_a"},
        "MLP head": {"mlp_head_layers"},
    }
    for name, base, of in STEPS:
        before, after = (plan.run(plan.problems[0], ARMS[arm], 0).config.recipe() for arm in (base, of))
        assert {key for key in after if before[key] != after[key]} == allowed[name], name


def test_images_of_ones_own_that_cannot_be_read_are_listed_first(tmp_path, capsys):
    write_photographs(tmp_path / "photos")
    images, out = tmp_path / "photos" / "labelled", tmp_path / "out"
    broken = next(images.rglob("*.*"))
    broken.write_bytes(broken.read_bytes()[:60])
    tiny = "--backbone vit_digits --weights random --batch-size 4 --skip-unreadable --dry-run"
    assert call(capsys, "waterfall", "--root", str(images), "-o", str(out), *tiny.split())[0] == 0
    assert list(read_list(out / "unreadable.json")) == [str(broken.relative_to(images))]


def test_another_design_is_refused(plan, tmp_path):
    begin(plan, NAMES)
    before = {file.name: file.read_text() for file in (plan.output / "splits").iterdir()}
    begin(plan, NAMES)
    assert before == {file.name: file.read_text() for file in (plan.output / "splits").iterdir()}
    with pytest.raises(ConfigError, match="holds runs of another design"):
        begin(Plan(plan.output, GLYPHS[:2]), NAMES)


def test_runs_of_another_machine_count_by_their_table_alone(plan, tmp_path):
    """The table and the design are copied. What is trained here enters too, and replaces its row."""
    begin(plan, NAMES)
    finish(plan, WARM, 0, 80)
    finish(plan, EAGC, 0, 81)
    write_page(plan)
    other = Plan(tmp_path / "other", plan.problems)
    other.output.mkdir()
    shutil.copy(plan.output / "runs.csv", other.output)
    with pytest.raises(ConfigError, match=r"copy their waterfall\.json too"):
        begin(other, NAMES)
    shutil.copy(plan.output / "waterfall.json", other.output)
    begin(other, NAMES)
    assert {run.folder.name for run in other.runs()} - {
        run.folder.name for run in other.here(other.runs())
    } == {
        "10of60-warm-start-0",
        "10of60-EAGC-0",
    }
    finish(other, WARM, 1, 82)
    finish(other, EAGC, 0, 84)
    ((_, replicates, difference, *_),) = rows(other, "**EAGC** ")
    assert (replicates, difference) == ("1 of 12", "+4.00")
    both = list(csv.DictReader((other.output / "runs.csv").open()))
    assert {row["run"]: float(row["all"]) for row in both} == {
        "10of60-warm-start-0": 80,
        "10of60-EAGC-0": 84,
        "10of60-warm-start-1": 82,
    }
    assert write_page(other).read_text().startswith("# Where do the points come from?\n\n3 of ")


def test_a_table_that_was_cut_off_is_refused(plan):
    begin(plan, NAMES)
    finish(plan, WARM, 0, 80)
    write_page(plan)
    table = plan.output / "runs.csv"
    table.write_text(table.read_text()[:-20])
    with pytest.raises(ConfigError, match=r"runs\.csv is damaged: its line of 10of60-warm-start-0"):
        write_page(plan)


def test_there_is_no_p_value_before_a_comparison_is_complete(plan):
    random = np.random.default_rng(0)
    points = random.normal(70, 3, 12)
    gains = random.normal(2, 1, 12)
    for replicate in range(11):
        finish(plan, WARM, replicate, points[replicate])
        finish(plan, EAGC, replicate, points[replicate] + gains[replicate])
    finish(plan, WARM, 11, points[11])
    ((_, replicates, difference, *_, p),) = rows(plan, "**EAGC** |")
    assert (replicates, p) == ("11 of 12", "-")
    assert difference.startswith(f"{gains[:11].mean():+.2f} (")
    finish(plan, EAGC, 11, points[11] + gains[11])
    ((_, replicates, difference, own_name, *_, p),) = rows(plan, "**EAGC** |")
    assert replicates == "12" and difference == own_name
    flips = 1 - 2 * ((np.arange(2**12)[:, None] >> np.arange(12)) & 1)
    expected = np.mean(np.abs(flips @ gains) >= abs(gains.sum()) - 1e-9)
    assert float(p) == pytest.approx(expected, abs=5e-4)
    with (plan.output / "runs.csv").open() as lines:
        table = {(row["recipe"], int(row["replicate"])): float(row["all"]) for row in csv.DictReader(lines)}
    assert table == pytest.approx(
        {(WARM, r): x for r, x in enumerate(points)} | {(EAGC, r): x for r, x in enumerate(points + gains)}
    )


def test_the_second_comparison_is_with_the_best_of_the_three_rates(plan):
    for replicate in range(2):
        for arm, points in {WARM: 70, RATES[1]: 73, RATES[2]: 71, EAGC: 72.5}.items():
            if (arm, replicate) != (RATES[2], 1):
                finish(plan, arm, replicate, points + replicate)
    assert rows(plan, "**EAGC, against") == []  # a rate is not finished
    finish(plan, RATES[2], 1, 72)
    ((name, replicates, difference, *_),) = rows(plan, "**EAGC, against")
    assert name.endswith(f"({RATES[1]})")
    assert (replicates, difference) == ("2 of 12", "-0.50 (-0.5 to -0.5)")


def test_the_picture_comes_with_the_first_replicate_that_has_all_steps(plan):
    arms = dict.fromkeys(arm for _, *pair in STEPS for arm in pair if arm != "EAGC, MLP head")
    begin(plan, NAMES)
    for place, arm in enumerate(arms):
        assert "figures/" not in write_page(plan).read_text(encoding="utf-8")
        finish(plan, arm, 0, 60 + place)
    text = write_page(plan).read_text(encoding="utf-8")
    assert "means over 1 replicate, with what a switch adds" in text
    figure = (plan.output / "figures/waterfall-10of60.svg").read_text(encoding="utf-8")
    assert figure.startswith("<svg") and OWN in text
