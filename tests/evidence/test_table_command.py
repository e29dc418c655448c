"""`eagc table`: help, errors, and the overhead table, which `eagc bench` measures."""

import subprocess
import sys
from pathlib import Path

import pytest
from pages import Page
from small_tables import cells, table

from eagc_ops.bench import paper_table as command
from eagc_ops.bench import tables
from eagc_ops.bench.results_file import load
from eagc_ops.evidence.paper.tables import TABLES

RESULTS = Path(command.__file__).parent / "results"


def test_overhead_is_measured_by_the_benchmark(tmp_path, capsys):
    assert table("overhead", "--dry-run", "-o", tmp_path) == 0
    out = capsys.readouterr().out
    assert (
        f"eagc bench overhead -o {tmp_path / 'overhead' / 'table.json'} --picture "
        f"{tmp_path / 'overhead' / 'overhead.svg'}" in out
    )
    assert "tab:overhead" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        # --seeds 3 is the default, and refused too
        ("--seeds 3", "eagc table: --seeds is for training, but overhead is measured"),
        ("--preset paper", "--preset is for"),
        ("--epochs 2", "--epochs is for"),
        ("--jobs 1", "--jobs is for"),
        ("--trunk-cache", "--trunk-cache is for"),
        ("--pretrain-epochs 2", "--pretrain-epochs is for"),
        ("--device cpu", "--device is for"),
        ("--weights w.pth", "--weights is for"),
        (
            "--workers 0",
            "--workers is for training, but overhead is measured (on the GPU if there is one): leave it out; "
            "there are --dataset, --root, --split-file, --backbone, and `eagc bench overhead` has more",
        ),
        ("--root r", "eagc bench overhead: --root r needs --dataset"),
        ("--split-file s.json", "--split-file s.json needs --dataset"),
        ("--backbone resnet50", "--backbone: invalid choice: 'resnet50'"),
    ],
)
def test_overhead_refuses_what_it_cannot_use(options, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command.subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    for more in ([], ["--dry-run"]):
        with pytest.raises(SystemExit) as exit:
            table("overhead", *options.split(), "-o", tmp_path, *more)
        out, err = capsys.readouterr()
        assert (exit.value.code, out, err.count("\n")) == (2, "", 1)
        assert words in err
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_the_overhead_table_comes_first(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit:
        table("-o", tmp_path, "overhead")
    assert exit.value.code == 2
    assert "write its name first, eagc table overhead" in capsys.readouterr().err


def test_a_backbone_is_for_overhead(tmp_path, capsys):
    assert table("overhead", "--dry-run", "-o", tmp_path, "--backbone", "vit_base_patch16_224") == 0
    assert "eagc bench overhead --backbone vit_base_patch16_224 -o" in capsys.readouterr().out
    with pytest.raises(SystemExit) as exit:
        table("main", "--dry-run", "-o", tmp_path, "--backbone", "vit_base_patch16_224")
    assert exit.value.code == 2
    assert "--backbone vit_base_patch16_224 is for overhead only" in capsys.readouterr().err


@pytest.fixture
def measured(tmp_path, capfd, monkeypatch):
    """The folder of an overhead table, and what was printed.

    The benchmark takes minutes: a stand-in for its process copies the results in the repository.
    """
    stand_in = (
        "import shutil, sys; out = dict(zip(sys.argv[4::2], sys.argv[5::2]))\nassert sys.argv[2:4] == "
        "['bench', 'overhead'] and out['--dataset'] == 'digits'\nshutil.copy(f'{sys.argv[1]}/overhead.json', "
        "out['-o'])\nshutil.copy(f'{sys.argv[1]}/overhead.svg', out['--picture'])\nprint('measured')"
    )
    start = subprocess.Popen

    def popen(words, **settings):
        assert words[:3] == [sys.executable, "-m", "eagc_ops.app.cli"]
        return start([sys.executable, "-c", stand_in, str(RESULTS), *words[3:]], **settings)

    monkeypatch.setattr(command.subprocess, "Popen", popen)
    assert table("overhead", "--dataset", "digits", "-o", tmp_path) == 0
    return tmp_path / "overhead", capfd.readouterr().out


def test_the_overhead_page_has_the_tables_of_the_benchmark(measured):
    folder, out = measured
    assert "measured\n" in out
    assert f"table: {folder / 'table.md'}, {folder / 'table.html'}\n" in out
    results = load(RESULTS / "overhead.json")
    page = Page((folder / "table.html").read_text())
    steps = tables.steps(results["steps"])
    assert page.tables[0] == [list(steps.header), *(list(row.cells) for row in steps.rows)]
    assert page.tables[-1][0][0] == "paper, A100, not measured here"
    assert len(page.tables) == 7 + bool(results["bars"])
    text = (folder / "table.md").read_text()
    assert cells(text) == {row.cells[0]: [dict(zip(steps.header, row.cells))] for row in steps.rows}
    for shown in (text, page.text):
        assert (
            "SimGCD with vit_small_patch16_224 at 224 pixels, 16 rows; medians (of 9 rounds for steps)"
            in shown
        )


def test_the_overhead_page_stands_alone(measured):
    page = Page((measured[0] / "table.html").read_text())
    assert "svg" in page.tags
    assert page.loads == []


def test_a_benchmark_that_fails_leaves_no_page(tmp_path, monkeypatch):
    start = subprocess.Popen
    failing = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr(command.subprocess, "Popen", lambda words: start(failing))
    assert table("overhead", "-o", tmp_path) == 3
    assert list((tmp_path / "overhead").iterdir()) == []


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
        ["main", "--dataset", "cifar100", "--root", "."],
        "--weights pretrained: those of dino_vitb16 are not in the hub's cache",
    ),
    "dinov2 on digits": (["dinov2", "--dataset", "digits"], "dinov2_vitb14_reg4 needs photographs"),
    "herbarium": (
        ["herbarium", "--dataset", "herbarium19", "--weights", "w"],
        "Herbarium19 with dino_vitb16 needs --root (a folder with small-train",
    ),
    "missing root": (
        ["herbarium", "--dataset", "herbarium19", "--weights", "w", "--root", "nowhere"],
        "--root nowhere is not a folder",
    ),
    "unknown table": (["ablations", "--dataset", "digits"], "ablations"),
    "unknown data set": (["main", "--dataset", "birds"], "birds"),
    "no seeds": (
        ["main", "--dataset", "digits", "--seeds", "0"],
        "--seeds: must be a whole number >= 1, got 0",
    ),
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
