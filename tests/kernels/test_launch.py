"""The host side of the Triton kernels: what a launch allocates and leaves behind, its grid, its precision.
Runs in Triton's interpreter.
"""

import functools

import pytest
import torch
from live_tensors import left_behind, live_tensors
from operator_cases import SETTINGS, assert_close_to_oracle, make_case

from eagc_ops import EAGC, Subspace, eagc_op
from eagc_ops.kernels import formulas
from eagc_ops.kernels.tiles import Tile

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("poisoned_memory")]
SMALL = Tile(block_m=16, block_n=16, block_k=16, warps=4, stages=1)


@pytest.fixture
def launch():
    from eagc_ops.kernels import launch

    launch.forget()  # a test may change what plans are made from
    yield launch
    launch.forget()


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [(40, torch.float32), (40, torch.bfloat16), (40, torch.float16), (4100, torch.float32)],
    ids=str,
)
def test_a_call_leaves_nothing_behind(launch, dtype, rows):
    """CUDA-graph trees refuse an op that keeps an allocation of the graph's pool alive."""
    case = make_case(rows, 16, dtype=dtype)
    inputs = case.inputs._replace(energy_ref=case.energy_ref.clone())

    def call():
        launch.run(case.g, inputs, SETTINGS, tile=SMALL._replace(block_m=64))
        launch.run_labelled_energy(inputs, 0.9, update=True, tile=SMALL._replace(block_m=64))

    assert left_behind(call, case.g, *inputs) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_leaves_nothing_behind(dtype):
    """The whole step, module and function, forward and backward.

    The watch over the gradient's scale keeps a number from step to step, and nothing beside it.
    """
    case = make_case(20, 16, dtype=dtype)
    subspace = Subspace(case.matrix, case.energy_ref)
    module = EAGC(subspace, energy_momentum=0.5, impl="triton")
    z = case.z.clone().requires_grad_()
    z.grad = torch.zeros_like(z)

    def step():
        module(z, case.z_ref, case.mask).backward(case.g)
        eagc_op(z, case.z_ref, case.mask, subspace, impl="triton").backward(case.g)

    step()
    step()
    before = live_tensors()
    step()
    assert len(live_tensors()) == len(before)


def test_an_aborted_launch_does_not_poison_the_next(launch, monkeypatch):
    """A launch that dies leaves its counters as they were: the next one must not start from them."""
    case = make_case(70, 64)

    class Aborted:
        def __getitem__(self, grid):
            def launch_and_die(**arguments):
                arguments["arrivals_ptr"].fill_(3)
                raise RuntimeError("killed")

            return launch_and_die

    def coordinate():
        return launch.run(case.g, case.inputs, SETTINGS, tile=SMALL).gradient

    def labelled_energy():
        return launch.run_labelled_energy(case.inputs, 0.9, update=False, tile=SMALL)[0]

    for call in (coordinate, labelled_energy):
        with monkeypatch.context() as patch:
            patch.setattr(launch, f"{call.__name__}_kernel", Aborted())
            with pytest.raises(RuntimeError, match="killed"):
                call()
    assert_close_to_oracle(coordinate(), case)
    exact = formulas.labelled_energy(case.inputs.widened(torch.float64))
    torch.testing.assert_close(labelled_energy().double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [70, 64, 32])
def test_more_row_blocks_than_a_grid_holds(launch, monkeypatch, rows):
    """CUDA permits 65,535 along the second axis: 16-row tiles reach it at 1,048,560 rows. Here it is 2."""
    monkeypatch.setattr(launch, "GRID_LIMIT", 2)
    grids = []
    for name in ("coordinate_kernel", "labelled_energy_kernel"):
        monkeypatch.setattr(launch, name, Watched(getattr(launch, name), grids))
    case = make_case(rows, 20)
    assert_close_to_oracle(launch.run(case.g, case.inputs, SETTINGS, tile=SMALL).gradient, case)
    sums, _ = launch.run_labelled_energy(case.inputs, 0.9, update=False, tile=SMALL)
    exact = formulas.labelled_energy(case.inputs.widened(torch.float64))
    torch.testing.assert_close(sums.double(), exact, rtol=1e-6, atol=0)
    assert grids == {70: [(2, 2), (2, 2), (2, 1)], 64: [(2, 2), (2, 2)], 32: [(2, 2)]}[rows] * 2


class Watched:
    """A kernel whose grids are noted."""

    def __init__(self, kernel, grids):
        self.kernel, self.grids = kernel, grids

    def __getitem__(self, grid):
        self.grids.append(grid)
        return self.kernel[grid]


@pytest.mark.parametrize(
    ("setting", "precision", "dtype", "hip", "expected"),
    [
        ("highest", "auto", torch.float32, None, "ieee"),
        ("high", "auto", torch.float32, None, "tf32"),
        ("medium", "auto", torch.float32, None, "tf32"),
        ("high", "auto", torch.float32, "7.0", "ieee"),
        ("high", "auto", torch.bfloat16, None, "ieee"),
        ("high", "high", torch.float32, None, "ieee"),
        ("high", "tf32x3", torch.float32, None, "tf32x3"),
        ("highest", "tf32", torch.float32, None, "tf32"),
    ],
)
def test_auto_follows_torchs_precision_of_fp32_products(
    launch, monkeypatch, setting, precision, dtype, hip, expected
):
    calls = []
    for name in ("coordinate_kernel", "labelled_energy_kernel"):
        monkeypatch.setattr(launch, name, Recorder(calls))
    monkeypatch.setattr(torch.version, "hip", hip)
    case = make_case(20, 32, dtype=dtype)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        launch.run(case.g, case.inputs, SETTINGS, precision)
        launch.run_labelled_energy(case.inputs, 0.9, precision, update=False)
    finally:
        torch.set_float32_matmul_precision(before)
    assert [call["PRECISION"] for call in calls] == [expected] * 2


