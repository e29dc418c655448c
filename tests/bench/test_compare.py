"""`eagc bench compare` flags what became worse or was lost, not noise, baselines or other machines' times."""

import json

import pytest
from records import records

from eagc_ops.bench.commands import main
from eagc_ops.bench.compare import BASELINES, IDENTITY, compare
from eagc_ops.bench.figures import RESULTS
from eagc_ops.bench.measure import Spread
from eagc_ops.bench.results_file import load, save
from eagc_ops.bench.tables import changes as table

ROW = {
    "kind": "measured",
    "rows": 256,
    "D": 768,
    "dtype": "fp32",
    "contender": "ours, torch",
    "Ebar": "given",
    "seconds": Spread(0.010, 0.0095, 0.0105),
    "speed_up": Spread(2.0, 1.9, 2.1),
    "error": 1e-8,
}
ONES = Spread(1.0, 1.0, 1.0)


def results(*rows, **header):
    return {
        "benchmark": "throughput",
        "machine": {"cpu": "x"},
        "versions": {"torch": "1"},
        **header,
        "throughput": list(rows),
    }


def one(**changes):
    return results({**ROW, **changes})


def flagged(a, b, threshold=0.1):
    return [change.measure for change in compare(a, b, threshold) if change.regression]


def only(changes):
    (change,) = changes
    return change


def test_the_same_results_are_no_regression():
    changes = compare(one(), one())
    assert [c.measure for c in changes] == ["seconds", "speed_up", "error"] and {
        c.ratio for c in changes
    } == {1.0}
    assert flagged(one(), one()) == []


def test_slower_is_flagged_and_faster_is_not():
    slower = one(seconds=Spread(0.013, 0.012, 0.014))
    assert flagged(one(), slower) == ["seconds"]
    assert compare(one(), slower)[0].ratio == pytest.approx(1.3)
    assert flagged(slower, one()) == []
    assert flagged(one(), slower, threshold=0.5) == []


@pytest.mark.parametrize("name", ["speed_up", "share_of_limit"])
def test_of_these_a_lower_one_is_worse(name):
    high, low = one(**{name: Spread(2.0, 1.9, 2.1)}), one(**{name: Spread(1.5, 1.4, 1.6)})
    assert flagged(high, low) == [name] and flagged(low, high) == []


def test_overlapping_quartiles_are_noise():
    assert flagged(one(), one(seconds=Spread(0.012, 0.010, 0.02))) == []
    # also where one side is a single round
    assert flagged(one(seconds=Spread(0.010, 0.010, 0.010)), one(seconds=Spread(0.012, 0.0095, 0.02))) == []


def test_memory_has_no_noise():
    memory = {"peak": 100, "kept": 50, "saved": 1}
    assert flagged(one(memory=memory), one(memory={**memory, "peak": 120})) == ["peak"]
    assert flagged(one(memory=memory), one(memory={**memory, "kept": 60, "saved": 9})) == ["kept"]


def test_the_rows_of_the_operator_and_of_the_solve():
    shape = {"kind": "measured", "rows": 256, "D": 768, "form": "running energy reference"}
    times = {
        "seconds": Spread(2.0, 1.9, 2.1),
        "hooks_seconds": Spread(4.0, 3.9, 4.1),
        "limit_seconds": Spread(1.0, 0.9, 1.1),
    }
    slower = {name: Spread(2 * s.median, 2 * s.low, 2 * s.high) for name, s in times.items()}
    assert flagged(results({**shape, **times}), results({**shape, **slower})) == ["seconds"]
    solve = {
        "kind": "measured",
        "D": 768,
        "solve": "fp64",
        "seconds": Spread(2.0, 1.9, 2.1),
        "largest_error": 1e-15,
        "asymmetry": 0.0,
    }
    worse = {"seconds": Spread(3.0, 2.9, 3.1), "largest_error": 1e-13, "asymmetry": 1e-18}
    assert flagged(results(solve), results({**solve, **worse})) == ["seconds", "largest_error", "asymmetry"]


# Rows that are gone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["not timed", "refused"])
def test_a_row_that_is_no_longer_measured_is_a_regression_with_its_reason(kind):
    lost = {name: ROW[name] for name in IDENTITY if name in ROW} | {
        "kind": kind,
        "reason": "wrong by 1.0e+00",
    }
    change = only(compare(one(), results(lost)))
    assert (
        change.regression
        and change.note == f"{kind} in B: wrong by 1.0e+00"
        and "contender ours, torch" in change.row
    )
    assert records(table([change]))[0][""] == "REGRESSION"
    # the other way round it is a gain, and a row that neither file measured is nothing
    other = {**ROW, "rows": 1}
    assert [c.note for c in compare(results(other, lost), results(other, ROW)) if c.measure == ""] == ["new"]
    assert {c.row for c in compare(results(other, lost), results(other, lost))} == {
        compare(results(other), results(other))[0].row
    }


