"""EAGC-ops: the Energy-Aware Gradient Coordinator for Generalized Category Discovery.

eagc = EAGC(Subspace.conceptor(labelled_features))
z = eagc(z, z_ref, mask)        # identity forward; the backward pass is coordinated

The public names are imported on first use, because torch takes seconds and `eagc --help` needs none of it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagc_ops import diagnostics
    from eagc_ops.encoder import AnchoredEncoder
    from eagc_ops.functional import eagc_op
    from eagc_ops.module import EAGC
    from eagc_ops.subspace import Subspace

__version__ = "0.1.0"
__all__ = ["EAGC", "AnchoredEncoder", "Subspace", "diagnostics", "eagc_op"]

_HOMES = {
    "AnchoredEncoder": "eagc_ops.encoder",
    "EAGC": "eagc_ops.module",
    "Subspace": "eagc_ops.subspace",
    "eagc_op": "eagc_ops.functional",
}

# A folder of its own in the repository, mapped into the package when installed.
if importlib.util.find_spec("eagc_ops.kernels") is None:
    raise ImportError(
        "eagc_ops was found without its sub-packages: Python started in the root of a clone sees ./eagc_ops "
        "before the installed package. Install the clone with `pip install -e .`, or start Python in a "
        "different folder."
    )


def __getattr__(name: str) -> Any:
    if name == "diagnostics":
        return importlib.import_module("eagc_ops.diagnostics")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
