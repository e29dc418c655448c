"""The paper's tables as data: their rows, with the recipe of each, and their data sets.

`plan` turns a table into runs. A row that the paper prints under a method's name is that method's own recipe
(preset "baseline"): the paper quotes those numbers. The rows below it follow the recipe that came with EAGC
(preset "release", or "paper"), which changes more than the operator. Rows named "recipe of + EAGC" are not in
the paper: they train the same recipe without the operator. They are the fair baseline for paired differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eagc_ops.app.files import fingerprint
from eagc_ops.evidence.paper.values import ESTIMATED_K
from eagc_ops.training.config import NULL, SPECS, Config, resolve
from eagc_ops.training.config.backbones import BACKBONES
from eagc_ops.training.engine.run_folder import SCORES

NAMES = {"simgcd": "SimGCD", "legogcd": "LegoGCD", "sptnet": "SPTNet", "selex": "SelEx"}
BEST, START = (tuple(f"{which}_{name}" for name in SCORES) for which in ("best", "start"))
AVERAGE = "Avg. Δ"


class Miniature(NamedTuple):
    """How a table is filled in on a small data set: it shows the mechanics, in minutes on a CPU."""

    switches: Mapping[str, Any]  # instead of the preset's
    machine: Mapping[str, Any]
    backbone: str  # its weights come with this package, or are pretrained here unless --weights names a file
    diagnose_every: int  # steps
    note: str


MINIATURES = {
    "digits": Miniature(
        switches={"epochs": 6},
        machine={"device": "cpu", "log_every": 7},  # an epoch has 14 steps
        backbone="vit_digits",
        diagnose_every=10,
        note="digits are ten classes of small drawings and show the mechanics: their numbers say nothing "
        "about the paper's data sets",
    ),
    "glyphs": Miniature(
        switches={},
        machine={"device": "cpu", "log_every": 7},  # an epoch has 14 steps
        backbone="vit_glyphs",
        diagnose_every=10,
        note="glyphs are 60 drawn characters, 10 of them known, seen by a small encoder: their numbers say "
        "nothing about photographs",
    ),
}


class PaperRow(NamedTuple):
    """A row of a table, and the runs behind it. `key` is its key in `PAPER` too."""

    key: str
    title: str
    method: str | None = None  # None: that of the column group; "": the row is quoted, and nothing is trained
    preset: str | None = None  # None: the preset chosen for the table
    switches: Mapping[str, Any] = {}
    marks: tuple[str, ...] = ()  # under the table's `heads`
    against: tuple[str, ...] = ()  # keys of the rows that its paired differences subtract
    ours: bool = False  # not in the paper
    null: bool = False  # a null run, trained on demand

    @property
    def start(self) -> str | None:
        """Key of the row whose run this one starts from: SPTNet starts from a trained SimGCD."""
        return self.key.replace("SPTNet", "SimGCD") if self.method == "sptnet" else None


class ColumnGroup(NamedTuple):
    """A group of columns: a data set, or a method on it."""

    title: str
    dataset: str
    method: str | None = None


class PaperTable(NamedTuple):
    """A table of the paper."""

    caption: str
    groups: tuple[ColumnGroup, ...]
    rows: tuple[PaperRow, ...]
    columns: tuple[str, ...] = SCORES  # of every group, by the names of `measures`, in the paper's order
    beside: tuple[str, ...] = BEST  # also measured; they have a table of their own
    switches: Mapping[str, Any] = {}  # of all rows
    by_dataset: Mapping[str, Mapping[str, Any]] = {}  # switches of a data set; "" stands for all others
    first: str = "Method"  # heading of the column of titles
    heads: tuple[str, ...] = ()  # headings of the columns of marks
    steps: int | None = None  # optimizer steps that suffice; None: the preset's epochs
    average: bool = False  # a last group with the mean over data sets
    note: str = ""

    @property
    def has_selex(self) -> bool:
        """Whether it shows accuracies of SelEx, which the release measures at the start of an epoch."""
        methods = {row.method for row in self.rows} | {group.method for group in self.groups}
        return "all" in self.columns and "selex" in methods

    def groups_of(self, dataset: str) -> list[ColumnGroup]:
        """The groups of a data set; one that is not in the paper's table gets groups of its own."""
        own = [group for group in self.groups if group.dataset == dataset]
        if own:
            return own
        methods = dict.fromkeys(group.method for group in self.groups)
        return [
            ColumnGroup(
                " ".join(filter(None, (SPECS[dataset].title, NAMES.get(method or "")))), dataset, method
            )
            for method in methods
        ]


class PlannedRun(NamedTuple):
    """One run of a plan."""

    row: PaperRow
    group: ColumnGroup
    seed: int
    config: Config
    folder: Path


