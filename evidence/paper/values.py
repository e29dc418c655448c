"""The values that the paper prints: table -> row -> column group -> values, in the order of its columns.

Nothing here was measured by this package. Accuracies are in percent. A dash means that the paper prints no
value.
"""

# ruff: noqa: E501  (a row of the paper is one line)

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PrintedTable(NamedTuple):
    """A table of the paper: its LaTeX label, and row -> column group -> values (None for a dash)."""

    label: str
    values: dict[str, dict[str, tuple[float | None, ...]]]


def _printed(label: str, groups: str, rows: Mapping[str, str]) -> PrintedTable:
    """`groups` are titles separated by "|"; a row is numbers, separated by "|" between groups."""
    titles = [title.strip() for title in groups.split("|")]
    values = {
        row: dict(zip(titles, map(_numbers, text.split("|")), strict=True)) for row, text in rows.items()
    }
    return PrintedTable(label, values)


def _numbers(text: str) -> tuple[float | None, ...]:
    return tuple(None if word == "-" else float(word) for word in text.split())


_SIMGCD_EAGC = "66.5 71.0 64.3 | 62.9 76.0 56.6"  # on CUB and Stanford Cars, in four tables
_SELEX_EAGC = "83.2 73.9 87.9 | 65.7 83.7 57.0"  # in six

