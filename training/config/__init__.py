"""The configuration of a run. These files need neither torch nor the data, the models or the methods.

1. `datasets`  published facts about every data set (`SPECS`)
2. `settings`  the base of all settings: strict, frozen, one-line errors (`Settings`, `ConfigError`)
3. `schema`    the settings and their ranges (`Config`, one subclass per method, `Diagnosis`)
4. `presets`   their values by preset, method and data set (`resolve`)
5. `options`   the command-line options made from them (`add_config_arguments`)
"""

from eagc_ops.training.config.datasets import DATASETS, SPECS, Spec
from eagc_ops.training.config.options import add_config_arguments, config_from_arguments
from eagc_ops.training.config.presets import PRESETS, preset_values, resolve
from eagc_ops.training.config.schema import (
    CONFIGS,
    Config,
    Diagnosis,
    LegoGCDConfig,
    SelExConfig,
    SimGCDConfig,
    SPTNetConfig,
    config_class,
    from_json,
    register_config,
)
from eagc_ops.training.config.settings import MACHINE, ConfigError, Settings

__all__ = [
    "CONFIGS",
    "DATASETS",
    "MACHINE",
    "PRESETS",
    "SPECS",
    "Config",
    "ConfigError",
    "Diagnosis",
    "LegoGCDConfig",
    "SPTNetConfig",
    "SelExConfig",
    "Settings",
    "SimGCDConfig",
    "Spec",
    "add_config_arguments",
    "config_class",
    "config_from_arguments",
    "from_json",
    "preset_values",
    "register_config",
    "resolve",
]
