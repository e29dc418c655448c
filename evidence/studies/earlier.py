"""The evidence of an earlier part of a study, whose runs are on another machine, or removed.

A cell that is complete there counts here: its numbers come from evidence.csv, and its section, with the
curves and energies that only its runs could give again, from evidence.md.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from eagc_ops.app.files import atomic_write
from eagc_ops.evidence.studies.numbers import RunNumbers, read_table
from eagc_ops.evidence.studies.study import DESIGN, Cell, Study, check_design
from eagc_ops.training.config import ConfigError

__all__ = ["CURVES", "PAGE", "TABLE", "WRITTEN", "Earlier", "earlier_part", "take_over"]

PAGE, TABLE, CURVES = "evidence.md", "evidence.csv", "figures/curves-{}.svg"  # in the folder of a study
WRITTEN = "Written on "  # begins the last lines of a page


class Earlier(NamedTuple):
    """What a study has taken over."""

    numbers: Mapping[str, RunNumbers]  # of finished runs, by the names of their folders
    sections: Mapping[Cell, str]  # Markdown, of the cells of which all runs are finished
    curves: Mapping[Cell, str]  # their figures, SVG
    written: str  # when, where and by which commit


def earlier_part(study: Study, folder: Path | None = None) -> Earlier:
    """What the study has taken over, if anything, or the evidence in `folder` that it could take over."""
    if folder is None:
        return _read(study, study.earlier) if (study.earlier / DESIGN).exists() else Earlier({}, {}, {}, "")
    for name in (DESIGN, PAGE, TABLE):
        if not (folder / name).is_file():
            raise ConfigError(
                f"--earlier {folder} has no {name}: name the folder of a study, or a copy of its {DESIGN}, "
                f"{PAGE}, {TABLE} and figures"
            )
    check_design(study, folder, "leave out --earlier, or use the options of that study")
    return _read(study, folder)


def take_over(study: Study, folder: Path) -> None:
    """Copy the evidence of an earlier part of the same study into the study's folder."""
    found = earlier_part(study, folder)
    if lacking := [cell.key for cell in earlier_part(study).sections if cell not in found.sections]:
        raise ConfigError(
            f"--earlier {folder} lacks {', '.join(lacking)}, which {study.output} has taken over before: let "
            "one of the two studies take over the other"
        )
    (study.earlier / DESIGN).unlink(missing_ok=True)
    (study.earlier / CURVES).parent.mkdir(parents=True, exist_ok=True)
    for cell, svg in found.curves.items():
        atomic_write(study.earlier / CURVES.format(cell.key), svg)
    for name in (PAGE, TABLE, DESIGN):  # the last one says that the others are complete
        atomic_write(study.earlier / name, (folder / name).read_bytes())


def _read(study: Study, folder: Path) -> Earlier:
    try:
        numbers = read_table(folder / TABLE)
        page = (folder / PAGE).read_text(encoding="utf-8")
        left = {run.cell for run in study.runs() if run.folder.name not in numbers}
        complete = [cell for cell in study.cells if cell not in left]
        curves = {cell: (folder / CURVES.format(cell.key)).read_text(encoding="utf-8") for cell in complete}
        _, begin, written = page.partition(f"\n{WRITTEN}")
        if not begin:
            raise ValueError(f"{PAGE} ends before the line that says when it was written")
        return Earlier(numbers, _sections(page, complete), curves, WRITTEN + written.strip())
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"the evidence in {folder} is damaged or not complete: {error}") from error


def _sections(page: str, cells: Sequence[Cell]) -> dict[Cell, str]:
    """The sections of these cells, with their headings."""
    found = {}
    for section in re.split(r"^(?=## )", page, flags=re.MULTILINE):
        found[section.partition("\n")[0]] = section.strip()
    for cell in cells:
        if f"## {cell}" not in found:
            raise ValueError(f"{TABLE} has all runs of {str(cell)!r}, but {PAGE} has no section of this name")
    return {cell: found[f"## {cell}"] for cell in cells}