def test_a_missing_row_is_a_regression_and_a_new_one_is_not():
    both = results(ROW, {**ROW, "dtype": "bf16"})
    lost = [c for c in compare(both, one()) if c.regression]
    assert "bf16" in only(lost).row and only(lost).note == "missing in B"
    assert flagged(one(), both) == []
    assert [c.row for c in compare(one(), both) if c.note == "new"] == [lost[0].row]


def test_a_missing_measurement_is_a_regression():
    assert flagged(one(), one(speed_up=None)) == ["speed_up"] and flagged(one(speed_up=None), one()) == []


def test_rows_are_matched_whatever_the_order_of_their_keys():
    changes = compare(one(), results(dict(reversed(ROW.items()))))
    assert len(changes) == 3 and all(c.ratio == 1 for c in changes)


def test_rows_that_cannot_be_told_apart_are_refused():
    with pytest.raises(ValueError, match="two rows of 'throughput'"):
        compare(one(), results(ROW, ROW))


@pytest.mark.parametrize("kind", ["modelled", "paper, A100", "not timed"])
def test_a_file_without_measured_rows_is_refused(kind):
    with pytest.raises(ValueError, match="no measured row"):
        compare(one(kind=kind), one())


@pytest.mark.parametrize("kind", ["modelled", "paper, A100"])
def test_what_is_no_measurement_is_not_compared(kind):
    model = {"kind": kind, "rows": 256, "seconds": 1.0}
    assert len(compare(results(ROW, model), results(ROW, {**model, "seconds": 9.0}))) == 3


# What the files must share ----------------------------------------------------------------------------------


def test_different_benchmarks_are_refused():
    with pytest.raises(ValueError, match="compare results of the same benchmark"):
        compare(one(), {**one(), "benchmark": "overhead"})


def test_other_settings_are_refused_by_name_and_value():
    a = results(ROW, settings={"threads": 1, "rows": 16, "device": "cpu", "rounds": 9})
    with pytest.raises(ValueError, match="different settings") as caught:
        compare(a, results(ROW, settings={"threads": 2, "rows": 16, "rounds": 3}))
    assert "threads: 1 and 2; device: 'cpu' and 'not set'" in str(caught.value)
    assert "rows" not in str(caught.value) and "rounds" not in str(caught.value)
    with pytest.raises(ValueError, match="threads: 1 and 'not set'"):
        compare(a, one())


def test_other_rounds_are_the_same_settings():
    few, many = (results(ROW, settings={"threads": 1, "rounds": rounds}) for rounds in (3, 9))
    assert len(compare(few, many)) == 3


# What is judged ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["machine", "versions"])
def test_on_another_machine_ratios_and_bytes_are_judged_and_seconds_are_not(part):
    a = {
        "seconds": 1.0,
        "step_seconds": 1.0,
        "launches": 1,
        "ratio_to_baseline": 1.1,
        "ratio_to_released": 1.1,
        "add_on_share": 0.1,
        "peak_to_baseline": 1.1,
        "peak_to_released": 1.1,
        "host_syncs_on_gpu": 1,
        "memory": {"peak": 1, "kept": 1},
    }
    b = {name: {"peak": 2, "kept": 2} if name == "memory" else 2 * value for name, value in a.items()}
    b |= {"speed_up": 1.0, "error": 1e-6}
    before, here = one(**a), one(**b)
    there = {**here, part: {"cpu": "y"}}
    everything = {*a, "peak", "kept", "speed_up", "error"} - {"memory"}
    assert set(flagged(before, here)) == everything
    assert set(flagged(before, there)) == everything - {"seconds", "step_seconds", "launches"}
    shown = {c.measure: c for c in compare(before, there)}
    assert shown["seconds"].ratio == 2 and shown["seconds"].note == "different machine"


def test_another_version_of_this_package_is_the_same_machine():
    a, b = (results(ROW, versions={"torch": "1", "eagc-ops": version}) for version in "12")
    b["throughput"] = [{**ROW, "seconds": 1.0}]
    assert flagged(a, b) == ["seconds"]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("contender", "released hooks"),
        ("solve", "released"),
        ("way", "released"),
        ("way", "as released"),
        ("variant", "SimGCD, as released"),
    ],
)
def test_a_baseline_may_be_slower_and_less_exact(part, name):
    row = {
        part: name,
        "speed_up": ONES,
        "seconds": 1.0,
        "step_seconds": 1.0,
        "share_of_limit": 0.8,
        "largest_error": 1e-6,
    }
    worse = {**row, "seconds": 2.0, "step_seconds": 2.0, "share_of_limit": 0.4, "largest_error": 1e-3}
    assert flagged(one(**row), one(**worse)) == []
    assert {c.note for c in compare(one(**row), one(**worse)) if c.ratio > 1} == {"baseline"}
    assert flagged(one(**row, ratio_to_released=0.8), one(**row, ratio_to_released=0.9)) == [
        "ratio_to_released"
    ]


