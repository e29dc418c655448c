"""The paper's tables as data: which rows a table has, what each row trains, on which data sets. `plan` makes runs of them.

A row that the paper prints under a method's name is that method's own recipe (preset "baseline"): the paper quotes those numbers. The
rows below it follow the recipe that came with EAGC (preset "release", or "paper"), which changes more than the operator. Rows named
"recipe of + EAGC" are not in the paper: the same recipe without the operator, the fair baseline, against which differences are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eagc_ops.files import fingerprint
from eagc_ops.training.config import Config, resolve
from eagc_ops.training.data import SPECS
from eagc_ops.training.paper.values import ESTIMATED_K

NAMES = {"simgcd": "SimGCD", "legogcd": "LegoGCD", "sptnet": "SPTNet", "selex": "SelEx"}
SCORES, BEST = ("all", "old", "new"), ("best_all", "best_old", "best_new")
DIGITS = {"epochs": 6}  # instead of the preset's 20: the tables of `digits` show the mechanics, in minutes
DEPTH = {"vit_digits": 4}  # blocks of a backbone; 12 elsewhere
AVERAGE = "Avg. Δ"


class Row(NamedTuple):
    """A row, and what it trains. The paper's values are found under `key`."""

    key: str
    title: str
    method: str | None = None  # None: that of the column group; "": not trained here, only quoted
    preset: str | None = None  # None: the one chosen for the table
    switches: Mapping[str, Any] = {}
    marks: tuple[str, ...] = ()  # under the table's `heads`
    against: tuple[str, ...] = ()  # rows that its paired differences are taken to
    ours: bool = False  # not in the paper

    @property
    def start(self) -> str | None:
        """Key of the row whose run this one starts from: SPTNet starts from a trained SimGCD."""
        return self.key.replace("SPTNet", "SimGCD") if self.method == "sptnet" else None


class Group(NamedTuple):
    """A group of columns: a data set, or a method on it."""

    title: str
    dataset: str
    method: str | None = None


class Table(NamedTuple):
    caption: str
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = SCORES  # of every group, by names of `report.measures`, in the paper's order
    beside: tuple[str, ...] = BEST  # measured too; in a table of their own
    switches: Mapping[str, Any] = {}  # of all rows
    by_dataset: Mapping[str, Mapping[str, Any]] = {}  # "" holds those of other data sets
    first: str = "Method"  # heading of the column of titles
    heads: tuple[str, ...] = ()  # of columns before the values
    steps: int | None = None  # optimiser steps that are enough; None: the preset's epochs
    average: bool = False  # a last group with the mean over data sets
    note: str = ""

    def groups_of(self, dataset: str) -> list[Group]:
        """Its groups for a data set, also one that the paper has none for."""
        own = [group for group in self.groups if group.dataset == dataset]
        if own:
            return own
        methods = dict.fromkeys(group.method for group in self.groups)
        return [
            Group(" ".join(filter(None, (SPECS[dataset].title, NAMES.get(method)))), dataset, method)
            for method in methods
        ]


class Run(NamedTuple):
    """One run of a plan."""

    row: Row
    group: Group
    seed: int
    config: Config
    folder: Path


def plan(
    table: Table, dataset: str, home: Path, *, preset: str, seeds: Sequence[int], given: Mapping[str, Any], machine: Mapping[str, Any]
) -> list[Run]:  # fmt: skip
    """All runs of a table on one data set, rows first, those that others start from before them.

    `given`: settings for every run (epochs); `machine`: settings that change no number (paths, device). The folder's name holds a
    fingerprint of the recipe, so that tables share runs: `SelEx + EAGC` on CUB is trained once for six of them.
    """
    runs: list[Run] = []
    for row in (row for row in table.rows if row.method != ""):
        for group in table.groups_of(dataset):
            recipe = configuration(table, row, group, preset, given)
            if max(recipe.trainable_blocks, recipe.blocks_of_reference) > DEPTH.get(recipe.backbone, 12):
                continue  # the backbone has not as many blocks
            for seed in seeds:
                start = next(
                    (
                        run.folder
                        for run in runs
                        if (run.row.key, run.group, run.seed) == (row.start, group, seed)
                    ),
                    None,
                )
                stem = fingerprint([recipe.to_json(), start and start.name.rpartition("-")[0]])[:8]
                folder = home / "runs" / f"{dataset}-{recipe.method}-{stem}-seed{seed}"
                places = {**machine, **({"init": str(start), "trunk_cache": None} if start else {})}
                if places.get("trunk_cache"):
                    places["trunk_cache"] += (
                        f"-{recipe.backbone}-{recipe.trainable_blocks}-{recipe.blocks_of_reference}"
                    )
                runs.append(Run(row, group, seed, recipe.replace(seed=seed, **places), folder))
    return runs


