"""torch.library and torch.compile: opcheck of the raw ops, one graph and the same values when compiled, no
wait for the device.
"""

import warnings

import pytest
import torch
import torch.distributed as dist
from no_waiting import NoWaiting
from operator_cases import SETTINGS, make_case
from torch import nn

from eagc_ops import EAGC, Subspace, eagc_op, kernels
from eagc_ops.kernels import Execution, torch_path
from eagc_ops.library import BODIES, coordinate_op, energies_op, observe_op
from eagc_ops.subspace import estimate_from_batch

# What inductor itself warns about (deprecations inside torch) is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")


BASIS = pytest.mark.parametrize("basis", [False, True], ids=["", "basis"])


@pytest.mark.parametrize("scale", [None, torch.tensor(3.0)], ids=["", "scale"])
@pytest.mark.parametrize("anchored", [True, False], ids=["anchor", ""])
@BASIS
def test_opcheck_of_the_backward_op(impl, anchored, scale, basis):
    case = make_case(12, 16, basis=basis)
    inputs = case.inputs._replace(z_ref=case.z_ref if anchored else None, scale=scale)
    result = torch.library.opcheck(coordinate_op, (case.g, *inputs, *SETTINGS, *Execution(impl)))
    assert set(result.values()) == {"SUCCESS"} and len(result) == 4


def energy_inputs(case, mask):
    """The inputs of an energy, as the schemas of the ops list them."""
    inputs = case.inputs
    own = (inputs.basis, inputs.weights, inputs.half_basis)
    return inputs.z, mask, inputs.matrix, inputs.energy_ref.clone(), inputs.half, *own


@BASIS
def test_opcheck_of_the_forward_op(impl, basis):
    case = make_case(12, 16, basis=basis)
    result = torch.library.opcheck(
        observe_op, (*energy_inputs(case, case.mask), 0.9, "", impl, "auto", False)
    )
    assert set(result.values()) == {"SUCCESS"} and len(result) == 4


@BASIS
def test_opcheck_of_the_recording_op(impl, basis):
    case = make_case(12, 16, basis=basis)
    unlabelled = torch.zeros_like(case.mask)  # a labelled row is NaN, which opcheck holds for a difference
    arguments = (*energy_inputs(case, unlabelled), "energy", *Execution(impl))
    result = torch.library.opcheck(energies_op, arguments)
    assert set(result.values()) == {"SUCCESS"} and len(result) == 4


class Model(nn.Module):
    def __init__(self, eagc, way="plain"):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.eagc, self.head, self.way = nn.Linear(16, 16), eagc, nn.Linear(16, 4), way

    def forward(self, x, z_ref, mask):
        z = self.encoder(x)
        if self.way == "token":
            z, token = self.eagc(z, z_ref, mask, return_token=True)
            return self.head(z).square().mean() + token
        if self.way == "function":
            return self.head(eagc_op(z, z_ref, mask, self.eagc.subspace)).square().mean()
        if self.way == "batch":
            return self.head(eagc_op(z, z_ref, mask)).square().mean()
        return self.head(self.eagc(z, z_ref, mask)).square().mean()


