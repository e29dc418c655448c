"""The configuration of a run. These files need neither torch nor the data, the models or the methods.

1. `datasets`  published facts about every data set (`SPECS`)
2. `backbones` published facts about the backbones (`BACKBONES`)
3. `settings`  the base of all settings: strict, frozen, one-line errors (`Settings`, `ConfigError`)
4. `schema`    the settings and their ranges (`Config`, one subclass per method, `Diagnosis`, `Glyphs`)
5. `places`    the folders and files that they name (`check_root`, `check_split_file`)
6. `presets`   their values by preset, method and data set (`resolve`)
7. `options`   the command-line options made from them (`add_config_arguments`)
"""

from eagc_ops.training.config.datasets import DATASETS, SPECS, Spec
from eagc_ops.training.config.options import (
    add_config_arguments,
    as_options,
    config_from_arguments,
    recipe_of,
)
from eagc_ops.training.config.presets import NULL, PRESETS, preset_values, resolve
from eagc_ops.training.config.schema import (
    CONFIGS,
    Config,
    Diagnosis,
    Glyphs,
    LegoGCDConfig,
    SelExConfig,
    SimGCDConfig,
    Sizes,
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
    "NULL",
    "PRESETS",
    "SPECS",
    "Config",
    "ConfigError",
    "Diagnosis",
    "Glyphs",
    "LegoGCDConfig",
    "SPTNetConfig",
    "SelExConfig",
    "Settings",
    "SimGCDConfig",
    "Sizes",
    "Spec",
    "add_config_arguments",
    "as_options",
    "config_class",
    "config_from_arguments",
    "from_json",
    "preset_values",
    "recipe_of",
    "register_config",
    "resolve",
]
