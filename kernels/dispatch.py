"""The choice of an implementation for a call, and the call itself."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import types
import warnings
from typing import get_args

import torch
from torch import Tensor

from . import formulas, torch_path
from .records import Coordination, Execution, Implementation, Inputs, Precision
from .tiles import architecture

HALF = (torch.bfloat16, torch.float16)


def coordinate(g: Tensor, inputs: Inputs, settings: Coordination, execution: Execution) -> Tensor:
    """The coordinated gradient of g (rows, D), contiguous, in g's dtype."""
    if g.shape[0] == 0:
        return g.clone()
    impl, (_, precision, autocast) = _serving(execution, inputs), execution
    if settings.lambda_a == 0:
        inputs = inputs._replace(z_ref=None)  # no anchor: labelled rows keep their bits, even if z_ref is NaN
    if impl == "triton":
        try:
            return _triton().run(g, inputs, settings, precision, autocast=autocast).gradient
        except Exception as error:
            _do_without(error, execution, inputs)
            impl = "torch"
    with without_autocast(g.device):
        if impl == "torch":
            return torch_path.compute(g, inputs, settings)
        return formulas.coordinated(g.double(), inputs.widened(torch.float64), settings).gradient.to(g.dtype)


def energies(inputs: Inputs, settings: Coordination, execution: Execution) -> tuple[Tensor, Tensor]:
    """Energy ratio and tau of every row, (rows,) each, NaN on labelled rows, in fp32 or wider.

    They are for logging, and plain torch computes them even if Triton serves the call: its kernel forms both
    only in backward, on the way to the gradient.
    """
    impl = implementation(execution, inputs.z.device, inputs.z.dtype)
    with without_autocast(inputs.z.device):
        if impl == "torch":
            return torch_path.energies(inputs, settings)
        return torch_path.dense_energies(
            inputs if impl == "triton" else inputs.widened(torch.float64), settings
        )


def labelled_energy(
    inputs: Inputs, momentum: float, execution: Execution, *, update: bool = True
) -> tuple[Tensor, Tensor]:
    """(sum of E over the labelled rows, their number), and the running Ebar after this batch, a fresh tensor.

    `update` also writes it to `inputs.energy_ref`.
    """
    z, energy_ref = inputs.z, inputs.energy_ref
    if z.shape[0] == 0:
        return energy_ref.new_zeros(2), energy_ref.clone()
    impl, (_, precision, autocast) = _serving(execution, inputs), execution
    if impl == "triton":
        try:
            return _triton().run_labelled_energy(
                inputs, momentum, precision, update=update, autocast=autocast
            )
        except Exception as error:
            _do_without(error, execution, inputs)
            impl = "torch"
    with without_autocast(z.device):
        if impl == "torch":
            sums = torch_path.labelled_energy(inputs)
        else:
            sums = formulas.labelled_energy(inputs.widened(torch.float64))
        if z.device.type == "cpu":
            total, count = sums.tolist()
            number = formulas.updated_number(energy_ref.item(), total, count, momentum)
            used = torch.full_like(energy_ref, number)
        else:
            used = formulas.updated_energy_ref(energy_ref.to(sums.dtype), sums, momentum).to(energy_ref.dtype)
        if update:
            energy_ref.copy_(used)
        return sums, used


