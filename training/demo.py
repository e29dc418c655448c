"""`eagc demo`, the main job: what EAGC does to SimGCD, end to end on a small data set, on a CPU, without a download.

1. Pretrain a small ViT on `digits` without labels, freeze its trunk, and check that its features are worth anything (k-NN).
2. Train the reference model of every seed, and fit the known-class subspace.
3. Train five variants over the same seeds: (a) SimGCD from the pretrained weights, (b) SimGCD warm-started from the reference model,
   which is the fair baseline, (c) b + AGA, (d) b + EEP, (e) b + EAGC.
4. Say what came out, as it is, with paired differences against (b).
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from eagc_ops.training.backbones import load_backbone
from eagc_ops.training.checkpoint import load_checkpoint, save_checkpoint
from eagc_ops.training.cli import Parser, command
from eagc_ops.training.config import Config, ConfigError, resolve
from eagc_ops.training.data import GCDData, open_data
from eagc_ops.training.diagnose import Diagnose
from eagc_ops.training.loop import Loop, resume, train
from eagc_ops.training.methods.base import cosine
from eagc_ops.training.methods.losses import info_nce
from eagc_ops.training.report import mean_std, measures, plus_minus, read_run, write_report
from eagc_ops.training.run import RunFolder

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a": ("SimGCD, pretrained", {"eagc": False, "warm_start": False}),
    "b": ("SimGCD, warm start", {"eagc": False}),
    "c": ("b + AGA", {"lambda_p": 0.0}),
    "d": ("b + EEP", {"lambda_a": 0.0}),
    "e": ("b + EAGC", {}),
}
BASELINE, FULL = "b", "e"
SETTINGS: dict[str, Any] = {"warm_start": True, "log_every": 7, "device": "cpu"}  # on top of the preset "paper" for digits
DIAGNOSE_EVERY = 7  # steps, of 14 per epoch
NEIGHBOURS, NEEDED = 5, 0.9  # k-NN accuracy of the frozen features; a weaker encoder shows nothing
PRETRAINING = {"format": 1, "batch_size": 64, "lr": 1e-3, "weight_decay": 0.05, "temperature": 0.2, "contrast": 0.2}
COLUMNS = {  # metric: heading, digits; the report has more
    "all": ("All %", 1), "old": ("Old %", 1), "new": ("New %", 1), "gdc_clean": ("GDC clean", 3), "gdc_release": ("GDC release", 3),
    "soc_release": ("SOC", 3), "seconds": ("s / epoch", 2),
}  # fmt: skip

Records = Mapping[str, Mapping[int, Mapping[str, float]]]  # variant -> seed -> metric -> value


@command("eagc demo")
def main(argv: list[str]) -> int:
    """SimGCD with and without EAGC on scikit-learn's digits, end to end, in minutes on a CPU."""
    parser = Parser(prog="eagc demo", description=main.__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/demo"), metavar="FOLDER", help="runs and report [runs/demo]")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 to N - 1 of every variant [3]")
    parser.add_argument("--epochs", type=int, default=6, metavar="N", help="epochs of every run [6]")
    parser.add_argument("--pretrain-epochs", type=int, default=10, metavar="N", help="epochs of the pretraining without labels [10]")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), metavar="N", help="runs at a time [one per core, up to 4]")
    parser.add_argument("--fresh", action="store_true", help="do everything again; without it, what is there is used")
    given = parser.parse_args(argv)
    for name in ("seeds", "epochs", "pretrain_epochs", "jobs"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(given, name)}")
    started, home = time.perf_counter(), given.output
    # One thread per process: on busy cores small products lose more in thread hand-overs than they gain, and bits do not depend on cores.
    torch.set_num_threads(1)
    if given.fresh:
        _remove(home)
    home.mkdir(parents=True, exist_ok=True)

    data = open_data("digits")
    counts = f"{len(data.labelled):,} labelled images of {data.known} known classes, {len(data.unlabelled):,} unlabelled images of"
    print(f"SimGCD with and without EAGC on digits: {counts} {data.known + data.novel} classes\n", flush=True)
    if not _pretrain_stage(home, data, given.pretrain_epochs):
        return 1
    configs = {(variant, seed): _config(home, variant, seed, given.epochs) for seed in range(given.seeds) for variant in VARIANTS}
    folders = {key: home / "runs" / f"{key[0]}-seed{key[1]}" for key in configs}
    trunk = _reference_stage(home, [configs[FULL, seed] for seed in range(given.seeds)])
    _run_stage(configs, folders, trunk, given.jobs)
    print("\n" + "\n".join(_story(folders)))
    names = {folder: _title(variant) for (variant, _), folder in folders.items()}
    report = write_report([folders[key] for key in sorted(folders)], home, names)
    print(f"\nreport: {report}\n{time.perf_counter() - started:.0f} s in all")
    return 0


