"""Code that was written for CUDA tensors, on CPU tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from .hook import PROCESSORS, SHARED, SHARED_OF_OTHERS


@contextlib.contextmanager
def cuda_on_cpu(arch: str) -> Iterator[None]:
    """Inside, `device="cuda"`, `.to("cuda")` and `.cuda()` give CPU tensors.

    What code asks `torch.cuda` about its GPU has the answers of `arch`, and waiting for it takes no time.
    Only `torch.cuda.is_available()` still says what it says: torch itself relies on it.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    def moved(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        if isinstance(value, str) and value.split(":")[0] == "cuda":
            return "cpu"
        return value

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.cuda:
                return args[0]
            named = {name: moved(value) for name, value in (kwargs or {}).items()}
            if func is torch.device:
                return func(*args, **(kwargs or {}))
            return func(*map(moved, args), **named)

    cuda: Any = torch.cuda
    answers = _answers(arch)
    before = {name: getattr(cuda, name) for name in answers}
    try:
        for name, answer in answers.items():
            setattr(cuda, name, answer)
        with OnCpu():
            yield
    finally:
        for name, answer in before.items():
            setattr(cuda, name, answer)


def _answers(arch: str) -> dict[str, Any]:
    """Functions of `torch.cuda`, of a GPU that is not there."""
    major, minor = divmod(int(arch.removeprefix("sm_").rstrip("af")), 10)
    shared = SHARED.get(arch, SHARED_OF_OTHERS)
    properties = SimpleNamespace(
        name=f"PTX machine ({arch})",
        major=major,
        minor=minor,
        multi_processor_count=PROCESSORS,
        total_memory=1 << 34,
        warp_size=32,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=shared,
        shared_memory_per_multiprocessor=shared,
    )
    stream = SimpleNamespace(cuda_stream=0, device_index=0, synchronize=lambda: None)
    return {
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_name": lambda device=None: properties.name,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "current_stream": lambda device=None: stream,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "device": lambda device: contextlib.nullcontext(),
    }
