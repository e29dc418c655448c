"""Cases that compare every implementation with the fp64 formulas on a device: `eagc selftest`."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagc_ops import kernels
from eagc_ops.kernels import Coordination, Execution, Implementation, Inputs, Precision, formulas
from eagc_ops.subspace import solve_conceptor

LAMBDA_P = 3.0  # the largest of the released scripts: the projection is as large as the gradient
MOMENTUM = 0.5  # of the running Ebar: the old value and the batch have equal weight
SHAPES = (
    *((1, 1), (7, 33), (64, 100), (256, 384), (256, 768), (1000, 768)),
    *((300, 1024), (129, 4096), (5000, 768), (65536, 64)),
)
SMALL_SHAPES = ((1, 1), (7, 33), (40, 64), (64, 100), (48, 768))
# Allowed error, relative to the largest correction: a few roundings of the result and of the products.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-13}
TF32_TOLERANCE = 5e-3  # ten mantissa bits in the products


@dataclass(frozen=True)
class Form:
    """A form of a call; each compiles to a different kernel. All but the default are tested at one shape."""

    settings: Coordination = field(default=Coordination(lambda_p=LAMBDA_P))
    scale: float | None = None
    labelled: float | None = None  # number of labelled rows, averaged over ranks; None: counted in the call
    anchored: bool = True


FORMS = {
    "default": Form(),
    "uniform": Form(Coordination(lambda_p=LAMBDA_P, tau="uniform")),
    "sum": Form(Coordination(lambda_p=LAMBDA_P, anchor="sum")),
    "scaled": Form(scale=0.25, labelled=3.0),
    "no anchor": Form(anchored=False),
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


def run(device: torch.device, repeats: int) -> Iterator[Result]:
    """Yield the results of all cases for a device; a CPU gets small shapes and few repeats."""
    on_a_cpu = device.type == "cpu"
    for case in cases(device):
        times = (min(repeats, 3) if on_a_cpu else repeats) if case.impl == "triton" else 2
        yield check(case, device, times)


def cases(device: torch.device) -> Iterator[Case]:
    shapes = SMALL_SHAPES if device.type == "cpu" else SHAPES
    form_shape = SMALL_SHAPES[-1] if device.type == "cpu" else FORM_SHAPE
    implementations: tuple[Implementation, ...] = ("fp64", "torch", "triton")
    for impl in implementations:
        for dtype in TOLERANCE:
            if impl == "triton" and kernels.why_not_triton(device, dtype):
                continue
            if device.type == "mps" and (impl == "fp64" or dtype == torch.float64):
                continue  # there is no fp64 on that device
            for precision in precisions(impl, dtype, device):
                for rows, dim in shapes:
                    for labelled in (0.0, 0.5, 1.0):
                        yield Case(impl, precision, "default", dtype, rows, dim, labelled)
                for form in list(FORMS)[1:]:
                    yield Case(impl, precision, form, dtype, *form_shape, 0.5)


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
    wide = inputs._replace(matrix=inputs.matrix.to(case.matrix_dtype)).widened(torch.float64)
    exact = formulas.coordinate(g.double(), wide, settings).gradient
    exact_sums = formulas.labelled_energy(wide.z, wide.mask, wide.matrix)
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
    energy = formulas.energy_ratio(z.double(), matrix.to(case.matrix_dtype).double())
    energy_ref = (1.5 * energy.mean()).to(torch.promote_types(case.dtype, torch.float32))
    scale, labelled = (
        None if value is None else torch.tensor(value) for value in (form.scale, form.labelled)
    )
    return g, Inputs(z, z_ref if form.anchored else None, mask, matrix, energy_ref, scale, labelled), settings


@functools.cache
def conceptor(dim: int) -> Tensor:
    """A conceptor of features with a decaying spectrum, (D, D) fp32."""
    generator = torch.Generator().manual_seed(dim)
    features = torch.randn(2 * dim, dim, generator=generator, dtype=torch.float64)
    features = features * torch.arange(1, dim + 1).rsqrt()
    return solve_conceptor(features.T @ features / len(features), 2.0).float()


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
