"""Versions, commit and machine, and `eagc env`."""

import importlib.metadata
import json
import platform
import subprocess

import pytest

from eagc_ops.app import environment
from eagc_ops.app.cli import main


def test_versions_are_those_installed(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("torch", "no-such-package"))
    assert environment.versions() == {
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "no-such-package": None,
    }


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A repository with one commit, in which the package seems to stand."""
    file = tmp_path / "eagc_ops" / "app" / "environment.py"
    file.parent.mkdir(parents=True)
    file.write_text("1")
    identity = ["-c", "user.name=n", "-c", "user.email=e"]

    def git(*words):
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    monkeypatch.setattr(environment, "__file__", str(file))
    return file, git("rev-parse", "HEAD").strip()


def test_the_commit_is_that_of_the_clone(clone):
    file, head = clone
    assert environment.commit() == head[:12]
    (file.parent / "untracked.py").write_text("")
    assert environment.commit() == head[:12]


def test_changes_are_marked(clone):
    file, head = clone
    file.write_text("2")
    assert environment.commit() == head[:12] + "+"


def test_a_wheel_inside_a_repository_has_no_commit(clone, monkeypatch):
    installed = clone[0].parent / "site-packages" / "eagc_ops" / "app"
    installed.mkdir(parents=True)
    monkeypatch.setattr(environment, "__file__", str(installed / "environment.py"))
    assert environment.commit() is None


def test_env_prints_the_description(capsys):
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert f"versions python          {platform.python_version()}\n" in out
    assert "machine cpu" in out
    assert "commit" in out


def test_env_prints_json(capsys):
    assert main(["env", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content == environment.describe()
    assert content.keys() == {"machine", "versions", "commit"}
