"""Tables that are really filled in on a few digits, one of them killed and resumed."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import small_tables
from pages import Page
from small_tables import DIGITS, WITH_SUPPORT, aligned_cells, cells, make_small, printed, runs_of, table

from eagc_ops.evidence.paper import page as table_page
from eagc_ops.evidence.paper.tables import TABLES
from eagc_ops.training import runs
from eagc_ops.training.config import Diagnosis
from eagc_ops.training.report.runs import read_run

ROWS = [row for row in TABLES["ablation"].rows if not row.null]  # null runs are trained on demand


@pytest.fixture(scope="module")
def small():
    """A few digits for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch.setattr)
        yield


def no_figures(monkeypatch):
    monkeypatch.setattr(table_page, "_figures", lambda filled: {})  # drawn for the ablation


# The ablation: killed, planned, resumed
# ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def ablation(small, tmp_path_factory):
    """A table whose process killed itself in the second epoch of its third run, and was then resumed."""
    home = tmp_path_factory.mktemp("ablation")
    options = [
        "ablation",
        "--dataset",
        "digits",
        "-o",
        home,
        "--seeds",
        "1",
        "--pretrain-epochs",
        "1",
        "--jobs",
        "1",
    ]
    killed = subprocess.run(
        [sys.executable, small_tables.__file__, "22", *map(str, options)],
        env=WITH_SUPPORT,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -9, killed.stderr[-3000:]
    finished = {file: file.stat().st_mtime_ns for file in (home / "runs").glob("*/result.json")}
    planned, plan = printed(*options, "--dry-run")
    calls = {"train": [], "resume": []}
    with pytest.MonkeyPatch.context() as patch:
        for name, function in (("train", runs.train), ("resume", runs.resume)):

            def counted(*arguments, name=name, function=function, **changes):
                calls[name].append(arguments)
                return function(*arguments, **changes)

            patch.setattr(runs, name, counted)
        code, out = printed(*options)
    assert (planned, code) == (0, 0)
    return SimpleNamespace(
        home=home,
        options=options,
        finished=finished,  # before the kill: file -> time of writing
        plan=plan,
        calls=calls,
        out=out,
        runs=runs_of(home, "ablation"),
        text=(home / "ablation" / "table.md").read_text(),
        page=(home / "ablation" / "table.html").read_text(),
    )


def test_the_plan_knows_what_was_finished_before_the_kill(ablation):
    assert len(ablation.finished) == 2
    assert f"{DIGITS}: 14 runs, 2 finished, 1 begun" in ablation.plan
    steps = 1797 // 45  # the plan knows the published number of images
    assert f"left: {(11 * 2 + 1) * steps} optimizer steps in 12 runs" in ablation.plan
    source = f"from the steps of finished runs in {re.escape(str(ablation.home))}"
    assert re.search(rf"ESTIMATE \d+ (s|min) for 5 runs, one at a time, {source}", ablation.plan)
    assert "7 runs have no time estimate" in ablation.plan


def test_only_what_is_left_is_trained(ablation):
    assert "14 runs, 2 of them finished before; 1 at a time" in ablation.out
    assert (len(ablation.calls["train"]), len(ablation.calls["resume"])) == (11, 1)
    assert all(file.stat().st_mtime_ns == written for file, written in ablation.finished.items())
    resumed = read_run(ablation.calls["resume"][0][0])
    assert [line["epoch"] for line in resumed.lines["epoch"]] == [0, 1]


def test_the_rows_are_those_of_the_paper_and_the_recipes_between(ablation):
    for method, rows in (("SimGCD", ROWS[:7]), ("SelEx", ROWS[7:])):
        between = [f"{method}, {what}" for what in ("warm start alone", "MLP head alone", "recipe of + EAGC")]
        assert [row.title for row in rows] == [method, *between, "I", "II", "+ EAGC"]
    assert len(ablation.runs) == 14


def test_the_values_are_those_of_the_run_folders(ablation):
    lines, seen = cells(ablation.text), {}
    for row in ROWS:
        title = row.title + (" *" if row.ours else "")
        line = lines[title][seen.get(title, 0)]
        seen[title] = seen.get(title, 0) + 1
        ((run, value),) = ablation.runs[row.key, DIGITS].values()
        assert run.result is not None
        assert [line[f"{DIGITS}: {name}"] for name in ("All", "Old", "New", "n")] == [
            *(f"{100 * run.result['last'][name]:.1f}" for name in ("all", "old", "new")),
            "1",
        ]
        assert (line["AGA"], line["EEP"]) == row.marks
        assert value["all"] == 100 * run.result["last"]["all"]
    assert lines["I"][1]["CUB: All"] == "- [81.7]"
    assert lines["SimGCD, recipe of + EAGC *"][0]["CUB: n"] == "-"


def test_every_row_trains_its_recipe(ablation):
    for row in ROWS:
        ((run, _),) = ablation.runs[row.key, DIGITS].values()
        for switch, expected in row.switches.items():
            assert getattr(run.config, switch) == expected
        assert run.config.preset == (row.preset or "release")
    assert ablation.runs["SimGCD I", DIGITS][0][0].config.lambda_p == 0.0
    assert ablation.runs["SimGCD recipe", DIGITS][0][0].config.warm_start
    assert not ablation.runs["SimGCD", DIGITS][0][0].config.warm_start


def test_differences_are_those_of_the_runs(ablation):
    paired = cells(ablation.text.split("Paired differences")[1])
    one, other = (ablation.runs[key, DIGITS][0][1]["new"] for key in ("SelEx + EAGC", "SelEx recipe"))
    assert paired["SelEx + EAGC - SelEx recipe"][0][f"{DIGITS}: New"] == f"{one - other:+.1f}"
    assert paired["SimGCD + EAGC - SimGCD"][0]["CUB: New"] == "- [+6.6]"


def test_selex_as_the_release_measures_it_has_a_table_of_its_own(ablation):
    start = cells(ablation.text.split("SelEx at the best start of an epoch, chosen with the truth")[1])
    assert start.keys() == {"SelEx, recipe of + EAGC *", "I", "II", "+ EAGC"}  # preset release
    for title, key in (("SelEx, recipe of + EAGC *", "SelEx recipe"), ("+ EAGC", "SelEx + EAGC")):
        ((run, _),) = ablation.runs[key, DIGITS].values()
        best = max(run.lines["epoch"], key=lambda line: line["start_all"])
        assert start[title][0][f"{DIGITS}: All, start"] == f"{100 * best['start_all']:.1f}"
        assert run.result["best_start"]["new"] == best["start_new"]
    printed = " ".join(ablation.out.split())
    assert "The released code of SelEx + EAGC reports the accuracy at the start of an epoch" in printed


def test_the_best_epoch_stands_beside(ablation):
    best = cells(ablation.text.split("Best epoch")[1])["SimGCD"][0]
    assert best[f"{DIGITS}: Old, best"] == f"{ablation.runs['SimGCD', DIGITS][0][1]['best_old']:.1f}"


def test_the_page_stands_alone_and_has_the_same_values(ablation):
    html = Page(ablation.page)
    assert html.loads == []  # its script stands in the page
    assert not html.tags & {"link", "img", "iframe", "object"}
    assert html.tables[0][0] == ["Method", "AGA", "EEP", DIGITS, "CUB", "Stanford-Cars"]
    assert html.tables[0][1] == ["All", "Old", "New", "n"] * 3
    first = ablation.runs["SimGCD", DIGITS][0][1]
    assert html.tables[0][2] == [
        *("SimGCD", "x", "x", *(f"{first[name]:.1f}" for name in ("all", "old", "new")), "1"),
        *("-[60.3]", "-[65.6]", "-[57.7]", "-", "-[53.8]", "-[71.9]", "-[45.0]", "-"),
    ]


def test_the_page_has_the_sections_of_a_report(ablation):
    html = Page(ablation.page)
    assert "Curves of SimGCD on scikit-learn digits" in html.text
    assert "Curves of SelEx on scikit-learn digits" in html.text
    assert ablation.page.count("<svg") >= 6
    assert ablation.page.count("<h1>") == 1
    assert "<h2>scikit-learn digits</h2>" not in ablation.page  # the summary says it
    named = [row[0] for rows in html.tables if rows[0][0] == "configuration" for row in rows[2:]]
    assert len(named) == 14
    assert all(any(name.startswith(row.key) for name in named) for row in ROWS)


@pytest.mark.parametrize(
    "condition", ["180 images, ", "epochs 2", "seeds 0", "preset release", "14 finished runs of 14", "commit"]
)
def test_conditions_are_said(ablation, condition):
    assert condition in Page(ablation.page).text
    assert condition in ablation.text


def test_a_second_time_nothing_is_trained_and_the_same_table_comes_out(ablation, monkeypatch):
    no_figures(monkeypatch)
    for name in ("train", "resume"):
        monkeypatch.setattr(runs, name, None)
    code, out = printed(*ablation.options)
    assert code == 0
    assert "14 runs, 14 of them finished before" in out
    assert (ablation.home / "ablation" / "table.md").read_text() == ablation.text


def test_other_tables_use_the_runs_they_share(ablation):
    """SelEx + EAGC and SelEx are there."""
    code, out = printed("proximal", *ablation.options[1:], "--dry-run")
    assert code == 0
    assert f"{DIGITS}: 4 runs, 3 finished, 0 begun" in out


# Gradient entanglement
# -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def entanglement(small, tmp_path_factory):
    home = tmp_path_factory.mktemp("entanglement")
    options = ["entanglement", "--dataset", "digits", "-o", home, "--seeds", "1", "--epochs", "1"]
    with pytest.MonkeyPatch.context() as patch:
        no_figures(patch)
        code, out = printed(*options, "--pretrain-epochs", "1", "--jobs", "1")
    assert code == 0
    text = (home / "entanglement" / "table.md").read_text()
    return SimpleNamespace(out=out, runs=runs_of(home, "entanglement"), text=text, lines=cells(text))


def test_the_printed_table_has_no_columns_that_only_the_paper_fills(entanglement):
    shown = aligned_cells(entanglement.out)
    assert len(shown) == 8  # "+ EAGC" stands for three rows
    for title, rows in shown.items():
        for row, line in zip(rows, entanglement.lines[title], strict=True):
            assert row == {
                heading: cell
                for heading, cell in line.items()
                if heading == "Method" or heading.startswith(DIGITS)
            }


def test_the_runs_follow_the_released_protocol(entanglement):
    assert len(entanglement.runs) == 10
    for (row, _), seeds in entanglement.runs.items():
        run, value = seeds[0]
        config = run.config
        protocol = (config.mlp_head_layers, config.head_lr, config.lambda_p, config.lr_floor)
        assert protocol == (0, 0.1, 0.5, 1.0)
        plain = row in ("SimGCD", "LegoGCD", "LegoGCD with DKL", "SelEx")
        if "LegoGCD" in row:
            assert config.dual_view_kl == (row == "LegoGCD with DKL")
        assert config.weight_decay == 5e-5
        assert (config.eagc, config.warm_start) == (row.endswith("EAGC"), not plain)
        (diagnosis,) = run.lines["diagnosis"]  # at steps 0, 10, ... of the four
        for name in ("gdc_release", "soc_release", "gdc_clean", "rho_grad", "rho_in"):
            assert value[name] == diagnosis[name]
        assert config.diagnose == Diagnosis(every=10, steps=200)


def test_gdc_and_soc_are_those_of_the_runs(entanglement):
    lines, runs = entanglement.lines, entanglement.runs
    beside = cells(entanglement.text.split("Other measures")[1])
    for row in ("SimGCD", "LegoGCD", "SelEx"):
        own = "LegoGCD, without DKL" if row == "LegoGCD" else row
        for title, key in ((own, row), (f"{row}, recipe of + EAGC *", f"{row} recipe")):
            value, line = runs[key, DIGITS][0][1], lines[title][0]
            assert line[f"{DIGITS}: GDC ↓"] == f"{value['gdc_release']:.4f}"
            assert line[f"{DIGITS}: SOC ↓"] == f"{value['soc_release']:.4f}"
            assert beside[title][0][f"{DIGITS}: rho_in"] == f"{value['rho_in']:.3f}"
        assert lines[f"{row}, recipe of + EAGC *"][0]["CUB: GDC ↓"] == "-"
    for line, row in zip(lines["+ EAGC"], ("SimGCD", "LegoGCD", "SelEx")):
        assert line[f"{DIGITS}: GDC ↓"] == f"{runs[f'{row} + EAGC', DIGITS][0][1]['gdc_release']:.4f}"


def test_the_papers_gdc_and_soc_stand_beside(entanglement):
    assert [line["Stanford Cars: SOC ↓"] for line in entanglement.lines["+ EAGC"]] == [
        "- [0.6208]",
        "- [0.6135]",
        "- [0.4470]",
    ]
    assert entanglement.lines["LegoGCD, without DKL"][0]["CUB: GDC ↓"] == "- [0.2646]"
    assert entanglement.lines["LegoGCD, with DKL *"][0]["CUB: GDC ↓"] == "-"
    assert "LegoGCD without its dual-view KL term (DKL), which the released diagnostics lack" in (
        entanglement.text
    )
    paired = cells(entanglement.text.split("Paired differences")[1])
    assert paired["SelEx + EAGC - SelEx"][0]["Aircraft: SOC ↓"] == "- [-0.0259]"


# Failures
# ------------------------------------------------------------------------------------------------------


def test_a_run_that_fails_leaves_the_others_and_code_1(tmp_path, capsys, small, monkeypatch):
    train = runs.train

    def diverging(config, folder):
        if config.tau == "uniform":
            raise FloatingPointError("the loss is nan")
        return train(config, folder)

    monkeypatch.setattr(runs, "train", diverging)
    options = ["projection", "--dataset", "digits", "-o", tmp_path, "--seeds", "1", "--epochs", "1"]
    assert table(*options, "--pretrain-epochs", "1", "--jobs", "1") == 1
    out, err = capsys.readouterr()
    assert "FAILED: the loss is nan" in err
    assert "1 runs failed: run the same command to resume them" in out
    lines = cells((tmp_path / "projection" / "table.md").read_text())
    assert [lines[row][0][f"{DIGITS}: n"] for row in ("w/o EEP", "Ours")] == ["-", "1"]
    assert lines["w/o EEP"][0]["Aircraft: New"] == "- [63.6]"
