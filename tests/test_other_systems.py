"""Windows and macOS: no line asks for what they lack. The workflow runs the operator's tests on both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import small_runs
from photographs import write_photographs

pytestmark = pytest.mark.fault("other systems")
SUPPORT = Path(__file__).parent / "support"

OPERATOR = """
import as_on_windows
import torch
from eagc_ops import EAGC, AnchoredEncoder, Subspace, diagnostics, eagc_op
labelled = torch.randn(60, 8)
z, mask = torch.randn(12, 8, requires_grad=True), torch.arange(12) % 2 == 0
out = EAGC(Subspace.conceptor(labelled))(z, torch.randn(12, 8), mask)
out.square().sum().backward()
assert z.grad.isfinite().all() and not torch.equal(z.grad, 2 * out)
import sys
assert not {"fcntl", "resource", "triton"} & sys.modules.keys()
"""

TRAIN_AND_DISCOVER = """
import as_on_windows
import sys
from eagc_ops.app.cli import main
weights, images, split, home = sys.argv[1:]
small = "--device cpu --epochs 1 --reference-epochs 1 --backbone vit_digits --image-size 16 --batch-size 8"
small += f" --mlp-head-layers 1 --weights {weights}"
photos = [f"{home}/photos/labelled", f"{home}/photos/new"]
plain = small.replace("--mlp-head-layers 1 ", "").split()
discover = ["discover", *photos, "-o", f"{home}/found", "--k", "5", *plain]
assert main(discover) == 0
assert main(discover) == 0, "it goes on with what is there"
train = f"train --dataset folder --root {images} --split-file {split} {small} -o {home}/run"
assert main(train.split()) == 0
"""


def run(script: str, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_operator_needs_neither_fcntl_nor_resource_nor_triton():
    run(OPERATOR)


def test_training_and_a_discovery_need_nothing_that_windows_lacks(tmp_path):
    write_photographs(tmp_path / "photos")
    data = small_runs.write_files(tmp_path / "images")
    run(TRAIN_AND_DISCOVER, data["weights"], data["root"], data["split_file"], tmp_path)
    assert (tmp_path / "found" / "categories.json").exists()
    assert (tmp_path / "run" / "result.json").exists()
    assert not list(tmp_path.rglob(".lock"))
