"""The paper's values against a second reading, typed by hand, and against the printed averages."""

import numpy as np

from eagc_ops.evidence.paper import tables
from eagc_ops.evidence.paper.tables import TABLES
from eagc_ops.evidence.paper.values import PAPER

READ_AGAIN = {
    "main": {
        ("ORCA", "CIFAR-100"): (73.5, 92.6, 63.9),
        ("DCCL", "Aircraft"): (None, None, None),
        ("μGCD", "CUB"): (65.7, 68.0, 64.6),
        ("CMS", "ImageNet-100"): (84.7, 95.6, 79.2),
        ("SimGCD", "Stanford-Cars"): (53.8, 71.9, 45.0),
        ("LegoGCD + EAGC", "ImageNet-100"): (84.8, 94.4, 80.1),
        ("SPTNet", "Aircraft"): (59.3, 61.8, 58.1),
        ("SelEx + EAGC", "Average"): (76.7, 80.7, 73.4),
        ("Avg. Δ", "Aircraft"): (2.9, -0.3, 4.4),
    },
    "dinov2": {
        ("SimGCD + EAGC", "Stanford Cars"): (81.5, 90.9, 76.9),
        ("SelEx", "Aircraft"): (79.8, 82.3, 78.6),
    },
    "ablation": {("SimGCD II", "Stanford-Cars"): (57.7, 74.6, 49.6), ("SelEx I", "CUB"): (81.7, 73.5, 85.9)},
    "entanglement": {
        ("SimGCD + EAGC", "CUB"): (0.1525, 0.4923),
        ("LegoGCD", "Aircraft"): (0.0922, 0.8642),
        ("SelEx", "Stanford Cars"): (0.0007, 0.6022),
    },
    "projection": {
        ("w/o EEP", "Stanford Cars"): (59.3, 76.6, 50.9),
        ("SelEx + EAGC", "Aircraft"): (65.7, 65.6, 65.7),
    },
    "subspace": {("PCA-32", "CUB"): (80.9, 73.5, 84.7), ("PCA-16", "Stanford Cars"): (64.9, 84.0, 55.7)},
    "overhead": {
        ("SimGCD", "CUB"): (60.3, 4289.4, None, 55.9, None),
        ("SimGCD + EAGC", "IN-100"): (83.5, 4921.3, 3.5, 1262.2, 6899.1),
    },
    "herbarium": {
        ("Baseline", "SelEx"): (39.6, 54.9, 31.3),
        ("Baseline + EAGC", "SimGCD"): (48.4, 59.8, 42.4),
    },
    "unknown-k": {
        ("SimGCD", "Stanford Cars"): (49.1, 65.1, 41.3),
        ("SelEx + EAGC", "ImageNet-100"): (88.9, 95.5, 85.5),
        ("Avg. Δ", "CUB"): (8.1, 3.1, 10.5),
    },
    "reference-batch": {
        ("128", "Aircraft"): (0.554, 50.3, 58.3, 46.3),
        ("32", "CUB"): (0.021, 66.5, 71.0, 64.3),
    },
    "reference-epochs": {
        ("20", "Stanford Cars"): (0.130, 55.1, 71.8, 47.0),
        ("100", "Aircraft"): (0.011, 57.9, 58.3, 57.7),
    },
    "reference-blocks": {
        ("4", "Stanford Cars"): (0.016, 66.4, 74.7, 62.4),
        ("2", "CUB"): (0.015, 65.5, 73.3, 61.5),
    },
    "proximal": {
        ("SelEx + EAGC_loss", "CUB"): (82.1, 74.5, 85.9),
        ("SelEx", "Stanford Cars"): (58.5, 75.6, 50.3),
    },
    "relation": {
        ("SelEx + RelDistill_sample", "CUB"): (82.9, 79.5, 84.6),
        ("SelEx + RelDistill_Gram", "Stanford Cars"): (59.8, 79.7, 50.1),
    },
    "hyper": {},
}


def test_the_papers_values_are_read_right():
    assert PAPER.keys() == TABLES.keys() == READ_AGAIN.keys()
    for name, values in READ_AGAIN.items():
        for (row, group), numbers in values.items():
            assert PAPER[name].values[row][group] == numbers


def test_the_papers_averages_follow_from_its_values():
    """A wrong digit in any row would show: averages over data sets and methods have one decimal."""
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