PAPER: dict[str, PrintedTable] = {
    "main": _printed("tab:sota", "CUB | Stanford-Cars | Aircraft | CIFAR-100 | ImageNet-100 | Average", {
        "ORCA": "36.3 43.8 32.6 | 31.6 32.0 31.4 | 31.9 42.2 26.9 | 73.5 92.6 63.9 | 81.8 86.2 79.6 | 51.0 59.4 46.9",
        "GCD": "51.3 56.6 48.7 | 39.0 57.6 29.9 | 45.0 41.1 46.9 | 73.0 76.2 66.5 | 74.1 89.8 66.3 | 56.5 64.3 51.7",
        "GPC": "52.0 55.5 47.5 | 38.2 58.9 27.4 | 43.3 40.7 44.8 | 75.4 84.6 60.1 | 75.3 93.4 66.7 | 56.8 66.6 49.3",
        "XCon": "52.1 54.3 51.0 | 40.5 58.8 31.7 | 47.7 44.4 49.4 | 74.2 81.2 60.3 | 77.6 93.5 69.7 | 58.4 66.4 52.4",
        "PromptCAL": "62.9 64.4 62.1 | 50.2 70.1 40.6 | 52.2 52.2 52.3 | 81.2 84.2 75.3 | 83.1 92.7 78.3 | 65.9 72.7 61.7",
        "DCCL": "63.5 60.8 64.9 | 43.1 55.7 36.2 | - - - | 75.3 76.8 70.2 | 80.5 90.5 76.2 | - - -",
        "μGCD": "65.7 68.0 64.6 | 56.5 68.1 50.9 | 53.8 55.4 53.0 | - - - | - - - | - - -",
        "InfoSieve": "69.4 77.9 65.2 | 55.7 74.8 46.4 | 56.3 63.7 52.5 | 78.3 82.2 70.5 | 80.5 93.8 73.8 | 68.0 78.5 61.7",
        "AMEND": "64.9 75.6 59.6 | 56.4 73.3 48.2 | 52.8 61.8 48.3 | 81.0 79.9 83.3 | 83.2 92.9 78.3 | 67.7 76.7 63.5",
        "CMS": "68.2 76.5 64.0 | 56.9 76.1 47.6 | 56.0 63.4 52.3 | 82.3 85.7 75.5 | 84.7 95.6 79.2 | 69.6 79.5 63.7",
        "SimGCD": "60.3 65.6 57.7 | 53.8 71.9 45.0 | 54.2 59.1 51.8 | 80.1 81.2 77.8 | 83.0 93.1 77.9 | 66.3 74.2 62.0",
        "SimGCD + EAGC": f"{_SIMGCD_EAGC} | 57.7 60.4 56.3 | 83.1 84.1 81.0 | 83.5 93.9 78.3 | 70.7 77.1 67.3",
        "LegoGCD": "63.8 71.9 59.8 | 57.3 75.7 48.4 | 55.0 61.5 51.7 | 81.8 81.4 82.5 | 86.3 94.5 82.1 | 68.8 77.0 64.9",
        "LegoGCD + EAGC": "64.6 72.5 60.7 | 62.8 76.2 56.3 | 56.7 61.9 54.0 | 83.5 83.7 83.0 | 84.8 94.4 80.1 | 70.5 77.7 66.8",
        "SPTNet": "65.8 68.8 65.1 | 59.0 79.2 49.3 | 59.3 61.8 58.1 | 81.3 84.3 75.6 | 85.4 93.2 81.4 | 70.2 77.5 65.9",
        "SPTNet + EAGC": "67.4 70.5 66.0 | 62.1 76.1 55.4 | 57.0 58.1 56.5 | 84.0 84.3 83.5 | 85.3 94.3 80.4 | 71.2 76.7 68.4",
        "SelEx": "73.6 75.3 72.8 | 58.5 75.6 50.3 | 57.1 64.7 53.3 | 82.3 85.3 76.3 | 83.1 93.6 77.8 | 70.9 78.9 66.1",
        "SelEx + EAGC": f"{_SELEX_EAGC} | 65.7 65.6 65.7 | 79.3 84.1 69.7 | 89.8 96.2 86.5 | 76.7 80.7 73.4",
        "Avg. Δ": "4.6 1.6 5.9 | 6.2 2.4 8.1 | 2.9 -0.3 4.4 | 1.1 1.0 1.3 | 1.4 1.1 1.5 | 3.2 1.2 4.3",
    }),
    "dinov2": _printed("the table after tab:sota, without a label", "CUB | Stanford Cars | Aircraft", {
        "SimGCD": "71.5 78.1 68.3 | 71.5 81.9 66.6 | 63.9 69.9 60.9",
        "SimGCD + EAGC": "77.9 79.9 76.9 | 81.5 90.9 76.9 | 74.6 74.9 74.4",
        "SelEx": "87.4 85.1 88.5 | 82.2 93.7 76.7 | 79.8 82.3 78.6",
        "SelEx + EAGC": "89.4 82.3 92.9 | 85.3 92.7 81.7 | 84.9 81.8 86.5",
        "Avg. Δ": "4.2 -0.5 6.5 | 6.6 4.0 7.7 | 7.9 2.3 10.7",
    }),
    "ablation": _printed("tab:ablation_study", "CUB | Stanford-Cars", {
        "SimGCD": "60.3 65.6 57.7 | 53.8 71.9 45.0",
        "SimGCD I": "65.6 71.1 62.9 | 62.2 75.9 55.6",
        "SimGCD II": "65.2 71.1 62.2 | 57.7 74.6 49.6",
        "SimGCD + EAGC": _SIMGCD_EAGC,
        "SelEx": "73.6 75.3 72.8 | 58.5 75.6 50.3",
        "SelEx I": "81.7 73.5 85.9 | 62.6 83.4 52.6",
        "SelEx II": "82.3 71.9 87.6 | 58.8 81.5 47.9",
        "SelEx + EAGC": _SELEX_EAGC,
    }),
    "entanglement": _printed("tab:grad_entanglement", "CUB | Stanford Cars | Aircraft", {  # GDC, SOC
        "SimGCD": "0.2669 0.6478 | 0.0909 0.8110 | 0.0935 0.8643",
        "SimGCD + EAGC": "0.1525 0.4923 | 0.0500 0.6208 | 0.0375 0.7139",
        "LegoGCD": "0.2646 0.6468 | 0.0905 0.8112 | 0.0922 0.8642",
        "LegoGCD + EAGC": "0.1594 0.4844 | 0.0515 0.6135 | 0.0376 0.7112",
        "SelEx": "0.0005 0.5902 | 0.0007 0.6022 | 0.0313 0.6033",
        "SelEx + EAGC": "0.0003 0.4463 | 0.0001 0.4470 | 0.0001 0.5774",
    }),
    "projection": _printed("tab:projection", "CUB | Stanford Cars | Aircraft", {
        "w/o EEP": "80.9 74.5 84.2 | 59.3 76.6 50.9 | 61.7 57.9 63.6",
        "SelEx + EAGC": f"{_SELEX_EAGC} | 65.7 65.6 65.7",
    }),
    "subspace": _printed("tab:subspace", "CUB | Stanford Cars", {
        "PCA-16": "82.7 74.5 86.8 | 64.9 84.0 55.7",
        "PCA-32": "80.9 73.5 84.7 | 64.5 84.1 55.0",
        "PCA-64": "82.1 73.7 86.3 | 64.0 83.3 54.6",
        "SelEx + EAGC": _SELEX_EAGC,
    }),
    "hyper": PrintedTable("fig:hyper1, which prints no numbers", {}),
    "overhead": _printed("tab:overhead", "CUB | IN-100", {  # All ACC, peak MB, inversion ms per epoch, seconds per epoch, of E_r; one A100
        "SimGCD": "60.3 4289.4 - 55.9 - | 83.0 4288.1 - 947.7 -",
        "SimGCD + EAGC": "66.5 4927.2 2.9 63.8 467.9 | 83.5 4921.3 3.5 1262.2 6899.1",
    }),
    "herbarium": _printed("tab:herb19_results", "SimGCD | SelEx", {
        "Baseline": "44.0 58.0 36.4 | 39.6 54.9 31.3",
        "Baseline + EAGC": "48.4 59.8 42.4 | 42.0 55.0 35.0",
    }),
    "unknown-k": _printed("tab:wok", "CUB | Stanford Cars | ImageNet-100", {
        "SimGCD": "61.5 66.4 59.1 | 49.1 65.1 41.3 | 81.7 91.2 76.8",
        "SimGCD + EAGC": "66.5 69.4 65.0 | 63.3 74.8 57.8 | 82.2 94.1 76.2",
        "SelEx": "72.0 72.3 71.9 | 58.7 75.3 50.8 | 85.4 94.0 81.0",
        "SelEx + EAGC": "83.1 75.4 86.9 | 64.2 79.1 56.9 | 88.9 95.5 85.5",
        "Avg. Δ": "8.1 3.1 10.5 | 9.9 6.8 11.3 | 2.0 2.2 2.0",
    }),
    "reference-batch": _printed("tab:pbs", "CUB | Stanford Cars | Aircraft", {  # L_cls, All, Old, New
        "32": "0.021 66.5 71.0 64.3 | 0.034 62.9 76.0 56.6 | 0.042 57.7 60.4 56.3",
        "128": "0.035 68.6 71.3 67.3 | 0.052 58.2 71.8 51.7 | 0.554 50.3 58.3 46.3",
    }),
    "reference-epochs": _printed("tab:pepoch", "CUB | Stanford Cars | Aircraft", {
        "20": "0.046 67.8 71.8 65.9 | 0.130 55.1 71.8 47.0 | 0.232 55.6 60.9 52.9",
        "30": "0.021 66.5 71.0 64.3 | 0.034 62.9 76.0 56.6 | 0.042 57.7 60.4 56.3",
        "100": "0.014 65.7 67.5 64.8 | 0.018 54.9 69.0 48.1 | 0.011 57.9 58.3 57.7",
    }),
    "reference-blocks": _printed("tab:pblock", "CUB | Stanford Cars", {
        "1": "0.021 66.5 71.0 64.3 | 0.034 62.9 76.0 56.6",
        "2": "0.015 65.5 73.3 61.5 | 0.028 56.9 74.9 48.2",
        "3": "0.013 66.2 71.2 63.7 | 0.025 60.6 72.1 55.1",
        "4": "0.012 67.3 69.6 66.1 | 0.016 66.4 74.7 62.4",
        "5": "0.012 66.6 69.7 65.1 | 0.019 57.7 71.4 51.1",
    }),
    "proximal": _printed("tab:proximal_loss_vs_aga", "CUB | Stanford Cars", {
        "SelEx": "73.6 75.3 72.8 | 58.5 75.6 50.3",
        "SelEx + EAGC": _SELEX_EAGC,
        "SelEx + EAGC_loss": "82.1 74.5 85.9 | 65.1 83.9 56.1",
    }),
    "relation": _printed("tab:relational_distill_variants", "CUB | Stanford Cars", {
        "SelEx": "73.6 75.3 72.8 | 58.5 75.6 50.3",
        "SelEx + EAGC": _SELEX_EAGC,
        "SelEx + RelDistill_Gram": "80.4 68.5 86.3 | 59.8 79.7 50.1",
        "SelEx + RelDistill_sample": "82.9 79.5 84.6 | 60.0 81.9 49.5",
    }),
}  # fmt: skip

