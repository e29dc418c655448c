"""What is special to the Triton kernels: tiles, arrival order, compaction, the half copy of the matrix. Runs in Triton's interpreter."""

import random

import pytest
import torch
from operator_cases import OPTIONS, assert_close_to_oracle, assert_exercised, make_case

from eagc_ops.kernels import reference
from eagc_ops.kernels.tiles import Tile

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("poisoned_memory")]
SMALL = Tile(block_m=16, block_n=16, block_k=16, warps=4, stages=1)


@pytest.fixture
def launch():
    from eagc_ops.kernels import launch

    return launch


@pytest.mark.parametrize("tile", [SMALL, SMALL._replace(block_n=32), SMALL._replace(block_m=32, block_k=32)], ids=str)
@pytest.mark.parametrize("shape", [(5, 16), (40, 48), (90, 50)], ids=str)
def test_many_blocks_in_both_directions(launch, tile, shape):
    case = make_case(*shape)
    out, energy, _ = launch.coordinate(*case.inputs(), tile=tile, **OPTIONS)
    assert_close_to_oracle(out, case)
    torch.testing.assert_close(energy[~case.mask].double(), case.oracle()[1][~case.mask], rtol=0, atol=1e-6)


def test_the_papers_size(launch):
    case = make_case(48, 768)
    assert_exercised(case)
    assert_close_to_oracle(launch.coordinate(*case.inputs(), **OPTIONS)[0], case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_high_precision_keeps_the_matrix_in_fp32(launch, dtype):
    case = make_case(40, 48, dtype=dtype)
    _, energy, _ = launch.coordinate(*case.inputs(), precision="high", **OPTIONS)
    unlabelled = ~case.mask
    torch.testing.assert_close(energy[unlabelled].double(), case.oracle(torch.float32)[1][unlabelled], rtol=0, atol=1e-6)
    _, rounded, _ = launch.coordinate(*case.inputs(), **OPTIONS)
    torch.testing.assert_close(rounded[unlabelled].double(), case.oracle(dtype)[1][unlabelled], rtol=0, atol=1e-6)
    assert not torch.equal(energy, rounded)


def test_arrival_order_does_not_change_a_bit(launch, monkeypatch):
    """The interpreter visits programs in grid order; here it visits them in random orders, so any of them can come last."""
    from triton.runtime import interpreter

    case = make_case(70, 64)
    z_only = (case.z, case.mask, case.matrix)

    def run():
        energy_ref = torch.tensor(0.3)
        sums, used = launch.labelled_energy(*z_only, energy_ref, momentum=0.9, update=True, tile=SMALL)
        return *launch.coordinate(*case.inputs(), tile=SMALL, **OPTIONS), sums, used, energy_ref

    plain = run()
    grid = (64 // 16, -(-70 // 16))
    orders = set()
    set_index = interpreter.interpreter_builder.set_grid_idx
    for seed in range(6):
        places = [(x, y) for x in range(grid[0]) for y in range(grid[1])]
        shuffled = random.Random(seed).sample(places, len(places))
        visit = dict(zip(places, shuffled))
        orders.add(tuple(shuffled))
        monkeypatch.setattr(interpreter.interpreter_builder, "set_grid_idx", lambda x, y, z, visit=visit: set_index(*visit[x, y], z))
        for mine, first in zip(run(), plain):
            assert torch.equal(mine.nan_to_num(7.0), first.nan_to_num(7.0))
    assert len(orders) == 6


def test_arrival_counters_are_left_at_zero(launch):
    case = make_case(70, 64)
    launch.coordinate(*case.inputs(), tile=SMALL, **OPTIONS)
    launch.labelled_energy(case.z, case.mask, case.matrix, torch.tensor(0.3), momentum=0.9, update=True, tile=SMALL)
    assert launch._counters and all((counters == 0).all() for counters in launch._counters.values())


@pytest.mark.parametrize("rows", [63, 64, 65, 200, 1000])
@pytest.mark.parametrize("labelled", [0.02, 0.5, 0.98])
def test_compaction_finds_every_row(launch, rows, labelled):
    """With S = I and tau uniform every unlabelled row becomes (1 - lambda_p) g, every labelled row stays: a missed row would show."""
    mask = torch.rand(rows, generator=torch.Generator().manual_seed(rows)) < labelled
    g = torch.randn(rows, 3)
    options = {**OPTIONS, "tau": "uniform"}
    out = launch.coordinate(g, g, None, mask, torch.eye(3), torch.tensor(0.5), tile=SMALL, **options)[0]
    torch.testing.assert_close(out, torch.where(mask[:, None], g, 0.5 * g), rtol=1e-6, atol=0)


def test_more_rows_than_the_kernel_looks_through_itself(launch):
    rows = 4099
    case = make_case(rows, 8)
    tile = Tile(64, 16, 16, 4, 1)
    assert_close_to_oracle(launch.coordinate(*case.inputs(), tile=tile, **OPTIONS)[0], case)
    sums, _ = launch.labelled_energy(case.z, case.mask, case.matrix, torch.tensor(0.3), momentum=0.9, update=True, tile=tile)
    torch.testing.assert_close(
        sums.double(), reference.labelled_energy(case.z.double(), case.mask, case.matrix.double()), rtol=1e-6, atol=0
    )


def test_autotune_times_every_tile_of_the_table(launch):
    timed = []

    def timer(run):
        timed.append(run())
        return float(len(timed))

    result = launch.autotune(20, 32, torch.float32, torch.device("cpu"), timer)
    assert len(result) == len(timed) >= 5 and all(isinstance(tile, Tile) for tile in result)


def test_warmup_launches_what_a_module_will(launch, monkeypatch):
    """Both kernels, the module's anchor and tau, with and without z_ref, scale and count, on the module's own matrix."""
    seen = {"coordinate": [], "labelled_energy": []}
    for name, calls in seen.items():
        kernel = getattr(launch, f"{name}_kernel")
        monkeypatch.setattr(launch, f"{name}_kernel", _Spy(kernel, calls))
    matrix = torch.eye(16) * 0.5
    launch.warmup(20, torch.bfloat16, matrix, anchor="sum", tau="uniform")
    assert len(seen["coordinate"]) == 8 and {c["MEAN"] for c in seen["coordinate"]} == {False}
    assert {c["UNIFORM"] for c in seen["coordinate"]} == {True}
    assert {c["UPDATE"] for c in seen["labelled_energy"]} == {True, False}
    assert all((counters == 0).all() for counters in launch._counters.values())


class _Spy:
    """A kernel that notes the constants of its launches."""

    def __init__(self, kernel, calls):
        self.kernel, self.calls = kernel, calls

    def __getitem__(self, grid):
        def launch(*args, **constants):
            self.calls.append(constants)
            return self.kernel[grid](*args, **constants)

        return launch