# Pretraining -----------------------------------------------------------------------------------------------------------------------


def _pretrain_stage(home: Path, data: GCDData, epochs: int) -> bool:
    """Whether the frozen features are good enough to show anything."""
    merged = data.merged
    pixels = torch.stack([data.test_transform(merged[i][0]) for i in range(len(merged))])
    label = torch.cat([data.labelled.labels, data.unlabelled.labels])
    weights, seconds = pretrained(home / "pretrained.safetensors", pixels, epochs)
    vit = load_backbone("vit_digits", weights, image_size=data.image_size, channels=data.channels)
    with torch.no_grad():
        found, raw = (knn_accuracy(features, label) for features in (vit(pixels), pixels.flatten(1)))
    how = "done before, used again" if seconds is None else f"{epochs} epochs in {seconds:.0f} s"
    print(
        f"1. Pretraining without labels: {how}; {NEIGHBOURS}-NN accuracy of the frozen features {found:.1%} (raw pixels {raw:.1%})",
        flush=True,
    )
    if found < NEEDED:
        print(f"eagc demo: the encoder is too weak, {found:.1%} < {NEEDED:.0%}: runs would show nothing; pretrain longer", file=sys.stderr)
    return found >= NEEDED


def pretrained(file: Path, pixels: Tensor, epochs: int) -> tuple[Path, float | None]:
    """The pretrained weights, and the seconds it took to make them; None: they were there."""
    key = {**PRETRAINING, "epochs": epochs, "images": list(pixels.shape)}
    if file.exists():
        if load_checkpoint(file)[1] != {"key": key}:
            raise ConfigError(f"{file} was pretrained with other settings: pass --fresh, or another --output")
        return file, None
    started = time.perf_counter()
    save_checkpoint(file, pretrain(pixels, epochs).state_dict(), {"key": key})
    return file, time.perf_counter() - started


def pretrain(pixels: Tensor, epochs: int) -> nn.Module:
    """A `vit_digits` that tells images apart under small affine changes (InfoNCE) and redraws the unchanged image from its CLS token."""
    size, settings = pixels.shape[-1], PRETRAINING
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        vit = load_backbone("vit_digits", image_size=size, channels=pixels.shape[1])
        for name, parameter in vit.named_parameters():  # timm's deviation of 0.02 is for wide ViTs: at width 96 images would look alike
            if parameter.ndim == 2:
                nn.init.trunc_normal_(parameter, std=parameter.shape[1] ** -0.5)
            elif name == "pos_embed":
                nn.init.normal_(parameter, std=0.5)
        project, redraw = (nn.Sequential(nn.Linear(96, 256), nn.GELU(), nn.Linear(256, out)) for out in (64, pixels[0].numel()))
        parameters = [*vit.parameters(), *project.parameters(), *redraw.parameters()]
        optimiser = torch.optim.AdamW(parameters, settings["lr"], weight_decay=settings["weight_decay"])
        steps = len(pixels) // settings["batch_size"]
        for step in tqdm(range(epochs * steps), "pretraining", unit="step", mininterval=1):
            if step % steps == 0:
                order = torch.randperm(len(pixels))
            warm_up = min(1.0, (step + 1) / steps)
            optimiser.param_groups[0]["lr"] = warm_up * cosine(step, epochs * steps, settings["lr"], 0.0)
            images = pixels[order[step % steps * settings["batch_size"] :][: settings["batch_size"]]]
            z = vit(torch.cat([affine(images), affine(images)]))
            contrast = info_nce(F.normalize(project(z), dim=1), settings["temperature"])
            loss = F.mse_loss(redraw(z), images.flatten(1).repeat(2, 1)) + settings["contrast"] * contrast
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return vit


