"""Tensors in, tensors out: the backward of EAGC by three providers. No autograd, no modules, no training.

    reference   the formulas, literally, in fp64
    torch       plain torch: the CPU path, and the dense form for GPUs without Triton
    triton      one fused kernel (CUDA, ROCm; CPU tensors when Triton interprets)

All take g, z, z_ref of shape (rows, D), a bool mask (rows,), a symmetric matrix (D, D) and a 0-d energy reference.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util

import torch
from torch import Tensor

from . import formulas, torch_path
from .tiles import architecture

IMPLEMENTATIONS = ("auto", "triton", "torch", "reference")
PRECISIONS = ("auto", "high", "tf32x3", "tf32")
HALF = (torch.bfloat16, torch.float16)

__all__ = ["IMPLEMENTATIONS", "PRECISIONS", "coordinate", "labelled_energy", "provider", "why_not_triton"]


def provider(impl: str, device: torch.device, dtype: torch.dtype, precision: str = "auto") -> str:
    """The provider that serves `impl` on this device and dtype; an error when `impl` or `precision` cannot be honoured.

    >>> provider("auto", torch.device("cpu"), torch.float64)
    'torch'
    """
    if impl == "auto" and precision == "auto" and device.type == "cpu":
        return "torch"  # asked at every call
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl={impl!r} is none of {IMPLEMENTATIONS}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is none of {PRECISIONS}")
    if impl == "auto" and (device.type != "cuda" or why_not_triton(device, dtype)):
        impl = "torch"
    if impl in ("auto", "triton"):
        reason = why_not_triton(device, dtype)
        if reason:
            raise RuntimeError(f'impl="triton" cannot be used: {reason}; use impl="torch" or "auto"')
        impl = "triton"
    if precision.startswith("tf32"):
        if impl != "triton" or torch.version.hip:
            raise ValueError(
                f'precision={precision!r} is for the Triton kernel on NVIDIA GPUs, not for impl="{impl}"; use precision="auto"'
            )
        if dtype != torch.float32:
            raise ValueError(
                f'precision={precision!r} is for float32 inputs, z is {dtype}; use precision="auto" or "high"'
            )
    return impl


def why_not_triton(device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason the Triton kernel cannot serve, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if dtype not in (torch.float32, *HALF):
        return f"the kernel takes float32, bfloat16 and float16, z is {dtype}"
    if device.type == "cpu":
        return (
            None
            if _launch().INTERPRETED
            else "z is on the CPU, where only Triton's interpreter runs (TRITON_INTERPRET=1 before the import)"
        )
    if device.type != "cuda":
        return f"z is on {device.type!r}"
    if torch.version.hip:
        # The kernel waits for its stores by vmcnt. From gfx10 on that counts loads only, and the last program might read what is not there.
        arch = architecture(device)
        return (
            None
            if arch.startswith("gfx9")
            else f"the kernel's memory fence is written for CDNA (gfx9...), the GPU is {arch}"
        )
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is older than sm_80"
    return None


def coordinate(
    g: Tensor,
    z: Tensor,
    z_ref: Tensor | None,
    mask: Tensor,
    matrix: Tensor,
    energy_ref: Tensor,
    *,
    impl: str,
    precision: str = "auto",
    record: bool = True,
    **options,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The coordinated gradient in g's dtype, and energy ratio and tau per row (NaN on labelled rows). Options as `formulas.coordinate`.

    Without `record` a provider may leave out the last two.
    """
    if g.shape[0] == 0:
        return g.clone(), *torch.empty((2, 0), dtype=torch.float32, device=g.device)
    name = provider(impl, g.device, z.dtype, precision)
    if options["lambda_a"] == 0:
        z_ref = None  # no anchor: labelled rows pass to the bit, whatever z_ref holds
    with _no_autocast(g.device.type):
        if name == "triton":
            for key in ("scale", "count"):
                options[key] = None if options.get(key) is None else options[key].to(torch.float32)
            return _launch().coordinate(
                g, z, z_ref, mask, matrix, energy_ref.to(torch.float32), precision=precision, **options
            )
        if name == "torch":
            return torch_path.coordinate(g, z, z_ref, mask, matrix, energy_ref, record=record, **options)
        wide = [x if x is None else x.double() for x in (g, z, z_ref)]
        out, energy, weight = formulas.coordinate(
            *wide, mask, matrix.double(), energy_ref.double(), **options
        )
        return out.to(g.dtype), energy.masked_fill(mask, torch.nan), weight.masked_fill(mask, torch.nan)


def labelled_energy(
    z: Tensor,
    mask: Tensor,
    matrix: Tensor,
    energy_ref: Tensor,
    *,
    momentum: float,
    impl: str,
    precision: str = "auto",
    update: bool = True,
) -> tuple[Tensor, Tensor]:
    """(sum of E over labelled rows, their number), and the running energy reference after this batch, written to energy_ref if `update`."""
    if z.shape[0] == 0:
        return energy_ref.new_zeros(2), energy_ref.clone()
    name = provider(impl, z.device, z.dtype, precision)
    with _no_autocast(z.device.type):
        if name == "triton":
            return _launch().labelled_energy(
                z, mask, matrix, energy_ref, momentum=momentum, update=update, precision=precision
            )
        if name == "torch":
            sums = torch_path.labelled_energy(z, mask, matrix)
        else:
            sums = formulas.labelled_energy(z.double(), mask, matrix.double())
        if z.device.type == "cpu":
            used = torch.full_like(
                energy_ref, formulas.updated_number(energy_ref.item(), *sums.tolist(), momentum)
            )
        else:
            used = formulas.updated_energy_ref(energy_ref.to(sums.dtype), sums, momentum).to(energy_ref.dtype)
        if update:
            energy_ref.copy_(used)
        return sums, used


def _no_autocast(device_type: str) -> contextlib.AbstractContextManager:
    """A backward inside an autocast block must not narrow the products. Asked first: entering torch.autocast costs time at every call."""
    return (
        torch.autocast(device_type, enabled=False)
        if torch.is_autocast_enabled(device_type)
        else contextlib.nullcontext()
    )


@functools.cache
def _launch():
    """The Triton host module, imported on first use so that everything else works without Triton."""
    return importlib.import_module(".launch", __name__)
