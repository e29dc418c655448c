"""The report on run folders with known numbers: the page is read, its table and curves are computed again."""

import math
import re
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure
from pages import Page
from run_facts import some_facts
from written_runs import ACCURACY, FACTS, GDC, write_run

from eagc_ops.training.config import ConfigError, resolve
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.report.measures import mean_std, measures, plus_minus
from eagc_ops.training.report.page import write_report
from eagc_ops.training.report.runs import by_problem, grouped, read_run, sweeps


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    said = {(True, 1): ["tau is below 0.01 on 99 % of <rows>"]}
    return {
        key: write_run(
            home / f"{'eagc' if key[0] else 'plain'}{key[1]}", key[1], key[0], warnings=said.get(key, ())
        )
        for key in ACCURACY
    }


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    """The report on all runs: (its text, its figures)."""
    figures, save = [], Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
        file = write_report(list(runs.values()), tmp_path_factory.mktemp("report") / "out")
    assert file.parts[-2:] == ("out", "report.html")
    return file.read_text(), figures


def test_the_page_stands_alone_and_its_figures_are_drawings(written):
    text, _ = written
    page = Page(text)
    assert page.loads == []  # its script stands in the page
    assert not page.tags & {"link", "img", "iframe", "object"}
    assert "url(http" not in text
    assert "@import" not in text
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 6
    names = [
        element.text
        for drawing in drawings
        for element in ET.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")
    ]
    for shown in (
        "All",
        "Old",
        "New",
        "GDC, clean",
        "GDC, release",
        "SOC, release",
        "SOC, paper",
        "energy ratio E",
        "whole loss",
        "without EAGC",
        "with EAGC",
    ):
        assert shown in names
    # every figure says what it was measured on
    assert len(page.captions) == 6
    assert all(
        "1,797 images: 450 labelled ones of 5 known classes, 1,347 unlabelled ones of 10 classes" in c
        for c in page.captions
    )
    assert "k-means" not in page.text
    assert "12 leading directions" in page.captions[2]
    assert "Seeds of without EAGC: 0, 1; with EAGC: 0, 1." in page.captions[1]


def results(page):
    """The rows of the table of results as dictionaries, and the texts of their first cells."""
    titles, head, *rows = page.tables[0]
    prefixes = [title.removesuffix(", %") for title in titles[1:-1] for _ in range(3)]
    names = [*(f"{name}, {prefix}" for name, prefix in zip(head, prefixes)), head[-1]]
    return [row[0] for row in rows], [dict(zip(names, row[1:], strict=True)) for row in rows]


BEST = "best epoch, chosen with the truth"


def test_the_table_is_mean_and_std_over_seeds(written):
    page = Page(written[0])
    firsts, rows = results(page)
    assert firsts == ["without EAGC2 runs; eagc=False", "with EAGC2 runs; eagc=True"]
    head, *diagnosed = page.tables[1]
    for cells, more, eagc in zip(rows, diagnosed, (False, True)):
        cells |= dict(zip(head, more))
        curves = np.array([ACCURACY[eagc, seed] for seed in (0, 1)])  # seed, epoch, score
        best = curves[[0, 1], curves[:, :, 0].argmax(1)]
        for which, values in (("last epoch", curves[:, -1]), (BEST, best)):
            for i, name in enumerate(("All", "Old", "New")):
                mean, std = 100 * values[:, i].mean(), 100 * values[:, i].std(ddof=1)
                assert cells[f"{name}, {which}"] == f"{mean:.1f}± {std:.1f}"  # the deviation is below
        gdc = [np.mean([v for v in GDC[eagc, seed] if v is not None]) for seed in (0, 1)]
        assert cells["GDC, clean"] == f"{np.mean(gdc):.3f}± {np.std(gdc, ddof=1):.3f}"
        assert cells["SOC, release"] == "0.600± 0.000"
        assert cells["s / epoch"] == "9.50± 0.71"  # medians 11 and 12, less 2 seconds of diagnosis


