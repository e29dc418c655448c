"""`eagc bench throughput`: rows x D x dtype, one line per provider. A provider that is wrong on the inputs is not timed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from eagc_ops import EAGC, kernels
from eagc_ops.bench import gpu
from eagc_ops.bench.hooks import HookCoordinator
from eagc_ops.bench.inputs import MOMENTUM, OPTIONS, Inputs, error, make_inputs
from eagc_ops.bench.measure import Timing, clock, interleave, ratio, rounds_within
from eagc_ops.bench.work import count, nominal_work
from eagc_ops.kernels import formulas

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HOOKS = "released hooks"
LIMIT = "products of the rows that must be multiplied"


class Shape(NamedTuple):
    rows: int
    dim: int
    dtype: str


@dataclass(frozen=True)
class Provider:
    """`run()` goes from the gradient at the operator's output to the gradient at z, the forward call included."""

    name: str
    running: bool  # the energy reference is updated from the batch first (released), or given (paper)
    run: Callable[[], Tensor]
    on_a_gpu: Callable[[], object] | None = (
        None  # to count host syncs: what a GPU would run, where that is something else
    )


def shapes(device: torch.device, quick: bool) -> list[Shape]:
    """What is measured by default. A CPU gets one 16-bit shape: without 16-bit products its torch is far slower there than in fp32."""
    if device.type == "cuda":
        sizes = (
            [(256, 768), (4096, 768)]
            if quick
            else [(rows, dim) for rows in (256, 1024, 4096, 16384) for dim in (384, 768, 1024, 4096)]
        )
        return [Shape(*size, dtype) for size in sizes for dtype in DTYPES]
    sizes = (
        [(256, 768), (1024, 768), (4096, 768)]
        if quick
        else [(rows, dim) for rows in (256, 1024, 4096) for dim in (384, 768, 1024)]
    )
    return [*(Shape(*size, "fp32") for size in sizes), Shape(64, 768, "bf16")]


def throughput_rows(wanted: list[Shape], device: torch.device, budget: float) -> list[dict[str, Any]]:
    """Measured rows; `budget` is seconds per shape."""
    return [row for shape in wanted for row in measure(shape, providers, device, budget)]


def measure(
    shape: Shape, make: Callable[[Inputs], list[Provider]], device: torch.device, budget: float
) -> list[dict[str, Any]]:
    """The gate, then the clock: every provider is compared with fp64, and those that pass are timed together."""
    inputs = make_inputs(shape.rows, shape.dim, dtype=DTYPES[shape.dtype], device=device)
    found = {}
    for provider in make(inputs):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # inductor's own deprecations
                found[provider] = error(inputs, provider.run(), running=provider.running)
        except (
            Exception
        ) as failure:  # no compiler for torch.compile, too little memory, ...: the others are still measured
            found[provider] = (
                f"{type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''}"
            )
    wrong = {p: f for p, f in found.items() if isinstance(f, str) or f.too_large(inputs.z.dtype)}
    right = {p: f for p, f in found.items() if p not in wrong}
    runs = {p.name: p.run for p in right} | products(inputs, running=False) | products(inputs, running=True)
    timings = time_together(runs, {p.name: count(p.on_a_gpu or p.run).syncs for p in right}, device, budget)
    rows = [row(shape, inputs, provider, right[provider], timings, device) for provider in right]
    for provider, failure in wrong.items():
        verdict = (
            failure
            if isinstance(failure, str)
            else f"wrong by {failure.result:.1e}, its correction by {failure.correction:.1e}"
        )
        rows.append({**_identity(shape, provider), "kind": "not timed", "reason": verdict})
    return rows


class Measured(NamedTuple):
    """Timings by provider name: of whole eager calls; on a GPU also of graph replays (where nothing waits) and of the host alone."""

    eager: dict[str, Timing]
    graph: dict[str, Timing]
    host: dict[str, Timing]
    syncs: dict[str, int]


def time_together(
    runs: dict[str, Callable[[], object]], syncs: dict[str, int], device: torch.device, budget: float
) -> Measured:
    rounds = rounds_within(budget, runs)
    eager = interleave(runs, rounds, clock(device))
    if device.type != "cuda":
        return Measured(eager, {}, {}, syncs)
    capturable = {name: run for name, run in runs.items() if not syncs.get(name)}
    graphs = {name: graph for name, run in capturable.items() if (graph := gpu.capture(run))}
    host = {name: gpu.host_seconds(run, rounds) for name, run in runs.items()}
    return Measured(eager, gpu.device_seconds(graphs, rounds), host, syncs)


