"""The compiled code of both kernels, executed: the values of the fp64 formulas, the same bits under every
schedule, no race, nothing out of bounds, nothing misaligned.

A launch goes through `launch` as on a GPU: the same tile, constants, specialisation and compile options.
"""

import functools
import re
from dataclasses import dataclass, field

import pytest
import torch
from compiled import MISSING, on_machine
from operator_cases import SETTINGS, assert_close_to_oracle, assert_exercised, make_case

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

from eagc_ops.kernels import aot, formulas, launch
from eagc_ops.kernels.tiles import SCAN_LIMIT, pick
from eagc_ops.selftest.selftest import TF32_TOLERANCE

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"NOT EXECUTED: the compiled kernels, {MISSING}"),
    pytest.mark.usefixtures("poisoned_memory"),
]
SCHEDULES = (0, 1, 2)
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Call:
    """A call of the operator on a GPU that is not there."""

    arch: str = "sm_80"
    rows: int = 40
    dim: int = 128
    dtype: torch.dtype = FP32
    precision: str = "auto"
    labelled: float = 0.5
    settings: dict = field(default_factory=dict)
    inputs: dict = field(default_factory=dict)
    wide_ref: bool = False  # z_ref in fp32
    strided: bool = False  # z = tokens[:, 0]
    basis: bool = False  # of the energy
    tile_of: int | None = None  # the tile of a call with so many rows; None: of this one
    schedules: tuple[int, ...] = SCHEDULES

    def __str__(self) -> str:
        extra = [*map(str, self.settings.values()), *self.inputs]
        extra += ["wide"] * self.wide_ref + ["strided"] * self.strided + ["basis"] * self.basis
        extra += [f"tile of {self.tile_of}"] * (self.tile_of is not None)
        dtype = str(self.dtype).removeprefix("torch.")
        return "-".join(
            [self.arch, dtype, self.precision, f"{self.rows}x{self.dim}", f"{self.labelled:g}", *extra]
        )

    @functools.cached_property
    def case(self):
        case = make_case(self.rows, self.dim, dtype=self.dtype, labelled=self.labelled, basis=self.basis)
        if self.wide_ref:
            case = case.replace(z_ref=case.z_ref.float())
        if self.strided:
            case = case.replace(z=torch.stack([case.z, case.z], 1)[:, 0])
        return case.replace(**self.inputs)

    @property
    def products(self) -> torch.dtype:
        """The dtype in which S is multiplied."""
        return FP32 if self.precision == "high" else self.dtype

    def run(self, seed: int, **options):
        with on_machine(self.arch, seed=seed, **options) as reports:
            out = launch.run(self.case.g, self.case.inputs, self.chosen, self.precision, self.tile)
        return out, reports

    @property
    def tile(self):
        arguments = (self.arch, self.tile_of, self.dim, self.dtype, self.precision)
        return self.tile_of and pick(*arguments, basis=self.basis)

    @property
    def chosen(self):
        return SETTINGS._replace(**self.settings)


