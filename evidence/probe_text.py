"""A probe as text, as JSON, and as the part of a report that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eagc_ops.app.files import atomic_write
from eagc_ops.app.table import Row, Table
from eagc_ops.evidence.energies import RankedEnergy
from eagc_ops.evidence.probing import DRIFT, Probe, from_json
from eagc_ops.subspace import ENERGY_APERTURE, RIDGE
from eagc_ops.training.config import ConfigError
from eagc_ops.training.report.page import templates

__all__ = [
    "NO_ACCURACY",
    "PROBE_FILE",
    "energies_text",
    "probe_of",
    "probe_text",
    "probe_values",
    "write_probe",
]

PROBE_FILE = "probe.json"  # in the folder of a run, or of a set of runs
NO_ACCURACY = "This does not predict accuracy: it says what EEP would change, not whether that helps."
PART = ".part.html"  # a report shows such files of a run's folder


def probe_text(found: Probe) -> str:
    """The whole probe, for a terminal."""
    values = probe_values(found)
    return "\n".join(
        [values["problem"], "", values["table"].text(), "", *values["notes"], "", values["conclusion"]]
    )


def probe_values(found: Probe) -> dict[str, Any]:
    """The texts and the table of a probe."""
    best = found.best
    played = found.known - found.most
    notes = [
        f"{played} of {found.known} known classes play{'s' * (played == 1)} novel, in {found.choices} random "
        f"choices; ± is the standard deviation of the AUC over them.",
        _extrapolation(found),
        f"EEP: share of the gradient that it removes from rows of known and of novel classes, at lambda_p "
        f"{found.lambda_p:g}.",
        f"AGA: its term is about {found.aga:.0%} of a run's labelled gradient, at lambda_a "
        f"{found.lambda_a:g} and if features drift from the reference model by {DRIFT:.0%} of their norm "
        "(within a factor of 2 in the runs we compared).",
        NO_ACCURACY,
    ]
    apertures = [c.size for c in found.candidates if c.subspace == "conceptor"]
    end = "; it is the end of the range" * (best.size in (min(apertures), max(apertures)))
    return {
        "problem": f"{found.images:,} labelled images of {found.known} known classes, D = {found.dim}, "
        f"effective rank {found.effective_rank:.1f}",
        "table": _table(found),
        "notes": notes,
        "conclusion": f"{found.verdict} (best aperture: {best.size:g}{end})",
    }


def energies_text(ranked: Sequence[RankedEnergy]) -> str:
    """Other energies, best first."""
    rows = [Row([e.name, f"{e.auc:.3f}", f"{e.tau_known:.3f}", f"{e.tau_novel:.3f}"]) for e in ranked]
    table = Table(["energy", "AUC", "tau known", "tau novel"], rows)
    whitened = (
        f"the whitened energy with ridge {RIDGE:.0%} and aperture {ENERGY_APERTURE:g} (--energy whitened)"
    )
    end = f"A run uses the conceptor's energy, or {whitened}; the operator does not have the nearest class."
    return f"{table.text()}\n\n{end}"


def write_probe(file: Path, found: Probe) -> None:
    """Write the probe as JSON, and beside it the part that a report on a run in this folder shows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, json.dumps(found.to_json(), indent=1) + "\n")
    part = templates("eagc_ops.evidence").get_template("probe.html.j2").render(probe=probe_values(found))
    atomic_write(file.with_suffix(PART), part)


def probe_of(folders: Iterable[Path]) -> Probe | None:
    """The probe in the first of these run folders that has one."""
    for file in (folder / PROBE_FILE for folder in folders):
        if file.exists():
            try:
                return from_json(json.loads(file.read_text(encoding="utf-8")))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{file} cannot be read ({error}): delete it, or write it again with eagc probe"
                ) from error
    return None


def _extrapolation(found: Probe) -> str:
    if found.half == found.most:
        return (
            f"All numbers are for {found.most} known classes, too few to extrapolate to {found.known}: "
            "with more known classes the AUC is lower."
        )
    return (
        f"All numbers are extrapolated to {found.known} known classes from {found.most} and {found.half}, "
        "along the logarithm of their count."
    )


def _table(found: Probe) -> Table:
    header = ["subspace", "AUC", f"at {found.most}", f"at {found.half}", "±"]
    header += ["tau known", "tau novel", "EEP known", "EEP novel"]
    rows = []
    for c in found.candidates:
        aucs = [f"{s.auc:.2f}" for s in (c.at_all, c.at_most, c.at_half)]
        _, *taus_and_shares = c.at_all
        texts = [f"{taus_and_shares[0]:.3f}", f"{taus_and_shares[1]:.3f}"]
        texts += [f"{share:.1%}" for share in taus_and_shares[2:]]
        rows.append(Row([str(c), *aucs, f"{c.spread:.2f}", *texts], emphasised=c == found.best))
    return Table(header, rows)
