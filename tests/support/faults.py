"""The fault suite's frame: how many trials run, and the table of what held.

A test of `tests/faults` is one trial. Its file says of what kind: `pytestmark = pytest.mark.fault("kills")`.
`make faults` runs every trial; `make test` those that `trials` leaves.
"""

import os
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
ALL = os.environ.get("EAGC_FAULTS") == "all"


def trials(cases: Sequence[T], short: int) -> list[T]:
    """All cases in the whole suite, else `short` of them, spread evenly.

    >>> trials([0, 1, 2, 3, 4, 5], short=3)
    [0, 2, 4]
    """
    if ALL or short >= len(cases):
        return list(cases)
    return [cases[i * len(cases) // short] for i in range(short)]


def note_kind(item) -> None:
    """Keep the kind of fault with the test's report, which also crosses the processes of pytest-xdist."""
    marker = item.get_closest_marker("fault")
    if marker is not None:
        item.user_properties.append(("fault", marker.args[0]))


def summary(reports) -> list[str]:
    """The table: of each kind of fault, the trials tried, held and lost."""
    tried, lost = Counter(), Counter()
    for report in reports:
        kind = dict(report.user_properties).get("fault")
        if kind is None or report.outcome == "skipped":
            continue
        if report.when == "call" or report.failed:
            tried[kind] += 1
            lost[kind] += report.failed
    if not tried:
        return []
    rows = [(kind, tried[kind], tried[kind] - lost[kind], lost[kind]) for kind in sorted(tried)]
    rows.append(("all", *(sum(row[i] for row in rows) for i in (1, 2, 3))))
    width = max(len(row[0]) for row in rows)
    head = f"{'faults':{width}}  tried  held  lost"
    return [head, *(f"{kind:{width}}  {t:5}  {h:4}  {n:4}" for kind, t, h, n in rows)]