def test_the_page_opens_with_the_verdict(written):
    """Paired differences of All: 81.25 - 62.5 and 70 - 75; t-interval and p by hand."""
    text, figures = written
    differences = np.array([18.75, -5.0])
    half = 12.706 * differences.std(ddof=1) / np.sqrt(2)
    low, high = differences.mean() - half, differences.mean() + half
    sentence = (
        "with EAGC against without EAGC: no clear difference. All +6.9 points (last epoch), 95% interval "
        f"{low:+.1f} to {high:+.1f}, 2 seeds, sign-flip p = 1."
    )
    assert text.index(sentence) < text.index("<svg") < text.index("<table")
    axis = figures[0].axes[0]
    np.testing.assert_allclose(axis.lines[1].get_xdata(), [low, high], rtol=1e-4)  # the bar
    np.testing.assert_allclose(axis.lines[2].get_xdata(), [6.875])
    np.testing.assert_allclose(axis.collections[0].get_offsets()[:, 0], differences)
    assert text.index("Accuracy on the unlabelled training images") < text.index("<summary>Diagnostics")
    assert text.index("<summary>Diagnostics") < text.index("Gradient entanglement during training")


def verdict(paths, tmp_path, names=None):
    text = write_report(paths, tmp_path / "out", names).read_text()
    found = re.search(r'<div class="verdict">(.*?)</div>', text, re.DOTALL)[1]
    return [Page(line).text for line in re.findall(r"<p>(.*?)</p>", found, re.DOTALL)]


def test_a_fair_baseline_differs_in_nothing_but_the_operator(tmp_path):
    """Settings of the operator do not count, nor does the reference model that only the operator uses."""
    rows = [(0.6, 0.6, 0.6)] * 3
    better = [(0.9, 0.9, 0.9)] * 3
    base = [write_run(tmp_path / f"base{seed}", seed, False, diagnosed=False, rows=rows) for seed in (0, 1)]
    ours = {"lambda_p": 3.0, "reference_epochs": 2, "preset": "release", "warm_start": False}
    ours |= {"memax_weight": 1.0, "headline": "last"}
    fair = [
        write_run(tmp_path / f"ours{seed}", seed, True, diagnosed=False, rows=better, **ours)
        for seed in (0, 1)
    ]
    line = (
        "with EAGC against without EAGC: higher in these seeds, which are too few to say more. All +30.0 "
        "points (last epoch), 95% interval +30.0 to +30.0, 2 seeds"
    )
    assert verdict([*base, *fair], tmp_path)[0].startswith(line)
    assert "sign-flip p = 0.5, the least that 2 seeds can give." in verdict([*base, *fair], tmp_path)[0]
    for i, unfair in enumerate(({"warm_start": True}, {"head_lr": 0.05}, {"trunk": "8" * 64})):
        other = write_run(tmp_path / f"unfair{i}", 0, True, diagnosed=False, rows=better, **unfair)
        assert verdict([*base, other], tmp_path) == [
            "with EAGC: no verdict, because its fair baseline (the same settings with EAGC off) is missing. "
            "Train its settings again with --no-eagc and the same seeds (0), and pass these runs to `eagc "
            "report` too."
        ]
    late = write_run(tmp_path / "late", 1, False, finished=False, diagnosed=False, rows=rows)
    assert verdict([late, fair[1]], tmp_path) == [
        "with EAGC: no verdict, because no seed of it is finished both here and in its fair baseline (the "
        "same settings with EAGC off), without EAGC. Seeds of with EAGC: 1."
    ]
    assert verdict([base[0], fair[0]], tmp_path) == [
        "with EAGC against without EAGC: All +30.0 points (last epoch), from one seed. One pair has no "
        "interval: train more seeds of both."
    ]
    assert "no run here uses EAGC" in verdict(base, tmp_path)[0]


