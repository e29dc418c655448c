"""Progress bars that can be hidden, for all but one of several processes."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


def bar(*args: Any, shown: bool = True, **settings: Any) -> tqdm:
    """A tqdm bar.

    `disable` is passed only to hide the bar: disable=False would override TQDM_DISABLE, with which `run_jobs`
    silences its processes.
    """
    return tqdm(*args, **settings, **({} if shown else {"disable": True}))
