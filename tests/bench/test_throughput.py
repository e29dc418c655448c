"""The gate before the clock, and what a row says."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from records import records

from eagc_ops.bench import throughput
from eagc_ops.bench.inputs import coordinated, error, make_workload
from eagc_ops.bench.measure import Spread, interleave, ratio, rounds_within
from eagc_ops.bench.pinning import PINNED
from eagc_ops.bench.results_file import HEADER, load
from eagc_ops.bench.tables import throughput as table
from eagc_ops.bench.throughput import HOOKS, Contender, Shape, contenders, measure
from eagc_ops.kernels import formulas

CPU = torch.device("cpu")
SMALL = Shape(32, 24, "fp32")


def without_compile(workload):
    return [p for p in contenders(workload) if "compile" not in p.name]


def test_inputs_exercise_both_corrections():
    workload = make_workload(64, 48)
    tau = formulas.projection_weight(
        formulas.energy_ratio(workload.z.detach(), workload.subspace.matrix), workload.subspace.energy_ref
    )
    share = ((tau > 0) & (tau < 1))[~workload.mask].float().mean()
    assert 0.6 < share < 0.8
    for rows in (workload.mask, ~workload.mask):  # leaving one correction out is 100 % wrong
        out = coordinated(workload.g, workload.inputs)
        assert not error(workload, out, running=False).too_large(torch.float32)
        out[rows] = workload.g[rows]
        assert error(workload, out, running=False).correction == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda out, g, mask: g, id="does nothing"),
        pytest.param(lambda out, g, mask: torch.where(mask[:, None], g, out), id="no anchor"),
        pytest.param(lambda out, g, mask: torch.where(mask[:, None], out, g), id="no projection"),
        pytest.param(lambda out, g, mask: g + 1.5 * (out - g), id="too strong"),
        pytest.param(lambda out, g, mask: out.index_fill(0, torch.tensor([3]), torch.nan), id="NaN"),
    ],
)
def test_a_wrong_contender_is_not_timed(broken, dtype):
    calls = []

    def make(workload):
        right = next(p for p in without_compile(workload) if p.name == "ours, torch")

        def run():
            calls.append(None)
            return broken(right.run(), workload.g, workload.mask)

        return [*without_compile(workload), Contender("broken", False, run)]

    rows = measure(SMALL._replace(dtype=dtype), make, CPU, 0.01)
    verdict = next(row for row in rows if row["contender"] == "broken")
    assert verdict["kind"] == "not timed" and "wrong by" in verdict["reason"]
    assert "seconds" not in verdict
    assert len(calls) == 1  # the comparison, and never again
    assert {row["contender"] for row in rows if row["kind"] == "measured"} == {
        HOOKS,
        "plain torch",
        "ours, torch",
        "ours, torch, running Ebar",
    }
    assert "NOT TIMED" in records(table(rows))[-1]["error"]


def test_a_contender_that_fails_is_reported_and_the_others_are_measured():
    def fail():
        raise RuntimeError("no compiler")

    rows = measure(
        SMALL, lambda workload: [*without_compile(workload), Contender("failing", False, fail)], CPU, 0.01
    )
    assert rows[-1] == {
        "rows": 32,
        "D": 24,
        "dtype": "fp32",
        "contender": "failing",
        "Ebar": "given",
        "kind": "not timed",
        "reason": "RuntimeError: no compiler",
    }
    assert sum(row["kind"] == "measured" for row in rows) == 4


def test_plain_torch_overflows_in_half_precision_and_is_refused():
    """N_l * D = 69,632 is infinite in fp16, so the anchor vanishes: a wrong contender of real life."""
    rows = measure(
        Shape(1024, 136, "fp16"),
        lambda workload: [p for p in without_compile(workload) if p.name != HOOKS],
        CPU,
        0.01,
    )
    assert {row["contender"]: row["kind"] for row in rows} == {
        "plain torch": "not timed", "ours, torch": "measured", "ours, torch, running Ebar": "measured"
    }  # fmt: skip


def test_a_row_is_consistent():
    for row in measure(SMALL, without_compile, CPU, 0.05):
        work = throughput.nominal_work(16, 16, 24, 4, running=row["Ebar"] == "running")
        assert row["gflop_per_s"] == pytest.approx(work.flops / row["seconds"].median / 1e9)
        assert row["gb_per_s"] / row["gflop_per_s"] == pytest.approx(1 / row["flop_per_byte"])
        assert row["speed_up"].low <= row["speed_up"].median <= row["speed_up"].high
        assert row["error"] < 1e-6
        assert row["host_syncs_on_gpu"] == (4 if row["contender"] == HOOKS else 0)
        assert (
            row["device_seconds"] is row["host_seconds"] is row["launches"] is None
        )  # nothing of a GPU is invented


def test_the_limit_multiplies_what_the_form_must():
    workload = make_workload(
        32, 24
    )  # 16 unlabelled rows: z and g of each; running: z of the 16 labelled ones too
    rows = {
        running: [run().shape[0] for run in throughput.products(workload, running=running).values()]
        for running in (False, True)
    }
    assert rows == {False: [32], True: [48]}


def test_on_a_gpu_every_line_has_the_same_columns():
    rows = measure(SMALL, without_compile, CPU, 0.01)
    made_up = {"host_seconds": Spread(1e-5, 1e-5, 1e-5), "device_seconds": None, "launches": 3}  # as on a GPU
    made_up["cold_device_seconds"] = Spread(2e-5, 2e-5, 2e-5)
    not_timed = {**rows[0], "kind": "not timed", "reason": "wrong", "host_seconds": None}
    lines = records(table([*({**row, **made_up} for row in rows), not_timed]))
    assert len({tuple(line) for line in lines}) == 1 and "rates of" in lines[0]
    for line in lines[:-1]:
        assert line["cold L2 us"] == "20.0"
        assert (line["host us"], line["device us"], line["rates of"]) == ("10.0", "-", "call")
    assert lines[-1]["rates of"] == "-" and lines[-1]["error"] == "NOT TIMED: wrong"


def test_the_compiled_contender_is_right_and_counted_like_plain_torch():
    compiled = [p for p in contenders(make_workload(32, 24)) if "compile" in p.name]
    rows = measure(
        SMALL,
        lambda workload: [p for p in contenders(workload) if p.name in (HOOKS, compiled[0].name)],
        CPU,
        0.01,
    )
    assert [row["kind"] for row in rows] == ["measured", "measured"], rows
    assert rows[1]["host_syncs_on_gpu"] == 0 and rows[1]["aten_ops"] is None


def test_the_command_writes_a_results_file(tmp_path):
    command = [
        sys.executable,
        "-m",
        "eagc_ops.app.cli",
        "bench",
        "throughput",
        "--rows",
        "16",
        "--dims",
        "8",
        "--dtypes",
        "fp32",
        "--budget",
        "0.01",
    ]
    environment = {name: value for name, value in os.environ.items() if name not in PINNED} | {
        "TORCHDYNAMO_DISABLE": "1"
    }  # no compiling here
    done = subprocess.run(
        [*command, "-o", tmp_path / "t.json", "--profile", tmp_path / "trace.json"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert "released hooks" in done.stdout and "ours, torch" in done.stdout
    plain = json.loads((tmp_path / "t.json").read_text())
    assert list(plain)[:5] == list(HEADER)
    assert plain["settings"]["threads"] == 1  # the process pinned itself
    results = load(tmp_path / "t.json")
    assert results["benchmark"] == "throughput" and len(results["throughput"]) == 5
    for row in results["throughput"]:
        assert (
            row["kind"] == "measured"
            and isinstance(row["seconds"], Spread)
            and math.isfinite(row["seconds"].median)
        )
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {row["contender"] for row in results["throughput"]} <= {event["name"] for event in trace}
    assert not list(tmp_path.glob("*.partial"))


class TestMeasuring:
    def test_rounds_rotate_and_the_warm_up_is_dropped(self):
        calls, now = [], iter(range(1000))
        runs = {name: lambda name=name: calls.append(name) for name in "abc"}
        timings = interleave(runs, 3, lambda: next(now))
        assert "".join(calls[-9:]) == "abcbcacab"
        assert len(calls) == 12 and all(
            len(t.seconds) == 3 and set(t.seconds) == {1} for t in timings.values()
        )

    def test_ratios_are_paired_by_round(self):
        slow, fast = (throughput.Timing(list(seconds), []) for seconds in ([2, 20, 200], [1, 10, 100]))
        assert ratio(slow, fast) == Spread(2, 2, 2)

    def test_rounds_follow_the_budget_within_limits(self):
        assert rounds_within(0.0, {"a": lambda: None}, least=5) == 5
        assert rounds_within(100.0, {"a": lambda: None}, most=61) == 61

    def test_one_round_has_no_spread(self):
        assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)

    @pytest.mark.parametrize("text", ["{", "[]", '{"benchmark": "x"}'])
    def test_a_foreign_file_is_refused(self, tmp_path, text):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match="not a results file"):
            load(tmp_path / "x.json")
