"""Plans of all tables: their runs, recipes and costs, without data and without training."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_tables import DIGITS, table

from eagc_ops.evidence.paper import tables
from eagc_ops.evidence.paper.tables import TABLES, plan
from eagc_ops.evidence.paper.values import PAPER
from eagc_ops.training.data import SPECS

RUNS = {  # of one data set and three seeds
    "main": 36,
    "dinov2": 18,
    "ablation": 42,
    "entanglement": 30,
    "projection": 6,
    "subspace": 12,
    "hyper": 39,
    "herbarium": 18,
    "unknown-k": 18,
    "reference-batch": 6,
    "reference-epochs": 9,
    "reference-blocks": 15,
    "proximal": 12,
    "relation": 15,
}
LINES = {  # row: what defines it; some of every table
    "main": {
        "SPTNet + EAGC": "sptnet, preset release",
        "LegoGCD": "legogcd, preset baseline",
        "SelEx recipe": "selex, preset release, eagc=False",
    },
    "dinov2": {"SimGCD": "simgcd, preset baseline, backbone=dinov2_vitb14_reg4"},
    "ablation": {
        "SimGCD I": "simgcd, preset release, lambda_p=0.0",
        "SelEx II": "selex, preset release, lambda_a=0.0",
        "SelEx MLP head alone": "selex, preset baseline, mlp_head_layers=2",
        "SimGCD warm start alone": "simgcd, preset baseline, warm_start=True",
    },
    "entanglement": {
        "SimGCD": "simgcd, preset baseline, epochs=5, lr_floor=1.0",
        "LegoGCD": "legogcd, preset baseline, epochs=5, lr_floor=1.0, dual_view_kl=False",
        "LegoGCD with DKL": "legogcd, preset baseline, epochs=5, lr_floor=1.0",
        "LegoGCD recipe": "legogcd, preset release, eagc=False, mlp_head_layers=0, epochs=5, head_lr=0.1, "
        "lr_floor=1.0",
        "SelEx": "selex, preset baseline, epochs=5, lr_floor=1.0, weight_decay=5e-05",
    },
    "projection": {"w/o EEP": "selex, preset release, tau=uniform", "SelEx + EAGC": "selex, preset release"},
    "subspace": {
        "PCA-16": "selex, preset release, subspace=pca",
        "PCA-64": "selex, preset release, subspace=pca, pca_k=64",
    },
    "hyper": {
        "aperture=4.0": "simgcd, preset release, aperture=4.0",
        "lambda_a=0.1": "simgcd, preset release, lambda_a=0.1",
        "lambda_p=0.9": "simgcd, preset release, lambda_p=0.9",
        "lambda_p=0.5": "simgcd, preset release",
    },
    "herbarium": {
        "Baseline (SelEx)": "selex, preset baseline",
        "Baseline + EAGC (SimGCD)": "simgcd, preset release",
    },
    "unknown-k": {"SelEx + EAGC": "selex, preset release, k=231"},
    "reference-batch": {
        "128": "simgcd, preset release, reference_batch_size=128",
        "32": "simgcd, preset release",
    },
    "reference-epochs": {"100": "simgcd, preset release, reference_epochs=100"},
    "reference-blocks": {"5": "simgcd, preset release, reference_blocks=5", "1": "simgcd, preset release"},
    "proximal": {"SelEx + EAGC_loss": "selex, preset release, alignment=proximal"},
    "relation": {
        "SelEx + RelDistill_Gram": "selex, preset release, alignment=gram",
        "SelEx + RelDistill_sample": "selex, preset release, alignment=relation",
    },
}


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
    assert f"left: {42 * 200 * 46:,} optimizer steps in 42 runs" in out  # 5,994 images, 128 a step
    hours = 3 * 200 * (4 * 55.9 + 3 * 63.8) / 3600
    estimate = f"ESTIMATE {hours:.1f} h for the 21 runs of SimGCD, one at a time"
    assert f"{estimate}, from the paper's epochs on one A100" in out
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
        settings={},
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
    paper = plan(TABLES["main"], "cub", Path("home"), preset="paper", seeds=[0], settings={}, machine={})
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
    code = (
        "import sys; from eagc_ops.app.cli import main; main(sys.argv[1:])\n"
        "print(*{'accelerate', 'timm', 'matplotlib'} & set(sys.modules))"
    )
    options = ["table", "main", "--dry-run", "-o", str(tmp_path)]
    out = subprocess.run(
        [sys.executable, "-c", code, *options], capture_output=True, text=True, check=True
    ).stdout
    assert "ImageNet-100: 36 runs" in out
    assert out.splitlines()[-1] == ""
