"""Whether EAGC has anything to act on, from labelled data alone and before a run.

EEP weights the gradient of an unlabelled row by tau, which must be small for known classes and large for
novel ones. Here some known classes play novel: the subspace is fitted to the others, and their rows are
compared with rows of the other classes that the fit has not seen either (a run does not fit to unlabelled
images). This is repeated for several random choices of classes.

A choice leaves fewer known classes than the run will have, and the fewer are known, the better energies tell
classes apart. So every choice is measured twice, with all remaining classes and with half of them, and
each number is extrapolated to all known classes along a straight line in the logarithm of their count.

    auc           the probability that a novel row has a lower energy ratio than a known one: 1 separates all
                  of them, 0.5 none
    tau           the mean projection weight of either side
    eep           sum |g' - g| / sum |g| over the rows of a side: the share of its gradient that EEP removes
    aga           the same over labelled rows. g' - g is the anchor term after the features have drifted from
                  the reference model by DRIFT of their norm. |g| estimates a run's gradient: LEARNT times the
                  stand-in's, plus REST / |z| per row for the terms that the stand-in lacks

g' is the coordinated gradient of `eagc_ops.kernels.formulas`. g = dL/dz stands in for a gradient of training:
L is the cross-entropy of the cosine classifier whose prototypes are the class means of the fit, at the
reference model's temperature, with the true class on labelled rows and the predicted one on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from eagc_ops import Subspace, hints
from eagc_ops.evidence.hidden_classes import (
    CHOICES,
    HELD_OUT,
    Choice,
    checked,
    choices_of,
    left,
    on_the_line,
)
from eagc_ops.kernels import Coordination, Inputs, formulas
from eagc_ops.subspace import APERTURE
from eagc_ops.training.data import draw_key
from eagc_ops.training.models.reference_model import TEMPERATURE

__all__ = [
    "APERTURES",
    "DRIFT",
    "PCA_SIZES",
    "Candidate",
    "Probe",
    "Separation",
    "effective_rank",
    "from_json",
    "probe",
    "separation",
    "verdict",
]

APERTURES = (0.1, 0.3, 1.0, APERTURE, 3.0, 10.0)
PCA_SIZES = (16, 32, 64)  # those of the paper's ablation
MOST = 3000  # rows: more change little, and take minutes
DRIFT = 0.1
# The mean gradient of a labelled row over a run, fitted to SimGCD with EAGC (`paper`) on glyphs with 5 to 100
# known classes: most of what classes teach is learnt soon, and the other losses do not depend on them.
LEARNT, REST = 0.2, 0.14
# Of the verdict. On frozen features of glyphs the AUC was 0.83 with 10 known classes and 0.57 with 100; EEP
# removed 6 % and under 2 % of the gradient.
ACTS, NOTHING, LEAST_SHARE = 0.75, 0.65, 0.02
SAME = 0.03  # apertures whose AUCs differ by less are equally good: the choices differ by more


class Separation(NamedTuple):
    """How well a subspace tells novel rows from known ones; see the top of this file."""

    auc: float
    tau_known: float
    tau_novel: float
    eep_known: float
    eep_novel: float


class Candidate(NamedTuple):
    """A subspace that a run could use."""

    subspace: str  # "conceptor" or "pca"
    size: float  # aperture, or number of directions
    at_all: Separation  # extrapolated to all known classes
    at_most: Separation  # means over the choices, with all classes that a choice leaves
    at_half: Separation  # with half of them
    spread: float  # standard deviation of the AUC over the choices, of `at_most`

    def __str__(self) -> str:
        return f"aperture {self.size:g}" if self.subspace == "conceptor" else f"PCA-{self.size:g}"


class Probe(NamedTuple):
    """The result of a probe. `known` is the number of classes in the labels; all of them are known."""

    known: int
    most: int  # known classes that a choice leaves
    half: int  # half of them; equal to `most` if there are too few to halve: nothing is extrapolated then
    choices: int
    images: int  # rows that were used
    dim: int
    effective_rank: float
    lambda_a: float
    lambda_p: float
    aga: float
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The conceptor that the probe would choose.

        It has the highest AUC. Among equally good ones (`SAME`), EEP removes most of the novel rows'
        gradient with it, in excess of the known rows'.
        """
        conceptors = [c for c in self.candidates if c.subspace == "conceptor"]
        highest = max(c.at_all.auc for c in conceptors)
        good = [c for c in conceptors if c.at_all.auc >= highest - SAME]
        return max(good, key=lambda c: c.at_all.eep_novel - c.at_all.eep_known)

    def conceptor(self, aperture: float) -> Candidate:
        """The candidate conceptor with this aperture."""
        return next(c for c in self.candidates if (c.subspace, c.size) == ("conceptor", aperture))

    @property
    def verdict(self) -> str:
        return verdict(self.best.at_all)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary, which `from_json` reads; `best` and `verdict` are for other readers."""
        candidates = [
            {k: v._asdict() if isinstance(v, Separation) else v for k, v in c._asdict().items()}
            for c in self.candidates
        ]
        return {
            **self._asdict(),
            "candidates": candidates,
            "best": str(self.best),
            "verdict": self.verdict,
        }


def probe(
    features: Tensor,
    labels: Tensor,
    *,
    apertures: Sequence[float] = APERTURES,
    pca_sizes: Sequence[int] = PCA_SIZES,
    choices: int = CHOICES,
    lambda_a: float = 0.7,
    lambda_p: float = 0.5,
    seed: int = 0,
) -> Probe:
    """How well energies would tell novel classes from the known ones, and what EEP and AGA would change.

    Args:
        features: (N, D) floating, un-normalised, of labelled images, from the layer where EAGC will act.
        labels: (N,) integers, the class of each row. At least 3 classes with 2 rows each.
        apertures, pca_sizes: the subspaces to try. PCA sizes must be below D and half the rows; others are
            left out. A fit with fewer rows than directions uses the span of the rows.
        choices: number of random choices of the classes that play novel: a fifth of them, or one if there
            are fewer than 10. Every class plays once before any plays again.
        lambda_a, lambda_p: strengths of AGA and EEP. Default: the paper's.
        seed: for the choices, and for the rows to use if there are more than 3,000.

    >>> axes = torch.eye(12).repeat_interleave(4, 0).view(6, 8, 12)  # 6 classes with 2 directions each
    >>> features = (axes * torch.linspace(0.5, 1.5, 8)[:, None]).flatten(0, 1)
    >>> found = probe(features, torch.arange(6).repeat_interleave(8))
    >>> found.best.at_all.auc
    1.0
    >>> found.verdict
    'tau tells novel from known: AUC 1.00; EEP will act'
    """
    label = checked(features, labels, choices)
    features = features.detach().float()
    known = len(label.unique())
    rows = _some(label, known, seed)
    features, label = features[rows], label[rows]
    sizes = [k for k in pca_sizes if k < min(features.shape[1], len(features) // 2)]
    most, half = left(known)
    settings = Coordination(lambda_a, lambda_p)
    measured: dict[tuple[str, float], dict[int, list[Separation]]] = {
        **{("conceptor", float(aperture)): {most: [], half: []} for aperture in apertures},
        **{("pca", float(k)): {most: [], half: []} for k in sizes},
    }
    anchored = []
    for choice, smaller in choices_of(label, choices, seed):
        for count, rows_of in {half: smaller, most: choice}.items():
            sides = _Sides.of(_in_span(features, rows_of.fit), label, rows_of)
            for kind, size in measured:
                subspace = _fitted(kind, size, sides.fit)
                measured[kind, size][count].append(_separation(sides, subspace, settings))
        anchored.append(_anchored(_Sides.of(features, label, choice), settings))  # its mean is over all D
    candidates = []
    for (kind, size), by_count in measured.items():
        at_most, at_half = _means(by_count[most]), _means(by_count[half])
        at_all = Separation(*on_the_line(at_most, at_half, most, half, known))
        spread = torch.tensor([s.auc for s in by_count[most]]).std(correction=min(1, choices - 1)).item()
        candidates.append(Candidate(kind, size, at_all, at_most, at_half, spread))
    return Probe(
        known=known,
        most=most,
        half=half,
        choices=choices,
        images=len(features),
        dim=features.shape[1],
        effective_rank=effective_rank(features),
        lambda_a=lambda_a,
        lambda_p=lambda_p,
        aga=sum(anchored) / len(anchored),
        candidates=tuple(candidates),
    )


def separation(
    fit: Tensor,
    fit_label: Tensor,
    known: Tensor,
    novel: Tensor,
    subspace: Subspace,
    *,
    lambda_p: float = 0.5,
) -> Separation:
    """The same numbers if the truth is known: for a subspace, and unlabelled rows of both sides.

    `fit` (N, D) and `fit_label` (N,) are the labelled rows; their class means are the stand-in classifier;
    `known` and `novel` (., D) are unlabelled rows of known and of novel classes.
    """
    sides = _Sides.made(fit.float(), fit_label, known.float(), None, novel.float())
    return _separation(sides, subspace, Coordination(0.0, lambda_p))


def verdict(found: Separation) -> str:
    """One plain sentence on what EEP would do."""
    auc = f"AUC {found.auc:.2f}"
    if found.auc < NOTHING:
        return (
            f"tau does not tell novel from known: {auc}; EEP will do next to nothing; fewer known classes or "
            "other features are needed"
        )
    if found.eep_novel < LEAST_SHARE:
        return (
            f"tau tells novel from known: {auc}; but EEP will do next to nothing: it removes "
            f"{found.eep_novel:.1%} of the gradient of novel rows; raise lambda_p"
        )
    if found.auc < ACTS:
        return f"tau tells novel from known a little: {auc}; EEP will act weakly"
    return f"tau tells novel from known: {auc}; EEP will act"


def effective_rank(features: Tensor) -> float:
    """exp of the entropy of the spectrum of Z^T Z, as shares of its sum (Roy and Vetterli, on energies).

    It is D for isotropic features and 1 for features on one line. The features are not centred, as for the
    conceptor.

    >>> round(effective_rank(torch.eye(8)), 3), round(effective_rank(torch.ones(5, 8)), 3)
    (8.0, 1.0)
    """
    energies = torch.linalg.svdvals(features.double()).square()
    shares = energies / energies.sum()
    return torch.special.entr(shares).sum().exp().item()


def from_json(content: dict[str, Any]) -> Probe:
    """The probe that `to_json` wrote."""
    candidates = tuple(
        Candidate(**c | {k: Separation(**v) for k, v in c.items() if isinstance(v, dict)})
        for c in content["candidates"]
    )
    fields = {name: value for name, value in content.items() if name in Probe._fields}
    return Probe(**{**fields, "candidates": candidates})


class _Sides(NamedTuple):
    """The rows of one choice with their stand-in gradients."""

    fit: Tensor
    rows: Tensor  # known rows, then novel ones
    is_novel: Tensor
    gradient: Tensor  # of unlabelled rows
    known: Tensor
    supervised: Tensor | None  # of known rows with their labels

    @classmethod
    def of(cls, features: Tensor, label: Tensor, choice: Choice) -> _Sides:
        fit, known, novel = (features[rows] for rows in choice)
        return cls.made(fit, label[choice.fit], known, label[choice.known], novel)

    @classmethod
    def made(
        cls, fit: Tensor, fit_label: Tensor, known: Tensor, known_label: Tensor | None, novel: Tensor
    ) -> _Sides:
        classes, position = fit_label.unique(return_inverse=True)
        means = fit.new_zeros(len(classes), fit.shape[1]).index_add_(0, position, fit)
        rows = torch.cat([known, novel])
        supervised = None if known_label is None else torch.searchsorted(classes, known_label)
        return cls(
            fit,
            rows,
            torch.arange(len(rows), device=rows.device) >= len(known),
            _gradient(rows, means, None),
            known,
            None if supervised is None else _gradient(known, means, supervised),
        )


def _in_span(features: Tensor, rows: Tensor) -> Tensor:
    """The features (N, D) in len(rows) + 1 coordinates, if that is fewer; a probe measures the same in them.

    The first ones are in an orthonormal basis of the span of `rows`, which holds the subspace and all class
    means. Of the rest of a feature only the norm counts, which is the last one. The anchor is different: it
    is a mean over D coordinates.
    """
    if len(rows) >= features.shape[1]:
        return features
    wide = features.double()
    inside = wide @ torch.linalg.qr(wide[rows].T).Q
    outside = (wide.square().sum(1) - inside.square().sum(1)).clamp_min(0).sqrt()
    return torch.cat([inside, outside[:, None]], 1)


def _gradient(z: Tensor, prototypes: Tensor, target: Tensor | None) -> Tensor:
    """dL/dz of the stand-in loss; a target of None is the predicted class."""
    z = z.detach().double().requires_grad_()
    logits = F.linear(F.normalize(z, dim=1), F.normalize(prototypes.double(), dim=1)) / TEMPERATURE
    loss = F.cross_entropy(logits, logits.argmax(1) if target is None else target)
    return torch.autograd.grad(loss, z)[0]


def _fitted(kind: str, size: float, fit: Tensor) -> Subspace:
    if kind == "conceptor":
        with hints.muted():
            return Subspace.conceptor(fit, size)
    return Subspace.pca(fit, min(int(size), len(fit)))  # directions beyond the rows would be any


def _separation(sides: _Sides, subspace: Subspace, settings: Coordination) -> Separation:
    unlabelled = torch.zeros_like(sides.is_novel)
    inputs = Inputs(sides.rows, None, unlabelled, subspace.matrix, subspace.energy_ref).widened(torch.float64)
    found = formulas.coordinated(sides.gradient, inputs, settings)
    removed, whole = (x.norm(dim=1) for x in (found.gradient - sides.gradient, sides.gradient))

    def share(side: Tensor) -> float:
        return (removed[side].sum() / whole[side].sum().clamp_min(1e-300)).item()

    novel = sides.is_novel
    return Separation(
        auc=float(roc_auc_score(novel.cpu(), -found.energy.cpu())),
        tau_known=found.tau[~novel].mean().item(),
        tau_novel=found.tau[novel].mean().item(),
        eep_known=share(~novel),
        eep_novel=share(novel),
    )


def _anchored(sides: _Sides, settings: Coordination) -> float:
    """The estimated share of AGA. No subspace acts on labelled rows, so any will do."""
    labelled = torch.ones(len(sides.known), dtype=torch.bool, device=sides.known.device)
    nowhere = torch.zeros(sides.known.shape[1], sides.known.shape[1], device=sides.known.device)
    inputs = Inputs(sides.known, (1 - DRIFT) * sides.known, labelled, nowhere, torch.ones(()))
    supervised = sides.supervised
    assert supervised is not None  # the labels are known
    found = formulas.coordinated(supervised, inputs.widened(torch.float64), settings).gradient
    added = (found - supervised).norm(dim=1).sum()
    rest = REST / len(sides.known) / sides.known.double().norm(dim=1).clamp_min(1e-300)  # of a mean over rows
    return (added / (LEARNT * supervised.norm(dim=1) + rest).sum()).item()


def _means(found: Sequence[Separation]) -> Separation:
    return Separation(*torch.tensor(found, dtype=torch.float64).mean(0).tolist())


def _some(label: Tensor, classes: int, seed: int) -> Tensor:
    """At most `MOST` rows, equally many of every class, at least 5 of each."""
    if len(label) <= MOST:
        return torch.arange(len(label))
    each, generator = max(MOST // classes, HELD_OUT), torch.Generator().manual_seed(draw_key(seed, -1))
    order = torch.randperm(len(label), generator=generator)
    chosen = [order[label[order] == c][:each] for c in label.unique()]
    return torch.cat(chosen).sort().values
