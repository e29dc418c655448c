"""Measures of the features of whole sets: SOC, rho_in and drift.

Features are those of whole sets under the test transform, after the update: Z_old of labelled images, Z_new
of unlabelled images of novel classes.

    SOC = |Z_new P_old|^2 / |Z_new|^2, P_old: the k leading directions of Z_old
        soc_release    unit-norm rows centred on the mean of Z_old
        soc_paper      raw features
    rho_in             sum_i z_i S z_i^T / sum_i |z_i|^2 over Z_new, S: the conceptor of Z_old, with the run's
                       aperture. S is fitted anew to the current features, also in runs with EAGC (whose own S
                       is that of the reference model), so that runs can be compared
    drift              sum_i |z_i - z_ref_i| / sum_i |z_ref_i| over Z_old, z_ref: the reference model's. Runs
                       without one have none; a warm start begins with 0
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from eagc_ops import Subspace, hints
from eagc_ops.diagnostics import collapse_coefficient, subspace_overlap
from eagc_ops.training.data import Batch
from eagc_ops.training.data.trunk_cache import cache_bytes
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.methods import Method

__all__ = ["WholeSets", "feature_measures"]

# Maximum memory for trunk tokens of test views; sets that need more go through the trunk every time.
KEPT_BYTES = 8 << 30


def feature_measures(
    old: Tensor, new: Tensor | None, old_ref: Tensor | None, k: int, aperture: float
) -> dict[str, float]:
    """SOC and rho_in of Z_old (N_old, D) and Z_new (N_new, D), drift of Z_old from `old_ref` (N_old, D).

    Those that do not exist are left out. Features that are not finite have none: the loop itself reports a
    run that diverged.
    """
    found: dict[str, float] = {}
    if not old.isfinite().all():
        return found
    if old_ref is not None:
        found["drift"] = ((old - old_ref).norm(dim=1).sum() / old_ref.norm(dim=1).sum()).item()
    if new is None or not new.isfinite().all():
        return found
    with hints.muted():
        conceptor = Subspace.conceptor(old, aperture).matrix
    return found | {
        "soc_release": subspace_overlap(old, new, k, "release").item(),
        "soc_paper": subspace_overlap(old, new, k, "paper").item(),
        "rho_in": collapse_coefficient(new, conceptor).item(),
    }


class WholeSets:
    """Labelled images, and unlabelled ones of novel classes, under the test transform.

    The frozen trunk's tokens of these images are the same at every step: they are computed once and kept in
    memory, up to `KEPT_BYTES`. They are not kept if a trunk cache has them, or if the method changes the
    pixels (SPTNet's prompts).
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        data, student = experiment.data, experiment.student
        self.novel = int((data.unlabelled.labels >= data.known).sum())
        self.rank = experiment.accelerator.process_index
        self.world = experiment.accelerator.num_processes
        share = (len(data.labelled) + self.novel) / len(data.merged) / self.world
        fits = cache_bytes(student.encoder, data, views=0) * share <= KEPT_BYTES
        plain_inputs = type(student.method).inputs is Method.inputs
        self.keeps = fits and experiment.config.trunk_cache is None and plain_inputs
        self._kept: list[list[Batch]] | None = None
        self._old_ref: Tensor | None = None

    def features(self) -> tuple[Tensor, Tensor | None]:
        """Z_old (N_old, D) and Z_new (N_new, D) or None, in fp32, by the current student."""
        old, new = self._batches()
        encode = self.experiment.features.encode
        return encode(old)[0], encode(new)[0] if self.novel else None

    def reference_features(self) -> Tensor | None:
        """The reference model's features of the labelled images (N_old, D); None without such a model."""
        tail = self.experiment.reference_tail
        if self._old_ref is None and tail is not None:
            encoder = self.experiment.student.encoder
            current = encoder.tail_state()
            encoder.load_tail(tail)
            self._old_ref = self.experiment.features.encode(self._batches()[0])[0]
            encoder.load_tail(current)
        return self._old_ref

    def _batches(self) -> Sequence[Iterable[Batch]]:
        """The labelled images, and the unlabelled ones of novel classes; as tokens if those are kept."""
        batches = self.experiment.batches
        parts = batches.labelled(), self._novel(batches.unlabelled())
        if self._kept is None and self.keeps:
            self._kept = [[self._through_trunk(i, batch) for i, batch in enumerate(part)] for part in parts]
        return parts if self._kept is None else self._kept

    def _novel(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            chosen = batch.label >= self.experiment.data.known
            if chosen.any():
                yield batch.select(chosen)

    def _through_trunk(self, i: int, batch: Batch) -> Batch:
        """The batch with tokens in place of pixels, or without views if a different process encodes it."""
        if i % self.world != self.rank:
            return batch._replace(stored=[])
        encoder, device = self.experiment.student.encoder, self.experiment.device
        tokens = [encoder.trunk(view).cpu() for view in batch.views_on(device)]
        return batch._replace(stored=tokens, normalization=None)
