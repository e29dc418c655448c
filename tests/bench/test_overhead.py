"""The overhead table on a small ViT: all tables, the spread of every figure, the bars."""

import json

import pytest
import torch
from records import records

from eagc_ops import EAGC
from eagc_ops.bench import gpu, operator, tables
from eagc_ops.bench.epochs import epoch_rows, first_images, first_of
from eagc_ops.bench.measure import Spread
from eagc_ops.bench.overhead import PAPER, bars, overhead
from eagc_ops.bench.pictures import draw_overhead
from eagc_ops.bench.results_file import load, save
from eagc_ops.bench.steps import OURS, VARIANTS, Step, make_setting
from eagc_ops.training.data import open_data, train_loader


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "DIMS", (24,))  # the conceptors of D = 768 and 1024 take seconds
        return overhead("vit_tiny_patch16_224", 8, torch.device("cpu"), 2, images=8, image_size=32)


def test_every_variant_has_time_memory_and_its_ratios(results):
    assert [row["variant"] for row in results["steps"]] == [variant.name for variant in VARIANTS]
    for row in results["steps"]:
        spreads = [row[name] for name in ("step_seconds", "ratio_to_baseline", "ratio_to_released")]
        spreads += [row["add_on_seconds"], row["add_on_share"]] if row["baseline"] else []
        assert all(isinstance(s, Spread) and 0 < s.low <= s.median <= s.high for s in spreads)
        memory = row["memory"]
        assert (
            memory["kept"] == memory["parameters"] + memory["optimizer"] + memory["saved"] <= memory["peak"]
        )
    by_name = {row["variant"]: row for row in results["steps"]}
    ours, base = by_name[OURS], by_name[by_name[OURS]["baseline"]]
    assert ours["peak_to_baseline"] == ours["memory"]["peak"] / base["memory"]["peak"] > 1


def test_real_images_take_the_place_of_noise():
    """A real data set has its own channels and classes; the small set of the epochs keeps its order."""
    data = open_data("digits", image_size=32)
    small = first_of(data, 6)
    assert small.labelled.uq_idx.tolist() == data.labelled.uq_idx[:3].tolist() and len(small.merged) == 6
    pixels = first_images(train_loader(data, batch_size=4, seed=0).epoch(0), 8)
    assert pixels.shape == (8, 1, 32, 32) and not torch.equal(pixels[0], pixels[4])  # two views of an image
    setting = make_setting(
        "vit_tiny_patch16_224", 8, "cpu", pixels, 32, data.channels, data.known, data.known + data.novel
    )
    rows = epoch_rows(setting, small, batch_size=2, rounds=1)
    assert [row["images_drawn"] for row in rows] == [6, 6, 6]


def test_steps_under_autocast_and_their_trace(tmp_path, monkeypatch):
    """The operator sees autocast in the step and in the add-on, so on a GPU it multiplies in TF32."""
    seen, inputs = [], EAGC._inputs

    def noting(eagc, *args):
        seen.append(eagc.execution.autocast)
        return inputs(eagc, *args)

    monkeypatch.setattr(EAGC, "_inputs", noting)
    for precision in ("no", "bf16"):
        seen.clear()
        setting = make_setting("vit_tiny_patch16_224", 4, "cpu", image_size=32, precision=precision)
        step = Step(setting, VARIANTS[-1])
        gpu.write_trace(tmp_path / "t.json", {OURS: step, "add-on": step.add_on()}, calls=1)
        assert seen == [precision == "bf16"] * 4
        names = [event["name"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]]
        assert names.count(OURS) == names.count("add-on") == 1


def test_evaluation_issues_the_same_operations(results):
    base, ours = results["evaluation"]
    assert base["aten_ops"] == ours["aten_ops"] > 50