def plan(
    table: PaperTable,
    dataset: str,
    home: Path,
    *,
    preset: str,
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    machine: Mapping[str, Any],
    null: bool = False,
) -> list[PlannedRun]:
    """All runs of a table on one data set, row by row; a run that others start from comes before them.

    `settings` are those of every run (epochs), `machine` those that change no number (paths, device); `null`:
    with the null runs. The
    name of a folder holds a fingerprint of the recipe, so that tables share runs: `SelEx + EAGC` on CUB is
    trained once for six.
    """
    runs: list[PlannedRun] = []
    for row in (row for row in table.rows if row.method != "" and (null or not row.null)):
        for group in table.groups_of(dataset):
            recipe = configuration(table, row, group, preset, settings)
            if max(recipe.trainable_blocks, recipe.blocks_of_reference) > BACKBONES[recipe.backbone].blocks:
                continue  # the backbone does not have so many blocks
            for seed in seeds:
                start = _folder_of(runs, row.start, group, seed)
                stem = fingerprint([recipe.to_json(), start and start.name.rpartition("-")[0]])[:8]
                folder = home / "runs" / f"{dataset}-{recipe.method}-{stem}-seed{seed}"
                places = {**machine, **({"init": str(start), "trunk_cache": None} if start else {})}
                if places.get("trunk_cache"):
                    blocks = f"{recipe.trainable_blocks}-{recipe.blocks_of_reference}"
                    places["trunk_cache"] += f"-{recipe.backbone}-{blocks}"
                runs.append(PlannedRun(row, group, seed, recipe.replace(seed=seed, **places), folder))
    return runs


def configuration(
    table: PaperTable, row: PaperRow, group: ColumnGroup, preset: str, settings: Mapping[str, Any]
) -> Config:
    """The recipe of a row; the seed and the settings of the machine have their defaults."""
    dataset = group.dataset
    switches = {
        **(MINIATURES[dataset].switches if dataset in MINIATURES else {}),
        **table.switches,
        **table.by_dataset.get(dataset, table.by_dataset.get("", {})),
        **row.switches,
        **settings,
    }
    config = resolve(row.method or group.method or "", dataset, row.preset or preset, **switches)
    if table.steps and "epochs" not in settings and SPECS[dataset].train:
        return config.replace(epochs=math.ceil(table.steps / steps_per_epoch(config)))
    return config


def steps_per_epoch(config: Config) -> int:
    """Steps per epoch by the published number of images; 0 if none is published."""
    return config.spec.train // config.batch_size


def _folder_of(runs: Sequence[PlannedRun], key: str | None, group: ColumnGroup, seed: int) -> Path | None:
    same = (run.folder for run in runs if (run.row.key, run.group, run.seed) == (key, group, seed))
    return next(same, None)


# Rows that several tables share
# --------------------------------------------------------------------------------------------------


def _baseline(method: str, marks: tuple[str, ...] = ()) -> PaperRow:
    return PaperRow(NAMES[method], NAMES[method], method, "baseline", marks=marks)


def _recipe(method: str, marks: tuple[str, ...] = ()) -> PaperRow:
    name = NAMES[method]
    return PaperRow(
        f"{name} recipe",
        f"{name}, recipe of + EAGC",
        method,
        switches={"eagc": False},
        marks=marks,
        against=(name,),
        ours=True,
    )


def _eagc(method: str, title: str = "+ EAGC", marks: tuple[str, ...] = (), **switches: Any) -> PaperRow:
    name = NAMES[method]
    return PaperRow(
        f"{name} {title}", title, method, switches=switches, marks=marks, against=(name, f"{name} recipe")
    )


def _null(method: str, marks: tuple[str, ...] = ()) -> PaperRow:
    name = NAMES[method]
    return PaperRow(
        f"{name} null",
        "null run: + EAGC, λ = 1e-4",
        method,
        switches=NULL,
        marks=marks,
        against=(f"{name} recipe",),
        ours=True,
        null=True,
    )


def _pairs(*methods: str) -> tuple[PaperRow, ...]:
    return tuple(
        row
        for method in methods
        for row in (_baseline(method), _recipe(method), _eagc(method), _null(method))
    )


def _alone(method: str, title: str, **switches: Any) -> PaperRow:
    """The method's own recipe with only one of the changes that came with EAGC."""
    name = NAMES[method]
    return PaperRow(
        f"{name} {title}", f"{name}, {title}", method, "baseline", switches, ("x", "x"), (name,), ours=True
    )


