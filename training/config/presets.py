"""The values of the settings: four presets, and the changes that a method and a data set make to them.

>>> from eagc_ops.training.config import resolve
>>> config = resolve("simgcd", "scars", "release", lambda_p=0.5)
>>> config.warm_start, config.mlp_head_layers, config.lambda_p, config.memax_weight
(True, 1, 0.5, 1.0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eagc_ops.training.config.datasets import SPECS
from eagc_ops.training.config.schema import Config, config_class
from eagc_ops.training.config.settings import ConfigError

Values = dict[str, Any]

# Values that all methods share.
PRESETS: dict[str, Values] = {
    "baseline": {"eagc": False, "head_lr": 0.1},
    "paper": {"eagc": True, "head_lr": 1.0},
    "release": {
        "eagc": True,
        "head_lr": 1.0,
        "energy_momentum": 0.95,
        "warm_start": True,
        "mlp_head_layers": 1,
        "headline": "best",
    },
    # From runs of SimGCD that were not registered; confirmed on nothing: see docs/waterfall.md. SPTNet keeps
    # its own start and rates.
    "recommended": {"eagc": True, "head_lr": 1.0, "backbone_lr": 0.03, "warm_start": True},
}

# A null run: EAGC changes gradients by next to nothing, so its result differs from the baseline's by rounding
# alone. The spread of such differences is the noise floor of a comparison.
NULL: Values = {"lambda_a": 1e-4, "lambda_p": 1e-4}

# Values that a data set sets under every method and preset.
BY_DATASET: dict[str, Values] = {
    "cifar10": {"reference_batch_size": 128},
    "cifar100": {"reference_batch_size": 128, "reference_epochs": 3},
    "imagenet100": {"reference_batch_size": 128},
    # A few thousand images of the user's own, and one person who waits: as many epochs as the warm-up of the
    # teacher has. Without truth there is no best epoch. Nothing is compared with published numbers, so the
    # encoder is not the paper's but its publisher's next one: it was trained on many more kinds of pictures.
    "discover": {
        "backbone": "dinov2_vitb14_reg4",
        "k": "estimate",
        "epochs": 30,
        "reference_epochs": 10,
        "cache_views": 2,
        "headline": "last",
    },
    # With 10 classes, an MLP head at learning rate 1.0 collapses onto the known prototypes: use neither.
    "digits": {
        "backbone": SPECS["digits"].own_encoder,
        "mlp_head_layers": 0,
        "head_lr": 0.1,
        "epochs": 20,
        "reference_epochs": 10,
    },
    "glyphs": {"backbone": SPECS["glyphs"].own_encoder, "epochs": 30, "reference_epochs": 30},
}


def resolve(
    method: str = "simgcd", dataset: str = "digits", preset: str = "paper", **switches: Any
) -> Config:
    """The configuration of a method on a data set under a preset. `switches` override its settings."""
    cls = config_class(method)
    if preset not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}", "preset")
    of_dataset = BY_DATASET.get(dataset, {})
    backbone = {"backbone": cls.model_fields["backbone"].default, **of_dataset, **switches}["backbone"]
    values = {**PRESETS[preset], **_of_method(cls, preset, dataset, backbone), **of_dataset, **switches}
    return cls(**{"method": method, "dataset": dataset, "preset": preset, **values})


# The methods ---------------------------------------------------------------------------------------------

MethodValues = Callable[[str, str, str], Values]
_OF_METHOD: dict[type[Config], MethodValues] = {}


def preset_values(cls: type[Config]) -> Callable[[MethodValues], MethodValues]:
    """Decorate the function (preset, dataset, backbone) -> values of a configuration class.

    A subclass without such a function takes that of its nearest base.
    """

    def add(function: MethodValues) -> MethodValues:
        _OF_METHOD[cls] = function
        return function

    return add


def _of_method(cls: type[Config], preset: str, dataset: str, backbone: str) -> Values:
    nearest = next((base for base in cls.__mro__ if base in _OF_METHOD), None)
    return {} if nearest is None else _OF_METHOD[nearest](preset, dataset, backbone)
