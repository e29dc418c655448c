"""Pictures that need the weights and data of runs: energies, conceptor spectra, t-SNE, attention; and how a figure gets into a page.

One run of a configuration is looked at, with the weights of its last epoch, in fp32, under the test transform. The truth about unlabelled
images is used to tell known from novel ones, here and nowhere in training.
"""

from __future__ import annotations

import html
import io
import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from timm.models.vision_transformer import Attention, Block
from torch import Tensor, nn
from torch.nn import functional as F

from eagc_ops import Subspace
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.kernels.formulas import projection_weight
from eagc_ops.training.config import ConfigError
from eagc_ops.training.data import GCDData
from eagc_ops.training.engine.checkpoint import CheckpointError, load_checkpoint
from eagc_ops.training.engine.experiment import Experiment

if TYPE_CHECKING:
    from eagc_ops.training.report.page import Group, Run

MOST = 6  # configurations that are looked at
SETS = ("labelled", "known, unlabelled", "novel")
BINS = 40
APERTURES = (0.5, 1.0, 2.0, 4.0, 10.0)
PCA_K = (16, 32, 64)  # the paper's
CLASSES, POINTS = 10, 1000  # of a t-SNE
TSNE_SEED, PERPLEXITY = 0, 30
IMAGES = 6  # with attention maps


class Look(NamedTuple):
    """What the weights of a run show."""

    name: str  # of the configuration
    run: Run | None  # None: the pretrained encoder
    points: Tensor  # (n, D) z of `novel_sample`
    attention: (
        Tensor | None
    )  # (images, h, w) of `image_sample`, mean over heads; None: a block whose weights cannot be read
    energies: dict[str, Tensor] | None = None  # by set, (images,); None: no subspace
    subspace: KnownSubspace | None = None


class KnownSubspace(NamedTuple):
    """S and Ebar as a run keeps them."""

    of: str  # the configuration
    run: Run
    subspace: Subspace


def pictures(groups: Sequence[Group], problem: str, **changes: Any) -> tuple[list[str], list[str]]:
    """(figures as HTML, lines about what could not be drawn) of configurations of one problem, `problem`: its description.

    `changes`: settings of the machine, where data or weights have moved, as in `runs.evaluate`.
    """
    chosen, notes = choose(groups)
    known: list[KnownSubspace] = []
    for name, run in list(chosen):
        try:
            tensors, _ = load_checkpoint(run.path / "last.safetensors")
        except CheckpointError as error:
            chosen.remove((name, run))
            notes.append(_left_out(run, error))
            continue
        if "eagc.matrix" in tensors:
            known.append(
                KnownSubspace(name, run, Subspace(tensors["eagc.matrix"], tensors["eagc.energy_ref"]))
            )
    looks: list[Look] = []
    drawn: tuple[GCDData, Tensor, Tensor] | None = None
    for name, run in chosen:
        try:
            experiment = open_run(run, changes)
            if drawn is None:
                labels = experiment.data.unlabelled.labels
                drawn = (
                    experiment.data,
                    novel_sample(labels, experiment.data.known),
                    image_sample(labels, experiment.data.known),
                )
                looks.append(look_at_pretrained(experiment, *drawn[1:]))
            looks.append(look_at(name, run, experiment, subspace_for(run, known), *drawn[1:]))
        except (OSError, ValueError, CheckpointError) as error:
            notes.append(_left_out(run, error))
    figures = [_spectrum_figure(known, problem), _energy_figure(looks, problem)]
    if drawn is not None and len(looks) > 1:
        figures += [
            _tsne_figure(looks, drawn[0], drawn[1], problem),
            _attention_figure(looks, drawn[0], drawn[2], problem),
        ]
    notes += [
        f"{look.name}: no attention maps, its last block is not timm's plain one"
        for look in looks
        if look.attention is None
    ]
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return [figure for figure in figures if figure], notes


