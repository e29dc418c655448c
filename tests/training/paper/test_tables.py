"""Tables of the paper: two are really run on digits (a few images, one or two epochs), one of them killed and resumed; all others as plans;
the paper's values against a second reading."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pages
import pytest
from pages import Page
from run_facts import some_facts

from eagc_ops.cli import main
from eagc_ops.training import runs as runs_module
from eagc_ops.training.commands import table as table_cli
from eagc_ops.training.config import Diagnosis
from eagc_ops.training.data import SPECS, ImageSubset, open_data
from eagc_ops.training.engine import experiment
from eagc_ops.training.engine import pretraining as pretrain
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.paper import page as table_page
from eagc_ops.training.paper import tables
from eagc_ops.training.paper.tables import TABLES, configuration, plan
from eagc_ops.training.paper.values import PAPER
from eagc_ops.training.report.page import measures, read_run

SMALL = {"epochs": 2, "reference_epochs": 1, "cache_views": 2, "batch_size": 45}  # 4 steps an epoch


def few_digits():
    data = open_data("digits")

    def part(of):
        return ImageSubset(of.images, of.uq_idx[of.uq_idx < 180].numpy(), np.arange(10))

    return replace(data, labelled=part(data.labelled), unlabelled=part(data.unlabelled))


def make_small(patch):
    """180 images of digits, weak encoders allowed."""
    few = few_digits()
    for module in (table_cli, experiment):
        patch(module, "open_data", lambda *_, **__: few)
    patch(pretrain, "NEEDED", 0.1)
    patch(tables, "DIGITS", SMALL)


@pytest.fixture
def small(monkeypatch):
    make_small(monkeypatch.setattr)


def table(*arguments):
    return main(["table", *map(str, arguments)])


def cells(text):
    """{first cell: its rows as {heading: cell}} of the first Markdown table in a text."""
    block = re.search(r"(?:^\|.*\n?)+", text, re.MULTILINE)[0]
    head, _, *rows = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.splitlines())
    found = {}
    for row in rows:
        found.setdefault(row[0], []).append(dict(zip(head, row, strict=True)))
    return found


def runs_of(home, name):
    """(row key, group) -> the measures of its runs, by seed."""
    found = {}
    for row, group, folder in json.loads((home / name / "runs.json").read_text())["digits"]["runs"]:
        run = read_run(home / "runs" / folder)
        found.setdefault((row, group), {})[run.config.seed] = (run, measures(run))
    return found


DIGITS = "scikit-learn digits"
WITH_SUPPORT = os.environ | {"PYTHONPATH": os.path.dirname(pages.__file__)}  # this file, run as a script


def test_ablation_killed_resumed_and_repeated(tmp_path, capsys, small, monkeypatch):
    options = [
        "ablation",
        "--dataset",
        "digits",
        "-o",
        tmp_path,
        "--seeds",
        "1",
        "--pretrain-epochs",
        "1",
        "--jobs",
        "1",
    ]
    # A process that kills itself in the second epoch of its third run
    killed = subprocess.run(
        [sys.executable, __file__, "22", *map(str, options)], env=WITH_SUPPORT, capture_output=True, text=True
    )
    assert killed.returncode == -9, killed.stderr[-3000:]
    finished = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").glob("*/result.json")}
    assert len(finished) == 2
    assert table(*options, "--dry-run") == 0
    out = capsys.readouterr().out
    assert f"{DIGITS}: 14 runs, 2 finished, 1 begun" in out
    steps = 1797 // 45  # the plan knows the published number of images
    assert f"left: {(11 * 2 + 1) * steps} optimiser steps in 12 runs" in out
    assert re.search(
        rf"ESTIMATE \d+ s for 5 runs, one at a time, by the steps of finished runs in {re.escape(str(tmp_path))}",
        out,
    )
    assert "7 runs have no time estimate" in out

    calls = {"train": [], "resume": []}
    for name, function in (("train", runs_module.train), ("resume", runs_module.resume)):

        def counted(*arguments, name=name, function=function, **changes):
            calls[name].append(arguments)
            return function(*arguments, **changes)

        monkeypatch.setattr(runs_module, name, counted)
    assert table(*options) == 0
    out = capsys.readouterr().out
    assert "14 runs, 2 of them finished before; 1 at a time" in out
    assert (len(calls["train"]), len(calls["resume"])) == (11, 1)
    assert all(file.stat().st_mtime_ns == written for file, written in finished.items())
    resumed = read_run(calls["resume"][0][0])
    assert [line["epoch"] for line in resumed.lines["epoch"]] == [0, 1]

    # What the table says is what the run folders say
    page, text = (
        (tmp_path / "ablation" / "table.html").read_text(),
        (tmp_path / "ablation" / "table.md").read_text(),
    )
    found, recorded = cells(text), runs_of(tmp_path, "ablation")
    assert [row.title for row in TABLES["ablation"].rows] == [
        *(
            "SimGCD",
            "SimGCD, warm start alone",
            "SimGCD, MLP head alone",
            "SimGCD, recipe of + EAGC",
            "I",
            "II",
            "+ EAGC",
        ),
        *(
            "SelEx",
            "SelEx, warm start alone",
            "SelEx, MLP head alone",
            "SelEx, recipe of + EAGC",
            "I",
            "II",
            "+ EAGC",
        ),
    ]
    assert len(recorded) == 14
    seen = {}
    for row in TABLES["ablation"].rows:
        title = row.title + (" *" if row.ours else "")
        line = found[title][seen.get(title, 0)]
        seen[title] = seen.get(title, 0) + 1
        ((run, value),) = recorded[row.key, DIGITS].values()
        assert run.result is not None
        assert [line[f"{DIGITS}: {name}"] for name in ("All", "Old", "New", "n")] == [
            *(f"{100 * run.result['last'][name]:.1f}" for name in ("all", "old", "new")),
            "1",
        ]
        assert (line["AGA"], line["EEP"]) == row.marks
        assert value["all"] == 100 * run.result["last"]["all"]
        for switch, expected in row.switches.items():
            assert getattr(run.config, switch) == expected
        assert run.config.preset == (row.preset or "release")
    assert found["I"][1]["CUB: All"] == "- [81.7]"
    assert found["SimGCD, recipe of + EAGC *"][0]["CUB: n"] == "-"
    assert recorded["SimGCD I", DIGITS][0][0].config.lambda_p == 0.0
    assert recorded["SimGCD recipe", DIGITS][0][0].config.warm_start
    assert not recorded["SimGCD", DIGITS][0][0].config.warm_start

    # Differences are those of the runs; the best epoch stands beside
    paired = cells(text.split("Paired differences")[1])["SelEx + EAGC - SelEx recipe"][0]
    one, other = (recorded[key, DIGITS][0][1]["new"] for key in ("SelEx + EAGC", "SelEx recipe"))
    assert paired[f"{DIGITS}: New"] == f"{one - other:+.1f}"
    assert cells(text.split("Paired differences")[1])["SimGCD + EAGC - SimGCD"][0]["CUB: New"] == "- [+6.6]"
    best = cells(text.split("Best epoch")[1])["SimGCD"][0]
    assert best[f"{DIGITS}: Old, best"] == f"{recorded['SimGCD', DIGITS][0][1]['best_old']:.1f}"

    html = Page(page)
    assert html.loads == []
    assert not html.tags & {"script", "link", "img", "iframe", "object"}
    assert html.tables[0][0] == ["Method", "AGA", "EEP", DIGITS, "CUB", "Stanford-Cars"]
    assert html.tables[0][1] == ["All", "Old", "New", "n"] * 3
    first = recorded["SimGCD", DIGITS][0][1]
    assert html.tables[0][2] == [
        *("SimGCD", "x", "x", *(f"{first[name]:.1f}" for name in ("all", "old", "new")), "1"),
        *("-[60.3]", "-[65.6]", "-[57.7]", "-", "-[53.8]", "-[71.9]", "-[45.0]", "-"),
    ]
    assert "Curves of SimGCD on scikit-learn digits" in html.text
    assert "Curves of SelEx on scikit-learn digits" in html.text
    assert page.count("<svg") >= 6
    for condition in (
        "180 images, ",
        "epochs 2",
        "seeds 0",
        "preset release",
        "14 finished runs of 14",
        "commit",
    ):
        assert condition in html.text
        assert condition in text

    # A second time: nothing is trained, and the same table comes out
    monkeypatch.setattr(table_page, "_figures", lambda filled: [])
    for name in ("train", "resume"):
        monkeypatch.setattr(runs_module, name, None)
    assert table(*options) == 0
    assert "14 runs, 14 of them finished before" in capsys.readouterr().out
    assert (tmp_path / "ablation" / "table.md").read_text() == text

    # Other tables find the runs they share: SelEx + EAGC and SelEx are there
    assert table("proximal", *options[1:], "--dry-run") == 0
    assert f"{DIGITS}: 4 runs, 3 finished, 0 begun" in capsys.readouterr().out


def test_entanglement(tmp_path, capsys, small, monkeypatch):
    monkeypatch.setattr(table_page, "_figures", lambda filled: [])  # drawn for the ablation
    options = [
        "entanglement",
        "--dataset",
        "digits",
        "-o",
        tmp_path,
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--pretrain-epochs",
        "1",
    ]
    assert table(*options, "--jobs", "1") == 0
    text = (tmp_path / "entanglement" / "table.md").read_text()
    recorded, lines = runs_of(tmp_path, "entanglement"), cells(text)
    for title, rows in cells(
        capsys.readouterr().out
    ).items():  # printed too, without the columns that only the paper fills
        for row, line in zip(rows, lines[title], strict=True):
            assert row == {
                heading: cell
                for heading, cell in line.items()
                if heading == "Method" or heading.startswith(DIGITS)
            }
    assert len(recorded) == 9
    for (row, _), seeds in recorded.items():
        run, value = seeds[0]
        config = run.config  # the released protocol
        assert (config.mlp_head_layers, config.head_lr, config.lambda_p, config.lr_floor) == (
            0,
            0.1,
            0.5,
            1.0,
        )
        assert (config.eagc, config.warm_start) == (
            row.endswith("EAGC"),
            row not in ("SimGCD", "LegoGCD", "SelEx"),
        )
        (diagnosis,) = run.lines["diagnosis"]  # at steps 0, 10, ... of the four
        assert all(
            value[name] == diagnosis[name]
            for name in ("gdc_release", "soc_release", "gdc_clean", "rho_grad", "rho_in")
        )
        assert config.diagnose == Diagnosis(every=10, steps=200)
    for row in ("SimGCD", "LegoGCD", "SelEx"):
        for title, key in ((row, row), (f"{row}, recipe of + EAGC *", f"{row} recipe")):
            value = recorded[key, DIGITS][0][1]
            line = lines[title][0]
            assert line[f"{DIGITS}: GDC ↓"] == f"{value['gdc_release']:.4f}"
            assert line[f"{DIGITS}: SOC ↓"] == f"{value['soc_release']:.4f}"
            assert (
                cells(text.split("Measured beside")[1])[title][0][f"{DIGITS}: rho_in"]
                == f"{value['rho_in']:.3f}"
            )
        assert lines[f"{row}, recipe of + EAGC *"][0]["CUB: GDC ↓"] == "-"
    for line, row in zip(lines["+ EAGC"], ("SimGCD", "LegoGCD", "SelEx")):
        assert line[f"{DIGITS}: GDC ↓"] == f"{recorded[f'{row} + EAGC', DIGITS][0][1]['gdc_release']:.4f}"
    assert [line["Stanford Cars: SOC ↓"] for line in lines["+ EAGC"]] == [
        "- [0.6208]",
        "- [0.6135]",
        "- [0.4470]",
    ]
    assert (
        cells(text.split("Paired differences")[1])["SelEx + EAGC - SelEx"][0]["Aircraft: SOC ↓"]
        == "- [-0.0259]"
    )


def test_means_deviations_pairs_and_averages(tmp_path, monkeypatch):
    """Runs with known numbers, on the paper's data sets: one by one, and all of them."""
    monkeypatch.setattr(table_page, "_figures", lambda filled: [])
    store, home = tmp_path / "runs", tmp_path / "dinov2"
    random = np.random.RandomState(0)
    scores = {}  # data set, row, seed -> All, Old, New

    def fill(group, seeds, leave_out=()):
        runs = []
        for row in TABLES["dinov2"].rows:
            for seed in seeds:
                if (row.key, seed) not in leave_out:
                    path = store / f"{group.dataset}-{row.key.replace(' ', '')}-{seed}"
                    config = configuration(TABLES["dinov2"], row, group, "release", {"epochs": 2})
                    scores[group.title, row.key, seed] = values = random.uniform(0.4, 0.9, (2, 3)).round(4)
                    values[0, 0] = values[1, 0] + 0.05  # the first epoch is the best
                    record_run(path, config.replace(seed=seed), values)
                    runs.append((row.key, group.title, path))
        conditions = {"date": "2026-01-01", "machine": "a machine", "commit": "abc", "preset": "release"}
        table_page.record(home, group.dataset, conditions, runs)
        table_page.write_table("dinov2", home, store)
        return (home / "table.md").read_text()

    cub, cars, _ = TABLES["dinov2"].groups
    fill(cub, (0, 1, 2))
    text = fill(cars, (0, 1, 2), leave_out=[("SelEx", 1)])
    one, differences, best = (
        cells(text),
        cells(text.split("Paired differences")[1]),
        cells(text.split("Best epoch")[1]),
    )
    keys = {"SimGCD": "SimGCD", "SimGCD, recipe of + EAGC *": "SimGCD recipe", "SelEx": "SelEx"}
    for group in (cub, cars):
        for title, key in keys.items():
            values = 100 * np.array(
                [scores[group.title, key, seed] for seed in range(3) if (group.title, key, seed) in scores]
            )
            for place, name in enumerate(("All", "Old", "New")):
                paper = PAPER["dinov2"].values.get(key, {}).get(group.title)
                printed = f" [{paper[place]}]" if paper else ""
                mean, std = values[:, 1, place].mean(), values[:, 1, place].std(ddof=1)
                assert one[title][0][f"{group.title}: {name}"] == f"{mean:.1f} ± {std:.1f}{printed}"
                mean, std = values[:, 0, place].mean(), values[:, 0, place].std(ddof=1)
                assert best[title][0][f"{group.title}: {name}, best"] == f"{mean:.1f} ± {std:.1f}"
    assert one["SelEx"][0]["Stanford Cars: n"] == "2"
    assert one["SelEx"][0]["Aircraft: All"] == "- [79.8]"
    gap = [
        100 * (scores["Stanford Cars", "SelEx + EAGC", s] - scores["Stanford Cars", "SelEx", s])[1, 2]
        for s in (0, 2)
    ]
    line = differences["SelEx + EAGC - SelEx"][0]
    assert line["Stanford Cars: New"] == f"{np.mean(gap):+.1f} ± {np.std(gap, ddof=1):.1f} [+5.0]"
    assert line["Stanford Cars: n"] == "2"
    gains = []
    for method in ("SimGCD", "SelEx"):
        pairs = [(scores["CUB", f"{method} + EAGC", s] - scores["CUB", method, s])[1, 0] for s in range(3)]
        gains.append(100 * np.mean(pairs))
    (average,) = (line for title, (line,) in differences.items() if title.startswith("Avg. Δ"))
    assert average["CUB: All"] == f"{np.mean(gains):+.1f} [+4.2]"
    assert average["Aircraft: All"] == "- [+7.9]"
    assert "Stanford Cars: 5,994 images" in text
    assert "commit abc on a machine" in text


