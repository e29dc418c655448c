"""pytest-benchmark suite of the operator: `make suites`.

Variants are timed one after the other, in CPU time. `eagc bench operator` interleaves them, for ratios on a
noisy machine.
"""

import time

import pytest
import torch

from eagc_ops.bench.inputs import make_features, make_workload
from eagc_ops.bench.operator import ROWS, check, variants
from eagc_ops.subspace import solve_conceptor

pytestmark = pytest.mark.benchmark(timer=time.process_time)


@pytest.fixture(scope="module", params=ROWS, ids=lambda rows: f"rows={rows}")
def runs(request):
    workload = make_workload(request.param)
    runs = variants(workload)
    check(workload, runs)
    return runs


@pytest.mark.parametrize("name", ["hooks", "fixed", "running", "limit"])
def test_operator(benchmark, measured, runs, name):
    benchmark.group = f"operator {name}"
    measured(runs[name])


@pytest.mark.parametrize("dim", [768, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_conceptor(measured, dim, dtype):
    features = make_features(1500, dim, torch.Generator().manual_seed(0)).to(dtype)
    correlation = features.T @ features / 1500
    measured(lambda: solve_conceptor(correlation, 2.0))