def test_better_takes_a_small_p_value_and_more_than_the_noise_floor(tmp_path):
    """One sentence for EAGC first, its parts in one line, and null runs as the floor."""

    def runs(name, seeds, change, **switches):
        return [
            write_run(
                tmp_path / f"{name}{seed}",
                seed,
                name != "base",
                diagnosed=False,
                rows=[(0.6 + change(seed),) * 3],
                **switches,
            )
            for seed in range(seeds)
        ]

    def said(seeds, change, null=lambda seed: 0.001):
        for old in tmp_path.iterdir():
            shutil.rmtree(old)
        paths = runs("base", seeds, lambda seed: 0) + runs("aga", seeds, lambda seed: -0.0001, lambda_p=0.0)
        if null is not None:
            paths += runs("null", seeds, null, lambda_a=1e-4, lambda_p=1e-4)
        paths += runs("full", seeds, change)
        names = {path: path.name[:-1] for path in paths}
        return verdict(paths, tmp_path, names)

    first, parts, floor = said(6, lambda seed: 0.01 + seed / 1000)
    assert first.startswith("full against base: better. All +1.2 points (last epoch)")
    assert "sign-flip p = 0.031" in first
    assert parts.startswith("Parts of EAGC, last epoch: aga against base, ")
    assert "(All 0.0, p = 0.031)" in parts and "-0.0" not in parts
    assert floor.startswith("Noise floor: rounding alone moved All of single runs by up to 0.1 points (null")
    assert "full against base: worse." in said(6, lambda seed: -0.01 - seed / 1000)[0]
    assert "higher in these seeds" in said(5, lambda seed: 0.01 + seed / 1000)[0]
    assert "lower in these seeds" in said(5, lambda seed: -0.01 - seed / 1000)[0]
    assert "no more than rounding does" in said(6, lambda seed: 0.01 + seed / 1000, lambda seed: 0.05)[0]
    unknown = said(6, lambda seed: 0.01 + seed / 1000, None)
    assert unknown[0].startswith("full against base: higher in these seeds (a null run, ")
    assert not any("better" in line for line in unknown)


def test_the_best_epoch_says_that_it_was_chosen_with_the_truth(tmp_path):
    paths = [
        write_run(tmp_path / f"{eagc}{seed}", seed, eagc, diagnosed=False, preset="release")
        for eagc in (False, True)
        for seed in (0, 1)
    ]
    last, best = verdict(paths, tmp_path)
    assert "All +6.9 points (last epoch)" in last
    assert f"All +3.1 points ({BEST})" in best  # 81.25 - 70 and 70 - 75
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert f"Preset release reports the {BEST}; it is the headline of without EAGC, with EAGC." in page.text
    # Wherever a best epoch is printed, the words stand beside it.
    for place in re.finditer(r"best epoch", page.text, re.IGNORECASE):
        assert "chosen with the tr" in page.text[place.start() : place.start() + 60]


def test_runs_without_true_labels_have_no_accuracies(tmp_path):
    rows = [(None, None, None)] * 3
    paths = [write_run(tmp_path / f"run{eagc}", 0, eagc, rows=rows) for eagc in (False, True)]
    page = Page(write_report(paths, tmp_path / "out").read_text())
    assert "No verdict: these runs have no true labels" in page.text
    assert [row["All, last epoch"] for row in results(page)[1]] == ["-", "-"]
    assert not [caption for caption in page.captions if "Accuracy" in caption]
    assert "All -  Old -  New -" in page.text
    assert "Training loss" in page.text


def test_lines_of_a_run_can_be_told_apart_by_the_page(written):
    """Every configuration has marks in the verdict, the curves and the diagnostics; ids stay unique."""
    text, _ = written
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    runs = [set(re.findall(r'<g data-run="(\d)"', drawing)) for drawing in drawings]
    assert runs == [{"1"}, {"0", "1"}, {"0", "1"}, {"1"}, {"1"}, {"0", "1"}]
    assert 'id="run-' not in text
    assert drawings[1].count('<g data-run="0"') == 3 * 2 + 2  # lines and bands of three panels, the legend


