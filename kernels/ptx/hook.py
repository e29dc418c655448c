"""Launches of Triton kernels, executed by the machine instead of a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from . import active
from .execute import Report, run


@contextlib.contextmanager
def on_machine(
    arch: str, *, seed: int = 0, edit: Callable[[str], str] | None = None, **options: Any
) -> Iterator[list[Report]]:
    """Inside, `kernel[grid](...)` of any Triton kernel compiles for `arch` and runs on the machine.

    The arguments are CPU tensors. The compilation is that of a real launch: Triton itself specialises the
    kernel to the arguments. Yields the reports of the launches, in order.

    Args:
        arch: "sm_80", "sm_86", "sm_120", ...
        seed: of the schedule; each launch takes the next one.
        edit: a change of the PTX text before it runs, for tests of what a mistake would do.
        options: of `run`.
    """
    # Here, because the package must be importable where Triton is not.
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    if knobs.runtime.interpret:
        raise RuntimeError("on_machine runs compiled kernels: unset TRITON_INTERPRET")
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    backend = make_backend(target)
    reports: list[Report] = []

    def launch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        bound, specialization, choices = bind(*args, **kwargs)
        parsed, signature, constants, attributes = kernel._pack_args(
            backend, kwargs, bound, specialization, choices
        )
        source = ASTSource(kernel, signature, constants, attributes)
        compiled = triton.compile(source, target=target, options=vars(parsed))
        if warmup:
            return
        blocks = grid(bound) if callable(grid) else grid
        names = [name for name, kind in signature.items() if kind != "constexpr"]
        what: Any = compiled
        if edit is not None:
            what = _Edited({"ptx": edit(compiled.asm["ptx"])}, compiled.metadata)
        values = [bound[name] for name in names]
        reports.append(run(what, blocks, values, seed=seed + len(reports), names=names, **options))

    before, active.target = active.target, arch
    original, JITFunction.run = JITFunction.run, launch
    try:
        yield reports
    finally:
        JITFunction.run, active.target = original, before


class _Edited:
    """A compiled kernel with a different text."""

    def __init__(self, asm: dict[str, str], metadata: Any) -> None:
        self.asm, self.metadata = asm, metadata
