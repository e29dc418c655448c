"""The presets against the published tables."""

import math

import pytest

from eagc_ops.training.config import SPECS, resolve
from eagc_ops.training.config.legogcd import LEGOGCD_MEMAX, THRESHOLD
from eagc_ops.training.config.presets import BY_DATASET
from eagc_ops.training.config.selex import EMBEDDING_DIM, MLP_HEAD_RELEASE, SMOOTHING, TRAINABLE_BLOCKS
from eagc_ops.training.config.simgcd import LAMBDA_P_RELEASE, SIMGCD_MEMAX, SIMGCD_MEMAX_RELEASE
from eagc_ops.training.config.sptnet import CLASSIFIER_LR, PROMPT_LR, SPTNET_BY_DATASET, SPTNET_MEMAX
from eagc_ops.training.methods import METHODS, Problem
from eagc_ops.training.models.optimization import cosine

DATASETS = ("cub", "scars", "aircraft", "cifar100", "imagenet100", "herbarium19")


def column(preset, field, **switches):
    return [getattr(resolve("simgcd", dataset, preset, **switches), field) for dataset in DATASETS]


def test_memax_weight_is_that_of_the_published_tables():
    assert column("baseline", "memax_weight") == column("paper", "memax_weight") == [2, 1, 1, 4, 1, 1]
    assert column("release", "memax_weight") == [1, 1, 1, 2, 1, 1]


def test_lambda_p_is_that_of_the_published_tables():
    assert column("release", "lambda_p") == [0.5, 3.0, 3.0, 0.5, 0.5, 0.5]
    with_dinov2 = column("release", "lambda_p", backbone="dinov2_vitb14_reg4")
    assert with_dinov2 == column("paper", "lambda_p") == [0.5] * 6


def test_the_reference_model_is_that_of_the_published_tables():
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
    config = resolve("simgcd", "cub", preset).to_json()
    common = {
        "lambda_a": 0.7,
        "aperture": 2.0,
        "anchor": "mean",
        "backbone_lr": 0.1,
        "weight_decay": 5e-5,
        "momentum": 0.9,
        "epochs": 200,
        "batch_size": 128,
        "reference_lr": 0.02,
        "reference_weight_decay": 1e-4,
        "sup_weight": 0.35,
        "precision": "no",
    }
    assert {name: config[name] for name in {**common, **expected}} == {**common, **expected}


def test_switches_win_over_preset_and_dataset():
    config = resolve("simgcd", "digits", "release", head_lr=0.5, lambda_p=0.0, warm_start=False)
    assert (config.head_lr, config.lambda_p, config.warm_start) == (0.5, 0.0, False)
    assert config.mlp_head_layers == 0  # the data set's, not the preset's


def test_no_eagc_changes_nothing_but_the_operator():
    on, off = (resolve("simgcd", "scars", "release", eagc=eagc).to_json() for eagc in (True, False))
    assert {name for name in on if on[name] != off[name]} == {"eagc"}


def test_tables_name_data_sets_that_exist():
    tables = (BY_DATASET, SIMGCD_MEMAX, SIMGCD_MEMAX_RELEASE, LAMBDA_P_RELEASE, THRESHOLD, LEGOGCD_MEMAX)
    tables += (SPTNET_MEMAX, PROMPT_LR, CLASSIFIER_LR, SPTNET_BY_DATASET)
    tables += (SMOOTHING, MLP_HEAD_RELEASE, TRAINABLE_BLOCKS, EMBEDDING_DIM)
    assert all(table.keys() <= SPECS.keys() for table in tables)


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
    config = resolve("simgcd", "cub", preset)
    method = METHODS["simgcd"](config, Problem(8, 2, 4, 10))
    for initial in (config.backbone_lr, config.head_lr):
        for epoch in (0, 1, 77, 199):
            expected = floor + (initial - floor) * (1 + math.cos(math.pi * epoch / 200)) / 2
            assert method.learning_rate(initial, epoch, position=5) == pytest.approx(expected, rel=1e-12)
    assert (config.backbone_lr, config.head_lr) == (0.1, head)


def test_the_recommended_recipe_is_that_of_the_paper_but_for_its_start_and_the_rate_of_the_encoder():
    for method in ("simgcd", "legogcd", "selex"):
        paper, ours = (resolve(method, "cub", preset).recipe() for preset in ("paper", "recommended"))
        differing = {name: value for name, value in ours.items() if value != paper[name]}
        assert differing == {"preset": "recommended", "backbone_lr": 0.03, "warm_start": True}
    paper, ours = (resolve("sptnet", "cub", preset).recipe() for preset in ("paper", "recommended"))
    assert {name for name in ours if ours[name] != paper[name]} == {"preset"}  # its own start and rates
