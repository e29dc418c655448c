"""SimGCD: its settings, and their values by preset and data set. Its losses are in `methods/simgcd.py`."""

from __future__ import annotations

from pydantic import Field

from eagc_ops.training.config.presets import Values, preset_values
from eagc_ops.training.config.schema import Config, register_config


class SimGCDConfig(Config):
    """Settings of SimGCD."""

    sup_weight: float = Field(
        0.35, ge=0, le=1, description="weight w of the supervised part; the unsupervised part has 1 - w"
    )
    memax_weight: float = Field(1.0, ge=0, description="weight of the mean-entropy term (me-max)")
    student_temp: float = Field(0.1, gt=0, description="temperature of the student's predictions")
    teacher_temp_start: float = Field(0.07, gt=0, description="temperature of the teacher in the first epoch")
    teacher_temp: float = Field(0.04, gt=0, description="temperature of the teacher after its warm-up")
    teacher_temp_epochs: int = Field(30, ge=0, description="epochs of the teacher temperature's warm-up")
    contrastive_temp: float = Field(1.0, gt=0, description="temperature of InfoNCE")
    supcon_temp: float = Field(0.07, gt=0, description="temperature of SupCon")


register_config("simgcd", SimGCDConfig)

# SimGCD: weight of me-max, of the authors and of the release of EAGC; 1 on other data sets.
SIMGCD_MEMAX = {"cub": 2.0, "cifar100": 4.0}
SIMGCD_MEMAX_RELEASE = {"cifar100": 2.0}
# lambda_p of the release with DINO; 0.5 on other data sets, and with DINOv2.
LAMBDA_P_RELEASE = {"scars": 3.0, "aircraft": 3.0}


@preset_values(SimGCDConfig)
def _simgcd(preset: str, dataset: str, backbone: str) -> Values:
    if preset != "release":
        return {"memax_weight": SIMGCD_MEMAX.get(dataset, 1.0)}
    return {
        "memax_weight": SIMGCD_MEMAX_RELEASE.get(dataset, 1.0),
        "lambda_p": 0.5 if "dinov2" in backbone else LAMBDA_P_RELEASE.get(dataset, 0.5),
    }