CALLS = [
    Call(),
    Call(labelled=0.0),
    Call(labelled=1.0),
    Call(rows=1, labelled=0.0),
    Call(rows=37, dim=100),
    Call(dtype=BF16),
    Call(dtype=FP16, arch="sm_86", rows=50, dim=100),
    Call(precision="tf32"),
    Call(precision="tf32x3", dim=64),
    Call(dtype=BF16, precision="high"),
    Call(dtype=BF16, wide_ref=True),
    Call(inputs={"z_ref": None}),
    Call(inputs={"scale": torch.tensor(0.25), "labelled": torch.tensor(3.0)}, settings={"anchor": "sum"}),
    Call(inputs={"labelled": torch.tensor(3.0)}, strided=True),
    Call(settings={"tau": "uniform"}),
    Call(arch="sm_86", rows=70, dim=64, dtype=BF16),
    Call(arch="sm_120", rows=70, dtype=BF16),
    Call(arch="sm_120", rows=33),
    *(
        Call(arch=arch, rows=20, dim=64, dtype=dtype, precision=precision)
        for arch in ("sm_86", "sm_120")
        for dtype, precision in (
            (FP32, "auto"), (FP32, "tf32"), (FP32, "tf32x3"), (FP16, "auto"), (BF16, "auto"), (BF16, "high")
        )
    ),
    Call(arch="sm_90", dtype=BF16),
    Call(arch="sm_100"),
    Call(rows=600, dim=64, dtype=FP16),
    Call(rows=SCAN_LIMIT + 3, dim=16, schedules=(0, 1)),
    Call(rows=SCAN_LIMIT + 5, dim=64, dtype=BF16, schedules=(0,)),
    # Blocks of 64 x 128, with the energy from a triangle of S: one, two and three column blocks.
    Call(rows=70, dim=128, dtype=BF16, labelled=0.3, tile_of=4096),
    Call(rows=70, dim=256, labelled=0.3, tile_of=4096, schedules=(0, 1)),
    Call(rows=70, dim=384, dtype=FP16, labelled=0.3, tile_of=4096),
    Call(rows=70, dim=256, precision="tf32x3", labelled=0.3, tile_of=4096, schedules=(0,)),
    Call(rows=256, dim=768, schedules=(0,)),
    Call(rows=256, dim=768, dtype=BF16, schedules=(0,)),
    # The largest tile on sm_90 (wgmma) and sm_100 (tcgen05), with one matrix and with two.
    *(
        Call(arch=arch, rows=70, dim=256, labelled=0.3, tile_of=65536, schedules=(0, 1), **settings)
        for arch in ("sm_90", "sm_100")
        for settings in ({"dtype": BF16}, {"dtype": FP16, "basis": True}, {"precision": "tf32"})
    ),
    # fp32 where shared memory bounds it: 16 x 64 with 2 warps, and 32 x 128.
    Call(arch="sm_86", rows=40, labelled=0.3, tile_of=1024, schedules=(0,)),
    Call(arch="sm_90", rows=40, labelled=0.3, tile_of=1024, schedules=(0, 1)),
    Call(arch="sm_90", rows=70, dim=256, labelled=0.3, tile_of=4096, schedules=(0,)),
    # An energy in a basis: both matrices in a step, full and uneven D, and the largest tile.
    Call(basis=True),
    Call(basis=True, dtype=BF16),
    Call(basis=True, dtype=FP16, arch="sm_86", rows=37, dim=100),
    Call(basis=True, rows=70, dim=256, dtype=BF16, labelled=0.3, tile_of=4096, schedules=(0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_gradient(call):
    first = None
    for seed in call.schedules:
        out, reports = call.run(seed)
        assert reports
        for report in reports:
            report.check()
        check_values(call, *out)
        bits = [x.nan_to_num(7.0) for x in out]
        first = first or bits
        assert all(map(torch.equal, bits, first)), f"schedule {seed} gives other bits"


def check_values(call, out, energy, tau):
    case, unlabelled = call.case, ~call.case.mask
    exact = case.oracle(call.products, call.chosen)
    if call.precision == "tf32":
        correction = (exact.gradient - case.g.double()).abs().max()
        assert (out.double() - exact.gradient).abs().max() <= TF32_TOLERANCE * correction
    else:
        assert_close_to_oracle(out, case, call.products, call.chosen)
    assert energy[case.mask].isnan().all() and tau[case.mask].isnan().all()
    slack = 1e-3 if call.precision == "tf32" else 1e-6
    if call.chosen.tau == "uniform":
        assert (tau[unlabelled] == 1).all()
    else:
        torch.testing.assert_close(energy[unlabelled].double(), exact.energy[unlabelled], rtol=0, atol=slack)
        torch.testing.assert_close(tau[unlabelled].double(), exact.tau[unlabelled], rtol=0, atol=20 * slack)


def test_the_last_program_reads_g_s_back_in_wide_loads():
    """256 columns at a time. Trips to L2 wait for each other, and one for each column block would be 12."""
    call = Call(rows=16, dim=768, dtype=BF16, labelled=0.0)
    tile = pick(call.arch, call.rows, call.dim, call.dtype)
    assert call.dim // tile.block_n == 12
    _, (report,) = call.run(0)
    loads = [done for done in report.instructions if done.statement.opcode.startswith("ld.global.cg")]
    assert max(done.warps for done in loads) == 3 * tile.warps


@pytest.mark.parametrize(
    ("call", "most"),
    [
        (Call(rows=16, dim=768, dtype=BF16, labelled=0.0), 1.0),
        (Call(arch="sm_86", rows=70, dim=64, dtype=BF16), 1.0),
        (Call(rows=70, dim=256, labelled=0.3, tile_of=4096), 1.0),
        (Call(arch="sm_120", rows=33), 1.25),
        # Two warps for 16 x 64: even so fewer wavefronts than four, which have no conflicts (2,873, 3,193)
        (Call(arch="sm_86", rows=20, dim=64, tile_of=1024), 1.4),
    ],
    ids=str,
)
@pytest.mark.skipif(
    aot._version() < aot.TESTED_TRITON, reason="the modelled times are those of the Triton of constraints.txt"
)
def test_bank_conflicts_are_as_the_modelled_times_say(call, most):
    _, (report,) = call.run(0, traffic=True, races=False)
    wavefronts = sum(done.wavefronts for done in report.instructions)
    assert 0 < wavefronts <= most * sum(done.ideal_wavefronts for done in report.instructions)


def test_the_inputs_exercise_the_projection():
    assert_exercised(Call().case)


ENERGY_CALLS = [
    Call(rows=70, dim=64),
    Call(rows=70, dim=64, labelled=0.0),
    Call(rows=70, dim=64, labelled=1.0),
    Call(rows=37, dim=100, arch="sm_86", dtype=BF16),
    Call(rows=70, dim=128, arch="sm_120", dtype=FP16),
    Call(rows=70, dim=128, precision="tf32"),
    Call(rows=SCAN_LIMIT + 3, dim=16, schedules=(0, 1)),
    Call(rows=70, dim=64, basis=True),
    Call(arch="sm_90", rows=70, dim=128, dtype=BF16, tile_of=65536, schedules=(0,)),
    Call(arch="sm_100", rows=70, dim=128, precision="tf32", tile_of=65536, schedules=(0,)),
]


def energy_run(call, seed, **options):
    energy_ref = torch.tensor(0.3)
    with on_machine(call.arch, seed=seed, **options) as reports:
        inputs = call.case.inputs._replace(energy_ref=energy_ref)
        sums, used = launch.run_labelled_energy(inputs, 0.9, call.precision, update=True, tile=call.tile)
    return sums, used, energy_ref, reports


@pytest.mark.parametrize("call", ENERGY_CALLS, ids=str)
def test_the_running_energy_reference(call):
    case = call.case
    inputs = case.inputs.rounded(call.products).widened(torch.float64)
    exact = formulas.labelled_energy(inputs)
    after = formulas.updated_energy_ref(torch.tensor(0.3).double(), exact, 0.9)
    first = None
    for seed in call.schedules:
        sums, used, energy_ref, reports = energy_run(call, seed)
        for report in reports:
            report.check()
        slack = 1e-3 if call.precision == "tf32" else 2e-6
        torch.testing.assert_close(sums.double(), exact, rtol=slack, atol=1e-6)
        torch.testing.assert_close(used.double(), after, rtol=slack, atol=1e-6)
        assert torch.equal(used, energy_ref)
        first = first or (sums, used)
        assert torch.equal(sums, first[0]) and torch.equal(used, first[1])


# Mutants: what the machine must catch --------------------------------------------------------------------


def lines(text: str) -> list[str]:
    return text.split("\n")


def atomic(code: list[str]) -> int:
    return next(k for k, line in enumerate(code) if "atom.global" in line)


def without(code: list[str], places: list[int]) -> str:
    assert places
    return "\n".join(line for k, line in enumerate(code) if k not in places)


def order(name: str):
    def edit(text):
        assert "atom.global.gpu.acq_rel" in text
        return text.replace("atom.global.gpu.acq_rel", f"atom.global.{name}")

    return edit


def no_barrier_before_the_atomic(text):
    code = lines(text)
    at = atomic(code)
    store = max(k for k in range(at) if "st.global" in code[k])
    return without(code, [k for k in range(store, at) if "bar.sync" in code[k]])


def no_barrier_after_the_atomic(text):
    code = lines(text)
    return without(code, [next(k for k in range(atomic(code), len(code)) if "bar.sync" in code[k])])


def no_barrier_in_the_loop(text):
    code = lines(text)
    wait = next(k for k, line in enumerate(code) if "cp.async.wait_group" in line)
    return without(code, [next(k for k in range(wait, len(code)) if "bar.sync" in code[k])])


def replaced(pattern: str, by):
    def edit(text):
        assert re.search(pattern, text)
        return re.sub(pattern, by, text)

    return edit


ORDER = {"READ_AFTER_WRITE", "WRITE_AFTER_READ", "WRITE_AFTER_WRITE"}
LOAD = r"(ld\.global\.v[24]\.b32 \{[^}]*\}, \[ %rd\d+) \+ 0"
STORE = r"(st\.global\.\S+ \[ %rd\d+) \+ 0"
COPY_TO = r"(cp\.async\.cg\.\S+ \[ %r\d+) \+ 0"
COPY_FROM = r"(cp\.async\.cg\.\S+ \[ %r\d+ \+ 0 \], \[ %rd\d+) \+ 0"
MUTANTS = {
    "relaxed": (order("gpu.relaxed"), ORDER),
    "acquire only": (order("gpu.acquire"), ORDER),
    "release only": (order("gpu.release"), ORDER),
    "block scope": (order("cta.acq_rel"), ORDER),
    "no barrier before the atomic": (no_barrier_before_the_atomic, ORDER),
    "no barrier after the atomic": (no_barrier_after_the_atomic, ORDER),
    "no barrier in the loop": (no_barrier_in_the_loop, ORDER),
    "no wait for the copies": (replaced(r"cp\.async\.wait_group\s+\d+;", ""), {"PENDING_COPY"}),
    "a wait for one group less": (
        replaced(r"cp\.async\.wait_group\s+(\d+);", lambda m: f"cp.async.wait_group {int(m[1]) + 1};"),
        {"PENDING_COPY"},
    ),
    "loads four bytes off": (replaced(LOAD, r"\1 + 4"), {"MISALIGNED"}),
    "copies four bytes off": (replaced(COPY_FROM, r"\1 + 4"), {"MISALIGNED"}),
    "stores behind the end": (replaced(STORE, r"\1 + 65536"), {"OUT_OF_BOUNDS"}),
    "copies from behind the end": (replaced(COPY_FROM, r"\1 + 1048576"), {"OUT_OF_BOUNDS"}),
    "copies to behind shared memory": (replaced(COPY_TO, r"\1 + 1048576"), {"OUT_OF_BOUNDS"}),
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_a_mistake_in_the_compiled_code_is_caught(name, dtype):
    """In the first schedule: a lucky order of programs may give the right bits, but no clean report."""
    edit, expected = MUTANTS[name]
    _, (report, *_) = Call(dtype=dtype).run(0, edit=edit)
    found = {finding.kind for finding in [*report.races, *report.violations]}
    assert found & expected, f"found {found}"


# Of the asynchronous products of sm_90 and sm_100.
WAIT_FOR_GROUPS, MMA_WAIT = r"wgmma\.wait_group\S* (\d+);", r"mbarrier\.try_wait\S* complete, [^;]*;"
PARITY = r"(?s)(\.reg \.pred complete;)(.*?)(waitLoop:.*?complete, \[%r\d+\]), (%r\d+);"
ASYNCHRONOUS_MUTANTS = {
    "sm_90": {
        "no wait": (replaced(WAIT_FOR_GROUPS, ""), {"NOT_WAITED"}),
        "a wait for one group less": (
            replaced(WAIT_FOR_GROUPS, lambda m: m[0].replace(m[1], str(int(m[1]) + 1))), {"PENDING_READ"}
        ),
        "no group": (replaced(r"wgmma\.commit_group\S*;", ""), {"NOT_WAITED"}),
        "no fence of registers": (replaced(r"wgmma\.fence\S*;", ""), {"NO_REGISTER_FENCE"}),
        "no fence of memory": (replaced(r"fence\.proxy\.async\S*;", ""), {"NO_PROXY_FENCE"}),
    },
    "sm_100": {
        "no wait": (replaced(MMA_WAIT, "setp.eq.u32 complete, 0, 0;"), {"NOT_WAITED"}),
        "the other parity": (
            replaced(PARITY, r"\1 .reg .b32 other; xor.b32 other, \4, 1;\2\3, other;"),
            {"NOT_WAITED", "for ever"},
        ),
        "no commit": (replaced(r"@%p\d+ tcgen05\.commit[^;]*;", ""), {"for ever"}),
        "no fence of memory": (replaced(r"fence\.proxy\.async\S*;", ""), {"NO_PROXY_FENCE"}),
        "no wait for the zeros": (replaced(r"tcgen05\.wait::st\S*;", ""), {"NOT_WAITED"}),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "name"), [(arch, name) for arch, mutants in ASYNCHRONOUS_MUTANTS.items() for name in mutants]
)
def test_a_mistake_around_asynchronous_products_is_caught(arch, name):
    from ptx_machine import MachineError

    edit, expected = ASYNCHRONOUS_MUTANTS[arch][name]
    call = Call(arch=arch, rows=20, dim=256, dtype=BF16, labelled=0.3, tile_of=65536)
    try:
        _, (report, *_) = call.run(0, edit=edit)
        found = {finding.kind for finding in [*report.races, *report.violations]}
    except MachineError as error:
        found = {"for ever"} if "waits for ever" in str(error) else {str(error)}
    assert found & expected, f"found {found}"


def test_the_barrier_before_the_update_of_ebar_guards_nothing():
    """All warps of the last program read Ebar, and one lane stores it: what the others read they drop.

    Triton emits that barrier by itself. Without it there is neither a race nor another value.
    """

    def edit(text):
        code = lines(text)
        store = max(k for k, line in enumerate(code) if "st.global" in line)
        return without(code, [max(k for k in range(store) if "bar.sync" in code[k])])

    _, used, energy_ref, (report, *_) = energy_run(ENERGY_CALLS[2], 0, edit=edit)
    assert not report.races
    assert torch.equal(used, energy_ref)
    assert torch.equal(used, energy_run(ENERGY_CALLS[2], 0)[1])


def test_a_lane_that_uses_the_updated_ebar_is_caught():
    """Every lane stores Ebar, so what each has read counts."""

    def edit(text):
        code = lines(text)
        stores = [k for k, line in enumerate(code) if "st.global" in line]
        barrier = max(k for k in range(stores[-1]) if "bar.sync" in code[k])
        place = next(k for k in stores if k > barrier)
        code[place] = re.sub(r"@%p\d+ ", "", code[place])
        return without(code, [barrier])

    *_, (report, *_) = energy_run(ENERGY_CALLS[2], 0, edit=edit)
    assert any("energy_ref_ptr" in race.place for race in report.races)


def test_a_relaxed_second_counter_is_caught():
    """The energy kernel counts twice: programs of a group, then groups."""

    def edit(text):
        last = text.rindex("atom.global.gpu.acq_rel")
        return text[:last] + text[last:].replace("acq_rel", "relaxed", 1)

    *_, (report, *_) = energy_run(ENERGY_CALLS[2], 0, edit=edit)
    assert report.races
