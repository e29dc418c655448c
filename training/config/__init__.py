"""The configuration of a run. These files need neither torch nor the data, the models or the methods.

1. `datasets`  published facts about every data set (`SPECS`)
2. `backbones` published facts about the backbones (`BACKBONES`)
3. `settings`  the base of all settings: strict, frozen, one-line errors (`Settings`, `ConfigError`)
4. `schema`    the settings of every method and their ranges (`Config`, `Diagnosis`, `Glyphs`)
5. `places`    the folders and files that they name (`check_root`, `check_split_file`)
6. `presets`   their values by preset, method and data set (`resolve`)
7. `simgcd`, `legogcd`, `sptnet`, `selex`: what each method adds, settings and values together
8. `options`   the command-line options made from them (`add_config_arguments`)
"""

from eagc_ops.training.config.datasets import DATASETS, SPECS
from eagc_ops.training.config.legogcd import LegoGCDConfig
from eagc_ops.training.config.options import (
    COMMON,
    LISTED_NOW,
    add_config_arguments,
    as_options,
    config_from_arguments,
    recipe_of,
)
from eagc_ops.training.config.presets import NULL, preset_values, resolve
from eagc_ops.training.config.schema import (
    CONFIGS,
    Config,
    Diagnosis,
    Glyphs,
    Sizes,
    config_class,
    from_json,
    register_config,
)
from eagc_ops.training.config.selex import SelExConfig
from eagc_ops.training.config.settings import MACHINE, ConfigError, Settings
from eagc_ops.training.config.simgcd import SimGCDConfig
from eagc_ops.training.config.sptnet import SPTNetConfig

__all__ = [
    "COMMON",
    "CONFIGS",
    "DATASETS",
    "LISTED_NOW",
    "MACHINE",
    "NULL",
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