def _parts(method: str, mlp_head_layers: int) -> tuple[PaperRow, ...]:
    return (
        _baseline(method, ("x", "x")),
        _alone(method, "warm start alone", warm_start=True),
        _alone(method, "MLP head alone", mlp_head_layers=mlp_head_layers),
        _recipe(method, ("x", "x")),
        _eagc(method, "I", ("✓", "x"), lambda_p=0.0),
        _eagc(method, "II", ("x", "✓"), lambda_a=0.0),
        _eagc(method, "+ EAGC", ("✓", "✓")),
        _null(method, ("✓", "✓")),
    )


def _ours(title: str = "Ours") -> PaperRow:
    return _eagc("selex")._replace(title=title, against=())


def _instead(title: str, **switches: Any) -> PaperRow:
    """SelEx + EAGC with a part of it replaced."""
    return PaperRow(title, title, "selex", switches=switches, against=("SelEx + EAGC",))


def _sweep(name: str, symbol: str, values: Iterable[float]) -> tuple[PaperRow, ...]:
    return tuple(
        PaperRow(f"{name}={value}", f"{symbol} = {value}", "simgcd", switches={name: value})
        for value in values
    )


def _reference(name: str, values: Mapping[str, int | None], used: str) -> tuple[PaperRow, ...]:
    return tuple(
        PaperRow(v, v, "simgcd", switches={name: value}, against=(used,) if v != used else ())
        for v, value in values.items()
    )


CUB = ColumnGroup("CUB", "cub")
CARS = ColumnGroup("Stanford Cars", "scars")
CARS_HYPHEN = ColumnGroup("Stanford-Cars", "scars")  # the paper writes both
AIRCRAFT = ColumnGroup("Aircraft", "aircraft")
CIFAR100 = ColumnGroup("CIFAR-100", "cifar100")
IMAGENET100 = ColumnGroup("ImageNet-100", "imagenet100")
QUOTED = tuple(
    PaperRow(name, name, "")
    for name in ("ORCA", "GCD", "GPC", "XCon", "PromptCAL", "DCCL", "μGCD", "InfoSieve", "AMEND", "CMS")
)
WITH_LOSS = ("reference_cross_entropy", *SCORES)