def train(model, case, steps=3):
    """Losses, gradients and the energy reference after a few steps of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(case.z, case.z_ref, case.mask)
        loss.backward()
        optimizer.step()
        out += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    return out


@pytest.mark.parametrize("way", ["plain", "token", "function", "batch", "ema", "record", "basis"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled_model_is_one_graph_and_has_the_same_values(way, dynamic):
    torch._dynamo.reset()
    results = []
    for compiled in (False, True):
        case = make_case(24, 16, basis=way == "basis")
        options = {"energy_momentum": 0.5} if way in ("ema", "basis") else {}
        options |= {"record": True} if way in ("record", "basis") else {}
        eagc = EAGC(case.subspace, **options)
        model = Model(eagc, way)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = (
                torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
                if compiled
                else model
            )
            values = train(run, case) + train(run, make_case(30, 16, seed=1))
        recorded = [eagc.last_tau] if way in ("record", "basis") else []
        results.append([*values, eagc.energy_ref.clone(), *recorded])
        if way in ("ema", "basis"):
            assert eagc.energy_ref != case.energy_ref
    for mine, expected in zip(*results):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_inductor_gives_the_same_values():
    torch._dynamo.reset()
    results = []
    for compiled in (False, True):
        case = make_case(24, 16)
        model = Model(EAGC(Subspace(case.matrix, case.energy_ref), energy_momentum=0.5), "token")
        results.append(train(torch.compile(model, fullgraph=True) if compiled else model, case))
    for mine, expected in zip(*results):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)


def test_nothing_in_a_compiled_step_keeps_it_from_cuda_graphs():
    """As far as a CPU can show: the values of mode="reduce-overhead", and no op in the graphs of forward and
    backward that inductor keeps out of CUDA graphs. The trees themselves need a GPU; `eagc selftest` runs
    them there. What they refuse in an op, memory kept alive, tests/kernels/test_launch.py looks for.
    """
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.utils import get_first_incompatible_cudagraph_node

    graphs = []

    def note(graph, inputs):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=note, bw_compiler=note)
    results = []
    for compiler in (None, {"backend": backend}, {"mode": "reduce-overhead"}):
        torch._dynamo.reset()
        case = make_case(24, 16)
        options = {"energy_momentum": 0.5, "record": True}
        model = Model(EAGC(Subspace(case.matrix, case.energy_ref), **options), "token")
        run = torch.compile(model, fullgraph=True, **compiler) if compiler else model
        results.append([*train(run, case), model.eagc.energy_ref.clone()])
    for others in results[1:]:
        for mine, expected in zip(others, results[0]):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
    assert len(graphs) == 2
    ours = [node.target for graph in graphs for node in graph.graph.nodes if "eagc" in str(node.target)]
    assert {str(op) for op in ours} >= {"eagc.coordinate.default", "eagc.energies.default"}
    for graph in graphs:
        assert get_first_incompatible_cudagraph_node(graph) is None


def test_a_token_forgotten_in_a_compiled_function_shows():
    """There is no error to raise there: the gradient of labelled rows is NaN. A zero loss is not taken for
    it.
    """
    torch._dynamo.reset()
    case = make_case(24, 16)
    module = EAGC(Subspace(case.matrix, case.energy_ref))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def features(z):
        return module(z * 1.0, case.z_ref, case.mask, return_token=True)

    z = case.z.clone().requires_grad_()
    out, token = features(z)
    assert not torch.isfinite(torch.autograd.grad(out.sum(), z, retain_graph=True)[0][case.mask]).any()
    assert torch.isfinite(torch.autograd.grad(out.sum() + token, z, retain_graph=True)[0]).all()
    assert torch.isfinite(torch.autograd.grad(0 * (out.sum() + token), z)[0]).all()


def test_compiled_model_inside_a_checkpoint_counts_a_batch_once():
    torch._dynamo.reset()
    case = make_case(24, 16)
    module = EAGC(Subspace(case.matrix, case.energy_ref), energy_momentum=0.5)
    plain = EAGC(Subspace(case.matrix, case.energy_ref), energy_momentum=0.5)
    plain(case.z, case.z_ref, case.mask)
    run = torch.compile(lambda z: module(z * 1.0, case.z_ref, case.mask).sin(), backend="aot_eager")
    z = case.z.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(run, z, use_reentrant=True).sum().backward()
    assert torch.equal(module.energy_ref, plain.energy_ref)


def test_the_mode_catches_what_the_cpu_path_does():
    """The control: the CPU path looks for its rows, which a GPU path must not; the mode sees it inside the
    opaque ops too.
    """
    case = make_case()
    with pytest.raises(AssertionError, match="waits for the device"), NoWaiting():
        torch_path.compute(case.g, case.inputs, SETTINGS)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoWaiting():
        case.mask.sum().item()
    with pytest.raises(AssertionError, match="waits for the device"), NoWaiting():
        EAGC(Subspace(case.matrix, case.energy_ref), energy_momentum=0.9)(case.z, case.z_ref, case.mask)
    out = EAGC(Subspace(case.matrix, case.energy_ref))(case.z.clone().requires_grad_(), case.z_ref, case.mask)
    with pytest.raises(AssertionError, match="waits for the device"), NoWaiting():
        out.sum().backward()


def test_the_dense_form_waits_for_nothing():
    case = make_case()
    with NoWaiting():
        torch_path.dense(case.g, case.inputs._replace(scale=torch.tensor(2.0)), SETTINGS)
        sums = torch_path.dense_labelled_energy(case.inputs)
        kernels.formulas.updated_energy_ref(case.energy_ref, sums, 0.95)


@pytest.mark.parametrize("shape", [(12, 40), (60, 16)], ids=["rows<D", "rows>D"])
def test_the_batch_estimate_waits_for_nothing(shape):
    case = make_case(*shape)
    with NoWaiting():
        estimate_from_batch(case.z_ref, case.mask)


class Ranks:
    """Stands for a process group of two; its all-reduce does nothing."""

    group_name = "ranks"

    def size(self):
        return 2


def step_under_the_mode(monkeypatch, device, impl, basis=False):
    """What training does with the operator: running and fixed energy reference, alone and among ranks, token
    and loss scale.
    """
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **options: None)
    monkeypatch.setattr(dist.distributed_c10d, "_resolve_process_group", lambda name: Ranks())
    case = make_case(basis=basis)
    z, z_ref, mask = (x.to(device) for x in (case.z, case.z_ref, case.mask))
    for momentum in (None, 0.9):
        for group in (None, Ranks()):
            settings = {"energy_momentum": momentum, "process_group": group, "record": True, "impl": impl}
            module = EAGC(case.subspace, **settings).to(device)
            features, scale = z.clone().requires_grad_(), torch.tensor(4.0, device=device)
            with NoWaiting():
                out, token = module(features, z_ref, mask, return_token=True)
                (out.square().mean() + token).backward()
                module(features, z_ref, mask, loss_scale=scale).sum().backward()
            assert features.grad.shape == z.shape and module.last_tau.device.type == device


@BASIS
def test_a_step_waits_for_nothing(monkeypatch, basis):
    """Checks, autograd, the bodies of both opaque ops, the dense form. The meta device stands for a GPU: it
    has no values to read.
    """
    step_under_the_mode(monkeypatch, "meta", "auto", basis)


def reading(function):
    """The function with a read of a value added to it."""

    def wrapped(*args, **options):
        torch.utils._pytree.tree_leaves(args)[0].sum().item()
        return function(*args, **options)

    return wrapped


@pytest.mark.parametrize(
    "place",
    [
        "coordinate",
        "observe",
        "energies",
        "dense",
        "dense_labelled_energy",
        "updated_energy_ref",
        "energy_and_tau",
    ],
)
def test_a_read_added_anywhere_in_a_step_is_caught(monkeypatch, place):
    if place in BODIES:
        monkeypatch.setitem(BODIES, place, reading(BODIES[place]))
    else:
        home = torch_path if place.startswith("dense") else kernels.formulas
        monkeypatch.setattr(home, place, reading(getattr(home, place)))
    with pytest.raises(AssertionError, match="item waits for the device"):
        step_under_the_mode(monkeypatch, "meta", "auto")


@pytest.mark.interpreter
def test_the_triton_launch_waits_for_nothing(monkeypatch):
    """Everything around the kernels, which are taken out (the interpreter itself reads memory): allocations
    and launch arguments.
    """
    from eagc_ops.kernels import launch

    class Recorder:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: launches.append(grid)

    launches = []
    monkeypatch.setattr(launch, "coordinate_kernel", Recorder())
    monkeypatch.setattr(launch, "labelled_energy_kernel", Recorder())
    for rows in (40, 5000):
        case = make_case(rows, 24)
        with NoWaiting():
            launch.run(case.g, case.inputs._replace(scale=torch.tensor(2.0)), SETTINGS)
            launch.run_labelled_energy(case.inputs, 0.95, update=True)
    assert len(launches) == 4  # one launch a call
    launches.clear()
    step_under_the_mode(monkeypatch, "cpu", "triton")
    assert len(launches) == 8 + 4  # eight backward passes; four forwards with a running energy reference
