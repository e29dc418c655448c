"""The PTX machine for our kernels: launches on CPU tensors take the tiles of a GPU that is absent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from eagc_ops.kernels import tiles

try:
    from ptx_machine import compiler
except ImportError:
    MISSING = "the package ptx_machine is not installed (pip install ./ptx_machine)"
else:
    MISSING = "" if compiler() else "no C++ compiler (install g++)"


@contextlib.contextmanager
def on_machine(arch: str, **options: Any) -> Iterator[list[Any]]:
    """`ptx_machine.on_machine`, with the tiles that a launch on `arch` picks."""
    from ptx_machine import on_machine as executing

    before, tiles.target = tiles.target, arch
    try:
        with executing(arch, **options) as reports:
            yield reports
    finally:
        tiles.target = before
