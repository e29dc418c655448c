"""Figures from the weights of runs: conceptor spectrum, energies and tau, t-SNE, attention maps."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from eagc_ops.evidence.weights import (
    SETS,
    KnownSubspace,
    Look,
    Looks,
    class_name,
    look_at_weights,
    spectrum,
    tsne,
    views_of,
)
from eagc_ops.kernels.formulas import projection_weight
from eagc_ops.training.analysis.map_2d import PERPLEXITY, SEED
from eagc_ops.training.data import GCDData
from eagc_ops.training.report.drawing import COLOURS, DASHES, MARKERS, Picture, axes, picture
from eagc_ops.training.report.runs import RunGroup

APERTURES = (0.5, 1.0, 2.0, 4.0, 10.0)
PCA_K = (16, 32, 64)  # of the paper
BINS = 40
NAMED = 12  # classes of a t-SNE that a legend can name
_SET_STYLES: tuple[dict[str, Any], ...] = tuple(
    {"color": COLOURS[i], "linestyle": dashes}
    for i, dashes in ((0, "-"), (2, (0, (4, 1.5))), (1, (0, (1, 1))))
)


def weight_figures(groups: Sequence[RunGroup], **changes: Any) -> tuple[list[Picture], list[str]]:
    """The figures of groups of one problem, and notes on what they leave out, which are warnings too.

    `changes` are settings that say where data and weights are now.
    """
    seen = look_at_weights(groups, **changes)
    for note in seen.notes:
        warnings.warn(note, stacklevel=2)
    return _figures(seen), seen.notes


def _figures(seen: Looks) -> list[Picture]:
    """All figures that the looks allow."""
    pictures = [spectrum_figure(seen.subspaces), energy_figure(seen.looks)]
    if seen.data is not None and len(seen.looks) > 1:
        pictures += [
            tsne_figure(seen.looks, seen.data, seen.novel),
            attention_figure(seen.looks, seen.data, seen.images),
        ]
    return [picture for picture in pictures if picture is not None]


def spectrum_figure(subspaces: Sequence[KnownSubspace]) -> Picture | None:
    """The first conceptor's eigenvalues and soft rank, at its aperture and at others."""
    known = next((known for known in subspaces if known.run.config.subspace == "conceptor"), None)
    if known is None:
        return None
    dim, own = len(known.subspace.matrix), known.run.config.aperture
    apertures = sorted({*APERTURES, own})
    values = {aperture: spectrum(known.subspace.matrix, own, aperture) for aperture in apertures}
    pca = [k for k in PCA_K if k < dim]
    figure, (axis, ranks) = axes(1, 2)
    _draw_spectra(axis, values, own, pca)
    _draw_ranks(ranks, values, pca)
    return picture(
        figure,
        "Spectrum of the known-class subspace S against the aperture.",
        [
            "S = R (R + aperture^-2 I)^-1 with R = Z^T Z / N, where Z are the reference model's features of "
            "labelled images (test transform, not centred).",
            f"S is that of configuration {known.group}, seed {known.run.config.seed}, which was fitted with "
            f"aperture {own:g}.",
            "An eigenvalue is the share of a direction that S keeps; the sum (right) is the soft rank of S.",
            "A PCA subspace keeps K directions whole and drops the others (steps).",
        ],
    )


