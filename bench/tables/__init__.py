"""Results as tables: a function for each kind of row, in a file for each benchmark."""

from eagc_ops.bench.tables.calls import (
    conceptor_quality,
    conceptor_times,
    host,
    operator,
    solve,
    throughput,
)
from eagc_ops.bench.tables.cells import mebibytes
from eagc_ops.bench.tables.comparison import changes
from eagc_ops.bench.tables.data import estimate, kmeans, loader, loader_note, scale
from eagc_ops.bench.tables.kernels import aot, modelled, triangle
from eagc_ops.bench.tables.training_step import (
    bars,
    epochs,
    evaluation,
    memory,
    overhead,
    overhead_note,
    paper,
    reference_model,
    steps,
)

__all__ = [
    "aot",
    "bars",
    "changes",
    "conceptor_quality",
    "conceptor_times",
    "epochs",
    "estimate",
    "evaluation",
    "host",
    "kmeans",
    "loader",
    "loader_note",
    "mebibytes",
    "memory",
    "modelled",
    "operator",
    "overhead",
    "overhead_note",
    "paper",
    "reference_model",
    "scale",
    "solve",
    "steps",
    "throughput",
    "triangle",
]
