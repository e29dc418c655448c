"""The conceptor's measures against an oracle of their own."""

import pytest
import torch
from records import records

from eagc_ops.bench import conceptor
from eagc_ops.bench.conceptor import exact_conceptors, quality_rows, time_rows
from eagc_ops.bench.inputs import make_features
from eagc_ops.bench.tables import conceptor_quality, conceptor_times


@pytest.mark.parametrize("count", [20, 200], ids=["N < D", "N > D"])
def test_the_oracle_is_the_formula_in_fp64(count):
    features = make_features(count, 48, torch.Generator().manual_seed(1))
    wide = features.double()
    correlation = wide.T @ wide / count
    for aperture, exact in exact_conceptors(features, (0.5, 2.0, 10.0)):
        formula = correlation @ torch.linalg.inv(
            correlation + aperture**-2 * torch.eye(48, dtype=torch.float64)
        )
        assert (exact - formula).abs().max() < 1e-10


@pytest.mark.parametrize("count", [20, 200], ids=["N < D", "N > D"])
def test_quality_tells_the_ways_apart(count):
    rows = quality_rows(make_features(count, 48, torch.Generator().manual_seed(1)), (0.5, 2.0, 100.0))
    ours = [row for row in rows if row["way"] == "ours"]
    released = [row for row in rows if row["way"] == "released"]
    assert [row["aperture"] for row in ours] == [0.5, 2.0, 100.0]
    for row in ours:
        assert row["largest_error"] < 1e-7 and row["asymmetry"] == 0
        assert -1e-6 < row["smallest_eigenvalue"] <= row["largest_eigenvalue"] < 1 + 1e-6
    assert max(row["largest_error"] for row in released) > 10 * max(row["largest_error"] for row in ours)
    worst = {line["way"]: line["worst error"] for line in records(conceptor_quality(rows))}
    assert worst["ours"] == f"{max(row['largest_error'] for row in ours):.1e}"


def test_times_are_of_every_way():
    rows = time_rows(make_features(60, 24, torch.Generator().manual_seed(1)), budget=0.01)
    assert [(row["way"], row["D"], row["N"], row["kind"]) for row in rows] == [
        (way, 24, 60, "measured") for way in ("released", "ours", "ours, fp32")
    ]


def test_a_refused_fit_is_shown_as_refused(monkeypatch):
    def refuse_large(features, aperture):
        if aperture > 10:
            raise ValueError("does not resolve")
        return conceptor.released(features, aperture)

    monkeypatch.setitem(conceptor.WAYS, "ours, fp32", refuse_large)
    rows = quality_rows(make_features(60, 24, torch.Generator().manual_seed(1)), (0.5, 2.0, 100.0))
    assert [(row["way"], row["aperture"], row["reason"]) for row in rows if row["kind"] == "refused"] == [
        ("ours, fp32", 100.0, "does not resolve")
    ]
    lines = {line["way"]: line["refused at"] for line in records(conceptor_quality(rows))}
    assert lines == {"released": "-", "ours": "-", "ours, fp32": "100"}
    monkeypatch.setattr(conceptor, "APERTURE", 50.0)
    times = time_rows(make_features(60, 24, torch.Generator().manual_seed(1)), budget=0.01)
    assert [row["kind"] for row in times] == ["measured", "measured", "refused"]
    assert records(conceptor_times(times))[-1]["ms"] == "refused"