def configuration(table: Table, row: Row, group: Group, preset: str, given: Mapping[str, Any]) -> Config:
    """The recipe of a row: seed and settings of the machine are at their defaults."""
    dataset, method = group.dataset, row.method or group.method
    switches = {
        **(DIGITS if dataset == "digits" else {}),
        **table.switches,
        **table.by_dataset.get(dataset, table.by_dataset.get("", {})),
    }
    config = resolve(method, dataset, row.preset or preset, **{**switches, **row.switches, **given})
    if table.steps and "epochs" not in given and SPECS[dataset].train:
        return config.replace(epochs=math.ceil(table.steps / steps_per_epoch(config)))
    return config


def steps_per_epoch(config: Config) -> int:
    """By the published number of images; 0 where nothing is published."""
    return SPECS[config.dataset].train // config.batch_size


# The rows that come again and again --------------------------------------------------------------------------------------------------


def _baseline(method: str, marks: tuple[str, ...] = ()) -> Row:
    return Row(NAMES[method], NAMES[method], method, "baseline", marks=marks)


def _recipe(method: str, marks: tuple[str, ...] = ()) -> Row:
    name = NAMES[method]
    return Row(
        f"{name} recipe",
        f"{name}, recipe of + EAGC",
        method,
        switches={"eagc": False},
        marks=marks,
        against=(name,),
        ours=True,
    )


def _eagc(method: str, title: str = "+ EAGC", marks: tuple[str, ...] = (), **switches: Any) -> Row:
    name = NAMES[method]
    return Row(
        f"{name} {title}", title, method, switches=switches, marks=marks, against=(name, f"{name} recipe")
    )


def _pairs(*methods: str) -> tuple[Row, ...]:
    return tuple(row for method in methods for row in (_baseline(method), _recipe(method), _eagc(method)))


def _alone(method: str, title: str, **switches: Any) -> Row:
    """A change of recipe that came with EAGC, alone on the method's own recipe."""
    name = NAMES[method]
    return Row(
        f"{name} {title}", f"{name}, {title}", method, "baseline", switches, ("x", "x"), (name,), ours=True
    )


def _parts(method: str, mlp_head_layers: int) -> tuple[Row, ...]:
    return (
        _baseline(method, ("x", "x")),
        _alone(method, "warm start alone", warm_start=True),
        _alone(method, "MLP head alone", mlp_head_layers=mlp_head_layers),
        _recipe(method, ("x", "x")),
        _eagc(method, "I", ("✓", "x"), lambda_p=0.0),
        _eagc(method, "II", ("x", "✓"), lambda_a=0.0),
        _eagc(method, "+ EAGC", ("✓", "✓")),
    )


def _ours(title: str = "Ours") -> Row:
    return _eagc("selex")._replace(title=title, against=())


def _instead(title: str, **switches: Any) -> Row:
    """SelEx + EAGC with something of it replaced."""
    return Row(title, title, "selex", switches=switches, against=("SelEx + EAGC",))


def _sweep(name: str, symbol: str, values: Iterable[float]) -> tuple[Row, ...]:
    return tuple(
        Row(f"{name}={value}", f"{symbol} = {value}", "simgcd", switches={name: value}) for value in values
    )


def _reference(name: str, values: Mapping[str, int | None], used: str) -> tuple[Row, ...]:
    return tuple(
        Row(v, v, "simgcd", switches={name: value}, against=(used,) if v != used else ())
        for v, value in values.items()
    )


CUB, CARS, AIRCRAFT = Group("CUB", "cub"), Group("Stanford Cars", "scars"), Group("Aircraft", "aircraft")
CARS_HYPHEN = Group("Stanford-Cars", "scars")  # the paper writes both
CIFAR100, IMAGENET100 = Group("CIFAR-100", "cifar100"), Group("ImageNet-100", "imagenet100")
QUOTED = tuple(
    Row(n, n, "")
    for n in ("ORCA", "GCD", "GPC", "XCon", "PromptCAL", "DCCL", "μGCD", "InfoSieve", "AMEND", "CMS")
)
WITH_LOSS = ("reference_cross_entropy", *SCORES)

