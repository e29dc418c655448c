"""What `make release` makes: wheels with every file of the rooms, which work where they are installed."""

import importlib.util
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("kernels", "training", "discovery", "evidence", "bench")


@pytest.fixture(scope="module")
def release():
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci/release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheels(release, tmp_path_factory):
    return release.build(tmp_path_factory.mktemp("dist"))


def tracked(*folders):
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {path for path in listed.stdout.splitlines() if (ROOT / path).exists()}


def content(wheel):
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheels_have_every_file_of_the_rooms_and_no_test(wheels):
    operator, machine = wheels
    files = {path for path in tracked("eagc_ops", *ROOMS) if not path.startswith("bench/results/")}
    assert content(operator) == {
        path if path.startswith("eagc_ops/") else f"eagc_ops/{path}" for path in files
    }
    beside = (
        "ptx_machine/tests/",
        "ptx_machine/pyproject.toml",
        "ptx_machine/README.md",
        "ptx_machine/LICENSE",
    )
    assert content(machine) == {path for path in tracked("ptx_machine") if not path.startswith(beside)}
    assert [wheel.with_suffix("").name.split("-")[0] for wheel in wheels] == ["eagc_ops", "ptx_machine"]


def test_the_wheels_work_in_an_environment_of_their_own(release, wheels):
    assert "works:" in release.try_out(wheels, borrow=True)


def test_an_installation_that_does_not_work_is_said(release, wheels, monkeypatch):
    monkeypatch.setattr(release, "TRIAL", "raise OSError('no such template')")
    with pytest.raises(SystemExit, match="no such template"):
        release.try_out(wheels[1:], borrow=True)
