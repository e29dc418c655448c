"""The facts of a run: the part of run.json beside the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from eagc_ops.training.config import ConfigError

__all__ = ["RunFacts"]


@dataclass(frozen=True)
class RunFacts:
    """Facts about the data, the encoder and the sizes of a run. All values are JSON-ready."""

    split_hash: str  # of the labelled and the unlabelled set
    trunk: str  # fingerprint of the frozen trunk
    inputs: dict[str, Any]  # origin of the views: pixels, or a trunk cache

    dim: int  # D of z
    known: int  # classes with labels
    classes: int  # K, known and novel classes together
    images: int  # labelled and unlabelled images together
    channels: int  # of an image
    pixels: int  # side of an image
    patch: int  # side of a patch of the ViT, in pixels
    labelled: int  # labelled images
    steps_per_epoch: int
    notes: list[str]  # remarks about the data set

    weights: dict[str, str] | None = None  # the backbone's file: origin and sha256; None: random weights
    known_names: list[str] | None = None  # of the known classes by label, where they are folders
    k_estimate: dict[str, Any] | None = None  # the search, if K was estimated
    start: dict[str, Any] | None = None  # the trained run that this one started from, if there is one
    versions: dict[str, str | None] | None = None  # of Python and the packages, when the run was made
    commit: str | None = None  # of the checkout, when the run was made

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that decide a run's numbers together with its recipe."""
        return {"split_hash": self.split_hash, "trunk": self.trunk, "inputs": self.inputs}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary. Optional facts that a run does not have are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunFacts:
        """The facts that `to_json` wrote. Missing and unknown keys are a `ConfigError`."""
        names = [f.name for f in fields(cls)]
        missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in values]
        unknown = [name for name in values if name not in names]
        if missing:
            raise ConfigError(
                f"the facts lack {', '.join(missing)}; they were written by a different version of "
                "this package"
            )
        if unknown:
            raise ConfigError(
                f"the facts have the unknown keys {', '.join(unknown)}; they were written by a different "
                "version of this package; use that version to read them"
            )
        return cls(**values)
