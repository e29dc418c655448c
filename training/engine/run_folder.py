"""The folder of a run: its settings, its history and its result.

run.json            configuration with every setting, facts (data, trunk, sizes), versions, commit
metrics.jsonl       one JSON object per line: kinds "step", "epoch", and "diagnosis" if asked for
tensorboard/        the numbers of metrics.jsonl as scalars
last.safetensors    checkpoint to resume from and to evaluate
best.safetensors    weights of the epoch with the best All on the unlabelled set
result.json         All / Old / New of the last and the best epoch, warnings; written when the run is complete
scores.safetensors  what the method's scores need beside the weights; written when they are first asked for
.lock               names the process that trains; held by it, and removed at the end
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from eagc_ops.app import environment
from eagc_ops.app.files import atomic_write, naming_full_disks, remove_partials
from eagc_ops.app.locks import lock, tidy
from eagc_ops.training.config import SPECS, Config, ConfigError, from_json
from eagc_ops.training.engine.facts import RunFacts

__all__ = ["EPOCHS", "SCORES", "RunFolder", "finite", "is_unused", "scores_text", "writing"]

SCORES = ("all", "old", "new")
# The epochs that result.json has, in words
EPOCHS = {
    "last": "last epoch",
    "best": "best epoch, chosen with the truth",
    "best_start": "best start of an epoch, chosen with the truth",
}
_LOCK = ".lock"


def is_unused(path: Path, beforehand: Collection[str] = ()) -> bool:
    """Whether a new run may be made in the folder `path`.

    It must be empty, or hold a run that was killed while run.json was written, which has nothing to keep, or
    the files and folders named in `beforehand`, which the run will read.
    """
    remains = {_LOCK, *beforehand, *(file.name for file in path.glob("*.json*.partial"))}
    return all(file.name in remains for file in path.iterdir())


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Keep all other processes away from the run in `path`: a second one is refused.

    The main process of a distributed run does this for all of them.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    with lock(path / _LOCK, path):
        remove_partials(path)
        yield


class RunFolder:
    """A run on disk. With `main=False` (other processes of a distributed run) nothing is written."""

    def __init__(self, path: Path, config: Config, facts: RunFacts, main: bool = True) -> None:
        self.path, self.config, self.facts, self.main = path, config, facts, main
        self.last, self.best = path / "last.safetensors", path / "best.safetensors"
        # Runs share the reference models in the folder beside them; without a truth a run keeps its own.
        self.references = (path.parent if SPECS[config.dataset].truth else path) / "references"
        self._metrics: TextIO | None = None
        self._board: Any = None  # a SummaryWriter

    @classmethod
    def create(cls, path: str | Path, config: Config, facts: RunFacts, main: bool = True) -> RunFolder:
        """Create a run. The current versions and commit are added to its facts."""
        facts = replace(facts, versions=environment.versions(), commit=environment.commit())
        folder = cls(Path(path), config.anywhere(), facts, main)
        if main:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder._write("run.json", {"config": folder.config.to_json(), **facts.to_json()})
        return folder

    @classmethod
    def open(cls, path: str | Path, main: bool = True, what: str = "") -> RunFolder:
        """Open an existing run. `what` is the option or setting that names it, for errors."""
        file, named = Path(path) / "run.json", f"{what} {path}".lstrip()
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            config = from_json(content.pop("config"))
            facts = RunFacts.from_json(content)
        except OSError as error:
            raise ConfigError(f"{named} is not a run folder: {_lacking(Path(path), error)}", what) from error
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{named}: {file.name} cannot be read ({error}); it was not written by this package, or was "
                "edited",
                what,
            ) from error
        except ConfigError as error:
            raise ConfigError(f"{named}: {file.name}: {error}") from error
        return cls(Path(path), config, facts, main)

    def check(self, facts: RunFacts) -> None:
        """Refuse data and weights that are not those of run.json: the run would not be the one it names."""
        ours, theirs = self.facts.identity, facts.identity
        differs = [name for name in ours if ours[name] != theirs[name]]
        if differs:
            raise ConfigError(
                f"{self.path} was started with different data or weights: {', '.join(differs)} differs from "
                "run.json; restore the files, or start a new run"
            )

    def differences(self, config: Config) -> list[str]:
        """The settings that decide numbers and are others in `config`, each with both values."""
        if config.method != self.config.method:
            return [f"method {self.config.method} there, {config.method} here"]
        ours, theirs = config.recipe(), self.config.recipe()
        if ours["k"] == "estimate" and self.facts.k_estimate is not None:
            del ours["k"]
        return [
            f"{name} {theirs[name]} there, {value} here"
            for name, value in ours.items()
            if theirs[name] != value
        ]

    def start_logs(
        self,
        epoch: int,
        position: int,
        step: int,
        on_the_board: Callable[[int], bool] | None = lambda _: True,
    ) -> None:
        """Open the logs. The run goes on with batch `position` of `epoch`, which is optimizer step `step`.

        `on_the_board`: whether TensorBoard gets the numbers of an epoch; None: of none.

        Lines at or after it, written between the checkpoint and a kill, are removed.
        """
        if not self.main:
            return
        kept = [
            line
            for line in self.metrics()
            if (line["epoch"], line.get("position", math.inf)) < (epoch, position)
        ]
        atomic_write(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
        self._metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")
        if on_the_board is None:
            return
        # Imported here: it takes a second, and readers of a run do not need it.
        from torch.utils.tensorboard import SummaryWriter

        self._on_the_board = on_the_board
        self._board = SummaryWriter(self.path / "tensorboard", purge_step=step)

    def log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Write a line of metrics.jsonl; its numbers become TensorBoard scalars at optimizer step `step`."""
        if self._metrics is None:
            return
        values = finite(values)
        line = json.dumps({"kind": kind, "step": step, **values}) + "\n"
        with naming_full_disks(self.path / "metrics.jsonl", len(line)):
            self._metrics.write(line)
            self._metrics.flush()
            shown = values if self._board is not None and self._on_the_board(values["epoch"]) else {}
            for name, value in shown.items():
                if isinstance(value, (int, float)) and name not in ("epoch", "position"):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, without a last line that a kill cut short."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return []
        return _read(file, lambda text: [json.loads(line) for line in text.split("\n")[:-1]])

    def result(self) -> dict[str, Any] | None:
        """The result that `finish` wrote, or None while the run is not complete.

        A complete run is not written again, so the lock of a process that was killed right then goes here.
        """
        file = self.path / "result.json"
        if not file.exists():
            return None
        tidy(self.path / _LOCK)
        return _read(file, json.loads)

    def finish(self, result: dict[str, Any]) -> None:
        """Write result.json: the run is complete."""
        if self.main:
            self._write("result.json", result)

    def close(self) -> None:
        """Close the logs."""
        logs = [log for log in (self._metrics, self._board) if log is not None]
        self._metrics = self._board = None
        with naming_full_disks(self.path / "metrics.jsonl", 1):
            for log in logs:
                log.close()

    def _write(self, name: str, content: dict[str, Any]) -> None:
        atomic_write(self.path / name, json.dumps(content, indent=2) + "\n")


def _lacking(path: Path, error: OSError) -> str:
    if not path.exists():
        return "it does not exist"
    if not path.is_dir():
        return "it is a file"
    if isinstance(error, FileNotFoundError):
        return "it has no run.json"
    return f"its run.json cannot be read ({error.strerror})"


def _read(file: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is damaged ({error}): restore a copy, or start a new run") from error


def finite(values: dict[str, Any]) -> dict[str, Any]:
    """The values with None for NaN and infinity, which JSON lacks (New is NaN where no image is new)."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def scores_text(scores: Mapping[str, float | None], digits: int = 2) -> str:
    """All, Old and New in percent; a dash for a score that does not exist, as New without new images.

    >>> scores_text({"all": 0.5, "old": 0.5, "new": None})
    'All 50.00%  Old 50.00%  New -'
    """

    def percent(value: float | None) -> str:
        return "-" if value is None or math.isnan(value) else f"{value:.{digits}%}"

    return "  ".join(f"{name.capitalize()} {percent(scores[name])}" for name in SCORES)
