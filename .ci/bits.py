"""Whether runs have the bits that they had: the four methods, with EAGC and without, here and at a commit.

    python .ci/bits.py 65b1527

A change that is only to move or to shorten code leaves all of them alone. Bits are compared on one machine:
another one may round differently.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# One epoch each, on digits and with random weights; SPTNet starts from the SimGCD run of its kind.
RUNS = """
import hashlib, sys, warnings
from pathlib import Path

import torch
from safetensors.torch import load_file

from eagc_ops.training.config import resolve
from eagc_ops.training.runs import train

warnings.simplefilter("ignore")
torch.set_num_threads(1)
for method in ("simgcd", "legogcd", "selex", "sptnet"):
    for eagc in (True, False):
        own = {"init": f"simgcd-{eagc}/last.safetensors"} if method == "sptnet" else {}
        own |= {"evaluation_restarts": 1} if method == "selex" else {}
        config = resolve(method, "digits", "paper", eagc=eagc, weights="random", epochs=1, reference_epochs=1,
                         device="cpu", precision="no", **own)
        run = Path(f"{method}-{eagc}")
        result = train(config, run)
        digest = hashlib.sha256(str(sorted(result["last"].items())).encode())
        tensors = load_file(run / "last.safetensors")
        for name in sorted(name for name in tensors if name.startswith(("encoder.", "method.", "eagc."))):
            digest.update(name.encode() + tensors[name].numpy().tobytes())
        print(method, "with EAGC" if eagc else "without", digest.hexdigest(), flush=True)
"""


def bits(tree: Path) -> list[str]:
    """A line for each run with the sha256 of its accuracies and of its last weights."""
    subprocess.run(["make", "-s", "tree"], cwd=tree, check=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(tree / "build" / "tree"), "PYTHONSAFEPATH": "1"}
        environment |= {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
        words = [sys.executable, "-c", RUNS]
        done = subprocess.run(
            words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return done.stdout.splitlines()


def main(commit: str) -> int:
    """Print both hashes of each run that differs. Returns 1 if one does."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        before = bits(Path(folder))
    now = bits(ROOT)
    for old, new in zip(before, now, strict=True):
        print(f"{'the same' if old == new else 'DIFFERENT'}: {new}" + (f"; before: {old}" * (old != new)))
    return int(before != now)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
