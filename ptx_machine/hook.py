"""Launches of Triton kernels, executed by the machine instead of a GPU."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from .execute import Report, TensorMap, run

# Shared memory that a block may have, in bytes (CUDA programming guide, "Technical specifications").
SHARED_OF_OTHERS = 101376
SHARED = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448, "sm_103": 232448}
PROCESSORS = 4  # that a kernel is told of: one that launches a program for each stays small


@contextlib.contextmanager
def on_machine(
    arch: str, *, seed: int = 0, edit: Callable[[str], str] | None = None, **options: Any
) -> Iterator[list[Report]]:
    """Inside, `kernel[grid](...)` of any Triton kernel compiles for `arch` and runs on the machine.

    The arguments are CPU tensors. The compilation is that of a real launch: Triton itself specialises the
    kernel to the arguments. Yields the reports of the launches, in order. `@triton.autotune` measures nothing
    here: it takes the first configuration that its pruning leaves.

    Args:
        arch: "sm_80", "sm_86", "sm_120", ...
        seed: of the schedule; each launch takes the next one.
        edit: a change of the PTX text before it runs, for tests of what a mistake would do.
        options: of `run`.
    """
    # Here, because the package must be importable where Triton is not.
    import torch
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction, create_function_from_signature

    if knobs.runtime.interpret:
        raise RuntimeError("on_machine runs compiled kernels: unset TRITON_INTERPRET")
    target = GPUTarget("cuda", int(arch.removeprefix("sm_").rstrip("af")), 32)
    backend = make_backend(target)
    reports: list[Report] = []

    def launch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        for hook in kernel.pre_run_hooks:
            hook(*args, **kwargs)
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        bound, specialization, choices = bind(*args, **kwargs)
        parsed, signature, constants, attributes = kernel._pack_args(
            backend, kwargs, bound, specialization, choices
        )
        source = ASTSource(kernel, signature, constants, attributes)
        compiled = triton.compile(source, target=target, options=vars(parsed))
        _make_launchable(compiled)
        if not warmup:
            blocks = grid(bound) if callable(grid) else grid
            execute(compiled, (blocks,) if isinstance(blocks, int) else tuple(blocks), bound)
        return compiled

    def execute(compiled: Any, blocks: tuple[int, ...], bound: dict[str, Any]) -> None:
        names, values = [], []
        maps = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        for name, kind in compiled.src.signature.items():
            for part, value in _parameters(name, kind, bound.get(name), maps):
                names.append(part)
                values.append(value)
        what: Any = compiled
        if edit is not None:
            what = _Edited({"ptx": edit(compiled.asm["ptx"])}, compiled.metadata)
        settings = dict(options)
        if getattr(compiled.metadata, "launch_cooperative_grid", False):  # all blocks may wait for each other
            settings["resident"] = max(options.get("resident", 0), math.prod(blocks))
        named = [tensor for seen in addresses.values() if (tensor := seen()) is not None]
        reports.append(
            run(what, blocks, values, seed=seed + len(reports), names=names, reachable=named, **settings)
        )

    def unnoted(function: Callable[..., Any]) -> Callable[..., Any]:
        """Whose `data_ptr` is asked for in a launch is an argument; the others may be stored anywhere."""

        def called(*args: Any, **kwargs: Any) -> Any:
            Tensor.data_ptr = data_ptr
            try:
                return function(*args, **kwargs)
            finally:
                Tensor.data_ptr = noted

        return called

    def noted(tensor: Any) -> int:
        whole = tensor if tensor._base is None else tensor._base
        addresses[data_ptr(whole)] = weakref.ref(whole)
        return data_ptr(tensor)

    def tuned(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(tuner.cache)  # what the first configuration was good for ends with the machine
        try:
            return tune(tuner, *args, **kwargs)
        finally:
            tuner.cache = before

    Tensor: Any = torch.Tensor
    data_ptr = Tensor.data_ptr
    addresses: dict[int, Any] = {}
    original, tune, bench, active = JITFunction.run, Autotuner.run, Autotuner._bench, driver._active
    JITFunction.run, Autotuner.run, Tensor.data_ptr = unnoted(launch), tuned, noted
    Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]
    driver.set_active(_Driver(arch, target))
    _machines.append(unnoted(execute))
    try:
        yield reports
    finally:
        _machines.pop()
        JITFunction.run, Autotuner.run, Autotuner._bench = original, tune, bench
        driver._active = active
        Tensor.data_ptr = data_ptr


_machines: list[Callable[[Any, tuple[int, ...], dict[str, Any]], None]] = []  # the innermost is the last


def _make_launchable(compiled: Any) -> None:
    """Let `compiled[grid](...)` run on the machine too. It tells of registers what a small kernel needs."""

    def start(x: int, y: int, z: int, *rest: Any) -> None:
        if not _machines:
            raise RuntimeError(f"{compiled.name} was compiled for the machine: launch it inside on_machine")
        args, signature = rest[6:], compiled.src.signature
        names = [
            name for name, kind in signature.items() if kind != "constexpr" or len(args) == len(signature)
        ]
        _machines[-1](compiled, (x, y, z), dict(zip(names, args)))

    compiled.module, compiled.function, compiled._run = start, 0, start
    compiled.n_regs, compiled.n_spills, compiled.n_max_threads = 32, 0, 1024


def _parameters(
    name: str, kind: Any, value: Any, maps: Iterator[dict[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """The parameters of the compiled kernel that an argument becomes, as Triton's own launcher does."""
    if isinstance(kind, tuple):
        names = getattr(value, "_fields", range(len(value)))
        for part, one, element in zip(names, kind, value):
            yield from _parameters(f"{name}.{part}", one, element, maps)
    elif isinstance(kind, str) and kind.startswith("tensordesc"):
        from triton.backends.driver import decompose_descriptor

        found = next(maps, None)
        if found is None:  # a GPU without TMA
            elements = list(decompose_descriptor(value))
        else:
            elements = [_tensor_map(value, found), *value.shape, *value.strides]
        for position, element in enumerate(elements):
            yield name if position == 0 else f"{name}.{position}", element
    elif kind != "constexpr":
        yield name, getattr(value, "base", value) if hasattr(value, "data_ptr") else value  # reinterpreted


def _tensor_map(value: Any, found: dict[str, Any]) -> TensorMap:
    """Of a tensor descriptor; `found` is what the compiler chose."""
    if found.get("fp4_padded") or found.get("is_im2col") or getattr(value, "round_f32_to_tf32", False):
        raise NotImplementedError("the machine does not know tensor maps of fp4, im2col or rounding to tf32")
    box, nan = found["block_size"], value.padding == "nan"
    return TensorMap(value.base, value.shape, value.strides, box, found["elem_type"], found["swizzle"], nan)


class _Edited:
    """A compiled kernel with a different text."""

    def __init__(self, asm: dict[str, str], metadata: Any) -> None:
        self.asm, self.metadata = asm, metadata


class _Driver:
    """What code around kernels asks Triton's driver for: a GPU that is not there."""

    def __init__(self, arch: str, target: Any) -> None:
        self.target = target
        shared = SHARED.get(arch, SHARED_OF_OTHERS)
        self.utils = SimpleNamespace(
            get_device_properties=lambda _: {
                "max_shared_mem": shared,
                "multiprocessor_count": PROCESSORS,
                "max_num_regs": 65536,
                "warpSize": 32,
            }
        )

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        import torch

        return torch.cpu

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        return lambda *_, **__: [0.0, 0.0, 0.0]
