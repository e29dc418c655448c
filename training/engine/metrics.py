"""Numbers of the steps between two log lines: means, and distributions of energy and tau."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["BINS", "QUANTILES", "Meter", "distribution"]

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
BINS = 20  # of the histograms over [0, 1]


class Meter:
    """Means of 0-d tensors, summed on their device until they are read."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, values: dict[str, Tensor]) -> None:
        self._sums = {name: self._sums.get(name, 0) + value.detach() for name, value in values.items()}
        self._count += 1

    def state(self) -> dict[str, Tensor]:
        """Sums and their number, for a checkpoint between two log lines; empty at a log line."""
        return {**self._sums, "": torch.tensor(self._count)} if self._count else {}

    def load(self, state: dict[str, Tensor]) -> None:
        self._sums = {name: value for name, value in state.items() if name}
        self._count = int(state.get("", 0))

    def read(self) -> dict[str, float]:
        """The means since the last call, in one transfer from the device."""
        means = (torch.stack(list(self._sums.values())) / self._count).tolist()
        named = dict(zip(self._sums, means))
        self._sums, self._count = {}, 0
        return named


def distribution(name: str, values: Tensor) -> dict[str, Any]:
    """Quantiles and histogram of `values` (n,) in [0, 1], as entries of a log line; nothing for n = 0.

    >>> line = distribution("tau", torch.tensor([0.0, 0.5, 1.0]))
    >>> line["tau_q50"], line["tau_histogram"][0], line["tau_histogram"][10], line["tau_histogram"][19]
    (0.5, 1, 1, 1)
    """
    if len(values) == 0:
        return {}
    quantiles = values.quantile(torch.tensor(QUANTILES)).tolist()
    line = {f"{name}_q{round(100 * q)}": value for q, value in zip(QUANTILES, quantiles)}
    return {**line, f"{name}_histogram": values.histc(BINS, 0, 1).int().tolist()}
