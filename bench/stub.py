"""A Triton driver that compiles for an absent GPU and launches nothing: what is left is the host's work.

with stub("sm_80"):
    kernel[grid](...)  # CPU tensors; compiles on the first call, does nothing on the others
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from eagc_ops.kernels import tiles


class _Utils:
    """The calls that a compiled kernel makes before its first launch."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 20, "multiprocessor_count": 108, "warpSize": 32}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, ...]:
        return 1, 2, 32, 0, 1024  # module, function, registers, spills, the most threads

    def unload_module(self, module: int) -> None:
        pass


class _Launcher:
    """Takes the arguments of a launch as Triton's own does, and drops them."""

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(self, *arguments: Any) -> None:
        pass


class _Driver:
    utils, launcher_cls = _Utils(), _Launcher

    def __init__(self, arch: str) -> None:
        self.arch = int(arch.removeprefix("sm_"))

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextlib.contextmanager
def stub(arch: str = "sm_80") -> Iterator[None]:
    """Within the block launches on CPU tensors compile for `arch`, and do nothing."""
    from triton.runtime import driver

    before = driver._active, tiles.target
    driver.set_active(_Driver(arch))
    tiles.target = arch
    try:
        yield
    finally:
        driver._active, tiles.target = before
