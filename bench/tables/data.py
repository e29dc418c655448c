"""Loading, and the search for the number of classes."""

from __future__ import annotations

from typing import Any

from eagc_ops.app.table import Table
from eagc_ops.bench.tables.cells import Rows, milliseconds

_KMEANS = {
    "here": "here: a sample of 20,000 rows, then all rows",
    "MiniBatchKMeans": "scikit-learn MiniBatchKMeans, batches of 4,096",
    "KMeans": "scikit-learn KMeans",
    "faiss": "faiss-cpu, 25 steps",
}


def loader(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "pass": r["pass"],
                "way": r["way"],
                "ms per image": milliseconds(r["seconds_per_image"]),
                "speed-up": r["speed_up"],
            }
            for r in rows
        ],
        headings=2,
    )


def loader_note(results: dict[str, Any]) -> str:
    settings, cache = results["settings"], results["cache"]
    return (
        f"{settings['images']} JPEG photographs of {settings['width']} x {settings['height']} pixels for an "
        f"input of {settings['image_size']}; {settings['rounds']} rounds. The cache has "
        f"{cache['bytes_per_image'] / 1e3:.0f} kB per image (the files: "
        f"{cache['file_bytes_per_image'] / 1e3:.0f} kB) and takes "
        f"{cache['build_seconds_per_image'] * 1e3:.1f} ms of CPU time per image to build."
    )


def estimate(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "features": f"{r['data']}, {r['N']:,} x {r['D']}",
                "known / all classes": f"{r['known']} / {r['classes']}",
                "search": r["way"],
                "K by seed": ", ".join(map(str, r["found"])),
                "CPU s": f"{r['seconds'].median:.3g} ({r['seconds'].low:.3g}-{r['seconds'].high:.3g})",
            }
            for r in rows
        ],
        headings=3,
    )


def scale(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "images": f"{r['N']:,}",
                "classes": r["classes"],
                "estimate of K": "none" if r["K"] is None else "{1} ({0}-{2})".format(*r["K"]),
                "its CPU s": f"{r['seconds']['K']:.1f}",
                "first answer, CPU s": f"{r['seconds']['answer']:.1f}",
                "features, MB": f"{r['features'] / 1e6:.0f}",
                "beside them, MB": f"{r['more'] / 1e6:.0f}",
            }
            for r in rows
        ],
        headings=2,
    )


def kmeans(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "k-means": _KMEANS[r["way"]],
                "CPU s": f"{r['seconds']:.1f}",
                "mean cosine to the centre": f"{r['cosine']:.4f}",
            }
            for r in rows
        ],
        headings=1,
    )
