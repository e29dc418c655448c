"""LegoGCD: its settings, and their values by preset and data set. Its losses are in `methods/legogcd.py`."""

from __future__ import annotations

from pydantic import Field

from eagc_ops.training.config.presets import Values, preset_values
from eagc_ops.training.config.schema import register_config
from eagc_ops.training.config.simgcd import SimGCDConfig


class LegoGCDConfig(SimGCDConfig):
    """Settings of LegoGCD."""

    threshold: float = Field(
        0.85, ge=0, le=1, description="least confidence with which an unlabelled row counts as known"
    )
    dual_view_kl: bool = Field(
        True, description="KL term between the two views' predictions (missing in the release of EAGC)"
    )


register_config("legogcd", LegoGCDConfig)

# LegoGCD: the authors and the release use the same thresholds and weights of me-max (1 on other data sets).
THRESHOLD = {
    "cub": 0.7,
    "scars": 0.85,
    "aircraft": 0.9,
    "cifar10": 0.95,
    "cifar100": 0.85,
    "imagenet100": 0.8,
    "herbarium19": 0.7,
}
LEGOGCD_MEMAX = {"cub": 2.0, "cifar100": 2.0}


@preset_values(LegoGCDConfig)
def _legogcd(preset: str, dataset: str, backbone: str) -> Values:
    return {
        "threshold": THRESHOLD.get(dataset, LegoGCDConfig.model_fields["threshold"].default),
        "memax_weight": LEGOGCD_MEMAX.get(dataset, 1.0),
        "dual_view_kl": preset != "release",
    }