def is_under_autocast(device: torch.device) -> bool:
    """Whether autocast is on for a device; the meta device has none."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def implementation(execution: Execution, device: torch.device, dtype: torch.dtype) -> Implementation:
    """The implementation for a device and dtype; raises an error if `execution` asks for the impossible.

    >>> implementation(Execution("auto"), torch.device("cpu"), torch.float64)
    'torch'
    """
    impl, precision, _ = execution
    if impl == "auto" and precision == "auto" and device.type == "cpu":
        return "torch"  # checked first, because it is the common case and every call comes here
    check_execution(execution)
    if impl == "auto":
        impl = "torch" if device.type != "cuda" or why_not_triton(device, dtype) else "triton"
    elif impl == "triton" and (reason := why_not_triton(device, dtype)):
        raise RuntimeError(f'impl="triton" cannot be used: {reason}; use impl="torch" or "auto"')
    if precision.startswith("tf32"):
        if impl != "triton" or torch.version.hip:
            raise ValueError(
                f"precision={precision!r} is for the Triton kernel on NVIDIA GPUs, "
                f'but impl="{impl}" serves this call; use precision="auto"'
            )
        if dtype != torch.float32:
            raise ValueError(
                f'precision={precision!r} is for float32 inputs, but z is {dtype}; use precision="auto"'
            )
    return impl


def check_execution(execution: Execution) -> None:
    """Raise an error if a choice is none of the known ones; whether a device can serve it is not asked."""
    for (name, value), known in zip(execution._asdict().items(), (Implementation, Precision)):
        if value not in get_args(known):
            raise ValueError(f"{name} must be one of {get_args(known)}, got {value!r}")


def why_not_triton(device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason why the Triton kernel cannot serve, or None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if dtype not in (torch.float32, *HALF):
        return f"the kernel takes float32, bfloat16 and float16, but z is {dtype}"
    if device.type == "cpu":
        if _triton().INTERPRETED or architecture(device) != "interpreter":  # something executes compiled code
            return None
        return (
            "z is on the CPU, where only Triton's interpreter runs (set TRITON_INTERPRET=1 before the import)"
        )
    if device.type != "cuda":
        return f"z is on {device.type!r}"
    if torch.version.hip:
        # The kernel waits for its stores by vmcnt. From gfx10 on vmcnt counts loads only, so the last program
        # might read shares that have not arrived.
        arch = architecture(device)
        if arch.startswith("gfx9"):
            return None
        return f"its memory fence is written for CDNA (gfx9...), but the GPU is {arch}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is older than sm_80"
    return None


# A kind of calls: device, dtype, D, precision, autocast, and whether the energy has a basis.
_Kind = tuple[torch.device, torch.dtype, int, Precision, bool, bool]
_unserved: set[_Kind] = set()  # those that impl="auto" could not launch


def _serving(execution: Execution, inputs: Inputs) -> Implementation:
    """The implementation for a call: "torch" where impl="auto" has found that the kernel does not launch."""
    impl = implementation(execution, inputs.z.device, inputs.z.dtype)
    if impl == "triton" and execution.impl == "auto" and _kind(execution, inputs) in _unserved:
        return "torch"
    return impl


def _do_without(error: Exception, execution: Execution, inputs: Inputs) -> None:
    """Where impl="auto" can do without the kernel, say so once per kind of call; else raise the error.

    A kernel may not compile or not fit a GPU that nobody has tried, or Triton may find no C compiler. A
    backward pass is a bad place to learn that. Full memory is not such a case: plain torch needs more of it.
    After an error of the device, plain torch raises the same error.
    """
    if execution.impl != "auto" or isinstance(error, torch.OutOfMemoryError):
        raise error
    z = inputs.z
    _unserved.add(_kind(execution, inputs))
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    warnings.warn(
        f"the Triton kernel of EAGC cannot be launched for {z.dtype} features with D={z.shape[1]} on "
        f'{z.device} ({reason}); impl="auto" computes such calls in plain torch from now on. Please '
        'report the output of `eagc selftest --json`; impl="torch" avoids this warning.',
        stacklevel=3,
    )


def _kind(execution: Execution, inputs: Inputs) -> _Kind:
    z = inputs.z
    return z.device, z.dtype, z.shape[1], execution.precision, execution.autocast, inputs.basis is not None


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Switch autocast off: a backward inside an autocast block must not narrow the products."""
    if is_under_autocast(device):  # a cheaper check than entering torch.autocast every time
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


@functools.cache
def _triton() -> types.ModuleType:
    """The Triton host module, imported on first use so that everything else works without Triton."""
    return importlib.import_module(".launch", __package__)
