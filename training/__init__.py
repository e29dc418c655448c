"""Training with EAGC, and discovering categories with it."""

from typing import Any


def __getattr__(name: str) -> Any:
    if (
        name == "discover"
    ):  # imported when it is asked for: it needs torch, and the commands import this package
        from eagc_ops.training.discovery import discover

        return discover
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
