"""Training with EAGC. `eagc_ops.training.probe(features, labels)` says before a run whether EAGC can act."""

from typing import Any

__all__ = ["probe"]


def __getattr__(name: str) -> Any:
    """Import torch only when something that needs it is asked for: the command line imports this package."""
    if name == "probe":
        from eagc_ops.training.analysis.probe import probe

        return probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