def record_run(path, config, values):
    """A finished run of two epochs with these All, Old, New."""
    facts = {
        "split_hash": "5" * 64,
        "trunk": "7" * 64,
        "known": 100,
        "classes": 200,
        "images": 5994,
        "labelled": 1500,
        "steps_per_epoch": 46,
    }
    folder = RunFolder.create(path, config, some_facts(**facts))
    folder.start_logs(0, 0, 0)
    for epoch, (everything, old, new) in enumerate(values.tolist()):
        scores = {"all": everything, "old": old, "new": new}
        folder.log(
            "epoch",
            46 * (epoch + 1),
            {"epoch": epoch, **scores, "classes_predicted": 200, "steps": 46, "seconds": 1.0},
        )
    folder.close()
    folder.finish(
        {"headline": "last", "last": {}, "best": {}, "warnings": [], "reference_cross_entropy": None}
    )


def test_a_run_that_fails_leaves_the_others_and_code_1(tmp_path, capsys, small, monkeypatch):
    train = runs_module.train

    def diverging(config, folder):
        if config.tau == "uniform":
            raise FloatingPointError("the loss is nan")
        return train(config, folder)

    monkeypatch.setattr(runs_module, "train", diverging)
    options = [
        "projection",
        "--dataset",
        "digits",
        "-o",
        tmp_path,
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--pretrain-epochs",
        "1",
        "--jobs",
        "1",
    ]
    assert table(*options) == 1
    out, err = capsys.readouterr()
    assert "FAILED: the loss is nan" in err
    assert "1 runs failed: the same command resumes them" in out
    lines = cells((tmp_path / "projection" / "table.md").read_text())
    assert [lines[row][0][f"{DIGITS}: n"] for row in ("w/o EEP", "Ours")] == ["-", "1"]
    assert lines["w/o EEP"][0]["Aircraft: New"] == "- [63.6]"


