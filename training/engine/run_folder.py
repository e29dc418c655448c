"""The folder of a run: what was run (run.json), what happened (metrics.jsonl, tensorboard/), what came out (result.json).

run.json            configuration with every field, versions, git commit, split hash, counts
metrics.jsonl       one JSON object per line: "step" lines and "epoch" lines; "diagnosis" lines if they were asked for
last.safetensors    checkpoint to resume from and to evaluate
best.safetensors    weights of the epoch with the best All on the unlabelled set
result.json         All / Old / New of the last and of the best epoch, warnings; written when the run is complete
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
import subprocess
from pathlib import Path
from typing import Any

from eagc_ops.training.config import Config, ConfigError, from_json
from eagc_ops.training.engine.checkpoint import atomic_write

PACKAGES = (
    "eagc-ops",
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "scipy",
    "scikit-learn",
    "safetensors",
)


class RunFolder:
    """A run on disk. `main=False` (other processes of a distributed run) reads but never writes."""

    def __init__(self, path: Path, config: Config, facts: dict[str, Any], main: bool = True) -> None:
        self.path, self.config, self.facts, self.main = path, config, facts, main
        self.last, self.best = path / "last.safetensors", path / "best.safetensors"
        self._metrics = self._board = None

    @classmethod
    def create(cls, path: str | Path, config: Config, facts: dict[str, Any], main: bool = True) -> RunFolder:
        """A new run. `facts`: what the data and the backbone turned out to be."""
        folder = cls(Path(path), config, {**facts, "versions": versions(), "git_commit": git_commit()}, main)
        if main:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder._write("run.json", {"config": config.to_json(), **folder.facts})
        return folder

    @classmethod
    def open(cls, path: str | Path, main: bool = True) -> RunFolder:
        """A run that exists."""
        file = Path(path) / "run.json"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            config = from_json(content.pop("config"))
        except FileNotFoundError as error:
            raise ConfigError(f"{path} is not a run folder: it has no run.json") from error
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{file} cannot be read ({error}); it was not written by this package, or was edited"
            ) from error
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from error
        return cls(Path(path), config, content, main)

    def start_logs(self, epoch: int, position: int, step: int) -> None:
        """Open the logs where the run goes on: next comes batch `position` of `epoch`, optimiser step `step`.

        Lines from there on, written between the checkpoint and a kill, are taken out.
        """
        if not self.main:
            return
        from torch.utils.tensorboard import SummaryWriter

        kept = [
            line
            for line in self.metrics()
            if (line["epoch"], line.get("position", math.inf)) < (epoch, position)
        ]
        atomic_write(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")
        self._board = SummaryWriter(self.path / "tensorboard", purge_step=step)

    def log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """One line of metrics.jsonl; its numbers also become TensorBoard scalars at optimiser step `step`."""
        if self._metrics is None:
            return
        values = finite(values)
        self._metrics.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._metrics.flush()
        for name, value in values.items():
            if isinstance(value, (int, float)) and name not in ("epoch", "position"):
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line that a kill cut short is left out."""
        file = self.path / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
        return [json.loads(line) for line in lines]

    def result(self) -> dict[str, Any] | None:
        """What `finish` wrote, or None while the run is not complete."""
        file = self.path / "result.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def finish(self, result: dict[str, Any]) -> None:
        if self.main:
            self._write("result.json", result)

    def close(self) -> None:
        for log in (self._metrics, self._board):
            if log is not None:
                log.close()
        self._metrics = self._board = None

    def _write(self, name: str, content: dict[str, Any]) -> None:
        atomic_write(self.path / name, (json.dumps(content, indent=2) + "\n").encode())


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide the numbers; None where a package is missing."""

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}


def git_commit() -> str | None:
    """Commit of the checkout this package runs from, with "+changes" if files differ; None outside a checkout."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (
            "+changes" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def finite(values: dict[str, Any]) -> dict[str, Any]:
    """NaN and infinities are not JSON: None stands for "no such number" (New where no image is new)."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
