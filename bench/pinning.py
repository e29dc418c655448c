"""A pinned allocator for the whole process, and one thread without a GPU. This file does not import torch."""

from __future__ import annotations

import os
import sys

# glibc returns freed memory to the system and faults it in again on the next call; how often depends on what
# ran before. With these thresholds it keeps the memory, and a variant is charged for its own work only.
ALLOCATOR = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
}
# On a CPU one thread is what is measured. Beside a GPU the number of host threads is the user's.
PINNED = {**ALLOCATOR, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")  # NVIDIA's, AMD's


def pin_process() -> None:
    """Restart this command with these settings, which a running process cannot change.

    It is called before torch is imported: torch reads the number of threads then.
    """
    wanted = ALLOCATOR if any(map(os.path.exists, GPU_DRIVERS)) else PINNED
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **wanted})
