"""What is special to the Triton kernels: tiles, arrival order, compaction, the half copy of the matrix. Runs
in Triton's interpreter.
"""

import random

import pytest
import torch
from operator_cases import SETTINGS, assert_close_to_oracle, assert_exercised, make_case

from eagc_ops.kernels import Inputs, formulas
from eagc_ops.kernels.tiles import SMALL as SMALL_ENTRY
from eagc_ops.kernels.tiles import Tile, pick

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("poisoned_memory")]
SMALL = Tile(block_m=16, block_n=16, block_k=16, warps=4, stages=1)


@pytest.fixture
def launch():
    from eagc_ops.kernels import launch

    launch.forget()  # a test may change what plans are made from
    yield launch
    launch.forget()


@pytest.mark.parametrize(
    "tile", [SMALL, SMALL._replace(block_n=32), SMALL._replace(block_m=32, block_k=32)], ids=str
)
@pytest.mark.parametrize("shape", [(5, 16), (40, 48), (90, 50)], ids=str)
def test_many_blocks_in_both_directions(launch, tile, shape):
    case = make_case(*shape)
    out, energy, _ = launch.run(case.g, case.inputs, SETTINGS, tile=tile)
    assert_close_to_oracle(out, case)
    torch.testing.assert_close(energy[~case.mask].double(), case.oracle()[1][~case.mask], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dim", [16, 32, 48, 64, 70])
@pytest.mark.parametrize(("block_n", "block_k"), [(16, 16), (32, 16), (16, 32)])
def test_the_energy_from_a_triangle(launch, dim, block_n, block_k):
    """One, two, three, ... blocks of S, an even and an odd number of them, blocks wider than a step and
    narrower, D divisible by them and not: every pair of blocks counts once from one side.
    """
    case = make_case(16, dim)
    tile = SMALL._replace(block_n=block_n, block_k=block_k, triangle=True)
    out, energy, _ = launch.run(case.g, case.inputs, SETTINGS, tile=tile)
    assert_close_to_oracle(out, case)
    torch.testing.assert_close(energy[~case.mask].double(), case.oracle()[1][~case.mask], rtol=0, atol=1e-6)
    sums, _ = launch.run_labelled_energy(case.inputs, 0.9, update=False, tile=tile)
    exact = formulas.labelled_energy(case.inputs.widened(torch.float64))
    torch.testing.assert_close(sums.double(), exact, rtol=1e-6, atol=0)


def test_the_triangle_reads_one_half_of_the_matrix(launch):
    """With two blocks, column block 1 takes the block above its diagonal block, and block 0 only its own."""
    case = make_case(20, 32, labelled=0.0)
    spoilt = case.matrix.clone()
    spoilt[16:, :16] = 7.0
    whole, half = (
        launch.run(
            case.g,
            case.inputs._replace(matrix=spoilt),
            SETTINGS,
            tile=SMALL._replace(triangle=triangle),
        ).energy
        for triangle in (False, True)
    )
    exact = case.oracle().energy
    torch.testing.assert_close(half.double(), exact, rtol=0, atol=1e-6)
    assert (whole.double() - exact).abs().max() > 0.1


def test_the_papers_size(launch):
    case = make_case(48, 768)
    assert_exercised(case)
    assert_close_to_oracle(launch.run(case.g, case.inputs, SETTINGS)[0], case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("copied", [False, True], ids=["", "with a 16-bit copy"])
def test_high_precision_keeps_the_matrix_in_fp32(launch, dtype, copied):
    """Also where the module brings a 16-bit copy of it, as every EAGC does."""
    case = make_case(40, 48, dtype=dtype)
    if copied:
        case = case.replace(half=case.matrix.to(dtype))
    _, energy, _ = launch.run(case.g, case.inputs, SETTINGS, precision="high")
    unlabelled = ~case.mask
    torch.testing.assert_close(
        energy[unlabelled].double(), case.oracle(torch.float32)[1][unlabelled], rtol=0, atol=1e-6
    )
    _, rounded, _ = launch.run(case.g, case.inputs, SETTINGS)
    torch.testing.assert_close(
        rounded[unlabelled].double(), case.oracle(dtype)[1][unlabelled], rtol=0, atol=1e-6
    )
    assert not torch.equal(energy, rounded)


def test_arrival_order_does_not_change_a_bit(launch, monkeypatch):
    """The interpreter visits programs in grid order; here it visits them in random orders, so any of them can
    come last.
    """
    from triton.runtime import interpreter

    case = make_case(70, 64)

    def run():
        energy_ref = torch.tensor(0.3)
        sums, used = launch.run_labelled_energy(
            case.inputs._replace(energy_ref=energy_ref), 0.9, update=True, tile=SMALL
        )
        return *launch.run(case.g, case.inputs, SETTINGS, tile=SMALL), sums, used, energy_ref

    plain = run()
    grid = (64 // 16, -(-70 // 16))
    orders = set()
    set_index = interpreter.interpreter_builder.set_grid_idx
    for seed in range(6):
        places = [(x, y) for x in range(grid[0]) for y in range(grid[1])]
        shuffled = random.Random(seed).sample(places, len(places))
        visit = dict(zip(places, shuffled))
        orders.add(tuple(shuffled))
        monkeypatch.setattr(
            interpreter.interpreter_builder,
            "set_grid_idx",
            lambda x, y, z, visit=visit: set_index(*visit[x, y], z),
        )
        for mine, first in zip(run(), plain):
            assert torch.equal(mine.nan_to_num(7.0), first.nan_to_num(7.0))
    assert len(orders) == 6


def test_the_floors_are_those_of_the_formulas(launch, monkeypatch):
    """The kernels' two numbers are the reference's, and they are what the kernels compute with: other ones
    give other results.
    """
    from eagc_ops.kernels import fused

    assert (fused.NORM_FLOOR.value, fused.ENERGY_FLOOR.value) == (formulas.NORM_FLOOR, formulas.ENERGY_FLOOR)
    case = make_case(20, 12, labelled=0.0)
    for name, value in (("NORM_FLOOR", 50.0), ("ENERGY_FLOOR", 0.5)):
        monkeypatch.setattr(fused, name, type(fused.NORM_FLOOR)(value))
        monkeypatch.setattr(formulas, name, value)
        _, energy, weight = launch.run(case.g, case.inputs, SETTINGS, tile=SMALL)
        _, exact_energy, exact_weight = case.oracle()
        torch.testing.assert_close(energy.double(), exact_energy, rtol=0, atol=1e-6)
        torch.testing.assert_close(weight.double(), exact_weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [63, 64, 65, 200, 1000])
@pytest.mark.parametrize("labelled", [0.02, 0.5, 0.98])
def test_compaction_finds_every_row(launch, rows, labelled):
    """With S = I and tau uniform every unlabelled row becomes (1 - lambda_p) g, every labelled row stays: a
    missed row would show.
    """
    mask = torch.rand(rows, generator=torch.Generator().manual_seed(rows)) < labelled
    g = torch.randn(rows, 3)
    inputs = Inputs(g, None, mask, torch.eye(3), torch.tensor(0.5))
    out = launch.run(g, inputs, SETTINGS._replace(tau="uniform"), tile=SMALL).gradient
    torch.testing.assert_close(out, torch.where(mask[:, None], g, 0.5 * g), rtol=1e-6, atol=0)


def test_more_rows_than_the_kernel_looks_through_itself(launch):
    rows = 4099
    case = make_case(rows, 8)
    tile = Tile(64, 16, 16, 4, 1)
    assert_close_to_oracle(launch.run(case.g, case.inputs, SETTINGS, tile=tile)[0], case)
    sums, _ = launch.run_labelled_energy(case.inputs, 0.9, update=True, tile=tile)
    torch.testing.assert_close(
        sums.double(),
        formulas.labelled_energy(case.inputs.widened(torch.float64)),
        rtol=1e-6,
        atol=0,
    )


@pytest.mark.parametrize("rows", [1, 513, 4096, 4097, 9000])
@pytest.mark.parametrize(("labelled", "kind"), [(0.0, True), (0.01, True), (0.5, False), (1.0, True)])
def test_the_list_of_rows_is_complete_and_in_order(launch, rows, labelled, kind):
    mask = torch.rand(rows, generator=torch.Generator().manual_seed(rows)) < labelled
    order = torch.full((rows + 1,), -7, dtype=torch.int32)
    for block in (launch.COMPACTED, 256 if rows < 1000 else 1024):
        launch.compaction_kernel[(-(-rows // block),)](mask.view(torch.uint8), order, rows, kind, block)
        (expected,) = (mask == kind).nonzero(as_tuple=True)
        count = order[rows].item()
        assert count == len(expected) and torch.equal(order[:count].long(), expected)


@pytest.mark.parametrize(("rows", "launches"), [(512, 2), (513, 4)])
def test_the_papers_sizes_need_one_launch_and_more_rows_one_more(launch, monkeypatch, rows, launches):
    calls = []
    for name in ("compaction_kernel", "coordinate_kernel", "labelled_energy_kernel"):
        monkeypatch.setattr(launch, name, _Spy(None, calls))
    case = make_case(rows, 16)
    launch.run(case.g, case.inputs, SETTINGS)
    launch.run_labelled_energy(case.inputs, 0.9, update=True)
    assert len(calls) == launches


def test_a_mask_that_starts_anywhere(launch):
    """The mask of the second view is a slice: it is copied to where the kernel reads it."""
    case = make_case(40, 16)
    longer = torch.cat([torch.ones(3, dtype=torch.bool), case.mask])
    sliced = case.inputs._replace(mask=longer[3:])
    assert sliced.mask.data_ptr() % 16
    for mine, expected in zip(
        launch.run(case.g, sliced, SETTINGS), launch.run(case.g, case.inputs, SETTINGS)
    ):
        assert torch.equal(mine.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_addresses_beyond_32_bits(launch, monkeypatch):
    """Four rows that lie 2^30 elements apart: from the third on, row times stride does not fit an int32. Only
    their pages exist.
    """
    case = make_case(4, 16, dtype=torch.float16)
    mask = torch.tensor([True, False, True, False])
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    apart = torch.empty((4, (1 << 30) + 48), dtype=torch.float16)
    rows = case.g, case.z, torch.randn(4, 16).half()
    far = [apart[:, i * 16 : i * 16 + 16].copy_(x) for i, x in enumerate(rows)]
    assert far[0].stride(0) * 3 > 2**31

    def run(g, z, z_ref):
        return launch.run(g, case.inputs._replace(z=z, z_ref=z_ref, mask=mask), SETTINGS, tile=SMALL)

    for mine, expected in zip(run(*far), run(*rows)):
        assert torch.equal(mine.nan_to_num(7.0), expected.nan_to_num(7.0))
    used = [
        launch.run_labelled_energy(Inputs(z, None, mask, case.matrix, torch.tensor(0.3)), 0.9, update=True)[1]
        for z in (far[1], case.z)
    ]
    assert torch.equal(*used)


@pytest.mark.parametrize(
    ("precision", "dtype", "expected"),
    [
        ("auto", torch.float32, {"PRECISION": "ieee", "DOT": "fp32"}),
        ("tf32x3", torch.float32, {"PRECISION": "tf32x3", "DOT": "fp32"}),
        ("auto", torch.bfloat16, {"PRECISION": "ieee", "DOT": "bf16"}),
        ("high", torch.float16, {"PRECISION": "ieee", "DOT": "fp32"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
def test_a_launch_on_a_gpu_has_the_constants_it_was_compiled_with(
    launch, monkeypatch, precision, dtype, expected, arch
):
    """What `aot` compiles is what is launched: the constants of a launch, the device's vendor included."""
    calls = []
    monkeypatch.setattr(launch, "coordinate_kernel", _Spy(None, calls))
    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(launch, "architecture", lambda device: arch)
    case = make_case(20, 32, dtype=dtype)
    launch.run(case.g, case.inputs, SETTINGS, precision=precision)
    (found,) = calls
    tile = pick(arch, 20, 32, dtype, precision)
    assert (
        found["AMD"] == (arch == "gfx942")
        and found["PRECISION"] == expected["PRECISION"]
        and str(found["DOT"]) == expected["DOT"]
    )
    assert (found["BLOCK_M"], found["num_warps"], found["num_stages"]) == (
        tile.block_m,
        tile.warps,
        tile.stages,
    )


def test_a_reference_of_a_different_dtype_gets_the_small_tile(launch, monkeypatch):
    calls = []
    monkeypatch.setattr(launch, "coordinate_kernel", _Spy(None, calls))
    case = make_case(3000, 128, dtype=torch.bfloat16)
    for z_ref in (case.z_ref, case.z_ref.float()):
        launch.run(case.g, case.inputs._replace(z_ref=z_ref), SETTINGS)
    assert [call["BLOCK_M"] for call in calls] == [64, SMALL_ENTRY.block_m]


class _Spy:
    """Notes the arguments of a kernel's launches, and launches it unless it is None."""

    def __init__(self, kernel, calls):
        self.kernel, self.calls = kernel, calls

    def __getitem__(self, grid):
        def launch(**arguments):
            self.calls.append(arguments)
            return self.kernel[grid](**arguments) if self.kernel else None

        return launch
