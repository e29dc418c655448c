"""Cases that compare every implementation with the fp64 formulas on a device: `eagc selftest`."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .. import kernels
from ..app.console import bar
from ..kernels import Coordination, Execution, Implementation, Inputs, Precision, formulas
from ..subspace import Subspace, solve_conceptor

LAMBDA_P = 3.0  # the largest of the released scripts: the projection is as large as the gradient
MOMENTUM = 0.5  # of the running Ebar: the old value and the batch have equal weight
# Rows that are no multiple of 4, and more than the kernel looks through itself, are among them.
QUICK_SHAPES = ((7, 33), (256, 768), (1001, 768), (5001, 768))
SHAPES = (
    *((1, 1), (7, 33), (64, 100), (256, 384), (256, 768), (1001, 768)),
    *((300, 1024), (129, 4096), (5001, 768), (65536, 64)),
)
SMALL_SHAPES = ((1, 1), (7, 33), (40, 64), (64, 100), (48, 768))
# Allowed error, relative to the largest correction: a few roundings of the result and of the products.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-13}
TF32_TOLERANCE = 5e-3  # ten mantissa bits in the products
SECONDS_PER_KERNEL = 3.5  # to compile one, on one core
RACE_SHAPES = ((255, 96), (256, 768))  # few: a kernel with the sanitizer takes a minute to compile


@dataclass(frozen=True)
class Form:
    """A form of a call; each compiles to a different kernel. All but the default are tested at one shape."""

    settings: Coordination = field(default=Coordination(lambda_p=LAMBDA_P))
    scale: float | None = None
    labelled: float | None = None  # number of labelled rows, averaged over ranks; None: counted in the call
    anchored: bool = True
    basis: bool = False  # of the energy


FORMS = {
    "default": Form(),
    "uniform": Form(Coordination(lambda_p=LAMBDA_P, tau="uniform")),
    "sum": Form(Coordination(lambda_p=LAMBDA_P, anchor="sum")),
    "scaled": Form(scale=0.25, labelled=3.0),
    "no anchor": Form(anchored=False),
    "basis": Form(basis=True),
}
FORM_SHAPE = (300, 96)


@dataclass(frozen=True)
class Case:
    """One comparison: an implementation, a form of the call, and the inputs."""

    impl: Implementation
    precision: Precision
    form: str  # a key of FORMS
    dtype: torch.dtype
    rows: int
    dim: int
    labelled: float  # share of the rows

    @property
    def allowed(self) -> float:
        return TF32_TOLERANCE if self.precision == "tf32" else TOLERANCE[self.dtype]

    @property
    def matrix_dtype(self) -> torch.dtype:
        """The Triton kernel multiplies half features with a half copy of S, unless precision is "high"."""
        halved = self.impl == "triton" and self.dtype.itemsize == 2 and self.precision == "auto"
        return self.dtype if halved else torch.float32


@dataclass(frozen=True)
class Result(Case):
    """A case, its largest error, and whether all repeats had the same bits."""

    error: float
    repeats: int
    same_bits: bool
    raised: str = ""

    @property
    def verdict(self) -> str:
        if self.raised:
            return f"FAIL: {self.raised}"
        if not self.same_bits:
            return "FAIL: bits differ"
        return "ok" if self.error <= self.allowed else "FAIL: error"

    def to_json(self) -> dict[str, object]:
        values = {**vars(self), "dtype": _name(self.dtype), "allowed": self.allowed, "verdict": self.verdict}
        return values | {"error": None if math.isnan(self.error) else self.error}


def run(device: torch.device, repeats: int, *, full: bool = False) -> Iterator[Result]:
    """Yield the results of all cases for a device."""
    for case in cases(device, full=full):
        yield check(case, device, repeats_of(case, device, repeats))


def repeats_of(case: Case, device: torch.device, repeats: int) -> int:
    """Plain torch is not suspected of races, and the interpreter runs programs one after the other."""
    if case.impl != "triton":
        return 2
    return min(repeats, 3) if device.type == "cpu" else repeats


def cases(device: torch.device, *, full: bool = False, races: bool = False) -> Iterator[Case]:
    """The comparisons for a device; a CPU gets small shapes.

    `races`: those to run under the sanitizer. Precisions and forms have the same order of arrival.
    """
    on_a_cpu = device.type == "cpu"
    shapes = SMALL_SHAPES if on_a_cpu else RACE_SHAPES if races else SHAPES if full else QUICK_SHAPES
    form_shape = SMALL_SHAPES[-1] if on_a_cpu else FORM_SHAPE if full else shapes[1]
    implementations: tuple[Implementation, ...] = ("triton",) if races else ("fp64", "torch", "triton")
    for impl in implementations:
        for dtype in TOLERANCE:
            if impl == "triton" and kernels.why_not_triton(device, dtype):
                continue
            if device.type == "mps" and (impl == "fp64" or dtype == torch.float64):
                continue  # there is no fp64 on that device
            for precision in precisions(impl, dtype, device)[: 1 if races else None]:
                every = full or on_a_cpu or precision == "auto"  # a quick test tries the others at one shape
                for rows, dim in shapes if every else [form_shape]:
                    for labelled in (0.0, 0.5, 1.0):
                        yield Case(impl, precision, "default", dtype, rows, dim, labelled)
                for form in list(FORMS)[1:] if every and not races else ():
                    yield Case(impl, precision, form, dtype, *form_shape, 0.5)


def compile_kernels(chosen: Iterable[Case], device: torch.device, shown: bool) -> None:
    """Compile the kernels of all cases side by side; one that does not compile fails in its case."""
    from ..kernels import launch

    workers = os.cpu_count() or 1
    with launch.compiling(workers) as compilations:
        for case in chosen:
            form = FORMS[case.form]
            z = torch.empty((case.rows, case.dim), dtype=case.dtype, device=device)
            mask = torch.empty(case.rows, dtype=torch.bool, device=device)
            one = torch.ones((), device=device)
            matrix = torch.empty((case.dim, case.dim), device=device)
            scale, labelled = (None if value is None else one for value in (form.scale, form.labelled))
            inputs = Inputs(z, z if form.anchored else None, mask, matrix, one, scale, labelled)
            if form.basis:
                inputs = inputs._replace(basis=matrix, weights=matrix[0])
            launch.run(z, inputs, form.settings, case.precision)
            launch.run_labelled_energy(inputs, MOMENTUM, case.precision, update=True)
        number = len(compilations)
        if shown:
            print(
                f"compiling {number} kernels, {workers} at a time, in about "
                f"{number * SECONDS_PER_KERNEL / workers:.0f} s; less if Triton has them in its cache",
                flush=True,
            )
        for _ in bar(as_completed(compilations), "kernels", number):
            pass


def why_no_sanitizer(device: torch.device) -> str | None:
    """The reason why Triton's sanitizer of global memory (GSan) cannot watch the kernels, or None."""
    if device.type != "cuda" or torch.version.hip:
        return "Triton's sanitizer needs an NVIDIA GPU"
    if reason := kernels.why_not_triton(device, torch.float32):
        return reason
    if importlib.util.find_spec("triton.experimental.gsan") is None:
        return "this Triton has no sanitizer of global memory; version 3.9 has"
    return None