TABLES: dict[str, Table] = {
    "main": Table(
        "Comparison with state-of-the-art GCD methods", (CUB, CARS_HYPHEN, AIRCRAFT, CIFAR100, IMAGENET100),
        (*QUOTED, *_pairs("simgcd", "legogcd", "sptnet", "selex")), average=True,
        note="SPTNet starts from the SimGCD run of the same kind and seed. Rows that nothing is trained for are quoted.",
    ),
    "dinov2": Table(
        "Comparison with DINOv2 as the backbone", (CUB, CARS, AIRCRAFT), _pairs("simgcd", "selex"),
        switches={"backbone": "dinov2_vitb14_reg4"},
    ),
    "ablation": Table(
        "Ablation study of the proposed components. AGA: anchor-based gradient alignment; EEP: energy-aware elastic projection",
        (CUB, CARS_HYPHEN), (*_parts("simgcd", 1), *_parts("selex", 2)), heads=("AGA", "EEP"),
    ),
    "entanglement": Table(
        "Gradient Deviation Coefficient (GDC) and Subspace Overlap Coefficient (SOC)", (CUB, CARS, AIRCRAFT),
        _pairs("simgcd", "legogcd", "selex"), columns=("gdc_release", "soc_release"),
        beside=("gdc_clean", "soc_paper", "rho_grad", "rho_in", "cos_known", "cos_novel", *SCORES),
        # The released protocol: no MLP head, head learning rate 0.1, lambda_p 0.5 everywhere, the first 200 steps. Its learning rate
        # follows a cosine over 200 epochs, which has hardly left its start by then: a floor of 1 keeps it there.
        switches={"mlp_head_layers": 0, "head_lr": 0.1, "lambda_p": 0.5, "lr_floor": 1.0}, steps=200,
        note="Means over the first 200 steps (on digits: of every tenth). GDC and SOC as the released code computes them: GDC over the "
        "last block with the operator in both gradients, SOC with unit-norm centred features and k = 16. GDC clean compares the pure "
        "supervised gradient with the one applied; SOC of the paper's formula takes raw features. Learning rate constant at its start.",
    ),
    "projection": Table(
        "Evaluation of the gradient projection strategy based on SelEx. w/o EEP: all unlabelled gradients are projected alike",
        (CUB, CARS, AIRCRAFT), (_instead("w/o EEP", tau="uniform"), _ours()),
    ),
    "subspace": Table(
        "Subspace construction strategies. PCA-K: a hard subspace of the top K principal components of labelled data", (CUB, CARS),
        (*(_instead(f"PCA-{k}", subspace="pca", pca_k=k) for k in (16, 32, 64)), _ours()),
    ),
    "hyper": Table(
        "Effects of the aperture η and of the projection strengths λa and λp (SimGCD + EAGC)", (CUB,),
        (*_sweep("aperture", "η", (0.5, 1.0, 2.0, 3.0, 4.0)), *_sweep("lambda_a", "λa", (0.1, 0.3, 0.5, 0.7, 0.9)),
         *_sweep("lambda_p", "λp", (0.1, 0.3, 0.5, 0.7, 0.9))),
        switches={"aperture": 2.0, "lambda_a": 0.7, "lambda_p": 0.5},
        note="One of the three varies, the others stay at η = 2.0, λa = 0.7, λp = 0.5. The paper draws curves and prints no numbers; the "
        "values of λa and λp are ours.",
    ),
    "overhead": Table("Computational overhead", (CUB, Group("IN-100", "imagenet100")), ()),  # measured by `eagc bench overhead`
    "herbarium": Table(
        "Extended results on the long-tailed Herbarium19 dataset",
        (Group("SimGCD", "herbarium19", "simgcd"), Group("SelEx", "herbarium19", "selex")),
        (Row("Baseline", "Baseline", preset="baseline"),
         Row("Baseline recipe", "Baseline, recipe of + EAGC", switches={"eagc": False}, against=("Baseline",), ours=True),
         Row("Baseline + EAGC", "+ EAGC", against=("Baseline", "Baseline recipe"))),
    ),
    "unknown-k": Table(
        "Comparison without the number of categories K", (CUB, CARS, IMAGENET100), _pairs("simgcd", "selex"),
        by_dataset={**{name: {"k": k} for name, k in ESTIMATED_K.items()}, "": {"k": "estimate"}},
        note="K as the paper estimated it: 231 (CUB), 230 (Stanford Cars), 108 (ImageNet-100); elsewhere estimated before training.",
    ),
    "reference-batch": Table(
        "Effect of batch size for training the reference model (SimGCD + EAGC)", (CUB, CARS, AIRCRAFT),
        _reference("reference_batch_size", {"32": 32, "128": 128}, "32"), WITH_LOSS, first="Batch size",
    ),
    "reference-epochs": Table(
        "Effect of the number of training epochs for the reference model (SimGCD + EAGC)", (CUB, CARS, AIRCRAFT),
        _reference("reference_epochs", {"20": 20, "30": 30, "100": 100}, "30"), WITH_LOSS, first="Training epochs",
    ),
    "reference-blocks": Table(
        "Effect of the number of unfrozen ViT blocks in the reference model (SimGCD + EAGC)", (CUB, CARS),
        _reference("reference_blocks", {"1": None, "2": 2, "3": 3, "4": 4, "5": 5}, "1"), WITH_LOSS, first="Unfrozen blocks",
    ),
    "proximal": Table(
        "Evaluation on loss-based proximal regularisation (AGA replaced by the explicit loss L'_sup)", (CUB, CARS),
        (*_pairs("selex"), _eagc("selex", "+ EAGC_loss", alignment="proximal")._replace(against=("SelEx + EAGC",))),
    ),
    "relation": Table(
        "Comparison of relation-based distillation variants and gradient-level AGA", (CUB, CARS),
        (*_pairs("selex"), *(_eagc("selex", f"+ RelDistill_{name}", alignment=alignment)._replace(against=("SelEx + EAGC",))
                             for name, alignment in (("Gram", "gram"), ("sample", "relation")))),
    ),
}  # fmt: skip
