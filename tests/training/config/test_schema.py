"""The settings: types, ranges, errors of one line, strict JSON, new methods, and imports."""

import ast
import json
import math
import pickle
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from eagc_ops.training import config as room
from eagc_ops.training.config import (
    CONFIGS,
    MACHINE,
    Config,
    ConfigError,
    Diagnosis,
    Settings,
    SimGCDConfig,
    config_class,
    from_json,
    preset_values,
    register_config,
    resolve,
)
from eagc_ops.training.methods import METHODS, register

# Errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lambda_q": 1}, "lambda_q is not a setting of simgcd; did you mean lambda_"),
        ({"epochs": "200"}, "epochs must be a whole number, got '200'"),
        ({"epochs": 2.0}, "epochs must be a whole number, got 2.0"),
        ({"epochs": True}, "epochs must be a whole number, got True"),
        ({"eagc": 1}, "eagc must be true or false, got 1"),
        ({"lambda_p": True}, "lambda_p must be a number, got True"),
        ({"energy_momentum": "none"}, "energy_momentum must be a number or none, got 'none'"),
        ({"energy_momentum": 1.0}, "energy_momentum must be < 1, got 1.0"),
        ({"head_lr": 0}, "head_lr must be > 0, got 0"),
        ({"lambda_p": -1.0}, "lambda_p must be >= 0, got -1.0"),
        ({"lambda_p": math.nan}, "lambda_p must be a finite number, got nan"),
        ({"aperture": math.inf}, "aperture must be a finite number, got inf"),
        ({"anchor": "median"}, "anchor must be one of mean, sum, got 'median'"),
        ({"mlp_head_layers": 3}, "mlp_head_layers must be <= 2, got 3"),
        ({"accumulation": 3}, "accumulation=3 does not divide batch_size=128; choose a divisor"),
        ({"subspace": "svd"}, "subspace must be one of conceptor, pca, got 'svd'"),
        ({"pca_k": 0}, "pca_k must be >= 1, got 0"),
        ({"k": 0}, "k must be >= 1, got 0"),
        ({"k": "many"}, "k must be a whole number or 'estimate' or none, got 'many'"),
        ({"alignment": "kl"}, "alignment must be one of gradient, proximal, gram, relation, got 'kl'"),
        (
            {"alignment": "gram", "eagc": False},
            "alignment='gram' replaces the anchor term of EAGC, but this run does not use the operator",
        ),
        ({"alignment": "gram", "anchor": "sum"}, "anchor='sum': alignment='gram' replaces the anchor term"),
        ({"energy": "plain"}, "energy must be one of conceptor, whitened, got 'plain'"),
        (
            {"energy": "whitened", "eagc": False},
            "energy='whitened' is a setting of EAGC, but this run does not use the operator: leave it out",
        ),
        ({"energy": "whitened", "tau": "uniform"}, "energy='whitened': tau='uniform' needs no energy; leave"),
        (
            {"energy": "whitened", "subspace": "pca"},
            "energy='whitened' is fitted together with a conceptor, but this run has subspace='pca'; leave",
        ),
        ({"reference_blocks": 0}, "reference_blocks must be >= 1, got 0"),
        ({"diagnose": {"step": 3}}, "diagnose.step is not a setting of Diagnosis; did you mean steps?"),
        ({"diagnose": {"every": 0}}, "diagnose.every must be >= 1, got 0"),
        ({"diagnose": {"parameters": "some"}}, "diagnose.parameters must be one of block, all, got 'some'"),
        (
            {"diagnose": "every=2"},
            "diagnose must be an object with the keys every, steps, parameters, k or none, got 'every=2'",
        ),
        ({"diagnose": {}, "accumulation": 2}, "accumulation=2: the diagnosis compares gradients"),
        ({"seed": 2**63}, "seed must be <= 9223372036854775807, got 9223372036854775808"),
        ({"lr_floor": 5.0}, "lr_floor must be <= 1, got 5.0"),
        (
            {"backbone_lr": 1e-4, "head_lr": 1.0},
            "lr_floor=0.001 x head_lr=1 is more than backbone_lr=0.0001: the encoder's learning rate would "
            "rise; lower lr_floor to 0.0001 or less",
        ),
        ({"accumulation": 128}, "accumulation=128 leaves 1 image of batch_size=128 in a micro-batch"),
        ({"sup_weight": 1.5}, "sup_weight must be <= 1, got 1.5"),
        ({"workers": 1000}, "workers must be <= 256, got 1000"),
        ({"image_size": 5000}, "image_size must be <= 4096, got 5000"),
        ({"cache_views": 1001}, "cache_views must be <= 1000, got 1001"),
        ({"root": ""}, "root is empty: name a path, or leave it out"),
        ({"method": "simgdc"}, "method must be one of "),
        ({"preset": "best"}, "preset must be one of baseline, paper, release, recommended, got 'best'"),
        ({"dataset": "birds"}, "dataset must be one of cifar10, "),
    ],
    ids=str,
)
def test_ill_typed_and_unknown_values_are_named(change, message):
    with pytest.raises(ConfigError) as error:
        from_json({**resolve("simgcd", "cub", "paper").to_json(), **change})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_group_of_settings_is_checked_on_its_own_too():
    with pytest.raises(ConfigError, match=r"^every must be >= 1, got 0$"):
        Diagnosis(every=0)