def test_epochs_see_every_image_as_often(results):
    assert [row["way"] for row in results["epochs"]] == ["as released", "here", "here, trunk cache"]
    assert {row["images_drawn"] for row in results["epochs"]} == {8}
    assert (
        results["epochs"][2]["cache_bytes"] == 8 * 3 * 5 * 192 * 4
    )  # images, two views and the test view, tokens, D, fp32
    assert [row["labelled_images"] for row in results["reference"]] == [4, 4, 4]


def test_the_share_of_loading_is_that_of_the_epoch(results):
    for row in results["epochs"]:
        assert 0 < row["loading_share"].low <= row["loading_share"].high < 1
        assert row["loading_seconds"].median < row["seconds"].median
    # The published way decodes and resizes in every epoch
    published, here, tokens = (row["loading_seconds"].median for row in results["epochs"])
    assert min(published / here, published / tokens) > 2
    shown = records(tables.epochs(results["epochs"]))
    assert all("%" in line["of it loading"] for line in shown)
    older = [{key: value for key, value in row.items() if "loading" not in key} for row in results["epochs"]]
    assert "of it loading" not in records(tables.epochs(older))[0]


def test_only_this_machine_is_called_measured(results):
    for name in ("steps", "evaluation", "epochs", "reference"):
        assert {row["kind"] for row in results[name]} == {"measured"}
    assert {row["kind"] for row in results["paper"]} == {"paper, A100"}
    assert "not measured here" in tables.paper(results["paper"]).markdown()
    assert "computed" in tables.reference_model(results["reference"]).markdown()


def test_the_papers_ratios():
    """14.1 % and 33 % more time, as its text says."""
    cells = [line["epoch s (ratio)"] for line in records(tables.paper(PAPER))]
    assert cells == ["55.9 (1.00)", "63.8 (1.14)", "947.7 (1.00)", "1262.2 (1.33)"]


def test_bars_judge_the_median(results):
    steps = [{**row} for row in results["steps"]]
    ours = next(row for row in steps if row["variant"] == OURS)
    good = {
        "add_on_share": Spread(0.004, 0.001, 0.02),
        "peak_to_baseline": 1.04,
        "kept_to_baseline": 1.05,
        "ratio_to_released": Spread(0.9, 0.8, 1.1),
        "peak_to_released": 0.79,
        "kept_to_released": 0.7,
    }
    epochs = [{**row, "speed_up": Spread(6.0, 5.0, 7.0)} for row in results["epochs"]]
    ours.update(good)
    assert all(bar["met"] for bar in bars({"steps": steps, "epochs": epochs}))
    for name, bad in (
        ("add_on_share", Spread(0.016, 0, 1)),
        ("peak_to_baseline", 1.06),
        ("peak_to_released", 0.81),
        ("kept_to_baseline", 1.06),
        ("kept_to_released", 0.81),
        ("ratio_to_released", Spread(0.93, 0, 1)),
    ):
        ours.update({**good, name: bad})
        assert [bar["met"] for bar in bars({"steps": steps, "epochs": epochs})].count(False) == 1, name
    ours.update(good)
    epochs[2]["speed_up"] = Spread(5.9, 1, 9)
    assert not bars({"steps": steps, "epochs": epochs})[-1]["met"]


def test_results_survive_the_file_and_the_tables_are_the_same(results, tmp_path):
    save(tmp_path / "o.json", "overhead", results)
    again = load(tmp_path / "o.json")
    for name, table in (
        ("steps", tables.steps),
        ("steps", tables.memory),
        ("epochs", tables.epochs),
        ("reference", tables.reference_model),
        ("evaluation", tables.evaluation),
        ("bars", tables.bars),
    ):
        assert table(again[name]) == table(results[name])
    assert json.loads((tmp_path / "o.json").read_text())["steps"][0]["step_seconds"].keys() == {
        "median",
        "low",
        "high",
    }


def test_the_picture_says_what_it_shows(results, tmp_path):
    draw_overhead(tmp_path / "o.svg", results)
    text = (tmp_path / "o.svg").read_text()
    assert "MEASURED" in text and all(variant.name in text for variant in VARIANTS)