def row(
    shape: Shape, inputs: Inputs, provider: Provider, found, timings: Measured, device: torch.device
) -> dict[str, Any]:
    """Rates are nominal work per second: of the device where a graph could be replayed, else of the whole call (`rates_of`)."""
    name = provider.name
    labelled = int(inputs.mask.sum())
    work = nominal_work(
        shape.rows - labelled, labelled, shape.dim, inputs.z.element_size(), running=provider.running
    )
    by = timings.graph if name in timings.graph else timings.eager
    seconds = by[name].median
    limits = [timing for other, timing in by.items() if other.startswith(limit_name(provider.running))]
    return {
        **_identity(shape, provider),
        "kind": "measured",
        "seconds": timings.eager[name].spread,
        "speed_up": ratio(timings.eager[HOOKS], timings.eager[name]) if HOOKS in timings.eager else None,
        "device_seconds": timings.graph[name].spread if name in timings.graph else None,
        "host_seconds": timings.host[name].spread if name in timings.host else None,
        "rounds": len(timings.eager[name].seconds),
        "rates_of": "graph replay" if name in timings.graph else "call",
        "gflop_per_s": work.flops / seconds / 1e9,
        "gb_per_s": work.bytes / seconds / 1e9,
        "flop_per_byte": work.intensity,
        "share_of_limit": ratio(min(limits, key=lambda timing: timing.median), by[name]) if limits else None,
        "host_syncs_on_gpu": timings.syncs[name],
        "aten_ops": None if name == COMPILED else count(provider.run).ops,
        "launches": gpu.launches(provider.run) if device.type == "cuda" else None,
        "error": found.result,
        "page_faults": timings.eager[name].median_faults,
    }


COMPILED = "torch.compile of plain torch"


def providers(inputs: Inputs) -> list[Provider]:
    """Everyone who can run on the inputs' device."""
    torch.compiler.reset()  # or the ninth shape would be refused by dynamo and run eagerly
    matrix = inputs.subspace.matrix.to(inputs.z.dtype)
    start = inputs.subspace.energy_ref.item()

    def backward(out: Tensor) -> Tensor:
        return torch.autograd.grad(out, inputs.z, inputs.g)[0]

    def hooks() -> Tensor:
        return backward(
            HookCoordinator(matrix, start, momentum=MOMENTUM).attach(inputs.z, inputs.z_ref, inputs.mask)
        )

    def plain(formulas: Callable) -> Callable[[], Tensor]:
        energy_ref = inputs.subspace.energy_ref.to(inputs.z.dtype)
        return lambda: backward(
            Plain.apply(inputs.z, inputs.z_ref, inputs.mask, matrix, energy_ref, formulas)
        )

    def ours(impl: str, running: bool) -> Callable[[], Tensor]:
        eagc = EAGC(inputs.subspace, energy_momentum=MOMENTUM if running else None, impl=impl).train()

        def run() -> Tensor:
            if running:
                eagc.energy_ref.copy_(
                    inputs.subspace.energy_ref
                )  # every call sees the same energy reference, as the hooks do
            return backward(eagc(inputs.z, inputs.z_ref, inputs.mask))

        return run

    found = [
        Provider(HOOKS, True, hooks),
        Provider("plain torch", False, plain(coordinated)),
        Provider(COMPILED, False, plain(torch.compile(coordinated, dynamic=False)), plain(coordinated)),
    ]
    for impl in (
        ("torch", "triton")
        if inputs.z.is_cuda and not kernels.why_not_triton(inputs.z.device, inputs.z.dtype)
        else ("torch",)
    ):
        for running in (False, True):
            # The CPU path reads values, which costs nothing there; on a GPU the torch path is another one.
            on_a_gpu = (
                None if inputs.z.is_cuda else (lambda running=running: torch_path_on_a_gpu(inputs, running))
            )
            found.append(
                Provider(
                    f"ours, {impl}" + (", running Ebar" if running else ""),
                    running,
                    ours(impl, running),
                    on_a_gpu,
                )
            )
    return found


def coordinated(
    g: Tensor, z: Tensor, z_ref: Tensor, mask: Tensor, matrix: Tensor, energy_ref: Tensor
) -> Tensor:
    """Plain torch: the formulas over all rows, in the inputs' dtype."""
    return formulas.coordinate(g, z, z_ref, mask, matrix, energy_ref, **OPTIONS)[0]


