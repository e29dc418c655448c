"""The store of reference models: of two processes that need one, one makes it."""

import subprocess
import sys

from eagc_ops.training.engine.store import stored

SCRIPT = """
import pathlib, sys, time, torch
from eagc_ops.training.engine.store import stored

def make():
    with open(sys.argv[2], "a") as log:
        log.write("made\\n")
    time.sleep(1)
    return {"x": torch.arange(3)}

print(stored(pathlib.Path(sys.argv[1]), {"kind": "reference"}, make)["x"].tolist())
"""


def test_two_processes_make_it_once(tmp_path):
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), str(tmp_path / "log")]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=300)[0].strip() for process in processes] == ["[0, 1, 2]"] * 2
    assert (tmp_path / "log").read_text() == "made\n"
    (file,) = (tmp_path / "store").iterdir()
    assert file.suffix == ".safetensors"
    assert stored(tmp_path / "store", {"kind": "reference"}, None)["x"].tolist() == [0, 1, 2]
