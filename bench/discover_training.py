"""`eagc bench discover --train`: what does the training of a discovery add, and is a good answer kept?

A draw, the same as those of the clusterings, is written as folders of pictures. In them `answers` discovers
as a user would, with the true number of categories. It never sees the truth, by which every candidate is then
scored.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from eagc_ops.app.files import fingerprint
from eagc_ops.app.table import Table
from eagc_ops.bench.discover import RULES, draw, key
from eagc_ops.bench.discover_sets import SETS, DataSet, images_of, settings_of
from eagc_ops.discovery import answers, candidates, training
from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.data.listing import Listing

__all__ = ["RULES_OF_TRAINING", "make", "table"]

RULES_OF_TRAINING = fingerprint(
    [RULES, *(Path(str(module.__file__)).read_text() for module in (candidates, training))]
)
COLUMNS = {
    "first": "first answer",
    "trained": "trained network",
    "trained-metric": "clustering of its features",
}


def make(
    folder: Path,
    names: Iterable[str],
    draws: int,
    records: dict[str, dict[str, Any]],
    keep: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Fill `records` (`key`) with what they lack; `keep` is called after each of them."""
    for number in range(draws):  # all data sets have one draw before one has two
        for data in (SETS[name] for name in names):
            named = {"data": data.name, "draw": number, "way": "training", "rules": RULES_OF_TRAINING}
            if key(named) not in records:
                say(f"{data.name}, draw {number}")
                records[key(named)] = {**named, **_trained(data, folder, number, say)}
                keep()


def _trained(data: DataSet, folder: Path, number: int, say: Callable[[str], None]) -> dict[str, Any]:
    opened, category = images_of(data, folder)
    places = torch.arange(len(opened))[:, None]
    drawn = draw(data, places, torch.tensor(category), number)
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as home:
        truth = {}
        for row, label, c in zip(drawn.features[:, 0].long().tolist(), drawn.label.tolist(), drawn.category):
            kind = f"labelled/{label:03}" if label >= 0 else "new"
            file = Path(home, kind, f"{row:06}.png")
            file.parent.mkdir(parents=True, exist_ok=True)
            opened[row]().save(file)
            truth[str(file.resolve())] = int(c)
        with settings_of(data, folder) as settings:
            found, kept = answers(
                *(Path(home, name) for name in ("labelled", "new")),
                Path(home, "found"),
                k=drawn.classes,
                say=say,
                seed=number,
                **settings,
            )
            listing = Listing.read(Path(home, "found", "images.json"))
        true = torch.tensor([truth[str(Path(path).resolve())] for path in listing.unlabelled_images]).numpy()
        of_kind = {}
        for one in found:
            scores = accuracy(one.assignment.numpy(), true, drawn.known)
            record = one.record(one is kept)
            of_kind[one.kind] = {
                **{name: record[name] for name in ("holdout", "rehearsal", "score", "empty")},
                "accuracy": [round(100 * share, 2) for share in scores],
            }
    return {
        "images": len(drawn.label),
        "kept": kept.kind,
        "candidates": of_kind,
        "minutes": round((time.process_time() - begin) / 60, 2),
    }


def table(rows: Iterable[dict[str, Any]]) -> Table:
    """One line per data set."""
    rows = [row for row in rows if row.get("way") == "training"]
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows):
        of = [row for row in rows if row["data"] == name]
        line: dict[str, object] = {"data": name, "draws": len(of)}
        for kind, heading in COLUMNS.items():
            parts = zip(*(row["candidates"][kind]["accuracy"] for row in of))
            line[heading] = " / ".join(f"{statistics.mean(part):.1f}" for part in parts)
        shares = [{kind: one["accuracy"][0] for kind, one in row["candidates"].items()} for row in of]
        lost = [max(share.values()) - share[row["kept"]] for share, row in zip(shares, of)]
        gained = [share[row["kept"]] - share["first"] for share, row in zip(shares, of)]
        line["kept, to the first answer"] = (
            f"{statistics.mean(gained):+.1f} ({min(gained):+.1f} to {max(gained):+.1f})"
        )
        line["kept, below the best: mean, most"] = f"{statistics.mean(lost):.1f}, {max(lost):.1f}"
        line["CPU min"] = f"{statistics.mean(row['minutes'] for row in of):.1f}"
        lines.append(line)
    return Table.of(lines)
