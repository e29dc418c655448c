"""Progress bars that several processes can be told to leave out."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


def bar(*args: Any, shown: bool = True, **settings: Any) -> tqdm:
    """A tqdm bar. `disable` is passed only to hide it: as an argument it would win over TQDM_DISABLE, by which `jobs` silences its runs."""
    return tqdm(*args, **settings, **({} if shown else {"disable": True}))
