"""The package as users meet it: wheel, missing dependencies, a clone that is not installed, the command line,
the documentation.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments, cwd=None, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


def test_wheel_holds_every_room_under_one_name(tmp_path):
    source = tmp_path / "source"  # a build leaves folders behind, and would take up those of an earlier one
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".*", "build", "dist", "out", "runs", "*.egg-info", "__pycache__"),
    )
    built = python(
        "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(tmp_path), str(source)
    )
    assert built.returncode == 0, built.stderr
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    tops = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert tops == {"eagc_ops"}
    for name in (
        "eagc_ops/py.typed",
        "eagc_ops/kernels/fused.py",
        "eagc_ops/training/data/__init__.py",
        "eagc_ops/bench/hooks.py",
        "eagc_ops/training/report/templates/base.html.j2",
        "eagc_ops/training/report/templates/section.html.j2",
        "eagc_ops/discovery/templates/discovered.html.j2",
        "eagc_ops/evidence/templates/probe.html.j2",
        "eagc_ops/evidence/paper/templates/table.html.j2",
    ):
        assert name in names
    unpacked = tmp_path / "site"
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(unpacked)
    # -S -s would hide torch too: put the wheel first and check that it is the one imported
    code = "import eagc_ops.kernels, eagc_ops.training.data; print(eagc_ops.kernels.__file__)"
    ran = python("-c", code, cwd=tmp_path, PYTHONPATH=str(unpacked))
    assert ran.stdout.startswith(str(unpacked)), ran.stderr


def test_imports_and_works_without_triton_timm_and_torchvision(tmp_path):
    code = """
import sys
for name in ("triton", "timm", "torchvision", "scipy", "sklearn", "accelerate"):
    sys.modules[name] = None
import torch, eagc_ops
z = torch.randn(8, 4, requires_grad=True)
mask = torch.arange(8) % 2 == 0
op = eagc_ops.EAGC(eagc_ops.Subspace.conceptor(torch.randn(50, 4)))
op(z, torch.randn(8, 4), mask).sum().backward()
assert z.grad is not None
try:
    eagc_ops.eagc_op(z, None, mask, op.subspace, impl="triton")
except RuntimeError as error:
    print(error)
"""
    ran = python("-c", code, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert 'impl="triton" cannot be used: Triton is not installed' in ran.stdout


def test_public_names_are_imported_on_first_use(tmp_path):
    code = """
import sys
import eagc_ops
assert "torch" not in sys.modules
assert set(eagc_ops.__all__) <= set(dir(eagc_ops)) and "torch" not in sys.modules
try:
    eagc_ops.nonesuch
except AttributeError as error:
    print(error)
from eagc_ops import *
from eagc_ops.functional import eagc_op as at_home
assert eagc_op is eagc_ops.eagc_op is at_home and vars(eagc_ops)["eagc_op"] is at_home
assert EAGC.__module__ == "eagc_ops.module" and diagnostics.__name__ == "eagc_ops.diagnostics"
assert AnchoredEncoder and Subspace and "torch" in sys.modules
"""
    ran = python("-c", code, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "module 'eagc_ops' has no attribute 'nonesuch'\n"


def test_a_clone_that_is_not_installed_says_what_to_do(tmp_path):
    (tmp_path / "eagc_ops").symlink_to(ROOT / "eagc_ops")
    finders = "[f for f in sys.meta_path if 'editable' not in repr(f).lower()]"
    code = f"import sys; sys.meta_path = {finders}; from eagc_ops import EAGC"
    ran = python("-c", code, cwd=tmp_path)
    assert ran.returncode != 0
    assert "found without its sub-packages" in ran.stderr and "pip install -e ." in ran.stderr


def test_command_line_lists_its_commands_and_refuses_others():
    ran = python("-m", "eagc_ops.app.cli", "--help")
    assert ran.returncode == 0
    for command in ("selftest", "bench", "env"):
        assert re.search(rf"^  {command} ", ran.stdout, re.MULTILINE)
    ran = python("-m", "eagc_ops.app.cli", "fly")
    assert (
        ran.returncode == 2
        and ran.stderr.startswith("eagc: unknown command 'fly'")
        and len(ran.stderr.splitlines()) == 1
    )
