"""The scenarios of the self-test: they pass as far as a CPU can run them, and fail on what they look for.

On a CPU the parts that need CUDA are replaced: a "graph" is the step itself, "streams" are calls in turn.
"""

import functools

import pytest
import torch

from eagc_ops import kernels
from eagc_ops.selftest import scenarios

CPU = torch.device("cpu")


def in_turn(calls):
    return [call() for call in calls]


def as_itself(step):
    for _ in range(4):
        step()
    return step


@pytest.fixture
def without_inductor(monkeypatch):
    """torch.compile traces both passes, but generates no code: that would take half a minute."""

    def compiled(function, mode, fullgraph):
        assert mode == "reduce-overhead"
        return real(function, backend="aot_eager", fullgraph=fullgraph)

    real = torch.compile
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", compiled)


SCENARIOS = [
    scenarios.sliced_mask,
    functools.partial(scenarios.two_streams, together=in_turn),
    functools.partial(scenarios.graph_replay, capture=as_itself),
    scenarios.reduce_overhead,
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("without_inductor")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=list(scenarios.SCENARIOS))
def test_passes_here(scenario):
    assert scenario(CPU) == ""


def test_what_needs_a_gpu_is_not_run_and_says_so():
    outcomes = {outcome.name: outcome for outcome in scenarios.run(CPU)}
    assert outcomes.pop("sliced mask").verdict == "ok"
    assert len(outcomes) == 3
    assert {outcome[1:] for outcome in outcomes.values()} == {("not run", "needs a GPU, the device is cpu")}


def test_a_scenario_that_raises_has_failed(monkeypatch):
    def broken(device):
        raise RuntimeError("cudagraph pool\nnot tracked")

    monkeypatch.setitem(scenarios.SCENARIOS, "sliced mask", (broken, False))
    assert next(scenarios.run(CPU)).verdict == "FAIL: RuntimeError: cudagraph pool"


def test_an_implementation_that_forgets_the_stride_of_the_mask_fails(monkeypatch):
    right = kernels.coordinate

    def wrong(g, inputs, *rest):
        mask = inputs.mask.as_strided(inputs.mask.shape, (1,))
        return right(g, inputs._replace(mask=mask), *rest)

    monkeypatch.setattr(kernels, "coordinate", wrong)
    assert "mask of stride 2" in scenarios.sliced_mask(CPU)


def test_calls_that_share_a_buffer_fail():
    def together(calls):
        first, second = in_turn(calls)
        first[0] = second[0]
        return [first, second]

    assert "bits differ" in scenarios.two_streams(CPU, together)


def test_a_graph_that_reads_old_inputs_or_an_old_subspace_fails(monkeypatch):
    def frozen(step):
        step()
        return lambda: None

    assert "bits differ" in scenarios.graph_replay(CPU, frozen)

    class Stale(scenarios.EAGC):
        def set_subspace(self, subspace):
            if not self.captured:
                super().set_subspace(subspace)

    made = []

    def make(*args, right=scenarios.make_module, **options):
        module = right(*args, **options)
        module.__class__, module.captured = Stale, bool(made)
        made.append(module)
        return module

    monkeypatch.setattr(scenarios, "make_module", make)
    assert "bits differ" in scenarios.graph_replay(CPU, as_itself)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_with_other_gradients_fails(monkeypatch):
    def compiled(function, **settings):
        return lambda *args: function(*args) * 1.0001

    monkeypatch.setattr(torch, "compile", compiled)
    assert "gradients differ from plain steps by 1.0e-04" in scenarios.reduce_overhead(CPU)
