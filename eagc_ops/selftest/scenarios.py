"""Ways of calling the operator that one comparison does not show: odd masks, streams, graphs, compiled steps.

Each scenario compares gradients of `EAGC` with those of plain calls on the same device. `eagc selftest` runs
them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import kernels
from ..kernels import Implementation
from ..module import EAGC
from ..subspace import Subspace

ROWS, DIM = 255, 96  # rows % 4 != 0, so that no buffer of a row's values is aligned by luck
ROUNDS = 20


class Outcome(NamedTuple):
    """The verdict about a scenario: "ok" or "FAIL: ..."; "not run" with the reason in `not_run`."""

    name: str
    verdict: str
    not_run: str = ""


class Batch(NamedTuple):
    """The inputs of a step, and the gradient that reaches its output."""

    z: Tensor
    z_ref: Tensor
    mask: Tensor
    g: Tensor


def run(device: torch.device) -> Iterator[Outcome]:
    """Run all scenarios; one that needs a GPU is not run elsewhere."""
    for name, (scenario, needs_gpu) in SCENARIOS.items():
        if needs_gpu and device.type != "cuda":
            yield Outcome(name, "not run", f"needs a GPU, the device is {device.type}")
            continue
        try:
            problem = scenario(device)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        yield Outcome(name, f"FAIL: {problem}" if problem else "ok")


def sliced_mask(device: torch.device) -> str:
    """A mask at an odd address and a mask with gaps give the bits of a plain one."""
    batch = make_batch(device, seed=0)
    wide = torch.zeros(2 * ROWS + 1, dtype=torch.bool, device=device)
    shifted, spread = wide[1 : ROWS + 1], wide.clone()[:-1].view(ROWS, 2)[:, 1]
    implementations: tuple[Implementation, ...] = ("torch", "triton")
    for impl in implementations:
        if impl == "triton" and kernels.why_not_triton(device, torch.float32):
            continue
        module = make_module(device, impl=impl)
        expected = gradient(module, batch)
        for mask in (shifted, spread):
            mask.copy_(batch.mask)
            if not torch.equal(gradient(module, batch._replace(mask=mask)), expected):
                return f"bits of impl={impl!r} differ with a mask of stride {mask.stride(0)}"
    return ""


def two_streams(
    device: torch.device, together: Callable[[Sequence[Callable[[], Tensor]]], list[Tensor]] | None = None
) -> str:
    """Two calls at the same time on two streams give the bits of calls one after the other.

    `together(calls)` runs the calls at the same time; None: on CUDA streams.
    """
    module = make_module(device)
    batches = [make_batch(device, seed) for seed in range(2)]
    expected = [gradient(module, batch) for batch in batches]
    calls = [functools.partial(gradient, module, batch) for batch in batches]
    for _ in range(ROUNDS):
        for mine, alone in zip((together or on_streams)(calls), expected):
            if not torch.equal(mine, alone):
                return "bits differ from calls one after the other"
    return ""


def graph_replay(
    device: torch.device, capture: Callable[[Callable[[], None]], Callable[[], object]] | None = None
) -> str:
    """A captured step, forward and backward with a running Ebar, replayed with other inputs and another S.

    It is done with the energy of S and with one in a basis. `capture(step)` returns what replays the step;
    None: a CUDA graph.
    """
    half, weights = torch.eye(DIM, device=device) * 0.5, torch.linspace(1, 0, DIM, device=device)
    others = Subspace(half, 0.5), Subspace(half, 0.5, basis=half, weights=weights)
    return next(filter(None, (_replayed(device, capture or capture_graph, other) for other in others)), "")


def _replayed(
    device: torch.device, capture: Callable[[Callable[[], None]], Callable[[], object]], other: Subspace
) -> str:
    """`other`: the subspace that the module gets between two replays."""
    results = []
    for captured in (False, True):
        module = make_module(device, energy_momentum=0.9, basis=other.basis is not None)
        static = make_batch(device, seed=9)
        start, out = module.energy_ref.clone(), torch.empty_like(static.g)

        def step(module: EAGC = module, batch: Batch = static, out: Tensor = out) -> None:
            out.copy_(gradient(module, batch))

        replay = capture(step) if captured else step
        module.energy_ref.copy_(start)  # a capture runs the step a few times
        grads = []
        for seed in range(4):
            if seed == 2:
                module.set_subspace(other)
            for mine, new in zip(static, make_batch(device, seed)):
                mine.copy_(new)
            replay()
            grads.append(out.clone())
        results.append([*grads, module.energy_ref])
    same = [torch.equal(mine, plain) for mine, plain in zip(*results)]
    return "" if all(same) else f"bits differ from plain steps in {same.count(False)} of {len(same)} results"


def reduce_overhead(device: torch.device) -> str:
    """torch.compile(mode="reduce-overhead"), which records CUDA graphs and refuses ops that keep memory."""
    results = []
    for compiled in (False, True):
        module = make_module(device, energy_momentum=0.9)

        def loss(z: Tensor, z_ref: Tensor, mask: Tensor, g: Tensor, module: EAGC = module) -> Tensor:
            out: Tensor = module(z.sin(), z_ref, mask)
            return (out * g).sum()

        run = torch.compile(loss, mode="reduce-overhead", fullgraph=True) if compiled else loss
        grads = []
        for seed in range(5):
            batch = make_batch(device, seed)
            z = batch.z.requires_grad_()
            run(z, batch.z_ref, batch.mask, batch.g).backward()
            assert z.grad is not None
            grads.append(z.grad.clone())
        results.append(grads)
    worst = max(((a - b).norm() / b.norm()).item() for a, b in zip(*results))
    return "" if worst < 1e-5 else f"gradients differ from plain steps by {worst:.1e}"


# name -> (scenario, whether it needs a GPU)
SCENARIOS: dict[str, tuple[Callable[[torch.device], str], bool]] = {
    "sliced mask": (sliced_mask, False),
    "two streams": (two_streams, True),
    "graph capture and replay": (graph_replay, True),
    "torch.compile reduce-overhead": (reduce_overhead, True),
}


def on_streams(calls: Sequence[Callable[[], Tensor]]) -> list[Tensor]:
    current = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in calls]
    results = []
    for stream, call in zip(streams, calls):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            results.append(call())
    for stream in streams:
        current.wait_stream(stream)
    torch.cuda.synchronize()  # before the streams' memory is used by others
    return results


def capture_graph(step: Callable[[], None]) -> Callable[[], object]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # torch's recipe: compile and allocate before the capture
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def gradient(module: EAGC, batch: Batch) -> Tensor:
    """The coordinated gradient of a batch."""
    z = batch.z.detach().requires_grad_()
    out = module(z, batch.z_ref, batch.mask)
    assert isinstance(out, Tensor)
    return torch.autograd.grad(out, z, batch.g)[0]


def make_module(
    device: torch.device,
    energy_momentum: float | None = None,
    impl: Implementation | None = None,
    basis: bool = False,
) -> EAGC:
    """A module for an implementation; None: Triton where it can run. "auto" might fall back and hide that."""
    impl = impl or ("torch" if kernels.why_not_triton(device, torch.float32) else "triton")
    features = torch.randn(2 * DIM, DIM, generator=torch.Generator().manual_seed(7)) * _spectrum()
    # A large lambda_a: the mean over all entries makes the anchor small, and an error in it would not show.
    settings = {"lambda_a": 1000.0, "energy_momentum": energy_momentum, "impl": impl}
    subspace = Subspace.whitened(features[::2], features) if basis else Subspace.conceptor(features)
    return EAGC(subspace, **settings).to(device)  # type: ignore[arg-type]


def make_batch(device: torch.device, seed: int) -> Batch:
    """Rows with energies on both sides of Ebar."""
    generator = torch.Generator().manual_seed(seed)
    z, z_ref, g = (torch.randn(ROWS, DIM, generator=generator) for _ in range(3))
    z = z * _spectrum() ** (2 * torch.rand(ROWS, 1, generator=generator))
    mask = torch.rand(ROWS, generator=generator) < 0.5
    return Batch(*(x.to(device) for x in (z, z_ref, mask, g)))


def _spectrum() -> Tensor:
    return torch.arange(1, DIM + 1).rsqrt()
