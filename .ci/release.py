"""The packages of a release, into dist/: sdist and wheel of eagc-ops and of ptx-machine, installed and tried.

    python .ci/release.py            # in a new environment, with everything from the index (5 GB)
    python .ci/release.py --borrow   # with the dependencies of this environment, in seconds

A wheel is built from the sdist, so that a file which the sdist lacks is missed here and not by a user.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT, ROOT / "ptx_machine")
# Runs outside the clone: the operator, the command line, templates and data that come along, the machine.
TRIAL = """
import torch
from eagc_ops import EAGC, Subspace
eagc = EAGC(Subspace.conceptor(torch.randn(100, 16)))
z = torch.randn(8, 16, requires_grad=True)
eagc(z, torch.randn(8, 16), torch.arange(8) % 2 == 0).sum().backward()
from eagc_ops.app import cli
assert cli.main(["env"]) == 0
from eagc_ops.training.data import open_data
from eagc_ops.training.models.backbones import load_backbone
from eagc_ops.training.report.page import templates
assert len(open_data("glyphs").images) == 1800
load_backbone("vit_glyphs", image_size=32, channels=1)
for room in ("training.report", "discovery", "evidence", "evidence.paper"):
    for name in templates(f"eagc_ops.{room}").list_templates():
        templates(f"eagc_ops.{room}").get_template(name)
import ptx_machine
assert not ptx_machine.unknown_instructions(".entry k() { bar.sync 0; ret; }")
import eagc_ops
print("works:", eagc_ops.__file__, ptx_machine.__file__)
"""


def build(into: Path) -> list[Path]:
    """Write sdists and wheels into the folder, in place of older ones; returns the wheels."""
    into.mkdir(parents=True, exist_ok=True)
    for old in (*into.glob("*.whl"), *into.glob("*.tar.gz")):
        old.unlink()
    return [_wheel(_made("sdist", source, into), into) for source in SOURCES]


def _made(kind: str, source: Path, into: Path) -> Path:
    """What setuptools builds from the sources: an `sdist` or a `wheel`."""
    # Isolated: in the root of the clone, `import kernels` would find the folder instead of the package.
    code = f"from setuptools.build_meta import build_{kind}; print(build_{kind}({str(into)!r}))"
    ran = subprocess.run([sys.executable, "-I", "-c", code], cwd=source, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{kind} of {source}:\n{ran.stderr}")
    return into / ran.stdout.splitlines()[-1]


def _wheel(sdist: Path, into: Path) -> Path:
    with tempfile.TemporaryDirectory() as folder, tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        return _made("wheel", source, into)


def try_out(wheels: list[Path], borrow: bool) -> str:
    """Install the wheels in a new environment and run `TRIAL` there; returns what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "environment")
        venv.create(home, with_pip=False)
        python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        pip = [sys.executable, "-m", "pip", "-q", "--python", str(python), "install"]
        if borrow:
            (place,) = home.glob("**/site-packages")
            # A path in a .pth file brings packages, but no editable install of this clone.
            borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
            (place / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
            pip += ["--no-deps", "--no-index"]
        else:
            pip += ["-c", str(ROOT / "constraints.txt")]
        first, *others = map(str, wheels)
        subprocess.run([*pip, f"{first}[train]", *others], check=True)
        ran = subprocess.run([python, "-c", TRIAL], cwd=folder, capture_output=True, text=True)
        if ran.returncode or folder not in ran.stdout:
            sys.exit(f"the installed packages do not work:\n{ran.stdout}{ran.stderr}")
        return ran.stdout.splitlines()[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--borrow", action="store_true", help="take the dependencies of this environment")
    arguments = parser.parse_args()
    made = build(ROOT / "dist")
    print(try_out(made, arguments.borrow))
    print("\n".join(str(path.relative_to(ROOT)) for path in sorted((ROOT / "dist").iterdir())))
