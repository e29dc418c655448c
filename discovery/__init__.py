"""Finding the categories in photographs that nobody has labelled.

`discover(labelled, unlabelled, output)` finds them; `answers` are those that it compares, without a page.
`refine(output, edits)` finds them again after the corrections of a person. `predict(run, images)` finds
those of other images, and `export(run, file)` writes the network of a run to a file that torch alone can
load.
"""

import importlib
from typing import Any

__all__ = ["answers", "discover", "export", "predict", "refine"]

_HOMES = {
    "answers": "discovery",
    "discover": "discovery",
    "export": "prediction",
    "predict": "prediction",
    "refine": "refinement",
}


def __getattr__(name: str) -> Any:
    """Import torch only when something that needs it is asked for: the command line imports this package."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"eagc_ops.discovery.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
