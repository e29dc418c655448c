"""pytest-benchmark suite of the operator: `make suites`, or python -m pytest bench/suite_operator.py -o python_files='suite_*.py'

CPU time of one provider after the other; for ratios on a noisy machine use `eagc bench operator`, which interleaves.
"""

import time

import pytest
import torch

from eagc_ops.bench.inputs import make_features, make_inputs
from eagc_ops.bench.operator import ROWS, check, variants
from eagc_ops.subspace import solve_conceptor

pytestmark = pytest.mark.benchmark(timer=time.process_time)


@pytest.fixture(scope="module", params=ROWS, ids=lambda rows: f"rows={rows}")
def runs(request):
    inputs = make_inputs(request.param)
    runs = variants(inputs)
    check(inputs, runs)
    return runs


@pytest.mark.parametrize("form", ["hooks", "given", "ema", "limit"])
def test_operator(benchmark, measured, runs, form):
    benchmark.group = f"operator {form}"
    measured(runs[form])


@pytest.mark.parametrize("dim", [768, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_conceptor(measured, dim, dtype):
    features = make_features(1500, dim, torch.Generator().manual_seed(0)).to(dtype)
    correlation = features.T @ features / 1500
    measured(lambda: solve_conceptor(correlation, 2.0))
