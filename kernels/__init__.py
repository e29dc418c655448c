"""Tensors in, tensors out: the backward of EAGC by three implementations. No autograd, no modules, no
training.

    fp64      the formulas, term by term, in double precision
    torch     plain torch: the CPU path, and the dense form for GPUs without Triton
    triton    one fused kernel (CUDA and ROCm; CPU tensors where Triton interprets)

Read the files in this order: `records` (what travels), `formulas` (what is computed), `torch_path` and
`fused` (how), `tiles` and `launch` (the host side of the Triton kernel), `dispatch` (which implementation
serves), `aot` (the Triton kernels compiled for GPUs that are not present).
"""

from .dispatch import coordinate, energies, implementation, labelled_energy, why_not_triton
from .records import Anchor, Coordinated, Coordination, Execution, Implementation, Inputs, Precision, Tau

__all__ = [
    "Anchor",
    "Coordinated",
    "Coordination",
    "Execution",
    "Implementation",
    "Inputs",
    "Precision",
    "Tau",
    "coordinate",
    "energies",
    "implementation",
    "labelled_energy",
    "why_not_triton",
]
