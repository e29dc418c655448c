"""The style of all figures, and a figure as SVG with its caption."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import matplotlib
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = (  # of Okabe and Ito, without the pale yellow
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
MARKERS = "osD^vP*X<>"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "eagc",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "savefig.dpi": 130,
}


class Picture(NamedTuple):
    """A figure for a page, with a caption and remarks on it."""

    svg: Markup
    caption: str
    notes: tuple[str, ...]


def style() -> AbstractContextManager[None]:
    """The style, for the figures that are made and saved inside the context."""
    return matplotlib.rc_context(_STYLE)


def line_style(i: int) -> dict[str, Any]:
    """The colour and the dashes of line i; 28 lines are distinct, and neighbours differ in both."""
    return {"color": COLOURS[i % 7], "linestyle": DASHES[i % 4]}


def axes(rows: int, columns: int, height: float = 2.9) -> tuple[Figure, list[Axes]]:
    """A figure as wide as the page, and its panels row by row."""
    figure = Figure(figsize=(11, height * rows + 0.2), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def of_run(i: int, artists: Iterable[Artist]) -> None:
    """Mark artists as those of configuration i of the page, which shows and hides them (`data-run`)."""
    for artist in artists:
        artist.set_gid(f"run-{i}")


def picture(figure: Figure, caption: str, notes: Sequence[str]) -> Picture:
    """The figure as SVG, with its caption and notes; empty notes are left out."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Creator": None, "Date": None, "Format": None, "Type": None})
    # An id may stand in a page once; a configuration has many lines.
    svg = re.sub(r'\bid="run-(\d+)"', r'data-run="\1"', out.getvalue())
    return Picture(Markup(svg[svg.index("<svg") :]), caption, tuple(note for note in notes if note))
