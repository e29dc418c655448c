"""The dispatch of `eagc`."""

import importlib

import pytest

import eagc_ops
from eagc_ops.app import cli


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_main_function(name):
    assert callable(importlib.import_module(cli.COMMANDS[name].module).main)


def test_a_part_of_python_that_this_system_lacks_is_not_to_be_installed(capsys, monkeypatch):
    def resource(_):
        raise ModuleNotFoundError("No module named 'resource'", name="resource")

    monkeypatch.setattr(cli.importlib, "import_module", resource)
    assert cli.main(["bench"]) == 2
    assert capsys.readouterr().err == (
        "eagc bench: needs resource; this system lacks it; run the command on Linux\n"
    )


def test_a_missing_package_names_the_extra(capsys, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'timm'", name="timm")

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    assert cli.main(["train"]) == 2
    assert (
        capsys.readouterr().err == "eagc train: needs timm; install it with pip install 'eagc-ops[train]'\n"
    )


def test_a_broken_package_is_not_hidden(monkeypatch):
    def broken(name):
        raise ModuleNotFoundError("No module named 'eagc_ops.kernels'", name="eagc_ops.kernels")

    monkeypatch.setattr(cli.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["train"])


def test_the_version_and_the_help_of_a_command(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"eagc-ops {eagc_ops.__version__}\n"
    with pytest.raises(SystemExit) as end:
        cli.main(["help", "data", "verify"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: eagc data verify")


def test_commands_are_grouped_by_who_uses_them(capsys):
    for line in ([], ["help"], ["--help"]):
        assert cli.main(line) == 0
        out = capsys.readouterr().out
        groups = out.split("\n\n")[2:-1]
        assert [group.split(":\n")[0] for group in groups] == [
            "your own photographs",
            "training, and the paper's methods",
            "evidence for EAGC",
            "this machine",
        ]
        lines = [line for group in groups for line in group.split("\n")[1:]]
        assert len(lines) == len(cli.COMMANDS)
        assert all(line.startswith(f"  {name} ") for line, name in zip(lines, cli.COMMANDS))


def test_train_shows_what_is_common_in_sections_and_all_on_request(capsys):
    shown = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            cli.main(["train", option])
        shown[option] = capsys.readouterr().out
    for out in shown.values():
        assert [line for line in out.splitlines() if line.startswith(("method and data:", "optimization:"))]
        assert "--lambda-p" in out
    assert "--lr-floor" not in shown["--help"] and "--lr-floor" in shown["--help-all"]
    assert shown["--help"].count("\n") < shown["--help-all"].count("\n") / 2
