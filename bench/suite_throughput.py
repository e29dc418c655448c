"""pytest-benchmark suite of the contenders: `make suites`.

It times one contender after the other. `eagc bench throughput` interleaves them and gives ratios, rates and
errors.
"""

import pytest
import torch

from eagc_ops.bench.inputs import error, make_workload
from eagc_ops.bench.measure import clock
from eagc_ops.bench.throughput import contenders, shapes
from eagc_ops.kernels import DTYPES

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

pytestmark = pytest.mark.benchmark(timer=clock(DEVICE))


@pytest.mark.parametrize(
    "shape", shapes(DEVICE, quick=True), ids=lambda shape: f"{shape.rows}x{shape.dim}-{shape.dtype}"
)
@pytest.mark.parametrize("number", range(7))
def test_contender(benchmark, measured, shape, number):
    workload = make_workload(shape.rows, shape.dim, dtype=DTYPES[shape.dtype], device=DEVICE)
    listed = contenders(workload)
    if number >= len(listed):
        pytest.skip("the Triton kernel needs a GPU")
    contender = listed[number]
    if error(workload, contender.run(), running=contender.running).too_large(workload.z.dtype):
        pytest.skip(f"{contender.name} is wrong in {shape.dtype}: not timed")
    benchmark.group = f"{shape.rows} rows, D = {shape.dim}, {shape.dtype}"
    benchmark.name = contender.name

    def run():
        contender.run()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()

    measured(run)