@contextlib.contextmanager
def sanitizer() -> Iterator[None]:
    """Kernels compiled within the block check every access to memory allocated within it.

    GSan keeps vector clocks of programs in shadow memory. A race between programs of a launch ends in a trap
    and a message of the device.
    """
    from triton import knobs
    from triton.experimental import gsan

    before = knobs.compilation.instrumentation_mode
    knobs.compilation.instrumentation_mode = "gsan"
    try:
        with torch.cuda.use_mem_pool(gsan.create_mem_pool()):
            yield
    finally:
        knobs.compilation.instrumentation_mode = before


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """fp32 products in fp32: where the user lets torch use TF32, the comparisons would see its roundings."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def precisions(impl: Implementation, dtype: torch.dtype, device: torch.device) -> tuple[Precision, ...]:
    if impl != "triton":
        return ("auto",)
    if dtype != torch.float32:
        return ("auto", "high")
    return ("auto",) if torch.version.hip or device.type != "cuda" else ("auto", "tf32x3", "tf32")


def check(case: Case, device: torch.device, repeats: int) -> Result:
    """Run one case; a kernel that does not compile or does not fit the device counts as failed."""
    try:
        error, same_bits = measure(case, device, repeats)
    except Exception as failure:
        raised = f"{type(failure).__name__}: {str(failure).strip()}".splitlines()[0]
        return Result(**vars(case), error=math.nan, repeats=repeats, same_bits=False, raised=raised)
    return Result(**vars(case), error=error, repeats=repeats, same_bits=same_bits)


def measure(case: Case, device: torch.device, repeats: int) -> tuple[float, bool]:
    """The largest error against fp64, and whether all repeats had the same bits.

    The error is relative to the correction, the part that the operator adds to g, on labelled and on
    unlabelled rows. The running Ebar is compared too, because its kernel also depends on the last arrival.
    """
    g, inputs, settings = make_inputs(case)
    wide = inputs.rounded(case.matrix_dtype).widened(torch.float64)
    exact = formulas.coordinated(g.double(), wide, settings).gradient
    exact_sums = formulas.labelled_energy(wide)
    exact_ref = formulas.updated_energy_ref(wide.energy_ref, exact_sums, MOMENTUM)
    execution = Execution(case.impl, case.precision)
    g, inputs = g.to(device), inputs.on(device)

    def once() -> list[Tensor]:
        out = kernels.coordinate(g, inputs, settings, execution)
        kept = inputs.energy_ref.clone()
        sums, used = kernels.labelled_energy(inputs._replace(energy_ref=kept), MOMENTUM, execution)
        return [x.nan_to_num(7.0) for x in (out, sums, used, kept)]

    with poisoned_memory():
        first = once()
        same_bits = all(torch.equal(x, y) for _ in range(repeats - 1) for x, y in zip(once(), first))
    out, sums, used, kept = (x.cpu().double() for x in first)
    wrong, correction = (out - exact).abs(), (exact - g.cpu().double()).abs()
    mask = wide.mask
    errors = [wrong[kind].max() / (correction[kind].max() or 1) for kind in (mask, ~mask) if kind.any()]
    errors += [((sums - exact_sums).abs() / exact_sums.clamp_min(1)).max()]
    errors += [abs(x - exact_ref) / exact_ref for x in (used, kept)]
    return max(error.item() for error in errors), same_bits


def make_inputs(case: Case) -> tuple[Tensor, Inputs, Coordination]:
    """g, the other inputs and the settings of a case, on the CPU."""
    form, rows, dim = FORMS[case.form], case.rows, case.dim
    generator = torch.Generator().manual_seed(rows * 7919 + dim)
    matrix = conceptor(dim)
    # Spectra from flat to steeper than the conceptor's, so that energies, and with them tau, differ from row
    # to row.
    spectrum = torch.arange(1, dim + 1).rsqrt() ** (2 * torch.rand(rows, 1, generator=generator))
    g, z, z_ref = (torch.randn(rows, dim, generator=generator) for _ in range(3))
    g, z, z_ref = g.to(case.dtype), (z * spectrum).to(case.dtype), z_ref.to(case.dtype)
    mask = torch.rand(rows, generator=generator) < case.labelled
    z_ref[~mask] = torch.nan
    # s * c * lambda_a = 0.7: the anchor is as large as the gradient, so an error in it shows.
    number = max(mask.sum().item(), 1) if form.labelled is None else form.labelled
    per_row = number * dim if form.settings.anchor == "mean" else 1
    settings = form.settings._replace(lambda_a=0.7 / (form.scale or 1.0) * per_row)
    scale, labelled = (
        None if value is None else torch.tensor(value) for value in (form.scale, form.labelled)
    )
    one = torch.ones((), dtype=torch.promote_types(case.dtype, torch.float32))
    inputs = Inputs(z, z_ref if form.anchored else None, mask, matrix, one, scale, labelled)
    if form.basis:
        basis, weights = whitened(dim)
        inputs = inputs._replace(basis=basis, weights=weights)
    energy = formulas.energy_of(inputs.rounded(case.matrix_dtype).widened(torch.float64))
    return g, inputs._replace(energy_ref=(1.5 * energy.mean()).to(one.dtype)), settings


@functools.cache
def conceptor(dim: int) -> Tensor:
    """A conceptor of features with a decaying spectrum, (D, D) fp32."""
    features = features_of(dim)
    return solve_conceptor(features.T @ features / len(features), 2.0).float()


@functools.cache
def whitened(dim: int) -> tuple[Tensor, Tensor]:
    """The basis (D, D) and the weights (D,), fp32, of a whitened energy of such features."""
    features = features_of(dim)
    # Half of the features are labelled, and have little in the last directions.
    labelled = features[::2] * torch.arange(1, dim + 1).rsqrt()
    subspace = Subspace.whitened(labelled, features)
    assert subspace.basis is not None and subspace.weights is not None
    return subspace.basis, subspace.weights


def features_of(dim: int) -> Tensor:
    """(2 D, D) fp64 with a decaying spectrum."""
    generator = torch.Generator().manual_seed(dim)
    features = torch.randn(2 * dim, dim, generator=generator, dtype=torch.float64)
    return features * torch.arange(1, dim + 1).rsqrt()


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill new memory with NaN, so that a stale read cannot return the right value of the last repeat."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
