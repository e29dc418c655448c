"""`eagc selftest`: every provider against the fp64 reference on the device at hand, and the Triton kernels' bits over many repeats.

The kernels were developed without a GPU, in Triton's interpreter and by compiling for GPUs that were not there. What neither can show
is a race between programs; this command can, on your GPU: each Triton case is repeated and its bits compared.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from eagc_ops import kernels
from eagc_ops.kernels import reference
from eagc_ops.subspace import solve_conceptor

OPTIONS = {"lambda_a": 0.7, "lambda_p": 0.5, "anchor": "mean", "tau": "energy"}
# The forms of a call: each compiles to another kernel. All but the first are tested at one shape, with half the rows labelled.
FORMS = {"default": {}, "uniform": {"tau": "uniform"}, "sum": {"anchor": "sum"}, "scaled": {"scale": 0.25, "count": 3.0}, "no anchor": {}}
FORM_SHAPE = (300, 96)
SHAPES = ((1, 1), (7, 33), (64, 100), (256, 384), (256, 768), (1000, 768), (300, 1024), (129, 4096), (5000, 768), (65536, 64))
SMALL_SHAPES = ((1, 1), (7, 33), (40, 64), (64, 100), (48, 768))
# Allowed error, relative to the largest gradient: a few roundings of the result and of the products.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-14}
TF32_TOLERANCE = 2e-3  # ten mantissa bits in the products


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

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed and self.same_bits


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="eagc selftest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="device to test (default: a GPU if there is one)"
    )
    parser.add_argument("--repeats", type=int, default=200, help="runs of each Triton case whose bits are compared (default: 200)")
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1:
        parser.error(f"--repeats {arguments.repeats} must be at least 1")
    try:
        device = torch.device(arguments.device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        parser.error(f"--device {arguments.device}: {str(error).splitlines()[0]}")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    reason = kernels.why_not_triton(device, torch.float32)
    print(f"device: {name}; torch {torch.__version__}; Triton: {'not tested, ' + reason if reason else 'tested'}")
    print("provider   precision  form       dtype       rows     D labelled     error   allowed repeats  result")
    failures = count = 0
    for result in run(device, arguments.repeats):
        count += 1
        failures += not result.ok
        verdict = "ok" if result.ok else "FAIL: bits differ" if not result.same_bits else "FAIL: error"
        dtype = str(result.dtype).removeprefix("torch.")
        print(
            f"{result.provider:10} {result.precision:10} {result.form:10} {dtype:9} {result.rows:6} {result.dim:5} {result.labelled:8.0%} "
            f"{result.error:9.1e} {result.allowed:9.1e} {result.repeats:7}  {verdict}"
        )
    print(f"{count - failures} passed, {failures} failed")
    return 1 if failures else 0


def run(device: torch.device, repeats: int) -> Iterator[Result]:
    interpreted = device.type == "cpu"
    for provider in ("reference", "torch", "triton"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            if provider == "triton" and kernels.why_not_triton(device, dtype):
                continue
            if provider == "reference" and device.type == "mps":
                continue  # no fp64 there
            for precision in precisions(provider, dtype, device):
                times = repeats if provider == "triton" else 2
                times = min(times, 3) if interpreted else times
                for rows, dim in SMALL_SHAPES if interpreted else SHAPES:
                    for labelled in (0.0, 0.5, 1.0):
                        yield check(provider, precision, "default", dtype, rows, dim, labelled, device, times)
                for form in list(FORMS)[1:]:
                    yield check(provider, precision, form, dtype, *(SMALL_SHAPES[-1] if interpreted else FORM_SHAPE), 0.5, device, times)


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
    features = torch.randn(2 * dim, dim, generator=generator, dtype=torch.float64) * torch.arange(1, dim + 1).rsqrt()
    return solve_conceptor(features.T @ features / len(features), 2.0).float()


def check(
    provider: str, precision: str, form: str, dtype: torch.dtype, rows: int, dim: int, labelled: float, device: torch.device, repeats: int
) -> Result:
    """One case. The running energy reference is checked along with the gradient: its kernel has a last arriver too."""
    generator = torch.Generator().manual_seed(rows * 7919 + dim)
    matrix = conceptor(dim)
    g, z, z_ref = (torch.randn(rows, dim, generator=generator).to(dtype) for _ in range(3))
    mask = torch.rand(rows, generator=generator) < labelled
    z_ref[~mask] = torch.nan
    z_ref = None if form == "no anchor" else z_ref
    options = {**OPTIONS, **FORMS[form]}
    options |= {name: torch.tensor(options[name]) for name in ("scale", "count") if name in options}
    operand = matrix.to(dtype) if provider == "triton" and dtype.itemsize == 2 and precision == "auto" else matrix
    energy_ref = reference.energy_ratio(z.double(), operand.double()).quantile(0.7).float()
    wide = [x if x is None or x is mask else x.double() for x in (g, z, z_ref, mask, operand, energy_ref)]
    exact = reference.coordinate(*wide, **options)[0]
    inputs = [x if x is None else x.to(device) for x in (g, z, z_ref, mask, matrix, energy_ref)]
    options = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()}

    def once() -> list[torch.Tensor]:
        out = kernels.coordinate(*inputs, impl=provider, precision=precision, **options)
        running = inputs[5].clone()
        sums, used = kernels.labelled_energy(*inputs[1:2], *inputs[3:5], running, momentum=0.95, impl=provider, precision=precision)
        return [x.nan_to_num(7.0) for x in (*out, sums, used)]

    # Poisoned memory: a stale read of scratch would otherwise find the right values of the repeat before.
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    first = once()
    same = all(torch.equal(x, y) for _ in range(repeats - 1) for x, y in zip(once(), first))
    torch.use_deterministic_algorithms(before)
    scale = exact.abs().max()
    error = ((first[0].double().cpu() - exact).abs().max() / scale).item()
    expected = reference.labelled_energy(z.double(), mask, operand.double())[0]
    energy_error = (abs(first[3][0].double().cpu() - expected) / max(expected, 1)).item()
    allowed = TF32_TOLERANCE if precision == "tf32" else TOLERANCE[dtype]
    return Result(provider, precision, form, dtype, rows, dim, labelled, max(error, energy_error), allowed, repeats, same)