def choose(groups: Sequence[Group]) -> tuple[list[tuple[str, Run]], list[str]]:
    """(name, run) of the first `MOST` configurations, one run of each: of the lowest seed that all of them have, or else their lowest.

    A configuration without the operator and one with it come first, so that a report on many shows both.
    """
    firsts = [
        next((i for i, group in enumerate(groups) if group.runs[0].config.has_operator == on), None)
        for on in (False, True)
    ]
    order = sorted(range(len(groups)), key=lambda i: (i not in firsts, i))[:MOST]
    shown = [groups[i] for i in sorted(order)]
    common = set.intersection(*({run.config.seed for run in group.runs} for group in shown))
    chosen = []
    for group in shown:
        seed = min(common or {run.config.seed for run in group.runs})
        chosen.append((group.name, next(run for run in group.runs if run.config.seed == seed)))
    others = [groups[i].name for i in range(len(groups)) if i not in order]
    return chosen, [
        f"pictures of weights show {MOST} configurations, and not {', '.join(others)}"
    ] if others else []


def open_run(run: Run, changes: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a run with its pretrained encoder; data or weights that are not the run's are refused."""
    # In fp32, wherever it was trained: a picture must not depend on the machine that draws it.
    settings = {"precision": "no", "deterministic": False, "accumulation": 1, "device": "auto"}
    settings |= {name: value for name, value in (changes or {}).items() if hasattr(run.config, name)}
    experiment = Experiment(run.config.replace(**settings))
    for fact, what in (
        ("split_hash", "root or split_file: images or classes"),
        ("trunk", "weights: the pretrained encoder"),
    ):
        if getattr(experiment.facts, fact) != run.facts[fact]:
            raise ConfigError(f"{what} are not those of the run ({fact} differs)")
    experiment.student.eval()
    return experiment


def look_at_pretrained(experiment: Experiment, novel: Tensor, images: Tensor) -> Look:
    """The encoder as the experiment was opened, before a run's weights are loaded; plain images, also where a method adds prompts."""
    encoder, data = experiment.student.encoder, experiment.data
    with torch.no_grad():
        parts = [
            encoder.student(encoder.trunk(views_of(data, part).to(experiment.device))).cpu()
            for part in novel.split(128)
        ]
    return Look(
        "pretrained",
        None,
        torch.cat(parts),
        attention_maps(encoder, views_of(data, images).to(experiment.device)),
    )


def look_at(
    name: str, run: Run, experiment: Experiment, known: KnownSubspace | None, novel: Tensor, images: Tensor
) -> Look:
    """The run's encoder: energies of whole sets, features of the novel sample, attention on the images."""
    experiment.student.load(load_checkpoint(run.path / "last.safetensors")[0])
    labelled, _ = experiment.features.labelled()
    unlabelled, label = experiment.features.unlabelled()
    energies = None
    if known is not None:
        subspace = known.subspace.to(experiment.device)
        is_novel = label >= experiment.data.known
        sets = (labelled, unlabelled[~is_novel], unlabelled[is_novel])
        energies = {of: subspace.energy(z).cpu() for of, z in zip(SETS, sets)}
    with torch.no_grad():
        inputs = experiment.student.method.inputs([views_of(experiment.data, images).to(experiment.device)])
    return Look(
        name,
        run,
        unlabelled[novel.to(experiment.device)].cpu(),
        attention_maps(experiment.student.encoder, inputs),
        energies,
        known,
    )


def subspace_for(run: Run, known: Sequence[KnownSubspace]) -> KnownSubspace | None:
    """The subspace a run keeps; for a run without the operator that of the first one that has the same reference model."""

    def reference(run: Run) -> dict[str, Any]:
        fields = [
            field
            for field in run.config.help_texts()
            if field.startswith("reference_") and field != "reference_blocks"
        ]
        of_config = {
            field: getattr(run.config, field)
            for field in (*fields, "blocks_of_reference", "seed", "cls_only")
        }
        return of_config | {fact: run.facts.get(fact) for fact in ("split_hash", "trunk", "inputs")}

    own = [found for found in known if found.run is run]
    return next(iter(own + [found for found in known if reference(found.run) == reference(run)]), None)


def spectrum(matrix: Tensor, aperture: float, other: float) -> Tensor:
    """Eigenvalues (D,), descending, fp64, that a conceptor fitted with `aperture` would have with the aperture `other`.

    s = r / (r + aperture^-2) gives back the eigenvalue r of R, so the features are not needed: with q = (other / aperture)^2 it becomes
    q s / (q s + 1 - s).

    >>> correlation = torch.diag(torch.tensor([3.0, 0.25], dtype=torch.float64))
    >>> spectrum(correlation @ torch.linalg.inv(correlation + 0.25 * torch.eye(2)), 2.0, 1.0)
    tensor([0.7500, 0.2000], dtype=torch.float64)
    """
    s = torch.linalg.eigvalsh(matrix.to("cpu", torch.float64)).flip(0).clamp(0, 1)
    q = (other / aperture) ** 2
    return q * s / (q * s + 1 - s)


def novel_sample(labels: Tensor, known: int) -> Tensor:
    """Positions of at most `POINTS` unlabelled images of the last `CLASSES` novel classes (the paper shows the last ones too)."""
    classes = labels[labels >= known].unique()[-CLASSES:]
    per_class = [_evenly((labels == c).nonzero().flatten(), POINTS // len(classes)) for c in classes]
    return torch.cat(per_class) if per_class else torch.zeros(0, dtype=torch.int64)


def image_sample(labels: Tensor, known: int) -> Tensor:
    """Positions of `IMAGES` unlabelled images, half of them of known classes, the first image of classes spread over all."""
    classes = labels.unique()
    parts = (classes[classes < known], classes[classes >= known])
    return torch.tensor(
        [int((labels == c).nonzero()[0]) for part in parts for c in _evenly(part, IMAGES // 2)]
    )


def views_of(data: GCDData, positions: Tensor) -> Tensor:
    """(n, C, H, W) of unlabelled images under the test transform."""
    views = [data.test_transform(data.unlabelled[int(i)][0]) for i in positions]
    return torch.stack(views) if views else torch.zeros(0, data.channels, data.image_size, data.image_size)


def attention_maps(encoder: AnchoredEncoder, images: Tensor) -> Tensor | None:
    """Head-mean attention (n, h, w) of the CLS token of the last block to the patches. CLS and registers have the rest of 1."""
    if not _plain(encoder.tail[-1]):
        return None
    with torch.no_grad():
        weights = cls_attention(encoder, encoder.trunk(images)).mean(1)
    return weights[:, encoder.vit.num_prefix_tokens :].unflatten(1, encoder.vit.patch_embed.grid_size).cpu()


@torch.no_grad()
def cls_attention(encoder: AnchoredEncoder, tokens: Tensor) -> Tensor:
    """Attention weights (B, heads, N) of the CLS query in the student's last block, for tokens (B, N, D) of the trunk; they sum to 1.

    Unfused, from the block's q and k: fused attention does not give its weights away, and the CLS-only path forms no keys.
    """
    *middle, last = encoder.tail
    if not _plain(last):
        raise TypeError(
            f"the last block ({type(last).__name__}) is not timm's plain one with plain attention: its q and k are not known here"
        )
    for block in middle:
        tokens = block(tokens)
    attn = last.attn
    q, k, _ = (
        attn.qkv(last.norm1(tokens)).unflatten(-1, (3, attn.num_heads, attn.head_dim)).unbind(2)
    )  # each (B, N, heads, width)
    return torch.einsum("bhw,bnhw->bhn", attn.scale * attn.q_norm(q[:, 0]), attn.k_norm(k)).softmax(-1)


def _plain(block: nn.Module) -> bool:
    return type(block).forward is Block.forward and type(block.attn).forward is Attention.forward


def tsne(points: Tensor) -> np.ndarray:
    """t-SNE (n, 2) of unit-norm features: the methods' classifiers and contrasts see directions only."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    return TSNE(2, perplexity=perplexity, init="pca", random_state=TSNE_SEED).fit_transform(
        F.normalize(points.double(), dim=1).numpy()
    )


def _evenly(values: Tensor, count: int) -> Tensor:
    return values[torch.linspace(0, len(values) - 1, min(count, len(values))).round().long()]


def _left_out(run: Run, error: Exception) -> str:
    return f"{run.path.name}: no pictures of its weights, {' '.join(str(error).split())}"


# The figures -----------------------------------------------------------------------------------------------------------------------


def _spectrum_figure(subspaces: Sequence[KnownSubspace], problem: str) -> str:
    fitted = [known for known in subspaces if known.run.config.subspace == "conceptor"]
    if not fitted:
        return ""
    known, matrix = fitted[0], fitted[0].subspace.matrix
    own = known.run.config.aperture
    figure, (axis, ranks) = axes(1, 2)
    index = range(1, len(matrix) + 1)
    apertures = sorted({*APERTURES, own})
    values = {aperture: spectrum(matrix, own, aperture) for aperture in apertures}
    for i, (aperture, eigenvalues) in enumerate(values.items()):
        settings = {
            "color": COLOURS[i % 7],
            "linestyle": DASHES[1 + i % 3],
            "label": f"aperture {aperture:g}",
        }
        if aperture == own:
            settings |= {"linestyle": "-", "linewidth": 2.5, "label": f"aperture {aperture:g} (the run)"}
        axis.plot(index, eigenvalues, **settings)
    steps = [k for k in PCA_K if k < len(matrix)]
    for k in steps:
        axis.step(
            [1, k, k + 1, len(matrix)],
            [1, 1, 0, 0],
            where="post",
            color="0.6",
            linewidth=1,
            label=f"PCA, K = {k}",
            zorder=0,
        )
        axis.annotate(
            f"{k}", (k + 1, 1.01), fontsize=7, color="0.3", ha="center", va="bottom", annotation_clip=False
        )
    axis.set(
        title="spectrum of S",
        xlabel="eigenvalue, the largest first",
        ylabel="eigenvalue of S",
        xscale="log",
        ylim=(-0.03, 1.09),
    )
    curves = axis.lines[: len(apertures)]
    pca = Line2D([], [], color="0.6", linewidth=1, label=f"PCA, K = {', '.join(map(str, steps))}")
    axis.legend(
        handles=[*curves, *([pca] if steps else [])],
        fontsize=7,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
    )
    ranks.plot(apertures, [values[aperture].sum() for aperture in apertures], marker="o", color=COLOURS[0])
    for k in steps:
        ranks.axhline(k, color="0.6", linewidth=1, zorder=0)
        ranks.annotate(f"PCA, K = {k}", (apertures[0], k), fontsize=7, color="0.3", ha="left", va="bottom")
    highest = max(*steps, 0, float(values[apertures[-1]].sum()))
    ranks.set(
        title="soft rank of S",
        xlabel="aperture",
        ylabel=f"trace of S, of {len(matrix)}",
        xscale="log",
        ylim=(0, 1.12 * highest),
    )
    ranks.set_xticks(apertures, [f"{aperture:g}" for aperture in apertures])
    ranks.minorticks_off()
    caption = (
        "Spectrum of the known-class subspace against the aperture: S = R (R + aperture^-2 I)^-1 with R = Z^T Z / N of labelled images' "
        f"reference features (test transform, not centred), here of configuration {known.of}, seed {known.run.config.seed}, whose S was "
        f"fitted with aperture {own:g}. An eigenvalue is the share of a direction that S keeps; their sum (right) is its soft rank. A PCA "
        "subspace keeps K directions whole and drops the others (steps). "
    )
    return as_html(figure, caption + problem)


def _energy_figure(looks: Sequence[Look], problem: str) -> str:
    shown = [look for look in looks if look.energies is not None]
    if not shown:
        return ""
    figure, panels = axes(len(shown), 2, height=2.3)
    taus = [
        {of: projection_weight(e, look.subspace.subspace.energy_ref) for of, e in look.energies.items()}
        for look in shown
    ]
    lowest = min(float(e.min()) for look in shown for e in look.energies.values() if len(e))
    highest = max(float(tau.max()) for by_set in taus for tau in by_set.values() if len(tau))
    ranges = (
        (math.floor(20 * lowest) / 20, 1.0),
        (0.0, max(math.ceil(20 * highest) / 20, 0.05)),
    )  # one scale for all configurations
    for row, (look, tau) in enumerate(zip(shown, taus)):
        energy_axis, tau_axis = panels[2 * row : 2 * row + 2]
        for axis, values, (low, high) in (
            (energy_axis, look.energies, ranges[0]),
            (tau_axis, tau, ranges[1]),
        ):
            for of, look_of in zip(SETS, SET_STYLES):
                _stairs(
                    axis,
                    values[of],
                    np.linspace(low, high, BINS + 1),
                    f"{of}: {len(values[of]):,}, mean {_mean(values[of])}",
                    look_of,
                )
            axis.set(xlim=(low, high), ylabel="share of the set")
            axis.legend(fontsize=7, loc="best")
        energy_ref = float(look.subspace.subspace.energy_ref)
        energy_axis.axvline(energy_ref, color="black", linestyle=(0, (4, 2)), linewidth=1.2)
        energy_axis.annotate(
            f"Ebar = {energy_ref:.3f}", (energy_ref, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
            fontsize=7, ha="right" if energy_ref > sum(ranges[0]) / 2 else "left",
        )  # fmt: skip
        unused = (
            ", not used by it" if not look.run.config.has_operator or look.run.config.tau == "uniform" else ""
        )
        energy_axis.set_title(f"{look.name}: energy ratio E", loc="left")
        tau_axis.set_title(f"{look.name}: projection weight tau{unused}", loc="left")
        energy_axis.set_xlabel("E")
        tau_axis.set_xlabel("tau")
    borrowed = [
        f"{look.name} has no subspace and is measured in that of {look.subspace.of}"
        for look in shown
        if look.subspace.of != look.name
    ]
    absent = [look.name for look in looks if look.run is not None and look.energies is None]
    caption = (
        "Energy ratio E, the share of a feature's energy inside the known-class subspace S, and projection weight "
        "tau = clamp(1 - E / Ebar, 0, 1), of whole sets under the test transform: labelled images, unlabelled images of known classes, "
        "images of novel classes (known and novel by the true labels). "
        f"{_weights(shown)} Ebar (dashed): mean E of the labelled images under the reference model, or its running mean where "
        "energy_momentum is set. EEP uses the tau of unlabelled images; that of labelled ones is for comparison. "
        + "".join(f"{text}, which has the same reference model. " for text in borrowed)
        + (
            f"Left out, without a subspace of the same reference model: {', '.join(absent)}. "
            if absent
            else ""
        )
    )
    return as_html(figure, caption + problem)


def _stairs(axis: Axes, values: Tensor, edges: np.ndarray, label: str, settings: Mapping[str, Any]) -> None:
    counts, _ = np.histogram(values.double().numpy().clip(edges[0], edges[-1]), edges)
    share = counts / max(len(values), 1)
    axis.stairs(share, edges, label=label, linewidth=1.4, **settings)
    axis.stairs(share, edges, fill=True, alpha=0.15, color=settings["color"])


def _mean(values: Tensor) -> str:
    return f"{values.mean():.3f}" if len(values) else "-"


def _tsne_figure(looks: Sequence[Look], data: GCDData, positions: Tensor, problem: str) -> str:
    if len(positions) < 10:
        return ""
    labels = data.unlabelled.labels[positions]
    columns = min(len(looks), 4)
    figure, panels = axes(math.ceil(len(looks) / columns), columns, height=3.2)
    classes = labels.unique().tolist()
    for axis, look in zip(panels, looks):
        places = tsne(look.points)
        for i, c in enumerate(classes):
            x, y = places[(labels == c).numpy()].T
            axis.scatter(x, y, s=9, color=COLOURS[i % 7], marker=MARKERS[i], linewidths=0, rasterized=True)
        axis.set(title=look.name, xticks=[], yticks=[])
        axis.grid(False)
    for axis in panels[len(looks) :]:
        axis.remove()
    settings = {"linestyle": "", "markersize": 5, "markeredgewidth": 0}
    handles = [
        Line2D([], [], color=COLOURS[i % 7], marker=MARKERS[i], label=class_name(data, c), **settings)
        for i, c in enumerate(classes)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=7)
    caption = (
        f"t-SNE of {len(positions):,} unlabelled images of {len(classes)} novel classes (the last ones by index; the classes are the true "
        f"ones): unit-norm features of the encoder, test transform, perplexity {min(PERPLEXITY, (len(positions) - 1) / 3):.3g}, PCA start, "
        f"t-SNE seed {TSNE_SEED}, the same images in every panel. {_weights(looks)} Distances between clusters and their sizes mean "
        "nothing in a t-SNE. "
    )
    return as_html(figure, caption + problem)


def _attention_figure(looks: Sequence[Look], data: GCDData, positions: Tensor, problem: str) -> str:
    looks = [look for look in looks if look.attention is not None]
    if not len(positions) or len(looks) < 2:
        return ""
    views = views_of(data, positions)
    normalise = data.test_transform.transforms[-1]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (normalise.mean, normalise.std))
    pixels = (views * std + mean).clamp(0, 1)
    figure = Figure(figsize=(1.35 * (len(looks) + 1) + 1.2, 1.4 * len(positions) + 0.4), layout="constrained")
    panels = figure.subplots(len(positions), len(looks) + 1, squeeze=False)
    for row, position in enumerate(positions.tolist()):
        label = int(data.unlabelled.labels[position])
        image = pixels[row].mean(0).numpy()
        panels[row, 0].imshow(pixels[row].permute(1, 2, 0).squeeze(2).numpy(), cmap="gray", vmin=0, vmax=1)
        name = textwrap.fill(class_name(data, label).replace("_", " "), 18)
        panels[row, 0].set_ylabel(f"{name}\n{'known' if label < data.known else 'novel'}", fontsize=7)
        strongest = max(float(look.attention[row].max()) for look in looks)
        for axis, look in zip(panels[row, 1:], looks):
            axis.imshow(image, cmap="gray", vmin=0, vmax=1.5)  # darker than the colours
            extent = (-0.5, image.shape[1] - 0.5, image.shape[0] - 0.5, -0.5)
            weights = look.attention[row].numpy()
            settings = {"cmap": "inferno", "vmin": 0, "vmax": strongest, "alpha": 0.95 * weights / strongest}
            axis.imshow(weights, extent=extent, interpolation="bilinear", **settings)
    for axis, name in zip(panels[0], ("image", *(look.name for look in looks))):
        axis.set_title(name, fontsize=8)
    for axis in panels.flat:
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
    caption = (
        f"Attention of the CLS token in the last block, mean over heads, on {len(positions)} unlabelled images under the test transform "
        "(the first image of classes spread over known and novel ones). Coloured where attention is: from violet to the yellow of the "
        f"largest weight in a row of images, so colours compare within a row. {_weights(looks)} "
    )
    return as_html(figure, caption + problem)


def _weights(looks: Sequence[Look]) -> str:
    runs = {look.name: look.run for look in looks if look.run is not None}
    seeds = {run.config.seed for run in runs.values()}
    which = (
        f"seed {seeds.pop()}"
        if len(seeds) == 1
        else "seeds " + ", ".join(f"{run.config.seed} ({name})" for name, run in runs.items())
    )
    epochs = {len(run.lines["epoch"]) for run in runs.values()}
    after = (
        f"{epochs.pop()} epochs"
        if len(epochs) == 1
        else ", ".join(f"{len(run.lines['epoch'])} ({name})" for name, run in runs.items())
    )
    pretrained = (
        "pretrained: the encoder before any training here; the others: "
        if len(runs) < len(looks)
        else "Weights: "
    )
    return f"{pretrained[0].upper()}{pretrained[1:]}one run of each configuration, {which}, weights after the last epoch ({after})."


def class_name(data: GCDData, label: int) -> str:
    """The folder's name of a class, where there are folders; else its re-indexed number."""
    names = data.unlabelled.images.names
    position = int(data.unlabelled.uq_idx[data.unlabelled.labels == label][0])
    return names[int(data.unlabelled.images.targets[position])] if names else f"class {label}"


# Into the page ---------------------------------------------------------------------------------------------------------------------

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "eagc",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "savefig.dpi": 130,
}
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)  # Okabe and Ito's, without the pale yellow
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
MARKERS = "osD^vP*X<>"
SET_STYLES = tuple(
    {"color": COLOURS[i], "linestyle": dashes}
    for i, dashes in ((0, "-"), (2, (0, (4, 1.5))), (1, (0, (1, 1))))
)


def line_style(i: int) -> dict[str, Any]:
    """Colour and dashes of line i: 28 different ones, neighbours different in both, so that colours need not be seen."""
    return {"color": COLOURS[i % 7], "linestyle": DASHES[i % 4]}


def axes(rows: int, columns: int, height: float = 2.9) -> tuple[Figure, list[Axes]]:
    """A figure as wide as the page, and its panels row by row."""
    figure = Figure(figsize=(11, height * rows + 0.2), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def as_html(figure: Figure, caption: str) -> str:
    """The figure as SVG, with its conditions below."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Creator": None, "Date": None, "Format": None, "Type": None})
    svg = out.getvalue()
    return (
        f"<figure>{svg[svg.index('<svg') :]}<figcaption>{html.escape(caption.strip())}</figcaption></figure>"
    )
