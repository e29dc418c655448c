"""The dispatch of `eagc`."""

import importlib

import pytest

from eagc_ops import cli


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_main_function(name):
    assert callable(importlib.import_module(cli.COMMANDS[name].module).main)


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