def test_unknown_names_are_reported_before_wrong_values():
    with pytest.raises(ConfigError, match=r"^epoch is not a setting of simgcd; did you mean epochs"):
        resolve("simgcd", lambda_p=-1.0, epoch=3)


def test_a_changed_copy_is_checked_again():
    config = resolve("simgcd", "cub")
    assert config.replace(lambda_p=0.25).lambda_p == 0.25
    assert config.replace(diagnose={"every": 3}).diagnose == Diagnosis(every=3)
    with pytest.raises(ConfigError, match="lambda_p must be >= 0"):
        config.replace(lambda_p=-0.25)


def test_settings_cannot_be_assigned():
    config = resolve()
    with pytest.raises(ValueError, match="frozen"):
        config.epochs = 3


# JSON and the machine ------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["baseline", "paper", "release", "recommended"])
@pytest.mark.parametrize("diagnose", [None, Diagnosis(every=10, steps=200)], ids=["plain", "diagnosed"])
def test_json_round_trip(preset, diagnose):
    config = resolve("simgcd", "aircraft", preset, seed=3, root="/somewhere", diagnose=diagnose)
    again = from_json(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert type(again) is type(config)


def test_a_diagnosis_is_nested_in_the_json():
    nested = {"every": 10, "steps": None, "parameters": "block", "k": 16}
    assert resolve(diagnose=Diagnosis(every=10)).to_json()["diagnose"] == nested


def test_a_missing_key_and_no_object_are_errors():
    values = resolve().to_json()
    del values["tau"]
    with pytest.raises(ConfigError, match="lacks tau"):
        from_json(values)
    with pytest.raises(ConfigError, match="JSON object"):
        from_json([1])


def test_a_configuration_reaches_other_processes():
    config = resolve("sptnet", diagnose=Diagnosis(k=4))
    assert pickle.loads(pickle.dumps(config)) == config


def test_settings_of_the_machine():
    common = {
        "root",
        "split_file",
        "skip_unreadable",
        "weights",
        "device",
        "workers",
        "pixel_cache",
        "trunk_cache",
        "log_every",
    }
    common |= {"checkpoint_every", "checkpoint_epochs", "tensorboard_every", "diagnose"}
    for method in ("simgcd", "legogcd", "selex"):
        assert set(config_class(method).machine_settings()) == common
    assert set(config_class("sptnet").machine_settings()) == {*common, "init"}


def test_a_recipe_leaves_the_machine_out_and_nothing_else():
    config = resolve("sptnet", "cub", root="a", workers=3, diagnose=Diagnosis())
    recipe = config.recipe()
    assert recipe == resolve("sptnet", "cub", init="b").recipe()
    assert config.to_json().keys() - recipe.keys() == set(config.machine_settings())


def test_every_field_has_a_help_text():
    groups = [*CONFIGS.values(), Config, Diagnosis]
    assert all(field.description for cls in groups for field in cls.model_fields.values())
    assert Config.help_texts()["epochs"] == "epochs of GCD training"


# Methods that are not built in ---------------------------------------------------------------------------


@pytest.fixture
def mine():
    """The configuration of the method "new", with a setting, a place and a recipe of its own."""

    class MyConfig(SimGCDConfig):
        strength: float = Field(0.5, ge=0, description="strength of the new term")
        cache: Annotated[str | None, MACHINE] = Field(None, description="where the new term is kept")

    @preset_values(MyConfig)
    def values(preset, dataset, backbone):
        return {"strength": 2.0 if preset == "release" else 1.0}

    register_config("new", MyConfig)
    yield MyConfig
    del CONFIGS["new"]


def test_a_new_method_has_its_own_settings_and_recipe(mine):
    config = resolve("new", "cub", "release")
    assert type(config) is mine
    assert (config.strength, config.memax_weight, config.warm_start) == (2.0, 1.0, True)
    assert from_json(config.to_json()) == config
    assert "cache" in config.machine_settings()


def test_registering_a_method_makes_its_configuration_known(mine):
    class Newest(METHODS["simgcd"]):
        Config = mine

    try:
        assert register("newest")(Newest) is METHODS["newest"]
        assert config_class("newest") is mine
    finally:
        METHODS.pop("newest", None)
        CONFIGS.pop("newest", None)


def test_a_subclass_without_a_recipe_has_that_of_its_base(mine):
    class Derived(mine):
        pass

    register_config("derived", Derived)
    try:
        assert resolve("derived", "cub", "paper").strength == 1.0
    finally:
        del CONFIGS["derived"]


def test_the_name_of_a_method_cannot_change_its_configuration(mine):
    register_config("new", mine)
    with pytest.raises(ValueError, match="method 'simgcd' already has the configuration SimGCDConfig"):
        register_config("simgcd", mine)


def test_a_setting_without_a_default_must_be_set():
    class Demanding(Settings):
        size: int

    with pytest.raises(ConfigError, match="size is missing"):
        Demanding()


# Imports -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(Path(room.__file__).parent.glob("*.py")), ids=lambda file: file.stem)
def test_the_room_imports_only_itself_pydantic_and_the_standard_library(file):
    """So that --help and wrong options need not wait for torch, timm or scikit-learn."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            top = module.split(".")[0]
            own = module.startswith(("eagc_ops.training.config", "eagc_ops.app."))
            assert own or top in {*sys.stdlib_module_names, "pydantic", "typing_extensions"}, module
