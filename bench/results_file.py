"""Results files: JSON with the machine, the versions, the commit and the date."""

from __future__ import annotations

import datetime
import functools
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from eagc_ops.app.environment import describe
from eagc_ops.app.files import atomic_write
from eagc_ops.bench import gpu
from eagc_ops.bench.measure import Spread

HEADER = ("benchmark", "date", "machine", "versions", "commit")  # every results file starts with these
_SPREAD = {field.name for field in fields(Spread)}


def save(path: Path, name: str, content: dict[str, Any]) -> None:
    """Write the results of benchmark `name`; create the folder if it does not exist."""
    record = {"benchmark": name, "date": datetime.date.today().isoformat(), **_described(), **content}
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(record, indent=1, default=asdict) + "\n")


@functools.cache
def _described() -> dict[str, Any]:
    """It asks git: too long for every part of a file that grows."""
    described = describe()
    if described["machine"]["gpus"]:  # what a time depends on besides the model
        described["machine"]["gpu_state"] = gpu.state()
    return described


def load(path: Path) -> dict[str, Any]:
    """Read a file that `save` wrote; its spreads come back as `Spread`."""
    try:
        record = json.loads(path.read_text(), object_hook=_with_spreads)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a results file of `eagc bench`: {error}") from error
    missing = [key for key in HEADER if key not in record] if isinstance(record, dict) else HEADER
    if missing:
        raise ValueError(f"{path} is not a results file of `eagc bench`: it has no {', '.join(missing)}")
    return record


def _with_spreads(record: dict[str, Any]) -> dict[str, Any] | Spread:
    return Spread(**record) if record.keys() == _SPREAD else record
