"""The tables whose rows come from the compiler."""

import pytest
from records import records

from eagc_ops.bench import tables


def test_the_table_of_compilations_shows_every_case():
    aot = pytest.importorskip("eagc_ops.kernels.aot", reason="Triton has no wheels for this platform")
    from eagc_ops.kernels.assembly import Code, Loop

    cases = list(aot.cases(subset=True))

    def record(case, stores=0, loads=0):
        loops = [Loop(100, step.multiply_adds, None, {}) for step in aot.steps(case)]
        return aot.as_record(case, aot.judge(case, 72, stores, loads, 36 << 10, 0, Code(999, loops)))

    lines = tables.aot([record(case) for case in cases]).markdown().splitlines()
    assert len(lines) == 2 + len(cases)
    assert all(line.endswith("| ok |") for line in lines[2:])
    spilling = records(tables.aot([record(cases[0], 8, 4)]))[0]
    assert spilling["arch"] == "sm_80" and spilling["spill st/ld"] == "8/4"
    assert spilling["gate"] == "spills 8 bytes stored, 4 loaded"


def test_the_table_of_the_triangle_counts_all_steps():
    """Two loops: 14 steps of 683 instructions and 10 of 384, instead of 24 of 673."""
    aot = pytest.importorskip("eagc_ops.kernels.aot", reason="Triton has no wheels for this platform")
    from eagc_ops.kernels.assembly import Code, Loop

    cases = list(aot.triangle_cases())[:2]
    assert [case.tile.triangle for case in cases] == [False, True]
    counts = ([673], [683, 384])
    loops = [
        [Loop(n, step.multiply_adds, None, {}) for n, step in zip(numbers, aot.steps(case))]
        for numbers, case in zip(counts, cases)
    ]
    rows = [
        aot.as_record(case, aot.judge(case, 96, 0, 0, 9999, 0, Code(9999, of)))
        for case, of in zip(cases, loops)
    ]
    (line,) = records(tables.triangle(rows))
    assert line["instructions of a warp"] == f"{24 * 673:,} -> {14 * 683 + 10 * 384:,}"
    assert line["multiply-adds"] == "1.5 M -> 1.2 M" and line["in the table"] == "yes"