def test_an_error_may_grow_tenfold():
    assert flagged(one(), one(error=9e-8)) == [] and flagged(one(), one(error=11e-8)) == ["error"]
    assert flagged(one(), one(error=float("nan"))) == ["error"]


@pytest.mark.parametrize("name", ["host_syncs_on_gpu", "launches"])
def test_counts_are_exact(name):
    assert flagged(one(**{name: 100}), one(**{name: 101}), threshold=1.0) == [name]
    assert flagged(one(**{name: 0}), one(**{name: 1})) == [name]
    assert flagged(one(**{name: 101}), one(**{name: 100})) == []


def test_the_number_of_operations_is_shown_only():
    changes = {c.measure: c for c in compare(one(aten_ops=10), one(aten_ops=90))}
    assert changes["aten_ops"].ratio == 9 and not changes["aten_ops"].regression


def test_zeros_divide():
    zero, some = (
        one(seconds=0.0, add_on_share=0.0, speed_up=0.0),
        one(seconds=1.0, add_on_share=0.5, speed_up=1.0),
    )
    assert [c.ratio for c in compare(zero, zero)] == [1, 1, 1, 1]
    assert flagged(zero, some) == ["seconds", "add_on_share"]
    assert flagged(some, zero) == ["speed_up"]
    assert {row["worse by"] for row in records(table(compare(zero, some)))} == {"inf", "0.00", "1.00"}


# The command and the committed files ------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """A, and B that is twice as slow."""
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    save(a, "throughput", {"settings": {"threads": 1}, "throughput": [ROW]})
    save(
        b,
        "throughput",
        {"settings": {"threads": 1}, "throughput": [{**ROW, "seconds": Spread(0.019, 0.018, 0.020)}]},
    )
    return a, b


def rewrite(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_command(files, tmp_path, capsys):
    a, b = map(str, files)
    assert main(["compare", a, a]) == 0
    assert main(["compare", a, b]) == 1
    out, err = capsys.readouterr()
    assert "REGRESSION" in out and err == ""
    assert "3 measurements compared, 1 regressions beyond 10%" in out
    assert main(["compare", a, b, "--threshold", "1"]) == 0
    assert main(["compare", a, str(tmp_path / "none.json")]) == 2
    assert "name a results file" in capsys.readouterr().err


def test_the_command_says_when_seconds_are_not_judged(files, capsys):
    a, b = files
    rewrite(b, machine={**load(b)["machine"], "cpu": "another"})
    assert main(["compare", str(a), str(b)]) == 0
    assert "differ (cpu): seconds and launches are shown but not judged" in capsys.readouterr().err


def test_the_command_refuses_other_settings(files, capsys):
    a, b = files
    rewrite(b, settings={"threads": 2})
    assert main(["compare", str(a), str(b)]) == 2
    assert "threads: 1 and 2" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["10", "1.01", "0", "-0.1", "nan"])
def test_the_command_refuses_a_threshold_that_is_no_share(files, value, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["compare", *map(str, files), f"--threshold={value}"])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert f"above 0 and at most 1, got {value};" in error and "0.1 is 10 %" in error


# These have counts of instructions, accuracies, or the seconds and the memory of one run: no times of rounds.
UNTIMED = ("triangle", "discover", "discover_training", "refine", "scale")
MEASURED = [path for path in sorted(RESULTS.glob("*.json")) if path.stem not in UNTIMED]


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_every_committed_file_can_be_compared(path):
    results = load(path)
    assert results["benchmark"] == path.stem
    changes = compare(results, results)
    assert changes and not any(c.regression for c in changes)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_the_baselines_of_the_committed_files_are_known(path):
    """A row whose ratio to its baseline is exactly one in every round is that baseline."""
    rows = [
        row for rows in load(path).values() if isinstance(rows, list) for row in rows if isinstance(row, dict)
    ]
    for row in rows:
        ratio = row.get("speed_up") or row.get("ratio_to_baseline")
        if row.get("kind") == "measured" and ratio:
            assert (ratio == ONES) == any(row.get(part) in BASELINES for part in IDENTITY), row
