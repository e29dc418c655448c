"""Presets against the published tables, strict JSON, and options generated from the fields."""

import argparse
import dataclasses
import json
import math

import pytest

from eagc_ops.training.config import (
    Config,
    ConfigError,
    add_config_arguments,
    config_from_arguments,
    from_json,
    read_diagnosis,
    resolve,
)
from eagc_ops.training.methods import METHODS
from eagc_ops.training.models.optimization import cosine

DATASETS = ("cub", "scars", "aircraft", "cifar100", "imagenet100", "herbarium19")


def column(preset, field, **switches):
    return [getattr(resolve("simgcd", dataset, preset, **switches), field) for dataset in DATASETS]


def test_presets_of_the_published_tables():
    assert column("baseline", "memax_weight") == column("paper", "memax_weight") == [2, 1, 1, 4, 1, 1]
    assert column("release", "memax_weight") == [1, 1, 1, 2, 1, 1]
    assert column("release", "lambda_p") == [0.5, 3.0, 3.0, 0.5, 0.5, 0.5]
    assert (
        column("release", "lambda_p", backbone="dinov2_vitb14_reg4")
        == column("paper", "lambda_p")
        == [0.5] * 6
    )
    assert column("release", "reference_epochs") == [30, 30, 30, 3, 30, 30]
    assert column("paper", "reference_batch_size") == [32, 32, 32, 128, 128, 32]


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        (
            "baseline",
            {"eagc": False, "warm_start": False, "mlp_head_layers": 0, "head_lr": 0.1, "headline": "last"},
        ),
        (
            "paper",
            {
                "eagc": True,
                "warm_start": False,
                "mlp_head_layers": 0,
                "head_lr": 1.0,
                "energy_momentum": None,
                "headline": "last",
            },
        ),
        (
            "release",
            {
                "eagc": True,
                "warm_start": True,
                "mlp_head_layers": 1,
                "head_lr": 1.0,
                "energy_momentum": 0.95,
                "headline": "best",
            },
        ),
    ],
)
def test_preset_switches(preset, expected):
    config = dataclasses.asdict(resolve("simgcd", "cub", preset))
    common = {
        "lambda_a": 0.7,
        "aperture": 2.0,
        "anchor": "mean",
        "backbone_lr": 0.1,
        "weight_decay": 5e-5,
        "momentum": 0.9,
        "epochs": 200,
    }
    common |= {
        "batch_size": 128,
        "reference_lr": 0.02,
        "reference_weight_decay": 1e-4,
        "sup_weight": 0.35,
        "precision": "no",
    }
    assert {name: config[name] for name in {**common, **expected}} == {**common, **expected}


def test_switches_win_over_preset_and_dataset():
    config = resolve("simgcd", "digits", "release", head_lr=0.5, lambda_p=0.0, warm_start=False)
    assert (config.head_lr, config.lambda_p, config.warm_start, config.mlp_head_layers) == (
        0.5,
        0.0,
        False,
        0,
    )


def test_no_eagc_changes_nothing_but_the_operator():
    on, off = (dataclasses.asdict(resolve("simgcd", "scars", "release", eagc=eagc)) for eagc in (True, False))
    assert {name for name in on if on[name] != off[name]} == {"eagc"}


@pytest.mark.parametrize("preset", ["baseline", "paper", "release"])
def test_json_round_trip(preset):
    config = resolve("simgcd", "aircraft", preset, seed=3, root="/somewhere")
    again = from_json(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert type(again) is type(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lambda_q": 1}, "lambda_q is not a setting of simgcd; did you mean lambda_"),
        ({"epochs": "200"}, "epochs='200': expected a whole number, got str"),
        ({"epochs": 2.0}, "epochs=2.0: expected a whole number, got float"),
        ({"epochs": True}, "epochs=True: expected a whole number, got bool"),
        ({"eagc": 1}, "eagc=1: expected true or false"),
        ({"energy_momentum": "none"}, "energy_momentum='none': expected a number or none"),
        ({"energy_momentum": 1.0}, "energy_momentum=1.0: expected a value < 1"),
        ({"head_lr": 0}, "head_lr=0: expected a value > 0"),
        ({"lambda_p": math.nan}, "lambda_p=nan: expected a value >= 0"),
        ({"aperture": math.inf}, "aperture=inf: expected a finite number"),
        ({"anchor": "median"}, "anchor='median': choose from mean, sum"),
        ({"mlp_head_layers": 3}, "mlp_head_layers=3"),
        ({"accumulation": 3}, "accumulation=3 does not divide batch_size=128"),
        ({"subspace": "svd"}, "subspace='svd': choose from conceptor, pca"),
        ({"pca_k": 0}, "pca_k=0: expected a value >= 1"),
        ({"alignment": "kl"}, "alignment='kl': choose from gradient, proximal, gram, relation"),
        (
            {"alignment": "gram", "eagc": False},
            "alignment='gram' stands in for the anchor term of EAGC, but the operator takes no part",
        ),
        ({"alignment": "gram", "anchor": "sum"}, "anchor='sum': alignment='gram' replaces the anchor term"),
        ({"reference_blocks": 0}, "reference_blocks=0: expected a value >= 1"),
        (
            {"diagnose": "every=2 step=3"},
            "diagnose='every=2 step=3': 'step=3' is none of every=N, steps=N, parameters=block.all, k=N",
        ),
        ({"diagnose": ""}, "diagnose='': '' is none of every=N"),
        ({"diagnose": "every=1", "accumulation": 2}, "accumulation=2: gradients of one whole batch"),
        ({"method": "simgdc"}, "method='simgdc': choose from"),
        ({"preset": "best"}, "preset='best': choose from"),
    ],
)
def test_ill_typed_and_unknown_values_are_named(change, message):
    with pytest.raises(ConfigError, match="^" + message.replace("(", r"\(").replace("[", r"\[")):
        from_json({**resolve("simgcd", "cub", "paper").to_json(), **change})


