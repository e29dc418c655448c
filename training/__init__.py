"""Training with EAGC, and discovering categories with it.

`eagc_ops.training.discover(labelled, unlabelled, output)` finds the categories of images that nobody has
labelled; `eagc_ops.training.probe(features, labels)` says before a run whether EAGC can act.
"""

import importlib
from typing import Any

__all__ = ["discover", "probe"]

_HOMES = {"discover": "discovery", "probe": "analysis.probe"}


def __getattr__(name: str) -> Any:
    """Import torch only when something that needs it is asked for: the command line imports this package."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"eagc_ops.training.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
