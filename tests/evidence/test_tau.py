"""Energies by their AUC where the truth is known, and the page that shows them."""

import csv
import re

import pytest
import torch
from documents import ROOT

from eagc_ops.evidence.tau import ENERGIES, drawn, measure

PAGE, TABLE = ROOT / "docs/coordinator.md", ROOT / "docs/coordinator/tau.csv"


def classes(spread: float, count: int = 8, each: int = 30, dim: int = 48):
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(count).repeat_interleave(each)
    centers = torch.randn(count, dim, generator=generator)
    return centers[label] + spread * torch.randn(len(label), dim, generator=generator), label


def test_a_draw_labels_half_of_the_rows_of_half_of_the_classes():
    features, label = classes(0.1)
    first, second = drawn(features, label, 0), drawn(features, label, 1)
    assert len(first.label.unique()) == 4
    assert not first.label.unique().equal(second.label.unique())
    assert 0.35 < len(first.label) / (4 * 30) < 0.65
    assert len(first.label) + len(first.unlabelled) == len(label)
    assert first.is_known.sum() == 4 * 30 - len(first.label)


def test_every_energy_tells_classes_that_lie_apart_and_none_tells_noise():
    features, label = classes(0.1)
    found = measure(features, label, draws=2)
    assert found.keys() == ENERGIES.keys()
    assert all(min(values) > 0.9 for name, values in found.items() if "whitened" not in name), found
    noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(1))
    for name, values in measure(noise, label, draws=2).items():
        assert sum(values) / 2 == pytest.approx(0.5, abs=0.12), name


def test_the_page_shows_the_means_of_its_table():
    found: dict[str, dict[str, list[float]]] = {}
    for line in csv.DictReader(TABLE.open(encoding="utf-8")):
        found.setdefault(line["energy"], {}).setdefault(line["data"], []).append(float(line["auc"]))
    page = PAGE.read_text(encoding="utf-8")
    data = re.search(r"\| energy \| (.+) \|", page)[1].split(" | ")
    rows = dict(re.findall(r"^\| ([^|]+?) \| ((?:0\.\d{3} ?\|? ?)+)", page, re.M))
    assert rows.keys() == found.keys()
    for energy, texts in rows.items():
        for name, text in zip(data, texts.strip(" |").split(" | "), strict=True):
            values = found[energy][name]
            assert text == f"{sum(values) / len(values):.3f}"
    best, ours = "label metric: largest cosine to a class mean", "conceptor, aperture 2 (the operator's)"
    said = re.search(r"three\*\*: (\S+), (\S+)\s+and (\S+) above", page).groups()
    for name, text in zip(data, said, strict=True):
        difference = sum(found[best][name]) - sum(found[ours][name])
        assert float(text) == pytest.approx(difference / len(found[best][name]), abs=0.006)