def test_the_curves_are_means_over_seeds(written):
    _, accuracy, diagnosis, quantiles, histograms, loss = written[1]
    for axis, i in zip(accuracy.axes, range(3)):
        for line, eagc in zip(axis.lines, (False, True)):
            expected = 100 * np.mean([[row[i] for row in ACCURACY[eagc, seed]] for seed in (0, 1)], axis=0)
            np.testing.assert_allclose(line.get_xydata(), np.column_stack([[1, 2, 3], expected]))
    first = diagnosis.axes[0].lines[0].get_xydata()  # at the second step only one seed has a value
    np.testing.assert_allclose(first, [[8, 0.35], [22, 0.2], [36, 0.25]])
    np.testing.assert_allclose(quantiles.axes[1].lines[-1].get_ydata(), [0.25] * 3)
    last = histograms.axes[1].patches[1].get_data().values
    np.testing.assert_allclose(last, [0.5] + [0] * 18 + [0.5])
    np.testing.assert_allclose(loss.axes[2].lines[1].get_xydata(), [[14, 3], [28, 2], [42, 1]])


def test_measures_are_drawn_that_some_run_has(tmp_path):
    """All ten, in rows of their kinds; no panel for a measure of no run, no line for a run without it."""
    everything = {
        "known_rows": 0.625,
        "rho_grad": 0.75,
        "rho_in": 0.5,
        "cos_labelled": 1.0,
        "cos_known": 0.875,
        "cos_novel": 0.25,
        "cos_all": None,
    }
    old = write_run(tmp_path / "old", 0, False)
    new = write_run(tmp_path / "new", 0, True, measured=everything)
    figures, save = [], Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
        page = Page(write_report([old, new], tmp_path / "out").read_text())
    titles = [axis.get_title() for axis in figures[2].axes]
    gdc, rho = ["GDC, clean", "GDC, release", "SOC, release", "SOC, paper"], ["rho_grad", "rho_in"]
    cosines = ["cos: labelled", "cos: + known unlabelled", "cos: + novel unlabelled"]
    assert titles == [*gdc, *rho, *cosines]  # and not cos_all
    panels = dict(zip(titles, figures[2].axes))
    assert [len(panels[title].lines) for title in titles] == [2] * 4 + [2] + [1] * 4
    np.testing.assert_allclose(
        panels["rho_grad"].lines[1].get_ydata(), 0.625
    )  # where all rows would pull alike
    for title, value in zip(("rho_grad", "cos: + novel unlabelled"), (0.75, 0.25)):
        np.testing.assert_allclose(
            panels[title].lines[0].get_xydata(), [[8, value], [22, value], [36, value]]
        )
    assert len({panels[title].get_ylim() for title in cosines}) == 1  # one scale: they are compared
    caption = page.captions[2]
    assert "rho_grad: " in caption
    assert "cos: cosine between" in caption
    cells = [dict(zip(page.tables[1][0], row)) for row in page.tables[1][1:]]
    assert [row["rho_in"] for row in cells] == ["-", "0.500"]
    assert "cos: all" not in cells[0]


def sweep_runs(home, settings, trunks=None, seeds=(0,)):
    """All of the last epoch is 0.5 + i / 100 + seed / 10 for the i-th setting."""
    paths = []
    for i, switches in enumerate(settings):
        for seed in seeds:
            everything = 0.5 + i / 100 + seed / 10
            rows = [(0.1, 0.1, 0.1)] * 2 + [(everything, everything + 0.2, everything - 0.2)]
            eagc = switches.get("eagc", True)
            trunk = {"trunk": trunks[i]} if trunks else {}
            others = {name: value for name, value in switches.items() if name != "eagc"}
            paths.append(
                write_run(home / f"{i}-{seed}", seed, eagc, diagnosed=False, rows=rows, **trunk, **others)
            )
    return paths


def found_sweeps(paths):
    groups = grouped([read_run(path) for path in paths])
    return [
        (
            sweep.setting,
            [(value, group.name) for value, group in sweep.points],
            sweep.centre and sweep.centre.name,
        )
        for sweep in sweeps(groups)
    ]


