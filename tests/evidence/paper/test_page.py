"""The page of a table about runs with known numbers: means, deviations, paired differences, averages."""

import numpy as np
import pytest
from small_tables import cells, record_run

from eagc_ops.evidence.paper import filled
from eagc_ops.evidence.paper import page as table_page
from eagc_ops.evidence.paper.tables import TABLES, configuration
from eagc_ops.evidence.paper.values import PAPER, RELEASE_SEEDS
from eagc_ops.training.report.measures import START_MEASURE


def test_every_table_with_accuracies_of_selex_says_how_the_release_measures_them():
    said = {name for name in TABLES if START_MEASURE in table_page.table_note(name)}
    assert said == {
        *("main", "dinov2", "ablation", "projection", "subspace", "herbarium", "unknown-k"),
        *("proximal", "relation"),
    }


def test_means_deviations_pairs_and_averages(tmp_path, monkeypatch):
    """Runs with known numbers, on the paper's data sets: one by one, and all of them."""
    monkeypatch.setattr(table_page, "_figures", lambda filled: {})
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
                    start = values[::-1] / 2 if getattr(config, "start_accuracy", False) else None
                    record_run(path, config.replace(seed=seed), values, start)
                    runs.append((row.key, group.title, path))
        conditions = {"date": "2026-01-01", "machine": "a machine", "commit": "abc", "preset": "release"}
        filled.record(home, group.dataset, conditions, runs)
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
    # The accuracy that the release measures, in a table of its own: of SelEx, where the runs have it
    note, table = text.split("SelEx at the best start of an epoch, chosen with the truth")
    assert "The paper does not say of which kind its values of SelEx + EAGC are" in note
    start = cells(table)
    assert start.keys() == {"SelEx, recipe of + EAGC *", "+ EAGC", "null run: + EAGC, λ = 1e-4 *"}
    assert [heading for heading in start["+ EAGC"][0] if heading.startswith("Aircraft")] == []
    for group in (cub, cars):
        values = 50 * np.array([scores[group.title, "SelEx + EAGC", seed] for seed in range(3)])
        for place, name in enumerate(("All", "Old", "New")):
            mean, std = values[:, 0, place].mean(), values[:, 0, place].std(ddof=1)
            paper = PAPER["dinov2"].values["SelEx + EAGC"][group.title][place]
            cell = start["+ EAGC"][0][f"{group.title}: {name}, start"]
            assert cell == f"{mean:.1f} ± {std:.1f} [{paper}]"
    assert "Stanford Cars: 5,994 images" in text
    assert "commit abc on a machine" in text


@pytest.mark.parametrize("preset", ["release", "paper"])
def test_the_seeds_of_the_releases_readme_stand_beside_ours(tmp_path, monkeypatch, preset):
    monkeypatch.setattr(table_page, "_figures", lambda filled: {})
    store, home, main = tmp_path / "runs", tmp_path / "main", TABLES["main"]
    cub, runs = main.groups[0], []
    for key in ("SimGCD + EAGC", "SelEx + EAGC"):
        row = next(row for row in main.rows if row.key == key)
        config = configuration(main, row, cub, preset, {"epochs": 2})
        for seed in (1, 0):
            values = np.array([[0.5, 0.5, 0.5], [0.4, 0.4, 0.4]]) + seed / 10
            start = values / 2 if getattr(config, "start_accuracy", False) else None
            record_run(store / f"{key}{seed}", config.replace(seed=seed), values, start)
            runs.append((key, cub.title, store / f"{key}{seed}"))
    conditions = {"date": "2026-01-01", "machine": "a machine", "commit": "abc", "preset": preset}
    filled.record(home, cub.dataset, conditions, runs)
    table_page.write_table("main", home, store)
    text = (home / "table.md").read_text()
    assert ("All by seed" in text) == (preset == "release")
    if preset == "release":
        seeds = cells(text.split("All by seed")[1])
        assert seeds["SimGCD + EAGC"] == [
            {"row": "SimGCD + EAGC", "CUB: here": "50.0  60.0", "CUB: release": "69.0  67.1  66.8"}
        ]
        assert seeds["SelEx + EAGC"][0]["CUB: here"] == "25.0  30.0"  # as the release measures it
        assert seeds["LegoGCD + EAGC"][0] == {
            "row": "LegoGCD + EAGC",
            "CUB: here": "-",
            "CUB: release": "67.1  65.7  67.3",
        }


def test_the_seeds_of_the_releases_readme_are_near_the_papers_means():
    """A check of the copied numbers: the README's means are at most 5 points from the paper's."""
    for row, groups in RELEASE_SEEDS.items():
        for group, seeds in groups.items():
            assert len(seeds) == 3 and abs(np.mean(seeds) - PAPER["main"].values[row][group][0]) < 5
