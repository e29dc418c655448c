"""The Kernel Hub's form of the operator, loaded by the package `kernels`, in processes that have no eagc_ops.

The processes run outside the clone: in its root `import kernels` finds the folder of that name.
"""

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOADED = """
import sys
from pathlib import Path
sys.modules["eagc_ops"] = None  # an import of it fails
from kernels import get_local_kernel
"""
# Everything a user calls: a fit, the module in forward and backward, eager and compiled, and the function.
WORK = """
import hashlib
import torch
torch.set_num_threads(1)

def digest(ops):
    torch.manual_seed(0)
    features, z_ref, start = torch.randn(200, 24), torch.randn(32, 24), torch.randn(32, 24)
    mask = torch.arange(32) % 3 == 0
    eagc = ops.EAGC(ops.Subspace.conceptor(features))
    parts = [eagc.matrix, eagc.energy_ref]
    compiled = torch.compile(eagc, fullgraph=True, backend="aot_eager")
    for call in (eagc, compiled, lambda *inputs: ops.eagc_op(*inputs, eagc.subspace, lambda_p=0.7)):
        z = start.clone().requires_grad_()
        out = call(z, z_ref, mask)
        assert torch.equal(out, z)
        out.square().sum().backward()
        parts += [out, z.grad]
    assert torch.equal(parts[3], parts[5]) and not torch.equal(parts[3], parts[7])
    return hashlib.sha256(b"".join(part.detach().numpy().tobytes() for part in parts)).hexdigest()
"""


def hub():
    spec = importlib.util.spec_from_file_location("hub", ROOT / ".ci/hub.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(code, folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        cwd=folder,
        env={**environment, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    """The repository of this clone, and that of a version that differs in one line."""
    folder = tmp_path_factory.mktemp("hub")
    hub().write(folder / "this")
    for room in ("eagc_ops", "kernels"):
        shutil.copytree(ROOT / room, folder / "source" / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "LICENSE", folder / "source")
    top = folder / "source/eagc_ops/__init__.py"
    top.write_text(top.read_text() + '\n__version__ = "another"\n')
    other = hub()
    other.ROOT = folder / "source"
    other.write(folder / "other")
    return folder


def test_two_builds_work_side_by_side_with_the_bits_of_the_installed_package(repositories):
    code = f"""{LOADED}{WORK}
builds = [get_local_kernel(Path(name), backend="cpu") for name in ("this", "other")]
assert builds[1].__version__ == "another" != builds[0].__version__
names = [build.EAGC.__module__.split(".")[0] for build in builds]
assert len({{*names, "eagc"}}) == 3
first, second, again = digest(builds[0]), digest(builds[1]), digest(builds[0])
assert builds[0].Subspace is not builds[1].Subspace
assert all("coordinate" in dir(getattr(torch.ops, name)) for name in names) and "eagc" not in dir(torch.ops)
print(first, second, again)
"""
    installed = run(f"{WORK}\nimport eagc_ops\nprint(digest(eagc_ops))", repositories)
    assert run(code, repositories) == installed * 3


def test_a_build_lives_beside_the_installed_package(repositories):
    """A training script that has the package may load a build as well."""
    code = f"""import eagc_ops
from eagc_ops import EAGC
{LOADED.replace('sys.modules["eagc_ops"] = None', "")}{WORK}
print(digest(eagc_ops), digest(get_local_kernel(Path("this"), backend="cpu")))
"""
    first, second = run(code, repositories)
    assert first == second


def test_a_build_needs_torch_triton_and_the_standard_library_alone(repositories):
    allowed = {*sys.stdlib_module_names, "torch", "triton"}
    for backend in ("cpu", "cuda", "rocm"):
        build = repositories / f"this/build/torch-{backend}"
        assert not (build / "app").exists() and not (build / "selftest").exists()
        for file in build.rglob("*.py"):
            late = {"timm"} if file.name == "encoder.py" else set()  # in the function that needs it
            names = _absolute_imports(ast.parse(file.read_text()))
            assert names <= allowed | late, f"{file} imports {names - allowed - late}"


def test_a_build_works_where_torch_has_no_numpy(repositories):
    """The fit of a subspace multiplies by NumPy's BLAS where there is one."""
    code = f"""{LOADED}{WORK}
sys.modules["numpy"] = None
def fails(*_): raise RuntimeError("Numpy is not available")
torch.Tensor.numpy = fails
ops = get_local_kernel(Path("this"), backend="cpu")
features = torch.randn(60, 5, dtype=torch.float64)
gram = sys.modules[ops.Subspace.__module__]._gram(features)
torch.testing.assert_close(gram, features.T @ features)
ops.Subspace.conceptor(features)
"""
    run(code, repositories)


def test_the_metadata_is_that_of_the_hub(repositories):
    builds = {path.name: json.loads((path / "metadata.json").read_text()) for path in _builds(repositories)}
    assert builds.keys() == {"torch-cpu", "torch-cuda", "torch-rocm"}
    for name, metadata in builds.items():
        backend = name.removeprefix("torch-")
        assert metadata.keys() == {"name", "id", "version", "license", "python-depends", "backend"}
        assert metadata["id"].startswith(f"_eagc_ops_{backend}_") and metadata["backend"] == {"type": backend}
    card = (repositories / "this/README.md").read_text()
    assert "get_kernel(" in card and "ops.EAGC(ops.Subspace.conceptor(" in card


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/one.txt").write_text("dear")
    with pytest.raises(SystemExit, match="no repository of this command"):
        hub().write(tmp_path / "letters")
    assert (tmp_path / "letters/one.txt").read_text() == "dear"


def _builds(repositories):
    return sorted((repositories / "this/build").iterdir())


def _absolute_imports(tree):
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.split(".")[0])
    return names
