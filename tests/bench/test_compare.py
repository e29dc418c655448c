"""`eagc bench compare`: regressions are flagged, noise is not."""

import copy

import pytest

from eagc_ops.bench.cli import main
from eagc_ops.bench.compare import compare
from eagc_ops.bench.measure import Spread, load, save
from eagc_ops.bench.readme import RESULTS


def results(**changes):
    row = {"kind": "measured", "rows": 256, "D": 768, "dtype": "fp32", "provider": "ours, torch", "Ebar": "given",
           "seconds": Spread(0.010, 0.0095, 0.0105), "speed_up": Spread(2.0, 1.9, 2.1), "error": 1e-8}  # fmt: skip
    return {"benchmark": "throughput", "machine": {}, "versions": {}, "throughput": [{**row, **changes}]}


def flagged(a, b, threshold=0.1):
    return [change.measure for change in compare(a, b, threshold) if change.regression]


def test_the_same_results_are_no_regression():
    changes = compare(results(), results())
    assert [c.measure for c in changes] == ["seconds", "speed_up"] and {c.ratio for c in changes} == {1.0}
    assert flagged(results(), results()) == []


def test_slower_is_flagged_and_faster_is_not():
    slower = results(seconds=Spread(0.013, 0.012, 0.014))
    assert flagged(results(), slower) == ["seconds"]
    assert compare(results(), slower)[0].ratio == pytest.approx(1.3)
    assert flagged(slower, results()) == []
    assert flagged(results(), slower, threshold=0.5) == []


def test_a_lower_speed_up_is_worse():
    worse = results(speed_up=Spread(1.5, 1.4, 1.6))
    assert flagged(results(), worse) == ["speed_up"] and flagged(worse, results()) == []


def test_overlapping_quartiles_are_noise():
    assert flagged(results(), results(seconds=Spread(0.012, 0.010, 0.02))) == []


def test_memory_has_no_noise():
    a = {"benchmark": "overhead", "steps": [{"kind": "measured", "variant": "x", "memory": {"peak": 100, "kept": 50, "saved": 1}}]}
    b = copy.deepcopy(a)
    b["steps"][0]["memory"]["peak"] = 120
    assert flagged(a, b) == ["peak"]


def test_rows_are_matched_by_what_they_measure():
    assert compare(results(), results(dtype="bf16")) == []


@pytest.mark.parametrize("kind", ["modelled", "paper, A100", "not timed"])
def test_what_was_not_measured_is_not_compared(kind):
    assert compare(results(kind=kind), results(kind=kind)) == []


def test_different_benchmarks_are_refused():
    with pytest.raises(ValueError, match="compare results of the same benchmark"):
        compare(results(), {**results(), "benchmark": "overhead"})


def test_the_command(tmp_path, capsys):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    save(a, "throughput", {"throughput": results()["throughput"]})
    save(b, "throughput", {"throughput": results(seconds=Spread(0.02, 0.019, 0.021))["throughput"]})
    assert main(["compare", str(a), str(a)]) == 0
    assert main(["compare", str(a), str(b)]) == 1
    out = capsys.readouterr().out
    assert "REGRESSION" in out and "worse by" in out and "1 regressions beyond 10%" in out
    assert main(["compare", str(a), str(b), "--threshold", "1.5"]) == 0
    assert main(["compare", str(a), str(tmp_path / "none.json")]) == 2
    assert "no results file" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_committed_file_can_be_compared(path):
    found = load(path)
    assert found["benchmark"] == path.stem
    assert compare(found, found)
