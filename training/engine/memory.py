"""What the C library does with the memory of freed tensors."""

from __future__ import annotations

import ctypes
import sys

import torch

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of glibc's mallopt
_MOST = 2**31 - 1


def keep_freed_memory(device: torch.device) -> bool:
    """On a CPU, let the process keep the memory of freed tensors; the return value says whether it will.

    glibc gives a freed tensor of some megabytes back to the system, and the next step has to fault every page
    of it in again: up to half of a step that reads its tokens from a trunk cache. No number changes. Other C
    libraries have no such switch, and a GPU has torch's own allocator.
    """
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _MOST))
