"""The kernels of the gate, executed by the PTX machine and compared with the fp64 formulas."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch

from eagc_ops.kernels import DTYPES, aot, formulas, launch, tiles
from eagc_ops.kernels.tiles import SCAN_LIMIT
from eagc_ops.selftest import selftest

# Rows that take part in products: two blocks, of which the second is not full. The number of rows is no
# constant of a kernel, so that the text is that of the gate's case, which has more.
ROWS = 80
MOMENTUM = 0.9


@dataclass(frozen=True)
class Executed:
    """What an execution of a case showed.

    Attributes:
        error: the largest one, relative to the correction (see `eagc_ops.selftest`).
        findings: races and violations; without `races` only the violations were looked for.
        same_text: the text that ran is the one that the gate compiled.
        seconds: of CPU time.
    """

    case: aot.Case
    error: float
    allowed: float
    findings: tuple[str, ...]
    races: bool
    same_text: bool
    seconds: float

    @property
    def problems(self) -> list[str]:
        out = list(self.findings)
        if not self.error <= self.allowed:
            out.append(f"error {self.error:.2e} > {self.allowed:.2e}")
        if not self.same_text:
            out.append("another text than the gate's ran")
        return out


def execute_all(cases: Sequence[aot.Case], workers: int) -> Iterator[Executed]:
    """`execute` of every case, in order, in separate processes."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(execute, cases)


def execute(case: aot.Case) -> Executed:
    """Races are not looked for beyond D = 1,000, where an execution takes minutes with them."""
    from ptx_machine import on_machine

    began, races = time.process_time(), case.dim <= 1000
    texts: list[str] = []

    def seen(text: str) -> str:
        texts.append(text)
        return text

    before, tiles.target = tiles.target, case.arch
    torch.set_num_threads(1)
    try:
        with selftest.poisoned_memory(), on_machine(case.arch, edit=seen, races=races) as reports:
            error, allowed = _error(case)
    finally:
        tiles.target = before
    found = [str(finding) for report in reports for finding in (*report.races, *report.violations)]
    same = texts[0 if case.kernel == "compaction" else -1] == aot.compiled_kernel(case).asm["ptx"]
    seconds = time.process_time() - began
    return Executed(case, error, allowed, tuple(found), races, same, seconds)


def _error(case: aot.Case) -> tuple[float, float]:
    dtype = DTYPES[case.dtype]
    compaction = case.kernel == "compaction"
    rows, labelled = ROWS, 0.4
    dim, tile = (16, None) if compaction else (case.dim, case.tile)
    if case.rows > SCAN_LIMIT:  # such a launch gets a list of rows; few of them take part in products
        rows += SCAN_LIMIT
        labelled = (ROWS if case.kernel == "labelled_energy" else rows - ROWS) / rows
    form = "basis" if case.basis else "uniform" if case.tau == "uniform" else "default"
    drawn = selftest.Case("triton", case.precision, form, dtype, rows, dim, labelled)
    g, inputs, settings = selftest.make_inputs(drawn)
    inputs = inputs._replace(scale=torch.ones(()))
    if case.count:
        inputs = inputs._replace(labelled=inputs.mask.sum().float())
    if case.wide_ref and inputs.z_ref is not None:
        inputs = inputs._replace(z_ref=inputs.z_ref.float())
    wide = inputs.rounded(drawn.matrix_dtype).widened(torch.float64)
    if case.kernel == "labelled_energy":
        sums, used = launch.run_labelled_energy(inputs, MOMENTUM, case.precision, update=True, tile=tile)
        exact = formulas.labelled_energy(wide)
        after = formulas.updated_energy_ref(wide.energy_ref, exact, MOMENTUM)
        errors = [((sums - exact).abs() / exact.clamp_min(1)).max(), abs(used - after) / after]
    else:
        out = launch.run(g, inputs, settings, case.precision, tile).gradient
        exact = formulas.coordinated(g.double(), wide, settings).gradient
        wrong, correction = (out.double() - exact).abs(), (exact - g.double()).abs()
        errors = [wrong[kind].max() / (correction[kind].max() or 1) for kind in (wide.mask, ~wide.mask)]
    return max(float(error) for error in errors), drawn.allowed


def as_record(found: Executed) -> dict[str, Any]:
    """One JSON object per execution."""
    values = {key: value for key, value in vars(found).items() if key != "case"}
    case = asdict(found.case)
    del case["tile"]
    return {**case, **found.case.tile._asdict(), **values, "problems": found.problems}