def affine(images: Tensor, most: float = 0.1) -> Tensor:
    """Every image (N, C, H, W) rotated by up to 10 degrees, and scaled, sheared and shifted by up to a tenth."""

    def uniform(limit: float) -> Tensor:
        return (2 * torch.rand(len(images)) - 1) * limit

    angle, scale, shear, dx, dy = uniform(math.radians(10)), 1 + uniform(most), uniform(most), uniform(2 * most), uniform(2 * most)
    x, y = (
        torch.stack([scale * angle.cos(), shear - scale * angle.sin(), dx], 1),
        torch.stack([scale * angle.sin(), scale * angle.cos(), dy], 1),
    )
    grid = F.affine_grid(torch.stack([x, y], 1), list(images.shape), align_corners=False)
    dark = images.min()  # the background, where the grid leaves the image
    return F.grid_sample(images - dark, grid, align_corners=False) + dark


def knn_accuracy(features: Tensor, label: Tensor, neighbours: int = NEIGHBOURS) -> float:
    """Share of rows whose true label is the most frequent one among their nearest other rows, by cosine (leave-one-out).

    >>> knn_accuracy(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), torch.tensor([0, 0, 1, 0]), neighbours=1)
    0.5
    """
    unit = F.normalize(features, dim=1)
    nearest = (unit @ unit.T).fill_diagonal_(-math.inf).topk(neighbours, 1).indices
    votes = F.one_hot(label[nearest]).sum(1)
    return (votes.argmax(1) == label).float().mean().item()


# The runs --------------------------------------------------------------------------------------------------------------------------


def _config(home: Path, variant: str, seed: int, epochs: int) -> Config:
    places = {"weights": str(home / "pretrained.safetensors"), "trunk_cache": str(home / "trunk")}
    return resolve("simgcd", "digits", "paper", seed=seed, epochs=epochs, **places, **{**SETTINGS, **VARIANTS[variant][1]})


def _reference_stage(home: Path, configs: list[Config]) -> str:
    """Reference model and subspace of every seed, before the runs that share them; and the tokens of the frozen trunk, whose fingerprint
    is returned."""
    losses = []
    for config in configs:
        loop = Loop(config)
        loop._prepare_eagc(home / "runs" / "references")
        losses.append(f"{loop.reference_cross_entropy:.3f}")
    print(
        f"2. Reference models of {len(configs)} seeds: cross-entropy {', '.join(losses)}; conceptors of aperture {config.aperture}",
        flush=True,
    )
    return loop.facts["trunk"]


