"""`eagc bench aot --execute`: what it calls right, and what it must not."""

import dataclasses

import pytest

pytest.importorskip("triton", reason="Triton has no wheels for this platform")
from compiled import MISSING

from eagc_ops.bench import executed
from eagc_ops.kernels import aot

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"NOT EXECUTED: cases of the gate, {MISSING}")
CASES = {
    (case.kernel, case.arch, case.rows, case.dtype): case
    for case in reversed(list(aot.cases()))
    if case.dim in (192, 384, 768) and case.precision == "auto" and not case.basis
}
QUICK = CASES["coordinate", "sm_80", 512, "bf16"]


@pytest.mark.parametrize(
    "case",
    [
        QUICK,
        CASES["coordinate", "sm_90", 65536, "bf16"],
        CASES["labelled_energy", "sm_120", 256, "fp32"],
        CASES["compaction", "sm_86", 65536, "fp32"],
    ],
    ids=lambda case: f"{case.kernel}-{case.arch}",
)
def test_a_case_of_the_gate_runs_as_compiled(case):
    found = executed.execute(case)
    assert found.problems == [] and found.same_text and found.races
    assert 0 < found.error < found.allowed


def test_a_wrong_value_is_a_problem(monkeypatch):
    def half(sums):
        return lambda *arguments: sums(*arguments)._replace(gradient=sums(*arguments).gradient / 2)

    monkeypatch.setattr(executed.formulas, "coordinated", half(executed.formulas.coordinated))
    assert any("error" in problem for problem in executed.execute(QUICK).problems)


def test_another_text_than_the_gate_s_is_a_problem(monkeypatch):
    monkeypatch.setattr(executed, "SCAN_LIMIT", 1 << 20)  # so it launches without a list of rows
    many = CASES["coordinate", "sm_90", 65536, "bf16"]
    assert executed.execute(many).problems == ["another text than the gate's ran"]


def test_a_finding_is_a_problem():
    found = executed.Executed(QUICK, 0.0, 1.0, ("line 3: out of bounds",), True, True, 1.0)
    assert found.problems == ["line 3: out of bounds"]
    record = executed.as_record(dataclasses.replace(found, error=float("nan")))
    assert len(record["problems"]) == 2 and record["arch"] == "sm_80" and record["warps"] == QUICK.tile.warps