def test_a_missing_key_and_no_object_are_errors():
    values = resolve().to_json()
    del values["tau"]
    with pytest.raises(ConfigError, match="lacks tau"):
        from_json(values)
    with pytest.raises(ConfigError, match="JSON object"):
        from_json([1])


def parse(*arguments):
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    return config_from_arguments(parser.parse_args(arguments))


def test_options_become_a_configuration():
    recipe = ["--dataset", "scars", "--preset", "release", "--no-eagc"]
    config = parse(*recipe, "--energy-momentum", "none", "--head-lr", "0.3", "--memax-weight", "2")
    expected = resolve(
        "simgcd", "scars", "release", eagc=False, energy_momentum=None, head_lr=0.3, memax_weight=2.0
    )
    assert config == expected
    assert parse() == resolve()


def test_the_words_of_a_diagnosis_become_one_text():
    assert parse("--diagnose", "every=10", "steps=200", "--epochs", "3") == resolve(
        diagnose="every=10 steps=200", epochs=3
    )
    assert parse("--diagnose", "k=8 every=2").diagnose == "k=8 every=2"
    assert parse("--diagnose", "none") == resolve()
    assert read_diagnosis("parameters=all every=10") == (10, None, "all", 16)


@pytest.mark.parametrize(
    "arguments", [["--epochs", "many"], ["--anchor", "median"], ["--method", "none"], ["--lambda-q", "1"]]
)
def test_wrong_options_end_with_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        parse(*arguments)
    assert error.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_help_shows_every_field_with_its_default():
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    text = " ".join(parser.format_help().split())
    names = {f.name for method in METHODS.values() for f in dataclasses.fields(method.Config)}
    assert all("--" + name.replace("_", "-") in text for name in names)
    assert "[by preset and data set: 0.1 | 1.0]" in text
    assert "[0.7]" in text


def test_cosine_is_the_closed_form_of_pytorchs_schedule():
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([{"params": [parameter], "lr": 0.1}])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=200, eta_min=1e-3)
    for epoch in range(200):
        assert cosine(epoch, 200, 0.1, 1e-3) == pytest.approx(sgd.param_groups[0]["lr"], rel=1e-9)
        sgd.step()
        schedule.step()


@pytest.mark.parametrize(("preset", "head", "floor"), [("baseline", 0.1, 1e-4), ("release", 1.0, 1e-3)])
def test_learning_rates_of_the_presets(preset, head, floor):
    from eagc_ops.training.methods import Problem

    config = resolve("simgcd", "cub", preset)
    method = METHODS["simgcd"](config, Problem(8, 2, 4, 10))
    for initial in (config.backbone_lr, config.head_lr):
        for epoch in (0, 1, 77, 199):
            expected = floor + (initial - floor) * (1 + math.cos(math.pi * epoch / 200)) / 2
            assert method.learning_rate(initial, epoch, position=5) == pytest.approx(expected, rel=1e-12)
    assert (config.backbone_lr, config.head_lr) == (0.1, head)


def test_every_field_has_a_help_text():
    assert all(f.metadata["help"] for f in dataclasses.fields(Config))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--eagc"], {"eagc": True}),
        (["--no-eagc"], {"eagc": False}),
        (["--eagc", "init"], {"eagc": True, "sptnet_eagc": "init"}),
        (["--eagc", "on", "--epochs", "3"], {"eagc": True, "sptnet_eagc": "on", "epochs": 3}),
    ],
    ids=" ".join,
)
def test_eagc_may_say_which_of_sptnets_two_ways_is_meant(words, expected):
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    assert vars(parser.parse_args(words)) == expected
    if "sptnet_eagc" in expected:
        with pytest.raises(ConfigError, match="sptnet_eagc is not a setting of simgcd"):
            config_from_arguments(parser.parse_args(words))