class Plain(torch.autograd.Function):
    """Identity forward; `formulas` in backward."""

    @staticmethod
    def forward(ctx, z, z_ref, mask, matrix, energy_ref, formulas):
        ctx.save_for_backward(z, z_ref, mask, matrix, energy_ref)
        ctx.formulas = formulas
        return z.view_as(z)

    @staticmethod
    def backward(ctx, g):
        return ctx.formulas(g, *ctx.saved_tensors), *(None,) * 5


def products(inputs: Inputs, *, running: bool) -> dict[str, Callable[[], Tensor]]:
    """The device's limit: one product of all rows that must be multiplied, laid out in memory beforehand.

    z and g of unlabelled rows; with a running energy reference z of labelled rows too. 16-bit rows also widened: a CPU without 16-bit
    products is faster that way, and the limit is whatever is fastest.
    """
    z = inputs.z.detach()
    rows = torch.cat([z if running else z[~inputs.mask], inputs.g[~inputs.mask]])

    def product(dtype: torch.dtype) -> Callable[[], Tensor]:
        a, b = rows.to(dtype), inputs.subspace.matrix.to(dtype)
        return lambda: a @ b

    return {
        f"{limit_name(running)}, {dtype}": product(dtype)
        for dtype in dict.fromkeys((rows.dtype, torch.float32))
    }


def limit_name(running: bool) -> str:
    return f"{LIMIT}, {'running' if running else 'given'} Ebar"


def torch_path_on_a_gpu(inputs: Inputs, running: bool) -> None:
    """What impl="torch" issues on a GPU, on tensors without content: a read of a value would raise."""
    real = (inputs.g, inputs.z, inputs.z_ref, inputs.mask, inputs.subspace.matrix, inputs.subspace.energy_ref)
    with FakeTensorMode():
        g, z, z_ref, mask, matrix, energy_ref = (
            torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in real
        )
        if running:
            _, energy_ref = kernels.labelled_energy(
                z, mask, matrix, energy_ref, momentum=MOMENTUM, impl="torch"
            )
        kernels.coordinate(g, z, z_ref, mask, matrix, energy_ref, impl="torch", **OPTIONS)


def _identity(shape: Shape, provider: Provider) -> dict[str, Any]:
    return {
        **dict(zip(("rows", "D", "dtype"), shape)),
        "provider": provider.name,
        "Ebar": "running" if provider.running else "given",
    }


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """For reading: one line per row, in the units of the device."""

    def cell(value: Any, scale: float = 1, form: str = ".2f") -> str:
        return "-" if value is None else f"{value * scale:{form}}"

    on_a_gpu = any(r.get("host_seconds") for r in rows)
    gpu_columns = ("device us", "host us", "launches", "rates of") if on_a_gpu else ()
    columns = (
        "ms",
        "speed-up",
        *gpu_columns,
        "GFLOP/s",
        "GB/s",
        "of limit",
        "syncs on GPU",
        "ops",
        "page faults",
    )
    lines = []
    for r in rows:
        line = {name: str(r[name]) for name in ("rows", "D", "dtype", "provider", "Ebar")}
        if r["kind"] == "not timed":
            lines.append({**line, **dict.fromkeys(columns, "-"), "error": f"NOT TIMED: {r['reason']}"})
            continue
        gpu_cells = {}
        if on_a_gpu:
            gpu_cells = {
                "device us": "-"
                if r["device_seconds"] is None
                else cell(r["device_seconds"].median, 1e6, ".1f")
            }
            gpu_cells |= {
                "host us": cell(r["host_seconds"].median, 1e6, ".1f"),
                "launches": cell(r["launches"], form="d"),
            }
            gpu_cells |= {"rates of": r["rates_of"]}
        share = r["share_of_limit"]
        lines.append(
            {
                **line,
                "ms": cell(r["seconds"].median, 1e3, ".3g"),
                "speed-up": str(r["speed_up"] or "-"),
                **gpu_cells,
                "GFLOP/s": cell(r["gflop_per_s"], form=".1f"),
                "GB/s": cell(r["gb_per_s"]),
                "of limit": f"{share.median:.0%} ({share.low:.0%}-{share.high:.0%})" if share else "-",
                "syncs on GPU": cell(r["host_syncs_on_gpu"], form="d"),
                "ops": cell(r["aten_ops"], form="d"),
                "page faults": cell(r["page_faults"], form=".0f"),
                "error": cell(r["error"], form=".1e"),
            }
        )
    return lines