def _run_stage(configs: dict[tuple[str, int], Config], folders: dict[tuple[str, int], Path], trunk: str, at_a_time: int) -> None:
    """Train what is not finished, `at_a_time` runs in as many processes (1: in this one)."""
    jobs = [(configs[key], folder) for key, folder in folders.items() if not _finished(folder, configs[key], trunk)]
    there, started = len(folders) - len(jobs), time.perf_counter()
    print(f"3. {len(jobs)} runs, {at_a_time} at a time" + (f"; {there} are finished and used again (--fresh repeats all)" if there else ""))

    def say(folder: Path, result: dict[str, Any], done: int) -> None:
        last = " ".join(f"{name.capitalize()} {result['last'][name]:.1%}" for name in ("all", "old", "new"))
        print(f"   {done:2} of {len(jobs)}: {folder.name}  {last}  after {time.perf_counter() - started:.0f} s", flush=True)

    if at_a_time == 1 or len(jobs) < 2:
        for done, (config, folder) in enumerate(jobs, 1):
            say(folder, _run(config, folder), done)
        return
    os.environ["TQDM_DISABLE"] = "1"  # read when a child imports tqdm: the bars of several processes would write into one another
    # Not forked: a child would inherit torch's thread pools in an unknown state.
    with ProcessPoolExecutor(at_a_time, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        futures = {pool.submit(_run, config, folder): folder for config, folder in jobs}
        for done, future in enumerate(as_completed(futures), 1):
            say(futures[future], future.result(), done)


def _finished(folder: Path, config: Config, trunk: str) -> bool:
    """Whether the run is complete; a folder that holds another run is an error."""
    if not (folder / "run.json").exists():
        return False
    run = RunFolder.open(folder)
    if run.config != config or run.facts["trunk"] != trunk:
        raise ConfigError(f"{folder} holds a run of other settings or weights: pass --fresh, or another --output")
    return run.result() is not None


def _run(config: Config, folder: Path) -> dict[str, Any]:
    callbacks = [Diagnose(DIAGNOSE_EVERY)]
    return resume(folder, callbacks) if (folder / "run.json").exists() else train(config, folder, callbacks)


def _remove(home: Path) -> None:
    for folder in ("trunk", "runs"):
        shutil.rmtree(home / folder, ignore_errors=True)
    for file in ("pretrained.safetensors", "report.html"):
        (home / file).unlink(missing_ok=True)


# What came out ---------------------------------------------------------------------------------------------------------------------


def _story(folders: dict[tuple[str, int], Path]) -> list[str]:
    runs = {key: read_run(folder) for key, folder in folders.items()}
    records: dict[str, dict[int, dict[str, float]]] = {}
    for (variant, seed), run in runs.items():
        records.setdefault(variant, {})[seed] = measures(run)
    warned = [f"WARNING {run.path.name}: {text}" for run in runs.values() for text in run.result["warnings"]]
    return [*summary(records), "", *(warned or ["No run warns: all predict K classes, and no tau is near 0."]), "", *conclusions(records)]


def summary(records: Records) -> list[str]:
    """Two tables: mean ± std over seeds, and paired differences against the baseline (mean ± std of the differences of a seed)."""
    heads = [head for head, _ in COLUMNS.values()]
    rows = [
        [_title(variant), *(plus_minus((r[m] for r in seeds.values()), d) for m, (_, d) in COLUMNS.items())]
        for variant, seeds in records.items()
    ]
    paired = [
        [_title(variant), *(_signed(differences(records, variant, metric), digits) for metric, (_, digits) in COLUMNS.items())]
        for variant in records
        if variant != BASELINE
    ]
    seeds = ", ".join(str(seed) for seed in records[BASELINE])
    return [
        f"Last epoch, mean ± std over seeds {seeds}; GDC and SOC (unit-norm, centred features, k = 16) are means over the run:",
        *_aligned([["", *heads], *rows]),
        "",
        f"Paired differences against ({BASELINE}), the fair baseline: same seed, reference model and draws; mean ± std over seeds:",
        *_aligned([["", *heads], *paired]),
    ]


def differences(records: Records, variant: str, metric: str) -> list[float]:
    """Value minus that of the baseline, seed by seed."""
    return [records[variant][seed][metric] - value[metric] for seed, value in records[BASELINE].items()]


def conclusions(records: Records) -> list[str]:
    """What the numbers show, said from their signs, and what they do not show."""
    n = len(records[BASELINE])
    lines = [f"What the numbers show, (variant) against ({BASELINE}):"]
    for metric in ("all", "new", "gdc_clean", "gdc_release", "soc_release"):
        parts = [
            f"({variant}) {_direction(differences(records, variant, metric))}" for variant in records if variant not in ("a", BASELINE)
        ]
        lines.append(f"  {COLUMNS[metric][0].removesuffix(' %'):12} {', '.join(parts)}")
    chance = min(2 / 2**n, 1)
    return [
        *lines,
        "What they do not show:",
        f"  With {n} seed{'s' * (n > 1)} the same sign on all comes by chance with probability {chance:.0%}: nothing here is significant.",
        "  Ten classes of 8 x 8 digits and a ViT pretrained for a minute say nothing about CUB or ImageNet.",
        "  (a) against (b) is the effect of the start, not of EAGC.",
        "  GDC release holds the alignment term in both gradients, which lowers it by itself; GDC clean does not.",
        "  Seconds are wall clock beside other runs and follow the load of the machine; `eagc bench` measures the cost of EAGC.",
    ]


def _direction(values: list[float]) -> str:
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return "not measured"
    up, down = sum(value > 0 for value in values), sum(value < 0 for value in values)
    if len(values) in (up, down):
        return f"{'up' if up else 'down'} on all {len(values)} seeds"
    return "unchanged" if up == down == 0 else f"mixed ({up} up, {down} down)"


def _signed(values: list[float], digits: int) -> str:
    mean, _ = mean_std(values)
    text = plus_minus(values, digits)
    return text if math.isnan(mean) or mean < 0 else f"+{text}"


def _title(variant: str) -> str:
    return f"({variant}) {VARIANTS[variant][0]}"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]).rstrip() for row in rows]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