# All of the seeds 0, 1 and 2, as the README of the released code prints it. It does not say of which epoch; what that
# code prints last is its best one, chosen with the truth.
RELEASE_SEEDS = _printed("the README of the release", "CUB | Stanford-Cars | Aircraft | CIFAR-100 | ImageNet-100", {
    "SimGCD + EAGC": "69.0 67.1 66.8 | 63.2 59.9 60.8 | 58.0 58.0 58.1 | 82.8 83.1 84.4 | 85.0 86.5 84.7",
    "LegoGCD + EAGC": "67.1 65.7 67.3 | 61.4 60.0 62.0 | 56.9 56.5 56.8 | 80.9 83.9 84.4 | 86.0 85.4 86.1",
    "SPTNet + EAGC": "68.4 67.1 66.8 | 62.9 59.8 63.7 | 56.7 56.1 58.3 | 83.5 83.5 85.2 | 84.9 86.3 84.6",
    "SelEx + EAGC": "86.3 84.9 84.5 | 66.2 64.2 67.3 | 69.9 69.2 67.6 | 79.7 80.0 79.7 | 91.6 92.3 88.7",
}).values  # fmt: skip

# Seconds of an epoch of SimGCD on the paper's A100 (tab:overhead): (data set, with EAGC)
A100_EPOCH = {
    (dataset, row != "SimGCD"): values[group][3]
    for row, values in PAPER["overhead"].values.items()
    for dataset, group in (("cub", "CUB"), ("imagenet100", "IN-100"))
}

# The numbers of classes that the paper estimated and trained with (appendix B.3)
ESTIMATED_K = {"cub": 231, "scars": 230, "imagenet100": 108}
