"""Examples in docstrings, and the code of the README."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ptx_machine

README = Path(__file__).resolve().parents[1] / "README.md"


def modules():
    return ["ptx_machine", *(m.name for m in pkgutil.iter_modules(ptx_machine.__path__, "ptx_machine."))]


@pytest.mark.parametrize("name", modules())
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_readme_runs_as_printed(tmp_path):
    pytest.importorskip("triton", reason="Triton has no wheels for this platform")
    script = tmp_path / "readme.py"  # Triton reads a kernel's source from a file
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)))
    ran = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


def test_torch_and_triton_are_not_imported():
    code = "import sys, ptx_machine; assert not {'torch', 'triton'} & {*sys.modules}, 'imported'"
    subprocess.run([sys.executable, "-c", code], check=True)
