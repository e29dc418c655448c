"""What EAGC is worth: a probe before a run, the demo, studies, and the tables of the paper.

`probe(features, labels)` tells before a run whether EAGC can act.
"""

import importlib
from typing import Any

__all__ = ["probe"]

_HOMES = {"probe": "probing"}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line imports this package, and torch takes seconds."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"eagc_ops.evidence.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
