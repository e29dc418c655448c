"""`eagc selftest`: every provider against the fp64 reference on the device at hand, and the Triton kernels' bits over many repeats.

The kernels were developed without a GPU, in Triton's interpreter and by compiling for GPUs that were not there. What neither can show
is a race between programs; this command can, on your GPU: each Triton case is repeated and its bits compared.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from eagc_ops import kernels
from eagc_ops.console import Parser, command, whole_number
from eagc_ops.kernels import formulas
from eagc_ops.subspace import solve_conceptor

LAMBDA_P = 3.0  # the largest of the released scripts: the projection is as large as the gradient too
MOMENTUM = 0.5  # of the running energy reference: old value and batch count alike
# The forms of a call: each compiles to another kernel. All but the first are tested at one shape, with half the rows labelled.
FORMS = {
    "default": {},
    "uniform": {"tau": "uniform"},
    "sum": {"anchor": "sum"},
    "scaled": {"scale": 0.25, "count": 3.0},
    "no anchor": {},
}
FORM_SHAPE = (300, 96)
SHAPES = (
    (1, 1),
    (7, 33),
    (64, 100),
    (256, 384),
    (256, 768),
    (1000, 768),
    (300, 1024),
    (129, 4096),
    (5000, 768),
    (65536, 64),
)
SMALL_SHAPES = ((1, 1), (7, 33), (40, 64), (64, 100), (48, 768))
# Allowed error, relative to the largest correction: a few roundings of the result and of the products.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-13}
TF32_TOLERANCE = 5e-3  # ten mantissa bits in the products


@dataclass(frozen=True)
class Result:
    provider: str
    precision: str
    form: str
    dtype: torch.dtype
    rows: int
    dim: int
    labelled: float
    error: float
    allowed: float
    repeats: int
    same_bits: bool
    raised: str = ""

    @property
    def verdict(self) -> str:
        if self.raised:
            return f"FAIL: {self.raised}"
        return (
            "FAIL: bits differ"
            if not self.same_bits
            else "ok"
            if self.error <= self.allowed
            else "FAIL: error"
        )


@command("eagc selftest")
def main(argv: list[str]) -> int:
    parser = Parser(
        prog="eagc selftest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="device to test (default: a GPU if there is one)",
    )
    parser.add_argument(
        "--repeats",
        type=whole_number(),
        default=200,
        help="runs of each Triton case whose bits are compared (default: 200)",
    )
    arguments = parser.parse_args(argv)
    try:
        device = torch.device(arguments.device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        parser.error(f"--device {arguments.device}: {str(error).splitlines()[0]}")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    reason = kernels.why_not_triton(device, torch.float32)
    print(
        f"device: {name}; torch {torch.__version__}; Triton: {'not tested, ' + reason if reason else 'tested'}"
    )
    print(
        "provider   precision  form       dtype       rows     D labelled     error   allowed repeats  result"
    )
    failures = count = 0
    for result in run(device, arguments.repeats):
        count += 1
        failures += result.verdict != "ok"
        dtype = str(result.dtype).removeprefix("torch.")
        print(
            f"{result.provider:10} {result.precision:10} {result.form:10} {dtype:9} {result.rows:6} {result.dim:5} {result.labelled:8.0%} "
            f"{result.error:9.1e} {result.allowed:9.1e} {result.repeats:7}  {result.verdict}"
        )
    print(f"{count - failures} passed, {failures} failed")
    return 1 if failures else 0


def run(device: torch.device, repeats: int) -> Iterator[Result]:
    interpreted = device.type == "cpu"
    for provider in ("reference", "torch", "triton"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            if provider == "triton" and kernels.why_not_triton(device, dtype):
                continue
            if device.type == "mps" and (provider == "reference" or dtype == torch.float64):
                continue  # no fp64 there
            for precision in precisions(provider, dtype, device):
                times = repeats if provider == "triton" else 2
                times = min(times, 3) if interpreted else times
                for rows, dim in SMALL_SHAPES if interpreted else SHAPES:
                    for labelled in (0.0, 0.5, 1.0):
                        yield check(provider, precision, "default", dtype, rows, dim, labelled, device, times)
                for form in list(FORMS)[1:]:
                    yield check(
                        provider,
                        precision,
                        form,
                        dtype,
                        *(SMALL_SHAPES[-1] if interpreted else FORM_SHAPE),
                        0.5,
                        device,
                        times,
                    )


def precisions(provider: str, dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
    if provider != "triton":
        return ("auto",)
    if dtype != torch.float32:
        return ("auto", "high")
    return ("auto",) if torch.version.hip or device.type != "cuda" else ("auto", "tf32x3", "tf32")


@functools.cache
def conceptor(dim: int) -> torch.Tensor:
    """A conceptor of features with a decaying spectrum, (D, D) fp32."""
    generator = torch.Generator().manual_seed(dim)
    features = (
        torch.randn(2 * dim, dim, generator=generator, dtype=torch.float64) * torch.arange(1, dim + 1).rsqrt()
    )
    return solve_conceptor(features.T @ features / len(features), 2.0).float()


def check(
    provider: str,
    precision: str,
    form: str,
    dtype: torch.dtype,
    rows: int,
    dim: int,
    labelled: float,
    device: torch.device,
    repeats: int,
) -> Result:
    """One case; a kernel that does not compile, or does not fit the device, is a failed case like any other."""
    allowed = TF32_TOLERANCE if precision == "tf32" else TOLERANCE[dtype]
    case = provider, precision, form, dtype, rows, dim, labelled
    try:
        error, same_bits = measure(*case, device, repeats)
    except Exception as failure:
        return Result(
            *case,
            math.nan,
            allowed,
            repeats,
            False,
            f"{type(failure).__name__}: {str(failure).strip()}".splitlines()[0],
        )
    return Result(*case, error, allowed, repeats, same_bits)


def measure(
    provider: str,
    precision: str,
    form: str,
    dtype: torch.dtype,
    rows: int,
    dim: int,
    labelled: float,
    device: torch.device,
    repeats: int,
) -> tuple[float, bool]:
    """The largest error against fp64, and whether all repeats had the same bits.

    What is compared is the correction, what the operator adds to g, of the labelled rows and of the unlabelled ones; and the running energy
    reference: its kernel has a last arriver too.
    """
    generator = torch.Generator().manual_seed(rows * 7919 + dim)
    matrix = conceptor(dim)
    # Spectra from flat to steeper than the conceptor's, so that energies, and with them tau, differ from row to row.
    spectrum = torch.arange(1, dim + 1).rsqrt() ** (2 * torch.rand(rows, 1, generator=generator))
    g, z, z_ref = (torch.randn(rows, dim, generator=generator) for _ in range(3))
    g, z, z_ref = g.to(dtype), (z * spectrum).to(dtype), z_ref.to(dtype)
    mask = torch.rand(rows, generator=generator) < labelled
    z_ref[~mask] = torch.nan
    z_ref = None if form == "no anchor" else z_ref
    options = {"lambda_p": LAMBDA_P, "anchor": "mean", "tau": "energy", **FORMS[form]}
    # s * c * lambda_a = 0.7: as large as the gradient, the anchor cannot be wrong or missing without being seen.
    number, scale = options.get("count", max(mask.sum().item(), 1)), options.get("scale", 1.0)
    options["lambda_a"] = 0.7 / scale * (number * dim if options["anchor"] == "mean" else 1)
    options |= {name: torch.tensor(options[name]) for name in ("scale", "count") if name in options}
    operand = (
        matrix.to(dtype) if provider == "triton" and dtype.itemsize == 2 and precision == "auto" else matrix
    ).double()
    energy = formulas.energy_ratio(z.double(), operand)
    energy_ref = (1.5 * energy.mean()).to(torch.promote_types(dtype, torch.float32))
    wide = [None if x is None else x.double() for x in (g, z, z_ref)]
    exact = formulas.coordinate(*wide, mask, operand, energy_ref.double(), **options)[0]
    exact_sums = formulas.labelled_energy(z.double(), mask, operand)
    exact_ref = formulas.updated_energy_ref(energy_ref.double(), exact_sums, MOMENTUM)

    inputs = [x if x is None else x.to(device) for x in (g, z, z_ref, mask, matrix, energy_ref)]
    options = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
    }

    def once() -> list[torch.Tensor]:
        out = kernels.coordinate(*inputs, impl=provider, precision=precision, **options)
        kept = inputs[5].clone()
        sums, used = kernels.labelled_energy(
            *inputs[1:2], *inputs[3:5], kept, momentum=MOMENTUM, impl=provider, precision=precision
        )
        return [x.nan_to_num(7.0) for x in (*out, sums, used, kept)]

    with poisoned_memory():
        first = once()
        same_bits = all(torch.equal(x, y) for _ in range(repeats - 1) for x, y in zip(once(), first))
    out, _, _, sums, used, kept = (x.cpu().double() for x in first)
    wrong, correction = (out - exact).abs(), (exact - wide[0]).abs()
    errors = [wrong[kind].max() / (correction[kind].max() or 1) for kind in (mask, ~mask) if kind.any()]
    errors += [
        ((sums - exact_sums).abs() / exact_sums.clamp_min(1)).max(),
        *(abs(x - exact_ref) / exact_ref for x in (used, kept)),
    ]
    return max(error.item() for error in errors), same_bits


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Memory that nobody wrote holds NaN: a stale read of scratch would otherwise find the right values of the repeat before."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
