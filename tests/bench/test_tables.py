"""The tables whose rows come from the compiler."""

import pytest
from records import records

from eagc_ops.bench import tables


def test_the_table_of_compilations_shows_every_case():
    aot = pytest.importorskip("eagc_ops.kernels.aot", reason="Triton has no wheels for this platform")
    cases = list(aot.cases(subset=True))
    results = [(case, aot.judge(case, 72, 0, 0, 36 << 10, 0)) for case in cases]
    lines = tables.aot(results).markdown().splitlines()
    assert len(lines) == 2 + len(cases)
    assert all(line.endswith("| ok |") for line in lines[2:])
    spilling = records(tables.aot([(cases[0], aot.judge(cases[0], 72, 8, 4, 36 << 10, 0))]))[0]
    assert spilling["arch"] == "sm_80" and spilling["spill st/ld"] == "8/4"
    assert spilling["gate"] == "spills 8 bytes stored, 4 loaded"
