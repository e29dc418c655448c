"""The backward of EAGC in three implementations, from tensors to tensors: no autograd, no modules.

    fp64      the formulas, term by term, in double precision
    torch     plain torch: the CPU path, and the dense form for GPUs without Triton
    triton    one fused kernel (CUDA and ROCm; CPU tensors under Triton's interpreter)

Read the files in this order: `records` (inputs, settings, results), `formulas` (the mathematics),
`torch_path` and `fused` (the fast implementations), `tiles` and `launch` (the host side of the Triton
kernel), `dispatch` (the choice of an implementation), `aot` (compiling the Triton kernels for GPUs that are
not present) with `assembly` (counting in the compiled code). `panels` keeps the triangle of S for the CPU
path; `tuned` reads the tiles of `eagc tune` in the user's `cache_folder`.
"""

from .dispatch import (
    check_execution,
    coordinate,
    energies,
    implementation,
    is_under_autocast,
    labelled_energy,
    why_not_triton,
    without_autocast,
)
from .records import (
    DTYPES,
    Anchor,
    Coordinated,
    Coordination,
    Execution,
    Implementation,
    Inputs,
    Precision,
    Tau,
)

__all__ = [
    "DTYPES",
    "Anchor",
    "Coordinated",
    "Coordination",
    "Execution",
    "Implementation",
    "Inputs",
    "Precision",
    "Tau",
    "check_execution",
    "coordinate",
    "energies",
    "implementation",
    "is_under_autocast",
    "labelled_energy",
    "why_not_triton",
    "without_autocast",
]
