"""`eagc bench scale`: the first answer of more and more images, from features; and k-means of all rows.

Features are planted: classes in groups of eight, half of them known, each with 20 labelled rows. Every number
of images has a process of its own, whose largest memory is that of the whole way.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.bench.estimate import Labelled, planted
from eagc_ops.discovery.category_count import estimate_categories
from eagc_ops.training.analysis.constrained_kmeans import constrained_kmeans, lloyd
from eagc_ops.training.analysis.first_answer import first_answer, sample_of_rows

DIM, LABELLED, SPREAD, NOISE = 384, 20, 0.8, 1.4
SIZES = {1_000: 24, 10_000: 48, 100_000: 104, 200_000: 104}  # images: classes
ROWS = 100_000  # of the k-means
STEPS = 25  # of Lloyd's algorithm in faiss: its default


def scale_rows(quick: bool) -> list[dict[str, Any]]:
    """A row for each number of images, measured in a process of its own."""
    rows = []
    for images in list(SIZES)[:2] if quick else SIZES:
        command = [sys.executable, "-m", "eagc_ops.bench.scale", str(images), str(SIZES[images])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout))
    return rows


def measured(images: int, classes: int) -> dict[str, Any]:
    """Seconds of every step, and bytes: of the features, and the most that came to them."""
    data = labelled(images, classes)
    seconds: dict[str, float] = {}
    before = _peak()
    number = _timed(seconds, "K", lambda: estimate_categories(data.features, data.label, data.known))
    _timed(seconds, "answer", lambda: first_answer(data.features, data.label, classes, data.known))
    return {
        "kind": "measured",
        "N": len(data.features),
        "D": data.features.shape[1],
        "classes": classes,
        "K": [number.low, number.k, number.high] if number.given else None,
        "seconds": seconds,
        "features": data.features.nbytes,
        "more": _peak() - before,
    }


def labelled(images: int, classes: int) -> Labelled:
    """Planted features, with 20 labelled rows of each known class."""
    each = images // classes
    data = planted(f"{images:,} rows", classes, each=each, dim=DIM, spread=SPREAD, noise=NOISE)
    place = torch.arange(len(data.label)) % each
    known = torch.arange(len(data.label)) // each
    label = torch.where((known < data.known) & (place < LABELLED), known, -1)
    return data._replace(label=label)


def kmeans_rows(quick: bool) -> list[dict[str, Any]]:
    """k-means of many rows by what is there and by libraries: seconds, and the mean cosine to the centre.

    No row is labelled here: the libraries know no such rows.
    """
    classes = SIZES[100_000]
    data = planted(
        "rows", classes, each=(ROWS // 10 if quick else ROWS) // classes, dim=256, spread=SPREAD, noise=3.0
    )
    points = F.normalize(data.features, dim=1)
    ways = {"here": _here, "MiniBatchKMeans": _mini_batches, "KMeans": _kmeans}
    if importlib.util.find_spec("faiss") is not None:  # no dependency of this package
        ways["faiss"] = _faiss
    rows = []
    for way, find in ways.items():
        seconds: dict[str, float] = {}
        centres = F.normalize(_timed(seconds, way, functools.partial(find, points, classes)), dim=1)
        cosine = torch.cat([(part @ centres.T).amax(1) for part in points.split(8192)]).double().mean().item()
        rows.append(
            {
                "kind": "measured",
                "N": len(points),
                "D": points.shape[1],
                "K": classes,
                "way": way,
                "seconds": seconds[way],
                "cosine": cosine,
            }
        )
    return rows


def _here(points: Tensor, k: int) -> Tensor:
    """The way of the first answer: a sample gives the first centres of all rows."""
    free = torch.full((len(points),), -1)
    chosen = sample_of_rows(free, 0)
    first = constrained_kmeans(points[chosen], free[chosen], k, 0, restarts=1).centres
    return lloyd(points, free, first).centres


def _mini_batches(points: Tensor, k: int) -> Tensor:
    from sklearn.cluster import MiniBatchKMeans

    found = MiniBatchKMeans(k, batch_size=4096, n_init=1, random_state=0).fit(points.numpy())
    return torch.from_numpy(found.cluster_centers_)


def _kmeans(points: Tensor, k: int) -> Tensor:
    from sklearn.cluster import KMeans

    return torch.from_numpy(KMeans(k, n_init=1, random_state=0).fit(points.numpy()).cluster_centers_)


def _faiss(points: Tensor, k: int) -> Tensor:
    import faiss  # type: ignore[import-not-found]

    found = faiss.Kmeans(
        points.shape[1], k, niter=STEPS, spherical=True, seed=1, max_points_per_centroid=len(points)
    )
    found.train(points.numpy())
    return torch.from_numpy(found.centroids)


def _timed(seconds: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    begin = time.process_time()
    result = work()
    seconds[name] = time.process_time() - begin
    return result


def _peak() -> int:
    """The largest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    print(json.dumps(measured(*map(int, sys.argv[1:]))))