def test_one_setting_is_swept(tmp_path):
    paths = sweep_runs(tmp_path, [{"aperture": 4.0}, {"aperture": 0.25}, {"aperture": 2}], seeds=(0, 1))
    assert found_sweeps(paths) == [("aperture", [(0.25, "B"), (2, "C"), (4.0, "A")], None)]
    figures, save = [], Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
        page = Page(write_report(paths, tmp_path / "out").read_text())
    (axis,) = figures[1].axes
    assert axis.get_title() == "aperture"
    assert axis.get_xscale() == "log"
    for container, name, shift in zip(axis.containers, ("All", "Old", "New"), (0, 20, -20)):
        assert container.get_label() == name
        line, _, (bars,) = container
        expected = np.array([56.0, 57.0, 55.0]) + shift
        np.testing.assert_allclose(line.get_xydata(), np.column_stack([[0.25, 2, 4], expected]))
        heights = [segment[:, 1] for segment in bars.get_segments()]  # one deviation to each side
        np.testing.assert_allclose([low for low, _ in heights], expected - 10 / np.sqrt(2))
        np.testing.assert_allclose([high for _, high in heights], expected + 10 / np.sqrt(2))
    assert "Accuracy against aperture (aperture of the conceptor; a larger one" in page.captions[1]
    assert "means over the seeds of finished runs (2 per point)" in page.captions[1]


def test_settings_are_swept_one_at_a_time_from_a_centre(tmp_path):
    settings = [{"lambda_a": 0.1}, {}, {"lambda_p": 3.0}, {"lambda_a": 1.0}]
    assert found_sweeps(sweep_runs(tmp_path, settings)) == [
        ("lambda_a", [(0.1, "A"), (0.7, "B"), (1.0, "D")], "B"),
        ("lambda_p", [(0.5, "B"), (3.0, "C")], "B"),
    ]


def test_what_is_not_a_sweep(tmp_path):
    aside = [{}, {"lambda_a": 0.1}, {"eagc": False}]
    assert found_sweeps(sweep_runs(tmp_path / "two values and a baseline", aside)) == []
    baseline = [{"eagc": False}, {}, {"lambda_a": 0.1}, {"lambda_a": 0.2}]
    paths = sweep_runs(tmp_path / "three values and a baseline", baseline)
    assert found_sweeps(paths) == [("lambda_a", [(0.1, "C"), (0.2, "D"), (0.7, "B")], None)]
    assert "Not in these curves: A." in Page(write_report(paths, tmp_path).read_text()).captions[2]
    assert found_sweeps(sweep_runs(tmp_path / "switch", [{"eagc": False}, {"eagc": True}])) == []
    assert found_sweeps(sweep_runs(tmp_path / "words", [{"anchor": "mean"}, {"anchor": "sum"}])) == []
    assert found_sweeps(sweep_runs(tmp_path / "two at once", [{}, {"lambda_a": 0.1, "lambda_p": 0.1}])) == []
    assert (
        found_sweeps(sweep_runs(tmp_path / "none", [{"energy_momentum": None}, {"energy_momentum": 0.9}]))
        == []
    )
    assert found_sweeps(sweep_runs(tmp_path / "encoders", [{}, {"lambda_a": 0.1}], "ab")) == []
    blocks = [{"reference_blocks": None}, {"reference_blocks": 2}]  # the trunk is smaller then, and none is 1
    assert found_sweeps(sweep_runs(tmp_path / "blocks", blocks, "ab")) == [
        ("reference_blocks", [(1, "A"), (2, "B")], None)
    ]


def test_names_warnings_and_unfinished_runs(runs, tmp_path):
    unfinished = write_run(tmp_path / "half", 1, False, finished=False, lambda_a=0.1, diagnosed=False)
    paths = [*runs.values(), unfinished]
    names = {path: "with <EAGC>" if eagc else "plain" for (eagc, _), path in runs.items()}
    text = write_report(paths, tmp_path, names).read_text()
    page = Page(text)
    assert "<EAGC>" not in text
    firsts, rows = results(page)
    starts = ["plain2 runs; ", "with <EAGC>2 runs; ", "C0 of 1 runs finished; "]
    assert [first.split("eagc=")[0] for first in firsts] == starts
    assert rows[2]["All, last epoch"] == rows[2]["s / epoch"] == "-"
    assert "eagc1: tau is below 0.01 on 99 % of <rows>" in page.text
    assert "half: not finished, 3 of 3 epochs" in page.text
    assert "lambda_a=0.7" in firsts[0]
    assert "lambda_a=0.1" in firsts[2]


