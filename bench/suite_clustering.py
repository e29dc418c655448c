"""pytest-benchmark suite of semi-supervised k-means: `make suites`.

The size is that of CUB: 6,000 features of 768 dimensions, 200 clusters, a quarter of the points fixed. Times
are wall time with all cores of the machine, as in the training loop; the other suites use one thread.
"""

import os
import time

import pytest
import torch
from torch.nn import functional as F

from eagc_ops.training.methods.clustering import semi_supervised_kmeans

POINTS, DIM, K, KNOWN = 6000, 768, 200, 100

pytestmark = pytest.mark.benchmark(timer=time.perf_counter)


@pytest.fixture
def threads() -> int:
    return os.cpu_count() or 1


@pytest.fixture(scope="module")
def problem() -> tuple[torch.Tensor, torch.Tensor]:
    """Unit features in overlapping classes, and the fixed labels.

    The spread within a class is 1.2 times the length of a class mean.
    """
    g = torch.Generator().manual_seed(0)
    y = torch.arange(POINTS) % K
    noise = 1.2 * torch.randn(POINTS, DIM, generator=g) / DIM**0.5
    x = F.normalize(F.normalize(torch.randn(K, DIM, generator=g), dim=1)[y] + noise, dim=1)
    return x, torch.where((y < KNOWN) & (torch.rand(POINTS, generator=g) < 0.5), y, -1)


@pytest.mark.parametrize(
    ("balanced", "restarts"),
    [(False, 1), (True, 1), (True, 10)],
    ids=["not balanced, start of an epoch", "start of an epoch", "evaluation (10 restarts)"],
)
def test_clustering(measured, problem, balanced, restarts):
    size = POINTS // K if balanced else None
    clustering = measured(
        lambda: semi_supervised_kmeans(
            *problem, K, generator=torch.Generator().manual_seed(0), cluster_size=size, restarts=restarts
        ),
        rounds=3 if restarts == 1 else 1,
        warmup_rounds=1 if restarts == 1 else 0,
    )
    assert clustering.labels.max() < K
