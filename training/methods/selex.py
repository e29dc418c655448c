"""SelEx: self-expertise on a hierarchy of clusters.

There is no classifier: clusters come from semi-supervised k-means at the start of every epoch.

    L_GCD = (1 - w) L_u + w L_s / 2,      w = sup_weight

L_u, unsupervised self-expertise: InfoNCE with soft targets, larger the more levels separate two images.
L_s, supervised self-expertise: SupCon by true labels, and by the clusters of each level on ever shorter
slices of the embedding.
All similarities are negative Euclidean distances of the unit-norm embedding f.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn import functional as F

from eagc_ops.training.config import ConfigError, SelExConfig
from eagc_ops.training.data.loaders import draw_key
from eagc_ops.training.data.rows import Rows
from eagc_ops.training.methods.clustering import Clusters, semi_supervised_kmeans
from eagc_ops.training.methods.losses import sup_con_of_similarities
from eagc_ops.training.methods.registry import register
from eagc_ops.training.models.distributed import rank_and_world
from eagc_ops.training.models.features import StudentFeatures
from eagc_ops.training.models.heads import Prototypes, projector
from eagc_ops.training.models.method import Loss, Method, Problem
from eagc_ops.training.models.optimization import sgd


@register("selex")
class SelEx(Method):
    """Head: a projector to 256 dimensions, and unit-norm prototypes on it whose cosines are the embedding."""

    Config = SelExConfig
    config: SelExConfig
    clusters: Tensor
    radii: Tensor
    weighting = "selex"

    def __init__(self, config: SelExConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.levels = hierarchy(problem.known, problem.classes - problem.known)
        if config.embedding_dim < 2 ** len(self.levels):
            raise ConfigError(
                f"embedding_dim must be >= {2 ** len(self.levels)}, as each of {len(self.levels)} levels "
                f"halves it, got {config.embedding_dim}"
            )
        self.projector = projector(problem.dim, config.projector_width)
        self.embedding = Prototypes(256, config.embedding_dim)
        # Of this epoch, by level: the cluster of every image, and the radius of every cluster. Level 0 has
        # the most clusters.
        self.register_buffer("clusters", torch.full((len(self.levels), problem.images), -1))
        self.register_buffer(
            "radii", torch.zeros(len(self.levels), max(old + new for old, new in self.levels))
        )

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(n, D) -> embeddings (n, embedding_dim), and clustered features u (n, D) without a gradient."""
        u = self.mlp_head(z)
        return self.embedding(self.projector(u)), u.detach()

    # Clusters -----------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, features: StudentFeatures) -> None:
        """Clusters of all images at all levels, from their first augmented view."""
        z, label, uq_idx = features.augmented(epoch)
        generator = torch.Generator().manual_seed(draw_key(self.config.seed, epoch, -2))
        for i, level in enumerate(self.cluster_hierarchy(self.unit_features(z), label, generator)):
            self.clusters[i, uq_idx] = level.labels
            self.radii[i, : len(level.centers)] = radii(level.centers)
        if dist.is_initialized():  # processes may round differently, but must have the same clusters
            dist.broadcast(self.clusters, 0)
            dist.broadcast(self.radii, 0)

    def cluster_hierarchy(self, x: Tensor, label: Tensor, generator: torch.Generator) -> list[Clusters]:
        """Clusters of unit features `x` (N, D) at every level.

        `label` (N,): true class of labelled images, -1 on the others.
        """
        first = self.cluster(x, label, sum(self.levels[0]), generator, "k-means, level 0")
        # All labelled images, and the unlabelled ones that joined a known class
        known = first.labels < self.levels[0][0]
        clusters = [first]
        for i, (old, new) in enumerate(self.levels[1:], 1):
            # Always from the prototypes of level 0: levels are not nested.
            prototypes = first.centers[: self.levels[0][0]].double().cpu().numpy()
            groups = torch.from_numpy(KMeans(old, n_init=10, random_state=0).fit_predict(prototypes)).to(
                label
            )
            fixed = torch.where(known, groups[first.labels.clamp(max=len(groups) - 1)], -1)
            clusters.append(self.cluster(x, fixed, old + new, generator, f"k-means, level {i}"))
        if self.config.published_order:
            # The published code returns these labels in the order [predicted known, predicted novel] and
            # reads them in the order of the images, [labelled, unlabelled]: image p gets the label of image
            # order[p]. Labelled images come first in both orders, so their labels are right.
            order = torch.cat([known.nonzero(), (~known).nonzero()]).flatten()
            clusters[1:] = [level._replace(labels=level.labels[order]) for level in clusters[1:]]
        return clusters

    def cluster(
        self, x: Tensor, fixed: Tensor, k: int, generator: torch.Generator, name: str, restarts: int = 1
    ) -> Clusters:
        return semi_supervised_kmeans(
            x,
            fixed,
            k,
            generator=generator,
            cluster_size=-(-len(x) // k) if self.config.balanced else None,
            published_balancing=self.config.published_balancing,
            restarts=restarts,
            iterations=self.config.kmeans_iterations,
            progress=name if rank_and_world()[0] == 0 else None,
        )

    def clusters_of_epoch(self, uq_idx: Tensor) -> Tensor | None:
        """Level 0: what the release of EAGC scores, from augmented views and one restart of k-means."""
        return self.clusters[0, uq_idx.to(self.clusters.device)] if self.config.start_accuracy else None

    def unit_features(self, z: Tensor) -> Tensor:
        return torch.cat([F.normalize(self.mlp_head(chunk).float(), dim=1) for chunk in z.split(4096)])

    def predict(self, features: StudentFeatures) -> Tensor:
        """The official evaluation: a new k-means under the test transform, constrained by labelled images."""
        clusters, labelled = self._final_clusters(features)
        return clusters.labels[labelled:]

    def fit_scores(self, features: StudentFeatures) -> dict[str, Tensor]:
        """The centers to which the k-means of `predict` assigned the images."""
        return {"centers": self._final_clusters(features)[0].assigned_to}

    def scores(self, z: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        """Negative Euclidean distances of the unit features to the centers, as all similarities of SelEx."""
        unit = F.normalize(self.mlp_head(z).float(), dim=1)
        return -torch.cdist(unit, fitted["centers"], compute_mode="donot_use_mm_for_euclid_dist")

    def _final_clusters(self, features: StudentFeatures) -> tuple[Clusters, int]:
        """The clusters of labelled, then unlabelled images, and the number of labelled ones."""
        (labelled, label), (unlabelled, _) = features.labelled(), features.unlabelled()
        fixed = torch.cat([label, label.new_full((len(unlabelled),), -1)])
        generator = torch.Generator().manual_seed(draw_key(self.config.seed, -1, 5))
        x, restarts = self.unit_features(torch.cat([labelled, unlabelled])), self.config.evaluation_restarts
        k, name = self.problem.classes, "k-means, evaluation"
        return self.cluster(x, fixed, k, generator, name, restarts), len(labelled)

    # Losses -------------------------------------------------------------------------------------------------

    def loss(self, outputs: tuple[Tensor, Tensor], rows: Rows) -> Loss:
        config, (f, u) = self.config, outputs
        f = F.normalize(f, dim=1)
        clusters = self.clusters[:, rows.uq_idx]  # (levels, n)
        far = far_pairs(u, self.radii.gather(1, clusters))
        similarity = -distances(f)
        terms = {
            "self": soft_info_nce(similarity / config.contrastive_temp, soft_targets(far, config.smoothing)),
            "supcon": sup_con_of_similarities(similarity / config.supcon_temp, rows.label, rows.mask),
        }
        expertise = terms["supcon"]
        for i, cluster in enumerate(clusters):
            slice_similarity = -distances(f[:, : config.embedding_dim >> (i + 1)])  # not normalised again
            all_rows = torch.ones_like(rows.mask)
            terms[f"supcon_level{i}"] = sup_con_of_similarities(
                slice_similarity / config.supcon_temp, cluster, all_rows
            )
            expertise = expertise + 2.0 ** -(i + 1) * terms[f"supcon_level{i}"]
        terms["far"] = far.mean()  # not a loss: close to 1 where the targets are close to uniform
        return Loss(config.sup_weight * expertise / 2, (1 - config.sup_weight) * terms["self"], terms)

    def optimizers(self, encoder: nn.Module) -> list[torch.optim.Optimizer]:
        """SGD with weight decay on every tensor, biases and norms included."""
        parts = ((encoder, self.config.backbone_lr), (self, self.config.head_lr))
        groups = [
            {"params": [p for p in part.parameters() if p.requires_grad], "lr": lr, "initial_lr": lr}
            for part, lr in parts
        ]
        return [sgd(groups, momentum=self.config.momentum, weight_decay=self.config.weight_decay)]


def hierarchy(known: int, novel: int) -> list[tuple[int, int]]:
    """(known, novel) clusters of every level: both are halved until one known cluster is left.

    >>> hierarchy(80, 20)
    [(80, 20), (40, 10), (20, 5), (10, 2), (5, 1), (2, 1), (1, 1)]
    """
    levels = [(known, novel)]
    while known > 1:
        known, novel = max(known // 2, 1), max(novel // 2, 1)
        levels.append((known, novel))
    return levels


def radii(prototypes: Tensor) -> Tensor:
    """Half the distance (K,) of every prototype (K, D) to the nearest other one."""
    return torch.cdist(prototypes, prototypes).fill_diagonal_(torch.inf).amin(1) / 2


def far_pairs(u: Tensor, radius: Tensor) -> Tensor:
    """M (n, n) in [0, 1]: levels, weighted by 2^-level, where i is farther from j than j's cluster is wide.

    u (n, D) are features, `radius` (levels, n) has the radius of every row's cluster. As published, u is not
    normalised, although the radii are those of unit features.
    """
    distance = distances(u).fill_diagonal_(0)
    # Column j is compared with the radius of j.
    m = sum(2.0**-i * (distance > 2 * r).to(u.dtype) for i, r in enumerate(radius))
    low, high = m.aminmax()
    return (m - low) / (high - low + 1e-7)


def soft_targets(far: Tensor, alpha: float) -> Tensor:
    """(1 - alpha) one-hot of the image's other view + alpha T, with T_ij = M_ij / sum_k M_jk.

    Columns are divided by row sums, as published.
    """
    n, total = len(far), far.sum(1)
    other_view = torch.eye(n, dtype=far.dtype, device=far.device).roll(n // 2, 0)
    return (1 - alpha) * other_view + alpha * far / torch.where(total > 0, total, 1)


def soft_info_nce(similarity: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of the softmax over all other rows against `target` (n, n); mean over rows.

    The diagonal of `target` is not used.
    """
    self_pairs = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    log_probability = similarity.masked_fill(self_pairs, torch.finfo(similarity.dtype).min).log_softmax(1)
    return -(target * log_probability.masked_fill(self_pairs, 0)).sum(1).mean()


def distances(f: Tensor) -> Tensor:
    """Euclidean distances (n, n) of rows of f (n, d), by matrix products; a distance 0 has gradient 0."""
    return torch.cdist(f, f, compute_mode="use_mm_for_euclid_dist")