# Plans -------------------------------------------------------------------------------------------------------------------------------

RUNS = {  # of one data set and three seeds
    "main": 36, "dinov2": 18, "ablation": 42, "entanglement": 27, "projection": 6, "subspace": 12, "hyper": 39, "herbarium": 18,
    "unknown-k": 18, "reference-batch": 6, "reference-epochs": 9, "reference-blocks": 15, "proximal": 12, "relation": 15,
}  # fmt: skip
LINES = {  # row: what defines it; some of every table
    "main": {"SPTNet + EAGC": "sptnet, preset release", "LegoGCD": "legogcd, preset baseline",
             "SelEx recipe": "selex, preset release, eagc=False"},
    "dinov2": {"SimGCD": "simgcd, preset baseline, backbone=dinov2_vitb14_reg4"},
    "ablation": {"SimGCD I": "simgcd, preset release, lambda_p=0.0", "SelEx II": "selex, preset release, lambda_a=0.0",
                 "SelEx MLP head alone": "selex, preset baseline, mlp_head_layers=2",
                 "SimGCD warm start alone": "simgcd, preset baseline, warm_start=True"},
    "entanglement": {"SimGCD": "simgcd, preset baseline, epochs=5, lr_floor=1.0"},
    "projection": {"w/o EEP": "selex, preset release, tau=uniform", "SelEx + EAGC": "selex, preset release"},
    "subspace": {"PCA-16": "selex, preset release, subspace=pca", "PCA-64": "selex, preset release, subspace=pca, pca_k=64"},
    "hyper": {"aperture=4.0": "simgcd, preset release, aperture=4.0", "lambda_a=0.1": "simgcd, preset release, lambda_a=0.1",
              "lambda_p=0.9": "simgcd, preset release, lambda_p=0.9", "lambda_p=0.5": "simgcd, preset release"},
    "herbarium": {"Baseline (SelEx)": "selex, preset baseline", "Baseline + EAGC (SimGCD)": "simgcd, preset release"},
    "unknown-k": {"SelEx + EAGC": "selex, preset release, k=231"},
    "reference-batch": {"128": "simgcd, preset release, reference_batch_size=128", "32": "simgcd, preset release"},
    "reference-epochs": {"100": "simgcd, preset release, reference_epochs=100"},
    "reference-blocks": {"5": "simgcd, preset release, reference_blocks=5", "1": "simgcd, preset release"},
    "proximal": {"SelEx + EAGC_loss": "selex, preset release, alignment=proximal"},
    "relation": {"SelEx + RelDistill_Gram": "selex, preset release, alignment=gram",
                 "SelEx + RelDistill_sample": "selex, preset release, alignment=relation"},
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_plans(name, tmp_path, capsys):
    dataset = TABLES[name].groups[0].dataset
    assert table(name, "--dataset", dataset, "--dry-run", "-o", tmp_path) == 0
    out = capsys.readouterr().out
    assert f"{SPECS[dataset].title}: {RUNS[name]} runs, 0 finished, 0 begun" in out
    for row, definition in LINES[name].items():
        (line,) = re.findall(rf"^  {re.escape(row)}  +(.*); seeds 0, 1, 2$", out, re.MULTILINE)
        assert line == definition
    assert PAPER[name].label in out
    assert list(tmp_path.iterdir()) == []

    # Every row of the paper that is trained has runs; without a data set, all of the paper's are planned
    assert table(name, "--dry-run", "-o", tmp_path, "--seeds", "1") == 0
    out = capsys.readouterr().out
    assert all(SPECS[group.dataset].title in out for group in TABLES[name].groups)
    rows = {row.key for row in TABLES[name].rows}
    assert set(PAPER[name].values) - {tables.AVERAGE} <= rows
    titles = {group.title for group in TABLES[name].groups} | {"Average"}
    for values in PAPER[name].values.values():
        assert set(values) <= titles
        assert all(len(numbers) == len(TABLES[name].columns) for numbers in values.values())


def test_cost_by_the_papers_epochs(tmp_path, capsys):
    assert table("ablation", "--dataset", "cub", "--dry-run", "-o", tmp_path) == 0
    out = capsys.readouterr().out
    assert f"left: {42 * 200 * 46:,} optimiser steps in 42 runs" in out  # 5,994 images, 128 a step
    hours = 3 * 200 * (4 * 55.9 + 3 * 63.8) / 3600
    assert (
        f"ESTIMATE {hours:.1f} h for the 21 runs of SimGCD, one at a time, by the paper's epochs on one A100"
        in out
    )
    assert "21 runs have no time estimate" in out
    assert (
        table("subspace", "--dataset", "folder", "--dry-run", "-o", tmp_path, "--epochs", "7", "--seeds", "2")
        == 0
    )
    assert (
        f"left: {4 * 2 * 7} epochs; steps follow from the folder's number of images"
        in capsys.readouterr().out
    )


def test_sptnet_starts_from_the_simgcd_of_its_kind():
    runs = plan(
        TABLES["main"],
        "cub",
        Path("home"),
        preset="release",
        seeds=range(2),
        given={},
        machine={"trunk_cache": "t"},
    )
    folders = {(run.row.key, run.seed): run for run in runs}
    assert len({run.folder for run in runs}) == 24
    for kind in ("", " recipe", " + EAGC"):
        start = folders[f"SimGCD{kind}", 1]
        sptnet = folders[f"SPTNet{kind}", 1]
        assert sptnet.config.init == str(start.folder)
        assert (sptnet.config.mlp_head_layers, sptnet.config.eagc) == (
            start.config.mlp_head_layers,
            start.config.eagc,
        )
        assert runs.index(start) < runs.index(sptnet)
        assert sptnet.config.trunk_cache is None
        assert start.config.trunk_cache == "t-dino_vitb16-1-1"
    paper = plan(TABLES["main"], "cub", Path("home"), preset="paper", seeds=[0], given={}, machine={})
    shared = {run.folder for run in paper} & {run.folder for run in runs}
    assert {folder.name.split("-")[1] for folder in shared} == {
        "simgcd",
        "legogcd",
        "sptnet",
        "selex",
    }  # the methods' own recipes
    assert len(shared) == 4


def test_a_plan_on_digits_leaves_out_what_it_cannot_hold(tmp_path, capsys):
    assert table("reference-blocks", "--dataset", "digits", "--dry-run", "-o", tmp_path) == 0
    assert f"{DIGITS}: 12 runs" in capsys.readouterr().out  # vit_digits has 4 blocks
    assert table("unknown-k", "--dataset", "digits", "--dry-run", "-o", tmp_path, "--preset", "paper") == 0
    assert "simgcd, preset paper, k=estimate, epochs=6" in capsys.readouterr().out


def test_a_plan_needs_no_heavy_imports(tmp_path):
    code = "import sys; from eagc_ops.cli import main; main(sys.argv[1:]); print(*{'accelerate', 'timm', 'matplotlib'} & set(sys.modules))"
    options = ["table", "main", "--dry-run", "-o", str(tmp_path)]
    out = subprocess.run(
        [sys.executable, "-c", code, *options], capture_output=True, text=True, check=True
    ).stdout
    assert "ImageNet-100: 36 runs" in out
    assert out.splitlines()[-1] == ""


def test_overhead_is_measured_by_the_benchmark(tmp_path, capsys):
    assert table("overhead", "--dry-run", "-o", tmp_path) == 0
    out = capsys.readouterr().out
    assert (
        f"eagc bench overhead -o {tmp_path / 'overhead' / 'table.json'} --picture {tmp_path / 'overhead' / 'overhead.svg'}"
        in out
    )
    assert "tab:overhead" in out
    assert list(tmp_path.iterdir()) == []
    block = table_cli._block("| a | b |\n|---|---|\n| 1 < 2 | x |\n")
    assert Page(block).tables == [[["a", "b"], ["1 < 2", "x"]]]


@pytest.mark.parametrize(("options", "words"), [
    ("--seeds 3", "eagc table: --seeds is for training, but overhead is measured"),  # refused at its default too
    ("--preset paper", "--preset is for"),
    ("--epochs 2", "--epochs is for"),
    ("--jobs 1", "--jobs is for"),
    ("--trunk-cache", "--trunk-cache is for"),
    ("--pretrain-epochs 2", "--pretrain-epochs is for"),
    ("--device cpu", "--device is for"),
    ("--weights w.pth", "--weights is for"),
    ("--workers 0", "--workers is for training, but overhead is measured (on the GPU if there is one): leave it out; there are --dataset, "
                    "--root, --split-file, --backbone, and `eagc bench overhead` has more"),
    ("--root r", "eagc bench overhead: --root r needs --dataset"),
    ("--split-file s.json", "--split-file s.json needs --dataset"),
    ("--backbone resnet50", "--backbone: invalid choice: 'resnet50'"),
])  # fmt: skip
def test_overhead_refuses_what_it_cannot_use(options, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(table_cli.subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    for more in ([], ["--dry-run"]):
        with pytest.raises(SystemExit) as exit:
            table("overhead", *options.split(), "-o", tmp_path, *more)
        out, err = capsys.readouterr()
        assert (exit.value.code, out, err.count("\n")) == (2, "", 1)
        assert words in err
    assert list(tmp_path.iterdir()) == []


def test_a_backbone_is_for_overhead(tmp_path, capsys):
    assert table("overhead", "--dry-run", "-o", tmp_path, "--backbone", "vit_base_patch16_224") == 0
    assert "eagc bench overhead --backbone vit_base_patch16_224 -o" in capsys.readouterr().out
    with pytest.raises(SystemExit) as exit:
        table("main", "--dry-run", "-o", tmp_path, "--backbone", "vit_base_patch16_224")
    assert exit.value.code == 2
    assert "--backbone vit_base_patch16_224 is for overhead only" in capsys.readouterr().err


def test_overhead_becomes_a_page(tmp_path, capsys, monkeypatch):
    """The benchmark takes minutes: a stand-in for its process prints and writes what it does."""
    stand_in = (
        "import sys; out = dict(zip(sys.argv[3::2], sys.argv[4::2]))\n"
        "print('SimGCD, <9> rounds\\n\\n| step | s |\\n|---|---|\\n| ours | 0.5 |')\n"
        "open(out['-o'], 'w').write('{}'); open(out['--picture'], 'w').write('<?xml version=\"1.0\"?><svg></svg>')\n"
        "assert sys.argv[1:3] == ['bench', 'overhead'] and out['--dataset'] == 'cub'"
    )
    start = subprocess.Popen

    def popen(command, **settings):
        assert command[:3] == [sys.executable, "-m", "eagc_ops.cli"]
        return start([sys.executable, "-c", stand_in, *command[3:]], **settings)

    monkeypatch.setattr(table_cli.subprocess, "Popen", popen)
    assert table("overhead", "--dataset", "cub", "--root", "r", "-o", tmp_path) == 0
    assert "| ours | 0.5 |" in capsys.readouterr().out
    assert "| ours | 0.5 |" in (tmp_path / "overhead" / "table.md").read_text()
    page = Page((tmp_path / "overhead" / "table.html").read_text())
    assert page.tables == [[["step", "s"], ["ours", "0.5"]]]
    assert "SimGCD, <9> rounds" in page.text
    assert "svg" in page.tags
    assert page.loads == []


def test_help_names_every_table(capsys):
    with pytest.raises(SystemExit) as exit:
        table("--help")
    assert exit.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(
        name in text for name in (*TABLES, "--dry-run", "--split-file", "--weights", "--jobs", "--epochs")
    )


NEEDS = {
    "nothing given": (
        ["main"],
        "--dataset is missing: the paper has cub, scars, aircraft, cifar100, imagenet100",
    ),
    "cub": (
        ["main", "--dataset", "cub"],
        "CUB-200-2011 with dino_vitb16 needs --root (a folder with images/",
    ),
    "its split": (
        ["main", "--dataset", "cub"],
        "cub_osr_splits.pkl, published in the GitHub repository sgvaze/generalized-category-discovery",
    ),
    "its weights": (
        ["main", "--dataset", "cub"],
        "dino_vitbase16_pretrain.pth, published in the GitHub repository facebookresearch/dino)",
    ),
    "dinov2": (
        ["dinov2", "--dataset", "scars", "--root", "r", "--split-file", "s"],
        "--weights (dinov2_vitb14_reg4_pretrain.pth",
    ),
    "dinov2 on digits": (["dinov2", "--dataset", "digits"], "dinov2_vitb14_reg4 needs photographs"),
    "herbarium": (
        ["herbarium", "--dataset", "herbarium19", "--weights", "w"],
        "Herbarium19 with dino_vitb16 needs --root (a folder with small-train",
    ),
    "missing root": (
        ["herbarium", "--dataset", "herbarium19", "--weights", "w", "--root", "nowhere"],
        "'nowhere' is not a folder",
    ),
    "unknown table": (["ablations", "--dataset", "digits"], "ablations"),
    "unknown data set": (["main", "--dataset", "birds"], "birds"),
    "no seeds": (["main", "--dataset", "digits", "--seeds", "0"], "--seeds must be at least 1"),
}


@pytest.mark.parametrize("case", NEEDS)
def test_what_is_missing_is_one_line_and_code_2(case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, message = NEEDS[case]
    try:
        code = table(*arguments)
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []


# The paper's values: a second reading, typed by hand ------------------------------------------------------------------------------------

READ_AGAIN = {
    "main": {("ORCA", "CIFAR-100"): (73.5, 92.6, 63.9), ("DCCL", "Aircraft"): (None, None, None), ("μGCD", "CUB"): (65.7, 68.0, 64.6),
             ("CMS", "ImageNet-100"): (84.7, 95.6, 79.2), ("SimGCD", "Stanford-Cars"): (53.8, 71.9, 45.0),
             ("LegoGCD + EAGC", "ImageNet-100"): (84.8, 94.4, 80.1), ("SPTNet", "Aircraft"): (59.3, 61.8, 58.1),
             ("SelEx + EAGC", "Average"): (76.7, 80.7, 73.4), ("Avg. Δ", "Aircraft"): (2.9, -0.3, 4.4)},
    "dinov2": {("SimGCD + EAGC", "Stanford Cars"): (81.5, 90.9, 76.9), ("SelEx", "Aircraft"): (79.8, 82.3, 78.6)},
    "ablation": {("SimGCD II", "Stanford-Cars"): (57.7, 74.6, 49.6), ("SelEx I", "CUB"): (81.7, 73.5, 85.9)},
    "entanglement": {("SimGCD + EAGC", "CUB"): (0.1525, 0.4923), ("LegoGCD", "Aircraft"): (0.0922, 0.8642),
                     ("SelEx", "Stanford Cars"): (0.0007, 0.6022)},
    "projection": {("w/o EEP", "Stanford Cars"): (59.3, 76.6, 50.9), ("SelEx + EAGC", "Aircraft"): (65.7, 65.6, 65.7)},
    "subspace": {("PCA-32", "CUB"): (80.9, 73.5, 84.7), ("PCA-16", "Stanford Cars"): (64.9, 84.0, 55.7)},
    "overhead": {("SimGCD", "CUB"): (60.3, 4289.4, None, 55.9, None), ("SimGCD + EAGC", "IN-100"): (83.5, 4921.3, 3.5, 1262.2, 6899.1)},
    "herbarium": {("Baseline", "SelEx"): (39.6, 54.9, 31.3), ("Baseline + EAGC", "SimGCD"): (48.4, 59.8, 42.4)},
    "unknown-k": {("SimGCD", "Stanford Cars"): (49.1, 65.1, 41.3), ("SelEx + EAGC", "ImageNet-100"): (88.9, 95.5, 85.5),
                  ("Avg. Δ", "CUB"): (8.1, 3.1, 10.5)},
    "reference-batch": {("128", "Aircraft"): (0.554, 50.3, 58.3, 46.3), ("32", "CUB"): (0.021, 66.5, 71.0, 64.3)},
    "reference-epochs": {("20", "Stanford Cars"): (0.130, 55.1, 71.8, 47.0), ("100", "Aircraft"): (0.011, 57.9, 58.3, 57.7)},
    "reference-blocks": {("4", "Stanford Cars"): (0.016, 66.4, 74.7, 62.4), ("2", "CUB"): (0.015, 65.5, 73.3, 61.5)},
    "proximal": {("SelEx + EAGC_loss", "CUB"): (82.1, 74.5, 85.9), ("SelEx", "Stanford Cars"): (58.5, 75.6, 50.3)},
    "relation": {("SelEx + RelDistill_sample", "CUB"): (82.9, 79.5, 84.6),
                 ("SelEx + RelDistill_Gram", "Stanford Cars"): (59.8, 79.7, 50.1)},
    "hyper": {},
}  # fmt: skip


def test_the_papers_values_are_read_right():
    assert PAPER.keys() == TABLES.keys() == READ_AGAIN.keys()
    for name, values in READ_AGAIN.items():
        for (row, group), numbers in values.items():
            assert PAPER[name].values[row][group] == numbers


def test_the_papers_averages_follow_from_its_values():
    """A wrong digit in any row would show: averages over data sets, and over methods, are printed to one decimal."""
    for row, groups in PAPER["main"].values.items():
        own = [values for title, values in groups.items() if title != "Average"]
        if row != tables.AVERAGE and None not in sum(own, ()):
            np.testing.assert_allclose(np.mean(own, 0), groups["Average"], atol=0.11, err_msg=row)
    for name in ("main", "dinov2", "unknown-k"):
        values = PAPER[name].values
        for group in values["SimGCD"]:
            methods = [row for row in values if f"{row} + EAGC" in values]
            gains = [np.subtract(values[f"{row} + EAGC"][group], values[row][group]) for row in methods]
            np.testing.assert_allclose(
                np.mean(gains, 0), values[tables.AVERAGE][group], atol=0.11, err_msg=f"{name} {group}"
            )


if (
    __name__ == "__main__"
):  # UPDATE ARGUMENTS...: `eagc table` in this process, which kills itself at an update
    import small_runs

    make_small(setattr)
    small_runs.kill_at("update", int(sys.argv[1]))
    sys.exit(main(["table", *sys.argv[2:]]))