def test_without_eagc_and_diagnosis_their_figures_are_left_out(tmp_path):
    page = Page(write_report([write_run(tmp_path / "run", 0, False, diagnosed=False)], tmp_path).read_text())
    assert len(page.captions) == 2
    assert "GDC" not in page.text
    assert results(page)[1][0]["All, last epoch"] == "62.5"  # one seed: no deviation


def test_a_uniform_tau_has_no_energies_to_draw(tmp_path):
    page = Page(write_report([write_run(tmp_path / "run", 0, True, tau="uniform")], tmp_path).read_text())
    assert any("tau of the unlabelled rows" in caption for caption in page.captions)


def test_data_sets_have_sections_of_their_own(runs, tmp_path):
    config = resolve("simgcd", "cub", "paper", epochs=3)
    other = RunFolder.create(tmp_path / "cub", config, some_facts(**{**FACTS, "split_hash": "6" * 64}))
    other.start_logs(0, 0, 0)
    other.log(
        "epoch",
        14,
        {
            "epoch": 0,
            "all": 0.5,
            "old": 0.5,
            "new": None,
            "classes_predicted": 9,
            "steps": 14,
            "seconds": 1.0,
        },
    )
    other.close()
    page = Page(write_report([*runs.values(), tmp_path / "cub"], tmp_path).read_text())
    assert "CUB-200-2011" in page.text
    assert "scikit-learn digits" in page.text
    assert len(page.tables) == 5  # two sections, each with results and runs, and one with measures


def test_other_drawings_of_glyphs_are_another_problem(runs):
    record = read_run(runs[True, 0])
    settings = ({}, {"strength": 0.5}, {"skip": 60}, {})
    records = [record._replace(config=resolve("simgcd", "glyphs", glyphs=drawn)) for drawn in settings]
    assert [len(problem) for problem in by_problem(records)] == [2, 1, 1]


def test_a_run_without_an_epoch_is_refused(tmp_path):
    RunFolder.create(tmp_path / "run", resolve(), some_facts(**FACTS))
    with pytest.raises(ConfigError, match="first epoch"):
        read_run(tmp_path / "run")


def test_measures_of_one_run(runs):
    record = read_run(runs[False, 0])
    found = measures(record)
    assert (found["all"], found["best_all"], found["best_new"]) == (62.5, 70.0, 65.0)
    assert found["old_fall"] == 0  # its highest Old is the last
    record.lines["epoch"][0]["old"], record.lines["epoch"][1]["old"] = 0.97, None
    assert measures(record)["old_fall"] == pytest.approx(7)
    assert found["gdc_clean"] == pytest.approx(0.4)
    assert found["seconds"] == pytest.approx(9.0)


def test_the_accuracy_of_the_release_has_columns_and_a_note_of_its_own(tmp_path):
    starts = [(0.4, 0.5, 0.35), (0.6, 0.5, 0.65), (0.55, 0.9, 0.4)]
    scored = write_run(
        tmp_path / "scored", 0, False, diagnosed=False, method="selex", starts=starts, start_accuracy=True
    )
    other = write_run(tmp_path / "other", 0, False, diagnosed=False, method="selex")
    page = Page(write_report([scored, other], tmp_path / "out").read_text())
    cells, others = results(page)[1]
    titles = [f"{name}, best start of an epoch, chosen with the truth" for name in ("All", "Old", "New")]
    assert [cells[title] for title in titles] == ["60.0", "50.0", "65.0"]  # all of the second epoch
    assert [others[title] for title in titles] == ["-", "-", "-"]
    assert cells["All, last epoch"] == others["All, last epoch"] == "62.5"
    assert "from one augmented view and one restart of k-means, at the best of all epochs" in page.text
    assert "All 62.50%  Old 90.00%  New 50.00%" in [row[3] for row in page.tables[1]]


def test_mean_and_deviation():
    values = [3.0, 5.0, 4.0, math.nan]
    assert mean_std(values) == (pytest.approx(np.mean(values[:3])), pytest.approx(np.std(values[:3], ddof=1)))
    assert plus_minus([math.nan]) == "-"
