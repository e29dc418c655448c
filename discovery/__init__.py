"""Discover the categories in unlabelled photographs.

`discover(labelled, unlabelled, output)` does it; `answers` returns the answers it compares, without a page.
`refine(output, edits)` makes a new answer from a person's corrections. `predict(run, images)` sorts other
images, and `export(run, file)` writes the network of a run to a file that needs only torch.
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
    """Import on first use: the command line imports this package, and torch takes seconds."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"eagc_ops.discovery.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