def energy_figure(looks: Sequence[Look]) -> Picture | None:
    """Histograms of E and tau, a row for each look that has energies."""
    shown: list[Any] = [look for look in looks if look.energies is not None]  # so with run and subspace
    if not shown:
        return None
    taus = [
        {name: projection_weight(e, look.known.subspace.energy_ref) for name, e in look.energies.items()}
        for look in shown
    ]
    lowest = min(float(e.min()) for look in shown for e in look.energies.values() if len(e))
    highest = max(float(tau.max()) for by_set in taus for tau in by_set.values() if len(tau))
    energy_range = (math.floor(20 * lowest) / 20, 1.0)  # one scale for all rows
    tau_range = (0.0, max(math.ceil(20 * highest) / 20, 0.05))
    figure, panels = axes(len(shown), 2, height=2.3)
    for row, (look, tau) in enumerate(zip(shown, taus)):
        energy_axis, tau_axis = panels[2 * row : 2 * row + 2]
        _draw_sets(energy_axis, look.energies, energy_range)
        _draw_sets(tau_axis, tau, tau_range)
        _mark_energy_ref(energy_axis, float(look.known.subspace.energy_ref), energy_range)
        config = look.run.config
        unused = ", not used by it" if not config.has_operator or config.tau == "uniform" else ""
        energy_axis.set_title(f"{look.name}: energy ratio E", loc="left")
        tau_axis.set_title(f"{look.name}: projection weight tau{unused}", loc="left")
        energy_axis.set_xlabel("E")
        tau_axis.set_xlabel("tau")
    borrowed = [look for look in shown if look.known.group != look.name]
    absent = [look.name for look in looks if look.run is not None and look.energies is None]
    return picture(
        figure,
        "Energy ratio E and projection weight tau of whole sets, under the test transform.",
        [
            "E is the share of a feature's energy inside the known-class subspace S; tau = clamp(1 - E / "
            "Ebar, 0, 1).",
            "With energy='whitened' the feature is first whitened by the covariance of all features."
            if any(look.known.run.config.energy == "whitened" for look in shown)
            else "",
            "The sets are the labelled images, the unlabelled images of known classes and the images of "
            "novel classes; known and novel are told apart by the true labels.",
            _weights_note(shown),
            "Ebar (dashed) is the mean E of the labelled images under the reference model, or its running "
            "mean if energy_momentum is set.",
            "EEP uses the tau of unlabelled images only; that of labelled images is shown for comparison.",
            *(
                f"{look.name} has no subspace and is measured in that of {look.known.group}, which has the "
                "same reference model."
                for look in borrowed
            ),
            f"Left out, because no subspace of the same reference model exists: {', '.join(absent)}."
            if absent
            else "",
        ],
    )


def tsne_figure(looks: Sequence[Look], data: GCDData, positions: Tensor) -> Picture | None:
    if len(positions) < 10:
        return None
    labels = data.unlabelled.labels[positions]
    classes = labels.unique().tolist()
    columns = min(len(looks), 4)
    figure, panels = axes(math.ceil(len(looks) / columns), columns, height=3.2)
    for axis, look in zip(panels, looks):
        places = tsne(look.points)
        for i, c in enumerate(classes):
            x, y = places[(labels == c).numpy()].T
            axis.scatter(x, y, s=9, color=COLOURS[i % 7], marker=_marker(i), linewidths=0, rasterized=True)
        axis.set(title=look.name, xticks=[], yticks=[])
        axis.grid(False)
    for axis in panels[len(looks) :]:
        axis.remove()
    settings: dict[str, Any] = {"linestyle": "", "markersize": 5, "markeredgewidth": 0}
    handles = [
        Line2D([], [], color=COLOURS[i % 7], marker=_marker(i), label=class_name(data, c), **settings)
        for i, c in enumerate(classes)
    ]
    if len(classes) <= NAMED:
        figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=7)
    perplexity = min(PERPLEXITY, (len(positions) - 1) / 3)
    return picture(
        figure,
        f"t-SNE of {len(positions):,} unlabelled images of {len(classes)} novel classes.",
        [
            "The classes are true classes, the last ones by index; every panel shows the same images.",
            f"Features of the encoder are scaled to unit norm; test transform, perplexity {perplexity:.3g}, "
            f"PCA start, t-SNE seed {SEED}.",
            _weights_note(looks),
            "Distances between clusters and their sizes mean nothing in a t-SNE.",
        ],
    )


def _marker(i: int) -> str:
    """With the colour i modulo 7 no two of 70 classes look alike."""
    return MARKERS[i % len(MARKERS)]


def attention_figure(looks: Sequence[Any], data: GCDData, positions: Tensor) -> Picture | None:
    looks = [look for look in looks if look.attention is not None]
    if not len(positions) or len(looks) < 2:
        return None
    pixels = _pixels(data, positions)
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
            settings: dict[str, Any] = {
                "cmap": "inferno",
                "vmin": 0,
                "vmax": strongest,
                "alpha": 0.95 * weights / strongest,
            }
            axis.imshow(weights, extent=extent, interpolation="bilinear", **settings)
    for axis, name in zip(panels[0], ("image", *(look.name for look in looks))):
        axis.set_title(name, fontsize=8)
    for axis in panels.flat:
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
    return picture(
        figure,
        f"Attention of the CLS token in the last block, mean over heads, on {len(positions)} unlabelled "
        "images under the test transform.",
        [
            "Each image is the first one of its class; the classes are spread over the known and the novel "
            "ones.",
            "Colours run from violet to yellow, which is the largest weight in a row of images: compare "
            "them within a row only.",
            _weights_note(looks),
        ],
    )


