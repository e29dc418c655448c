"""All, Old and New: their names, and their text in messages."""

from __future__ import annotations

import math
from collections.abc import Mapping

SCORES = ("all", "old", "new")
# The epochs that a run reports, in words
EPOCHS = {
    "last": "last epoch",
    "best": "best epoch, chosen with the truth",
    "best_start": "best start of an epoch, chosen with the truth",
}


def scores_text(scores: Mapping[str, float | None], digits: int = 2) -> str:
    """All, Old and New in percent; a dash for a score that does not exist, as New without new images.

    >>> scores_text({"all": 0.5, "old": 0.5, "new": None})
    'All 50.00%  Old 50.00%  New -'
    """

    def percent(value: float | None) -> str:
        return "-" if value is None or math.isnan(value) else f"{value:.{digits}%}"

    return "  ".join(f"{name.capitalize()} {percent(scores[name])}" for name in SCORES)
