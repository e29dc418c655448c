"""Values from the weights of runs on their data: energies, features, attention, conceptor spectra.

Each group is represented by one run, with the weights of its last epoch, in fp32, under the test transform.
The true labels of unlabelled images separate known from novel ones here; training never sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from timm.models.vision_transformer import Attention, Block
from torch import Tensor
from torch.nn import functional as F

from eagc_ops import Subspace
from eagc_ops.app.console import one_line
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.analysis import map_2d
from eagc_ops.training.config import ConfigError
from eagc_ops.training.data import GCDData
from eagc_ops.training.engine.checkpoint import CheckpointError, load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.report.runs import RunGroup, RunRecord

MOST = 6  # groups that are looked at
SETS = ("labelled", "known, unlabelled", "novel")
CLASSES, POINTS = 50, 2000  # of a t-SNE: the paper shows the last 50 novel classes
IMAGES = 6  # with attention maps


class KnownSubspace(NamedTuple):
    """S and Ebar as a run keeps them."""

    group: str  # name of the run's group
    run: RunRecord
    subspace: Subspace


class Look(NamedTuple):
    """The values from the weights of one run."""

    name: str  # of the group
    run: RunRecord | None  # None: the pretrained encoder
    points: Tensor  # (n, D), features z of `novel_sample`
    attention: Tensor | None  # (images, h, w) on `image_sample`, mean over heads; None if not available
    energies: dict[str, Tensor] | None = None  # by set, (images,); None if there is no subspace
    known: KnownSubspace | None = None  # in which the energies were measured


class Looks(NamedTuple):
    """The looks at all groups of one problem, and the images they share."""

    looks: list[Look]
    subspaces: list[KnownSubspace]
    data: GCDData | None  # None if no run could be opened
    novel: Tensor  # positions in the unlabelled set
    images: Tensor  # positions in the unlabelled set
    notes: list[str]  # on groups, runs and values that are left out


def look_at_weights(groups: Sequence[RunGroup], **changes: Any) -> Looks:
    """Look at one run of each group. `changes` are settings of the machine, if data or weights have moved."""
    chosen, notes = choose(groups)
    nothing = torch.zeros(0, dtype=torch.int64)
    result = Looks([], [], None, nothing, nothing, notes)
    readable = []
    for name, run in chosen:
        try:
            tensors, _ = load_checkpoint(run.path / "last.safetensors")
        except CheckpointError as error:
            notes.append(_left_out(run, error))
            continue
        readable.append((name, run))
        if "eagc.matrix" in tensors:
            own = {name: tensors.get(f"eagc.{name}") for name in ("basis", "weights")}
            subspace = Subspace(tensors["eagc.matrix"], tensors["eagc.energy_ref"], **own)
            result.subspaces.append(KnownSubspace(name, run, subspace))
    for name, run in readable:
        try:
            experiment = open_run(run, changes)
            if result.data is None:
                labels, known = experiment.data.unlabelled.labels, experiment.data.known
                result = result._replace(
                    data=experiment.data,
                    novel=novel_sample(labels, known),
                    images=image_sample(labels, known),
                )
                result.looks.append(_look_at_pretrained(experiment, result.novel, result.images))
            known_subspace = subspace_for(run, result.subspaces)
            result.looks.append(_look_at(name, run, experiment, known_subspace, result.novel, result.images))
        except (OSError, ValueError, CheckpointError) as error:
            notes.append(_left_out(run, error))
    notes += [
        f"{look.name}: no attention maps, because its last block is not timm's plain one"
        for look in result.looks
        if look.attention is None
    ]
    return result


def choose(groups: Sequence[RunGroup]) -> tuple[list[tuple[str, RunRecord]], list[str]]:
    """(group name, run) of at most `MOST` groups, and a note on the groups left out.

    The run has the lowest seed that all of these groups share, or else the lowest seed of its group. The
    first group without the operator and the first one with it are always included.
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
    note = f"pictures of weights show {MOST} configurations, and not {', '.join(others)}"
    return chosen, [note] if others else []


