"""A study of a few images."""

import pytest

from eagc_ops.evidence.studies import study as module
from eagc_ops.evidence.studies.study import Regime, Study


@pytest.fixture
def study(data, tmp_path, monkeypatch):
    """Two regimes of two seeds and one recipe on a few images: 3 known of 5 classes, or as good as that."""
    monkeypatch.setattr(module, "METHOD", "small")
    settings = {
        "dataset": "folder",
        "image_size": 16,
        "backbone": "vit_digits",
        "batch_size": 30,
        "reference_epochs": 1,
        "reference_batch_size": 8,
        "cache_views": 2,
    }
    regimes = (Regime(3, 5, 60, 2, settings), Regime(4, 6, 60, 2, settings))
    machine = {"log_every": 1, "diagnose": {"every": 2}, **data}
    return Study(tmp_path / "study", regimes, ("paper",), ("small_legogcd",), {"epochs": 1}, machine)
