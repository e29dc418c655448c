"""`eagc bench overhead`: the paper's overhead table (appendix B.1) on this machine.

Every variant of the step is compared with the same variant without EAGC, and with SimGCD as released.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagc_ops.bench import gpu
from eagc_ops.bench.epochs import epoch_rows, first_images, first_of, reference_rows
from eagc_ops.bench.loader import photographs
from eagc_ops.bench.measure import Spread, clock, interleave, ratio
from eagc_ops.bench.operator import solve_rows
from eagc_ops.bench.steps import OURS, OURS_BASELINE, RELEASED, VARIANTS, Setting, Step, make_setting
from eagc_ops.bench.work import count
from eagc_ops.evidence.paper.values import PAPER as PRINTED
from eagc_ops.training.data import GCDData, train_loader

# The paper's table as printed. Its inversion cost is per epoch; here S is computed once.
_COLUMNS = ("all_acc", "peak_mb", "inversion_ms", "epoch_seconds", "reference_seconds")
PAPER: list[dict[str, Any]] = [
    {
        "kind": "paper, A100",
        "data": data,
        "method": method.removeprefix("SimGCD "),
        **dict(zip(_COLUMNS, groups[data], strict=True)),
    }
    for data in ("CUB", "IN-100")
    for method, groups in PRINTED["overhead"].values.items()
]


def overhead(
    backbone: str,
    rows: int,
    device: torch.device,
    rounds: int,
    images: int,
    data: GCDData | None = None,
    image_size: int = 224,
    precision: str = "no",
) -> dict[str, Any]:
    """The settings and all tables of results.

    The epochs use the first `images` images of `data`, which must have been opened with `image_size`; None
    stands for synthetic photographs, and for noise in single steps.
    """
    if data is None:
        with tempfile.TemporaryDirectory() as folder:
            subset = photographs(Path(folder), images, image_size)
            return _overhead(backbone, rows, device, rounds, subset, None, image_size, precision)
    pixels = first_images(train_loader(data, batch_size=rows // 2, seed=0).epoch(0), rows)
    return _overhead(backbone, rows, device, rounds, first_of(data, images), pixels, image_size, precision)


def _overhead(
    backbone: str,
    rows: int,
    device: torch.device,
    rounds: int,
    subset: GCDData,
    pixels: Tensor | None,
    image_size: int,
    precision: str,
) -> dict[str, Any]:
    images = len(subset.merged)
    fewer_rounds = max(rounds // 2, 5)  # for the parts that take long: whole epochs and evaluation passes
    classes = subset.known + subset.novel
    kinds = subset.channels, subset.known, classes
    setting = make_setting(backbone, rows, device, pixels, image_size, *kinds, precision)
    tables: dict[str, Any] = {
        "settings": {
            "backbone": backbone,
            "rows": rows,
            "image_size": image_size,
            "precision": precision,
            "rounds": rounds,
            "device": str(device),
            "images": subset.name,
            "energy reference": "running",
        },
        "steps": step_rows(setting, rounds),
        "evaluation": evaluation_rows(setting, fewer_rounds),
        "reference": reference_rows(setting, subset, fewer_rounds),
        "epochs": epoch_rows(setting, subset, min(rows // 2, images), fewer_rounds),
        "conceptor": solve_rows(max(rounds, 5), device),
        "paper": PAPER,
    }
    plain = (rows, image_size, device.type, precision) == (16, 224, "cpu", "no")
    promised = backbone == "vit_small_patch16_224" and plain
    return {**tables, "bars": bars(tables) if promised else []}


def trace(path: Path, backbone: str, rows: int, device: torch.device, precision: str) -> None:
    """Write a profiler's trace of two steps of every variant."""
    setting = make_setting(backbone, rows, device, precision=precision)
    gpu.write_trace(path, {variant.name: Step(setting, variant) for variant in VARIANTS}, calls=2)