def open_run(run: RunRecord, changes: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a run, with its pretrained encoder; different data or weights are refused."""
    # Always in fp32: a picture must not depend on the machine that draws it.
    settings = {"precision": "no", "deterministic": False, "accumulation": 1, "device": "auto"}
    settings |= {name: value for name, value in (changes or {}).items() if name in run.config.help_texts()}
    experiment = Experiment(run.config.replace(**settings))
    for fact, fault in (
        ("split_hash", "root or split_file has different images or classes than the run"),
        ("trunk", "weights is a different pretrained encoder than that of the run"),
    ):
        if getattr(experiment.facts, fact) != getattr(run.facts, fact):
            raise ConfigError(f"{fault} ({fact} differs)", fault.split()[0])
    experiment.student.eval()
    return experiment


def subspace_for(run: RunRecord, subspaces: Sequence[KnownSubspace]) -> KnownSubspace | None:
    """The run's own subspace, or else the first one of a run with the same reference model."""

    def reference_model(run: RunRecord) -> dict[str, Any]:
        settings = run.config.to_json()
        names = [name for name in settings if name.startswith("reference_") and name != "reference_blocks"]
        identity = {name: settings[name] for name in (*names, "seed", "cls_only")}
        identity["blocks"] = run.config.blocks_of_reference
        return identity | run.facts.identity

    own = [known for known in subspaces if known.run is run]
    shared = [known for known in subspaces if reference_model(known.run) == reference_model(run)]
    return next(iter(own + shared), None)


def spectrum(matrix: Tensor, aperture: float, other: float) -> Tensor:
    """Eigenvalues (D,) fp64, descending, that a conceptor fitted with `aperture` has at aperture `other`.

    An eigenvalue s = r / (r + aperture^-2) determines the eigenvalue r of R, so the features are not needed:
    with q = (other / aperture)^2 it becomes q s / (q s + 1 - s).

    >>> correlation = torch.diag(torch.tensor([3.0, 0.25], dtype=torch.float64))
    >>> spectrum(correlation @ torch.linalg.inv(correlation + 0.25 * torch.eye(2)), 2.0, 1.0)
    tensor([0.7500, 0.2000], dtype=torch.float64)
    """
    s = torch.linalg.eigvalsh(matrix.to("cpu", torch.float64)).flip(0).clamp(0, 1)
    q = (other / aperture) ** 2
    return q * s / (q * s + 1 - s)


def novel_sample(labels: Tensor, known: int) -> Tensor:
    """Positions of at most `POINTS` unlabelled images, of the last `CLASSES` novel classes."""
    classes = labels[labels >= known].unique()[-CLASSES:]
    per_class = [_evenly((labels == c).nonzero().flatten(), POINTS // len(classes)) for c in classes]
    return torch.cat(per_class) if per_class else torch.zeros(0, dtype=torch.int64)


def image_sample(labels: Tensor, known: int) -> Tensor:
    """Positions of up to `IMAGES` unlabelled images, half of known classes, each the first of its class."""
    classes = labels.unique()
    halves = (classes[classes < known], classes[classes >= known])
    return torch.tensor(
        [int((labels == c).nonzero()[0]) for half in halves for c in _evenly(half, IMAGES // 2)]
    )


def views_of(data: GCDData, positions: Tensor) -> Tensor:
    """(n, C, H, W): unlabelled images under the test transform."""
    views = [data.test_transform(data.unlabelled[int(i)][0]) for i in positions]
    return torch.stack(views) if views else torch.zeros(0, data.channels, data.image_size, data.image_size)


def class_name(data: GCDData, label: int) -> str:
    """The name of a class, if the data have names, or else its re-indexed number."""
    names = data.unlabelled.images.names
    position = int(data.unlabelled.uq_idx[data.unlabelled.labels == label][0])
    return names[int(data.unlabelled.images.targets[position])] if names else f"class {label}"


def tsne(points: Tensor) -> np.ndarray:
    """t-SNE (n, 2) of unit-norm features, because the methods' classifiers use directions only."""
    return map_2d.tsne(F.normalize(points.double(), dim=1).numpy())


def attention_maps(encoder: AnchoredEncoder, images: Tensor) -> Tensor | None:
    """Attention (n, h, w) of the last block's CLS token to the patches, mean over heads.

    The weights of CLS and registers, which would make the sum 1, are left out. None if the block is not
    timm's plain one.
    """
    if not _is_plain(encoder.tail[-1]):
        return None
    with torch.no_grad():
        weights = cls_attention(encoder, encoder.trunk(images)).mean(1)
    return weights[:, encoder.vit.num_prefix_tokens :].unflatten(1, encoder.vit.patch_embed.grid_size).cpu()


@torch.no_grad()
def cls_attention(encoder: AnchoredEncoder, tokens: Tensor) -> Tensor:
    """Attention weights (B, heads, N) of the CLS query in the student's last block; they sum to 1.

    `tokens` (B, N, D) come from the trunk. The weights are computed from the block's q and k, because fused
    attention does not return them, and the CLS-only path forms no keys.
    """
    blocks: list[Any] = list(encoder.tail)
    *middle, last = blocks
    if not _is_plain(last):
        raise TypeError(
            "the last block must be timm's Block with plain Attention, whose q and k are known; got "
            f"{type(last).__name__}"
        )
    for block in middle:
        tokens = block(tokens)
    attn: Any = last.attn
    q, k, _ = (  # each (B, N, heads, width)
        attn.qkv(last.norm1(tokens)).unflatten(-1, (3, attn.num_heads, attn.head_dim)).unbind(2)
    )
    return torch.einsum("bhw,bnhw->bhn", attn.scale * attn.q_norm(q[:, 0]), attn.k_norm(k)).softmax(-1)


def _look_at_pretrained(experiment: Experiment, novel: Tensor, images: Tensor) -> Look:
    """The encoder before a run's weights are loaded, on plain images, even if the method adds prompts."""
    encoder, data = experiment.student.encoder, experiment.data
    with torch.no_grad():
        parts = [
            encoder.student(encoder.trunk(views_of(data, part).to(experiment.device))).cpu()
            for part in novel.split(128)
        ]
    maps = attention_maps(encoder, views_of(data, images).to(experiment.device))
    return Look("pretrained", None, torch.cat(parts), maps)


def _look_at(
    name: str,
    run: RunRecord,
    experiment: Experiment,
    known: KnownSubspace | None,
    novel: Tensor,
    images: Tensor,
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
        energies = {title: subspace.energy(z).cpu() for title, z in zip(SETS, sets)}
    with torch.no_grad():
        inputs = experiment.student.method.inputs([views_of(experiment.data, images).to(experiment.device)])
    points = unlabelled[novel.to(experiment.device)].cpu()
    return Look(name, run, points, attention_maps(experiment.student.encoder, inputs), energies, known)


def _is_plain(block: Any) -> bool:
    return type(block).forward is Block.forward and type(block.attn).forward is Attention.forward


def _evenly(values: Tensor, count: int) -> Tensor:
    return values[torch.linspace(0, len(values) - 1, min(count, len(values))).round().long()]


def _left_out(run: RunRecord, error: Exception) -> str:
    return f"{run.path.name}: no pictures of its weights: {one_line(error)}"
