"""pytest-benchmark suite of the operator: pytest bench -o python_files='suite_*.py' --benchmark-timer=time.process_time

Absolute times of one provider after the other; for ratios on a noisy machine use `eagc bench operator`, which interleaves.
"""

import pytest
import torch

from eagc_ops.bench.inputs import make_features, make_inputs
from eagc_ops.bench.operator import ROWS, check, variants
from eagc_ops.subspace import solve_conceptor


@pytest.fixture(scope="module", params=ROWS, ids=lambda rows: f"rows={rows}")
def runs(request):
    torch.set_num_threads(1)
    inputs = make_inputs(request.param)
    runs = variants(inputs)
    check(inputs, runs)
    return runs


@pytest.mark.parametrize("form", ["hooks", "given", "ema", "limit"])
def test_operator(benchmark, runs, form):
    benchmark.group = f"operator {form}"
    benchmark(runs[form])


@pytest.mark.parametrize("dim", [768, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_conceptor(benchmark, dim, dtype):
    features = make_features(1500, dim, torch.Generator().manual_seed(0)).to(dtype)
    benchmark(solve_conceptor, features.T @ features / 1500, 2.0)