def _draw_spectra(axis: Axes, values: Mapping[float, Tensor], own: float, pca: Sequence[int]) -> None:
    dim = len(values[own])
    for i, (aperture, eigenvalues) in enumerate(values.items()):
        settings: dict[str, Any] = {
            "color": COLOURS[i % 7],
            "linestyle": DASHES[1 + i % 3],
            "label": f"aperture {aperture:g}",
        }
        if aperture == own:
            settings |= {"linestyle": "-", "linewidth": 2.5, "label": f"aperture {aperture:g} (the run)"}
        axis.plot(range(1, dim + 1), eigenvalues, **settings)
    curves = list(axis.lines)
    for k in pca:
        settings = {"color": "0.6", "linewidth": 1, "label": f"PCA, K = {k}", "zorder": 0}
        axis.step([1, k, k + 1, dim], [1, 1, 0, 0], where="post", **settings)
        settings = {"fontsize": 7, "color": "0.3", "ha": "center", "va": "bottom"}
        axis.annotate(f"{k}", (k + 1, 1.01), annotation_clip=False, **settings)
    axis.set(
        title="spectrum of S",
        xlabel="eigenvalue, the largest first",
        ylabel="eigenvalue of S",
        xscale="log",
        ylim=(-0.03, 1.09),
    )
    steps = Line2D([], [], color="0.6", linewidth=1, label=f"PCA, K = {', '.join(map(str, pca))}")
    axis.legend(
        handles=[*curves, *([steps] if pca else [])],
        fontsize=7,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
    )


def _draw_ranks(axis: Axes, values: Mapping[float, Tensor], pca: Sequence[int]) -> None:
    apertures = list(values)
    ranks = [float(eigenvalues.sum()) for eigenvalues in values.values()]
    axis.plot(apertures, ranks, marker="o", color=COLOURS[0])
    for k in pca:
        axis.axhline(k, color="0.6", linewidth=1, zorder=0)
        axis.annotate(f"PCA, K = {k}", (apertures[0], k), fontsize=7, color="0.3", ha="left", va="bottom")
    axis.set(
        title="soft rank of S",
        xlabel="aperture",
        ylabel=f"trace of S, of {len(values[apertures[0]])}",
        xscale="log",
        ylim=(0, 1.12 * max(*pca, 0, ranks[-1])),
    )
    axis.set_xticks(apertures, [f"{aperture:g}" for aperture in apertures])
    axis.minorticks_off()


def _draw_sets(axis: Axes, values: Mapping[str, Tensor], limits: tuple[float, float]) -> None:
    """A histogram for each set: its outline, and the area below."""
    edges = np.linspace(*limits, BINS + 1)
    for name, settings in zip(SETS, _SET_STYLES):
        counts, _ = np.histogram(values[name].double().numpy().clip(*limits), edges)
        shares = counts / max(len(values[name]), 1)
        mean = f"{values[name].mean():.3f}" if len(values[name]) else "-"
        label = f"{name}: {len(values[name]):,}, mean {mean}"
        axis.stairs(shares, edges, label=label, linewidth=1.4, **settings)
        axis.stairs(shares, edges, fill=True, alpha=0.15, color=settings["color"])
    axis.set(xlim=limits, ylabel="share of the set")
    axis.legend(fontsize=7, loc="best")


def _mark_energy_ref(axis: Axes, energy_ref: float, limits: tuple[float, float]) -> None:
    axis.axvline(energy_ref, color="black", linestyle=(0, (4, 2)), linewidth=1.2)
    axis.annotate(
        f"Ebar = {energy_ref:.3f}",
        (energy_ref, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        fontsize=7,
        ha="right" if energy_ref > sum(limits) / 2 else "left",
    )


def _pixels(data: GCDData, positions: Tensor) -> Tensor:
    """(n, C, H, W) in [0, 1]: the images under the test transform, its normalisation undone."""
    transform: Any = data.test_transform
    normalise = transform.transforms[-1]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (normalise.mean, normalise.std))
    return (views_of(data, positions) * std + mean).clamp(0, 1)


def _weights_note(looks: Sequence[Look]) -> str:
    runs = {look.name: look.run for look in looks if look.run is not None}

    def spread(values: dict[str, Any]) -> str:
        if len(set(values.values())) == 1:
            return f"{next(iter(values.values()))}"
        return ", ".join(f"{value} ({name})" for name, value in values.items())

    seeds = {name: run.config.seed for name, run in runs.items()}
    epochs = {name: run.lines["epoch"][-1]["epoch"] + 1 for name, run in runs.items()}
    one = (
        f"one run of each configuration, seed {spread(seeds)}, weights after the last epoch "
        f"({spread(epochs)} epochs)"
    )
    if len(runs) == len(looks):
        return f"Weights: {one}."
    return f"Pretrained: the encoder before any training here; the others: {one}."