TABLES: dict[str, PaperTable] = {
    "main": PaperTable(
        "Comparison with state-of-the-art GCD methods",
        (CUB, CARS_HYPHEN, AIRCRAFT, CIFAR100, IMAGENET100),
        (*QUOTED, *_pairs("simgcd", "legogcd", "sptnet", "selex")),
        average=True,
        note="SPTNet starts from the SimGCD run of the same kind and seed. In every preset it trains 1,000 "
        "epochs at its own learning rates, as released; the paper's text says 200 epochs and learning rates "
        "0.1 / 1.0 for all baselines. Rows without runs are quoted from the paper.",
    ),
    "dinov2": PaperTable(
        "Comparison with DINOv2 as the backbone",
        (CUB, CARS, AIRCRAFT),
        _pairs("simgcd", "selex"),
        switches={"backbone": "dinov2_vitb14_reg4"},
    ),
    "ablation": PaperTable(
        "Ablation study of the proposed components. AGA: anchor-based gradient alignment; EEP: energy-aware "
        "elastic projection",
        (CUB, CARS_HYPHEN),
        (*_parts("simgcd", 1), *_parts("selex", 2)),
        heads=("AGA", "EEP"),
    ),
    "entanglement": PaperTable(
        "Gradient Deviation Coefficient (GDC) and Subspace Overlap Coefficient (SOC)",
        (CUB, CARS, AIRCRAFT),
        (
            *_pairs("simgcd"),
            # The released diagnostics have no DKL, in the plain LegoGCD either.
            _baseline("legogcd")._replace(title="LegoGCD, without DKL", switches={"dual_view_kl": False}),
            _alone("legogcd", "with DKL", dual_view_kl=True)._replace(marks=()),
            *_pairs("legogcd")[1:],
            *_pairs("selex"),
        ),
        columns=("gdc_release", "soc_release"),
        beside=("gdc_clean", "soc_paper", "rho_grad", "rho_in", "cos_known", "cos_novel", *SCORES),
        # The released protocol: no MLP head, head learning rate 0.1, lambda_p 0.5 and weight decay 5e-5
        # everywhere, the first 200 steps. Its learning rate follows a cosine over 200 epochs and hardly
        # changes in 200 steps: a floor of 1 keeps it at its start.
        switches={
            "mlp_head_layers": 0,
            "head_lr": 0.1,
            "lambda_p": 0.5,
            "weight_decay": 5e-5,
            "lr_floor": 1.0,
        },
        steps=200,
        note="Means over the first 200 steps (on digits: of every tenth), at the constant learning rate of "
        "the start. GDC and SOC are those of the released code: GDC over the last block with the operator "
        "in both gradients, SOC with unit-norm centred features and k = 16. One difference: the operator in "
        "this GDC has the tau of the batch that is measured, where the released code still has that of the "
        "batch before (over 25 steps of one run, 0.0577 here and 0.0605 there). GDC, clean compares the pure "
        "supervised gradient with the applied one. SOC, paper's formula takes raw features. The paper's row "
        "LegoGCD stands beside LegoGCD without its dual-view KL term (DKL), which the released diagnostics "
        "lack; LegoGCD's own recipe, with DKL, has a row of its own.",
    ),
    "projection": PaperTable(
        "Evaluation of the gradient projection strategy based on SelEx. w/o EEP: all unlabelled gradients "
        "are projected alike",
        (CUB, CARS, AIRCRAFT),
        (_instead("w/o EEP", tau="uniform"), _ours()),
    ),
    "subspace": PaperTable(
        "Subspace construction strategies. PCA-K: a hard subspace of the top K principal components of "
        "labelled data",
        (CUB, CARS),
        (*(_instead(f"PCA-{k}", subspace="pca", pca_k=k) for k in (16, 32, 64)), _ours()),
    ),
    "hyper": PaperTable(
        "Effects of the aperture η and of the projection strengths λa and λp (SimGCD + EAGC)",
        (CUB,),
        (
            *_sweep("aperture", "η", (0.5, 1.0, 2.0, 3.0, 4.0)),
            *_sweep("lambda_a", "λa", (0.1, 0.3, 0.5, 0.7, 0.9)),
            *_sweep("lambda_p", "λp", (0.1, 0.3, 0.5, 0.7, 0.9)),
        ),
        switches={"aperture": 2.0, "lambda_a": 0.7, "lambda_p": 0.5},
        note="One of the three varies, and the others stay at η = 2.0, λa = 0.7, λp = 0.5. The paper draws "
        "curves and prints no numbers; the values of λa and λp are our choice.",
    ),
    # Measured by `eagc bench overhead`.
    "overhead": PaperTable("Computational overhead", (CUB, ColumnGroup("IN-100", "imagenet100")), ()),
    "herbarium": PaperTable(
        "Extended results on the long-tailed Herbarium19 dataset",
        (ColumnGroup("SimGCD", "herbarium19", "simgcd"), ColumnGroup("SelEx", "herbarium19", "selex")),
        (
            PaperRow("Baseline", "Baseline", preset="baseline"),
            PaperRow(
                "Baseline recipe",
                "Baseline, recipe of + EAGC",
                switches={"eagc": False},
                against=("Baseline",),
                ours=True,
            ),
            PaperRow("Baseline + EAGC", "+ EAGC", against=("Baseline", "Baseline recipe")),
        ),
    ),
    "unknown-k": PaperTable(
        "Comparison without the number of categories K",
        (CUB, CARS, IMAGENET100),
        _pairs("simgcd", "selex"),
        by_dataset={**{name: {"k": k} for name, k in ESTIMATED_K.items()}, "": {"k": "estimate"}},
        note="K is the paper's estimate: 231 (CUB), 230 (Stanford Cars), 108 (ImageNet-100). For other data "
        "sets it is estimated before training.",
    ),
    "reference-batch": PaperTable(
        "Effect of batch size for training the reference model (SimGCD + EAGC)",
        (CUB, CARS, AIRCRAFT),
        _reference("reference_batch_size", {"32": 32, "128": 128}, "32"),
        WITH_LOSS,
        first="Batch size",
    ),
    "reference-epochs": PaperTable(
        "Effect of the number of training epochs for the reference model (SimGCD + EAGC)",
        (CUB, CARS, AIRCRAFT),
        _reference("reference_epochs", {"20": 20, "30": 30, "100": 100}, "30"),
        WITH_LOSS,
        first="Training epochs",
    ),
    "reference-blocks": PaperTable(
        "Effect of the number of unfrozen ViT blocks in the reference model (SimGCD + EAGC)",
        (CUB, CARS),
        _reference("reference_blocks", {"1": None, "2": 2, "3": 3, "4": 4, "5": 5}, "1"),
        WITH_LOSS,
        first="Unfrozen blocks",
    ),
    "proximal": PaperTable(
        "Evaluation on loss-based proximal regularisation (AGA replaced by the explicit loss L'_sup)",
        (CUB, CARS),
        (
            *_pairs("selex"),
            _eagc("selex", "+ EAGC_loss", alignment="proximal")._replace(against=("SelEx + EAGC",)),
        ),
    ),
    "relation": PaperTable(
        "Comparison of relation-based distillation variants and gradient-level AGA",
        (CUB, CARS),
        (
            *_pairs("selex"),
            *(
                _eagc("selex", f"+ RelDistill_{name}", alignment=alignment)._replace(
                    against=("SelEx + EAGC",)
                )
                for name, alignment in (("Gram", "gram"), ("sample", "relation"))
            ),
        ),
    ),
}
