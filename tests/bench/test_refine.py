"""`eagc bench refine`: the simulated person does what its docstring says, and no more."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from eagc_ops.bench import refine
from eagc_ops.bench.discover import Draw
from eagc_ops.bench.results_file import load
from eagc_ops.discovery import refining

ROOT = Path(__file__).resolve().parents[2]


def planted():
    """Four categories, two of them known, of which the last two look almost alike."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(160) % 4
    directions = F.normalize(
        torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.3], [0, 0, 1, -0.3]]), dim=1
    )
    features = directions[truth] + 0.2 * torch.randn(160, 4, generator=generator)
    label = torch.where((torch.arange(160) < 40) & (truth < 2), truth, -1)
    return Draw(features, label, truth, 2, 4)


def test_the_person_touches_wrong_images_of_one_half_alone(monkeypatch):
    drawn, seen = planted(), []
    truth = drawn.category[drawn.label < 0]
    original = refine._edits

    def watched(present, truth, untouched, paths, generator):
        edits = original(present, truth, untouched, paths, generator)
        seen.append((present, untouched.clone(), edits))
        return edits

    monkeypatch.setattr(refine, "_edits", watched)
    records = list(refine.rounds(drawn, seed=0, estimated=False))
    assert [record["round"] for record in records] == [*range(refine.ROUNDS + 1)]
    assert len(seen) == refine.ROUNDS
    halves = {tuple(untouched.tolist()) for _, untouched, _ in seen}
    assert len(halves) == 1 and sum(*halves) == len(truth) // 2 == records[0]["images"]
    moved = [int(path) for _, _, edits in seen for path in edits.move]
    assert len(moved) == len({*moved}) and moved
    for present, untouched, edits in seen:
        assert len(edits.move) <= refine.FIXED
        for path, name in edits.move.items():
            i = int(path)
            assert not untouched[i] and name == f"class {int(truth[i])}"
            own = present.names[present.category[i]]
            assert edits.names.get(own, own) != name
        for name, given in edits.names.items():
            own = truth[present.category == present.names.index(name)]
            assert given == f"class {int(own.bincount().argmax())}"


def test_the_table_of_the_docs_is_that_of_the_results():
    rows = load(ROOT / "bench/results/refine.json")["refine"]
    assert refine.table(rows).markdown() in (ROOT / "docs/discover-benchmark.md").read_text()


@pytest.mark.parametrize("number", ["true", "estimated"])
def test_every_round_gains_on_cifar10(number):
    rows = load(ROOT / "bench/results/refine.json")["refine"]
    for part in ("all", "new"):
        means = [
            np.mean(
                [row[part] for row in rows if (row["data"], row["K"], row["round"]) == ("cifar10", number, i)]
            )
            for i in range(refine.ROUNDS + 1)
        ]
        assert np.diff(means).min() > 0, part


def test_an_image_is_right_if_its_category_bears_the_name_of_its_class():
    present = refining.Present(
        ["class 0", "class 1", "new-1", "new-2"],
        2,
        torch.tensor([0, 1, 2, 2, 2, 3]),
        torch.zeros(6, dtype=bool),
    )
    truth = torch.tensor([0, 0, 2, 2, 3, 2])
    right = refine._named(present, truth, 2)
    assert right.tolist() == [True, False, True, True, False, True]
    record = refine._record(1, right, truth, torch.tensor([1, 1, 1, 0, 1, 0], dtype=bool), 2, 0.5)
    assert [record[part] for part in refine.PARTS] == [50.0, 50.0, 50.0]


def test_the_table_shows_means_and_the_least_gain():
    rows = [
        {
            "data": "a",
            "K": "true",
            "draw": d,
            "round": r,
            "seconds": 2.0,
            **dict.fromkeys(refine.PARTS, value),
        }
        for d in range(2)
        for r, value in enumerate(np.array([50, 60, 61, 65, 64.5, 70]) + d)
    ]
    line = refine.table(rows).markdown().splitlines()[-3]
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "a", "true", "all", "50.5", "60.5", "61.5", "65.5", "65.0", "70.5", "-0.5", "2.0"
    ]  # fmt: skip
