"""pytest-benchmark suite of the providers: `make suites`, or python -m pytest bench/suite_throughput.py -o python_files='suite_*.py'

Absolute times of one provider after the other; `eagc bench throughput` interleaves them and gives ratios, rates and errors.
"""

import pytest
import torch

from eagc_ops.bench.inputs import error, make_inputs
from eagc_ops.bench.measure import clock
from eagc_ops.bench.throughput import DTYPES, providers, shapes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

pytestmark = pytest.mark.benchmark(timer=clock(DEVICE))


@pytest.mark.parametrize(
    "shape", shapes(DEVICE, quick=True), ids=lambda shape: f"{shape.rows}x{shape.dim}-{shape.dtype}"
)
@pytest.mark.parametrize("number", range(7))
def test_provider(benchmark, measured, shape, number):
    inputs = make_inputs(shape.rows, shape.dim, dtype=DTYPES[shape.dtype], device=DEVICE)
    found = providers(inputs)
    if number >= len(found):
        pytest.skip("the Triton kernel needs a GPU")
    provider = found[number]
    if error(inputs, provider.run(), running=provider.running).too_large(inputs.z.dtype):
        pytest.skip(f"{provider.name} is wrong in {shape.dtype}: not timed")
    benchmark.group = f"{shape.rows} rows, D = {shape.dim}, {shape.dtype}"
    benchmark.name = provider.name

    def run():
        provider.run()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()

    measured(run)
