"""EAGC-ops: the Energy-Aware Gradient Coordinator for Generalized Category Discovery.

eagc = EAGC(Subspace.conceptor(labelled_features))
z = eagc(z, z_ref, mask)        # forward: the identity; backward: the coordinated gradient

Public names are imported on first use: torch takes seconds to import, and `eagc --help` does not need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import diagnostics
    from .encoder import AnchoredEncoder
    from .functional import eagc_op
    from .module import EAGC
    from .subspace import Subspace

__version__ = "0.1.0"
__all__ = ["EAGC", "AnchoredEncoder", "Subspace", "diagnostics", "eagc_op"]

_HOMES = {
    "AnchoredEncoder": ".encoder",
    "EAGC": ".module",
    "Subspace": ".subspace",
    "eagc_op": ".functional",
}


def __getattr__(name: str) -> Any:
    if name != "diagnostics" and name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_HOMES.get(name, ".diagnostics"), __name__)
    except ImportError as error:  # `from . import kernels` names the package, `from .kernels import` the room
        if error.name not in (__name__, f"{__name__}.kernels"):
            raise
        # A folder of its own in the repository, mapped into the package when installed.
        raise ImportError(
            "eagc_ops was found without its sub-packages: Python started in the root of a clone sees "
            "./eagc_ops before the installed package. Install the clone with `pip install -e .`, or start "
            "Python in a different folder."
        ) from error
    value = module if name == "diagnostics" else getattr(module, name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