@pytest.mark.parametrize("way", ["module", "running", "function", "compiled"])
@pytest.mark.parametrize("token", [False, True], ids=["", "token"])
@pytest.mark.parametrize(
    ("precision", "dtype", "hip", "expected"),
    [
        ("auto", torch.float32, None, "tf32"),
        ("high", torch.float32, None, "ieee"),
        ("tf32x3", torch.float32, None, "tf32x3"),
        ("auto", torch.bfloat16, None, "ieee"),
        ("auto", torch.float32, "7.0", "ieee"),
    ],
)
def test_auto_follows_the_autocast_of_the_forward(
    launch, monkeypatch, way, token, precision, dtype, hip, expected
):
    """Backward runs outside the block, as it usually does; a forward outside it gets IEEE again."""
    calls = []
    for name in ("coordinate_kernel", "labelled_energy_kernel"):
        monkeypatch.setattr(launch, name, Recorder(calls))
    monkeypatch.setattr(torch.version, "hip", hip)
    case = make_case(20, 32, dtype=dtype)
    options = {"impl": "triton", "precision": precision}
    module = EAGC(case.subspace, energy_momentum=0.9 if way == "running" else None, **options)
    call = module
    if way == "function":
        call = functools.partial(eagc_op, subspace=case.subspace, **options)
    elif way == "compiled":
        torch.compiler.reset()
        call = torch.compile(module, backend="aot_eager", fullgraph=True)

    def precisions(autocast):
        calls.clear()
        z = case.z.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = call(z, case.z_ref, case.mask, return_token=token)
            out, extra = out if token else (out, 0)
            loss = (out.float() * case.g.float()).sum() + extra
        loss.backward()
        assert len(calls) == (2 if way == "running" else 1)
        return {recorded["PRECISION"] for recorded in calls}

    assert precisions(True) == {expected}
    assert precisions(False) == {"tf32x3" if precision == "tf32x3" else "ieee"}


def test_backward_inside_the_block_of_a_forward_outside_it_gets_ieee(launch, monkeypatch):
    calls = []
    monkeypatch.setattr(launch, "coordinate_kernel", Recorder(calls))
    case = make_case(20, 32)
    z = case.z.clone().requires_grad_()
    out = EAGC(case.subspace, impl="triton")(z, case.z_ref, case.mask)
    with torch.autocast("cpu", torch.bfloat16):
        out.backward(case.g)
    assert [call["PRECISION"] for call in calls] == ["ieee"]


def test_auto_follows_the_newer_setting_too(launch):
    assert launch.effective("auto", torch.float32) == "auto"
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert launch.effective("auto", torch.float32) == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


class Recorder:
    """Stands for a kernel: notes the arguments of its launches."""

    def __init__(self, calls):
        self.calls = calls

    def __getitem__(self, grid):
        return lambda **arguments: self.calls.append(arguments)


def forms(calls):
    """What of a launch's arguments makes a different kernel."""
    pointers = ("z_ref_ptr", "scale_ptr", "count_ptr", "order_ptr")
    constants = ("MEAN", "UNIFORM", "UPDATE", "DOT", "PRECISION", "BLOCK_M")
    return {
        (
            *(call[p].dtype if call.get(p) is not None else None for p in pointers),
            call["matrix_ptr"].dtype,
            *(str(call.get(constant)) for constant in constants),
        )
        for call in calls
    }


class Ranks:
    """Stands for a process group of two; its all-reduce does nothing."""

    group_name = "ranks"

    def size(self):
        return 2

    def __repr__(self):
        # In the name of a test: the two processes of xdist have to collect the same names.
        return "Ranks()"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({}, {}),
        ({"anchor": "sum", "tau": "uniform"}, {}),
        ({"energy_momentum": 0.9}, {}),
        ({"energy_momentum": 0.9, "process_group": Ranks()}, {}),
        ({"process_group": Ranks()}, {}),
        ({"process_group": Ranks(), "anchor": "sum"}, {}),
        ({"lambda_a": 0.0, "process_group": Ranks()}, {}),
        ({}, {"anchored": False}),
        ({}, {"scaled": True}),
        ({}, {"z_ref_dtype": torch.float32}),
    ],
    ids=str,
)
def test_warmup_compiles_what_a_step_launches_and_nothing_else(launch, monkeypatch, options, call, dtype):
    calls = []
    for name in ("coordinate_kernel", "labelled_energy_kernel"):
        monkeypatch.setattr(launch, name, Recorder(calls))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *args, **options: None)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_resolve_process_group", lambda name: Ranks())
    case = make_case(40, 32, dtype=dtype)
    module = EAGC(Subspace(case.matrix, case.energy_ref), impl="triton", **options)
    before = module.energy_ref.clone()
    module.warmup(40, dtype, **call)
    assert torch.equal(module.energy_ref, before)
    warmed, launches = forms(calls), len(calls)
    calls.clear()
    z = case.z.clone().requires_grad_()
    z_ref = case.z_ref.to(call.get("z_ref_dtype") or dtype) if call.get("anchored", True) else None
    scale = torch.ones(()) if call.get("scaled") else None
    module(z, z_ref, case.mask, loss_scale=scale).backward(case.g)
    assert warmed == forms(calls)
    assert launches == len(calls) == (2 if "energy_momentum" in options else 1)