def step_rows(setting: Setting, rounds: int) -> list[dict[str, Any]]:
    """Measure memory, one variant at a time, which also warms it up; then time all variants, interleaved."""
    steps = {variant.name: Step(setting, variant) for variant in VARIANTS}
    memory = {name: step.memory() for name, step in steps.items()}
    add_ons = {name: run for name, step in steps.items() if (run := step.add_on())}
    for run in add_ons.values():
        run()
    runs = steps | {f"add-on of {name}": run for name, run in add_ons.items()}
    timings = interleave(runs, rounds, clock(setting.device), warm_up=0)
    table = []
    for variant in VARIANTS:
        name, base = variant.name, variant.baseline or variant.name
        own, add_on = memory[name], timings.get(f"add-on of {name}")
        table.append(
            {
                "kind": "measured",
                "variant": name,
                "baseline": variant.baseline,
                "rounds": rounds,
                "step_seconds": timings[name].spread,
                "ratio_to_baseline": ratio(timings[name], timings[base]),
                "ratio_to_released": ratio(timings[name], timings[RELEASED]),
                "add_on_seconds": add_on and add_on.spread,
                "add_on_share": add_on and ratio(add_on, timings[base]),
                "memory": {
                    "parameters": own.parameters,
                    "optimizer": own.optimizer,
                    "saved": own.saved,
                    "kept": own.kept,
                    "peak": own.peak,
                },
                "kept_to_baseline": own.kept / memory[base].kept,
                "kept_to_released": own.kept / memory[RELEASED].kept,
                "peak_to_baseline": own.peak / memory[base].peak,
                "peak_to_released": own.peak / memory[RELEASED].peak,
            }
        )
    return table


def evaluation_rows(setting: Setting, rounds: int) -> list[dict[str, Any]]:
    """Time an evaluation pass with and without EAGC, which must issue the same operations."""
    steps = {
        variant.name: Step(setting, variant) for variant in VARIANTS if variant.name in (OURS_BASELINE, OURS)
    }
    classes: dict[str, Tensor] = {}

    def predict(name: str, step: Step) -> None:
        classes[name] = step.predict()

    issued = {name: count(partial(predict, name, step)) for name, step in steps.items()}
    if not torch.equal(classes[OURS], classes[OURS_BASELINE]) or issued[OURS] != issued[OURS_BASELINE]:
        raise RuntimeError("an evaluation pass must not depend on EAGC, but its operations or its classes do")
    timings = interleave(
        {name: step.predict for name, step in steps.items()}, rounds, clock(setting.device), warm_up=0
    )
    return [
        {
            "kind": "measured",
            "variant": name,
            "rounds": rounds,
            "seconds": timings[name].spread,
            "ratio_to_baseline": ratio(timings[name], timings[OURS_BASELINE]),
            "aten_ops": issued[name].ops,
        }
        for name in steps
    ]


def bars(tables: dict[str, Any]) -> list[dict[str, Any]]:
    """The limits that the package promises on a CPU (ViT-S/16, 224 pixels, 16 rows) and their verdicts."""
    ours = next(row for row in tables["steps"] if row["variant"] == OURS)
    cached = next(row for row in tables["epochs"] if row["way"] == "here, trunk cache")
    promises = (
        ("cost of EAGC, as a share of the matching baseline's step", "<=", 0.015, ours["add_on_share"]),
        ("peak memory, relative to the matching baseline", "<=", 1.05, ours["peak_to_baseline"]),
        ("kept memory, relative to the matching baseline", "<=", 1.05, ours["kept_to_baseline"]),
        ("whole step, relative to SimGCD as released", "<=", 0.92, ours["ratio_to_released"]),
        ("peak memory, relative to SimGCD as released", "<=", 0.80, ours["peak_to_released"]),
        ("kept memory, relative to SimGCD as released", "<=", 0.80, ours["kept_to_released"]),
        ("epoch with the trunk cache, speed-up over the released way", ">=", 6.0, cached["speed_up"]),
    )
    verdicts = []
    for name, sign, limit, value in promises:
        middle = value.median if isinstance(value, Spread) else value
        met = middle <= limit if sign == "<=" else middle >= limit
        verdicts.append({"bar": name, "limit": f"{sign} {limit}", "value": value, "met": met})
    return verdicts
