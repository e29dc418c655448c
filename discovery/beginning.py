"""How a discovery began: discovery.json in its output folder. Reading it needs no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagc_ops.app.console import Parser, path
from eagc_ops.app.files import atomic_write
from eagc_ops.app.places import readable_file
from eagc_ops.discovery.places import ANSWER
from eagc_ops.training.commands.common import check_trained
from eagc_ops.training.config import Config, ConfigError, Sizes, from_json
from eagc_ops.training.engine.preconditions import changed

__all__ = ["BEGINNING", "Beginning", "check_answered", "parser_of_a_run"]

BEGINNING = "discovery.json"
VERSION = 1
# What may change with the same features; the rest of the recipe belongs to training.
ENCODER = ("backbone", "image_size", "channels")


@dataclass(frozen=True)
class Beginning:
    """The settings and the encoder of a discovery."""

    config: Config  # of the encoder, and of a training
    known: int  # classes
    images: int  # unlabelled ones, and labelled ones that are not held out
    labelled: int
    pixels: int
    channels: int
    encoder: str  # fingerprint of the pretrained encoder

    @property
    def sizes(self) -> Sizes:
        return Sizes(known=self.known, images=self.images, labelled=self.labelled, pixels=self.pixels)

    def write(self, folder: Path) -> None:
        content = {**vars(self), "config": self.config.anywhere().to_json()}
        atomic_write(folder / BEGINNING, json.dumps({"version": VERSION, **content}, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Beginning:
        file = folder / BEGINNING
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.pop("version") != VERSION:
                raise ValueError("it was written by a different version of this package")
            return cls(**{**content, "config": from_json(content["config"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{file} is damaged ({error}): restore a copy, or start the discovery in a different folder"
            ) from error

    def with_changes(self, folder: Path, settings: dict[str, Any]) -> Config:
        """The configuration with `settings`; settings that contradict the features are refused."""
        fixed = [
            name for name in ENCODER if name in settings and settings[name] != getattr(self.config, name)
        ]
        if fixed:
            raise ConfigError(
                f"{', '.join(fixed)} cannot change: output {folder} has features with "
                f"{', '.join(f'{name}={getattr(self.config, name)!r}' for name in fixed)}; choose a "
                "different folder"
            )
        return self.config.replace(**settings)

    def on_this_machine(self, changes: dict[str, Any]) -> Config:
        """The configuration with changes that only concern the machine, as for a prediction."""
        return changed(self.config, changes)


def parser_of_a_run(command: str, description: str | None) -> Parser:
    """The parser of a command that takes what `check_answered` checks as its argument RUN."""
    parser = Parser(prog=command, description=description)
    parser.add_argument(
        "run",
        type=path,
        metavar="RUN",
        help="folder of a discovery, or of a complete run of any method",
    )
    return parser


def check_answered(run: Path, changes: dict[str, Any]) -> None:
    """Check that `run` is a discovery with an answer, or a complete run, and that `changes` may be made."""
    if not (run / BEGINNING).exists():
        check_trained(run, changes)
        return
    Beginning.read(run).on_this_machine(changes)
    if not (run / ANSWER).exists():
        raise ConfigError(f"{run} has no answer yet: go on with its `eagc discover` command first")
    readable_file("RUN: the answer", run / ANSWER, "restore a copy")
