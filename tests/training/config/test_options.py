"""The command-line options made from the settings."""

import argparse
import pickle

import pytest

from eagc_ops.app.console import Parser
from eagc_ops.training.config import (
    CONFIGS,
    ConfigError,
    Diagnosis,
    SimGCDConfig,
    add_config_arguments,
    as_options,
    config_from_arguments,
    recipe_of,
    resolve,
)


def options(*words):
    """The settings that the options set."""
    parser = Parser(prog="eagc x")
    add_config_arguments(parser)
    return vars(parser.parse_args(words))


def parse(*words):
    return config_from_arguments(argparse.Namespace(**options(*words)))


def help_text():
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    return " ".join(parser.format_help().split())


def test_options_become_a_configuration():
    recipe = ["--dataset", "scars", "--preset", "release", "--no-eagc"]
    config = parse(*recipe, "--energy-momentum", "none", "--head-lr", "0.3", "--memax-weight", "2")
    expected = resolve(
        "simgcd", "scars", "release", eagc=False, energy_momentum=None, head_lr=0.3, memax_weight=2.0
    )
    assert config == expected
    assert parse() == resolve()


def test_a_number_or_a_word():
    assert parse("--k", "12").k == 12
    assert parse("--k", "estimate").k == "estimate"
    assert parse("--k", "none").k is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], None),
        (["--diagnose"], Diagnosis()),
        (["--diagnose-every", "10", "--diagnose-steps", "200"], Diagnosis(every=10, steps=200)),
        (["--diagnose-k", "8", "--diagnose"], Diagnosis(k=8)),
        (["--diagnose", "--diagnose-parameters", "all"], Diagnosis(parameters="all")),
        (["--diagnose-steps", "none"], Diagnosis()),
        (["--diagnose-every", "3", "--no-diagnose"], None),
    ],
    ids=str,
)
def test_any_option_of_a_diagnosis_switches_it_on(words, expected):
    assert parse(*words, "--epochs", "3") == resolve(diagnose=expected, epochs=3)


def test_only_options_that_are_written_are_set():
    assert options() == {}
    assert options("--no-diagnose") == {"diagnose": None}


@pytest.mark.parametrize(
    "words",
    [
        ["--epochs", "many"],
        ["--anchor", "median"],
        ["--method", "none"],
        ["--dataset", "birds"],
        ["--lambda-q", "1"],
        ["--diagnose-parameters", "some"],
        ["--diagnose-every", "often"],
    ],
    ids=" ".join,
)
def test_wrong_options_end_with_code_2(words, capsys):
    with pytest.raises(SystemExit) as error:
        parse(*words)
    assert error.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_a_wrong_number_is_named_with_the_remedy(capsys):
    with pytest.raises(SystemExit):
        parse("--energy-momentum", "little")
    assert "--energy-momentum: must be a number or none, got 'little'" in capsys.readouterr().err


def test_help_shows_every_field_with_its_default():
    text = help_text()
    names = {name for cls in CONFIGS.values() for name in cls.model_fields}
    names |= {f"diagnose_{name}" for name in Diagnosis.model_fields}
    assert all("--" + name.replace("_", "-") in text for name in names)
    assert "learning rate of the heads [0.1 for simgcd on digits, preset paper]" in text
    assert "[0.7]" in text


def test_help_shows_the_settings_of_a_method_that_came_later():
    help_text()  # a first help must not fix the methods of a second one

    class Late(SimGCDConfig):
        lateness: float = 0.125

    CONFIGS["late"] = Late
    try:
        assert "options of late: --lateness X" in help_text()
        assert parse("--method", "late", "--lateness", "0.5").lateness == 0.5
    finally:
        del CONFIGS["late"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--eagc"], {"eagc": True}),
        (["--no-eagc"], {"eagc": False}),
        (["--eagc", "init"], {"eagc": True, "sptnet_eagc": "init"}),
        (["--eagc", "on", "--epochs", "3"], {"eagc": True, "sptnet_eagc": "on", "epochs": 3}),
    ],
    ids=" ".join,
)
def test_eagc_may_say_which_of_sptnets_two_ways_is_meant(words, expected):
    assert options(*words) == expected
    if "sptnet_eagc" in expected:
        with pytest.raises(ConfigError, match="sptnet_eagc is not a setting of simgcd"):
            parse(*words)


def test_no_eagc_takes_no_value(capsys):
    with pytest.raises(SystemExit):
        parse("--no-eagc", "init")
    assert "--no-eagc takes no value, got 'init'" in capsys.readouterr().err
    assert "--eagc [init|on]" in help_text() and "--no-eagc [" not in help_text()


def test_help_shows_the_defaults_of_the_recipe_that_is_named():
    argv = ["--preset", "release", "--dataset", "scars", "--help"]
    parser = argparse.ArgumentParser()
    add_config_arguments(parser, recipe=recipe_of(argv))
    text = " ".join(parser.format_help().split())
    assert "[3.0 for simgcd on scars, preset release]" in text  # lambda_p
    assert "embedding_dim" not in text and "[65536 for selex on scars, preset release]" in text


@pytest.mark.parametrize(
    ("error", "settings", "text"),
    [
        ("lr_floor must be <= 1, got 5.0", "", "--lr-floor must be <= 1, got 5.0"),
        ("diagnose.every must be >= 1, got 0", "", "--diagnose-every must be >= 1, got 0"),
        ("precision='fp16' needs a GPU", "", "--precision fp16 needs a GPU"),
        ("choose warm_start=True, or eagc=False", "", "choose --warm-start, or --no-eagc"),
        ("epochs, seed cannot change", "epochs seed", "--epochs, --seed cannot change"),
        (
            "weights a/split_file.pth: no such file",
            "weights",
            "--weights a/split_file.pth: no such file",
        ),
        (
            "k cannot change (only root, log_every can)",
            "k root log_every",
            "--k cannot change (only --root, --log-every can)",
        ),
        ("a SimGCD run (init); the root (seed 3)", "init", "a SimGCD run (--init); the root (seed 3)"),
        ("the seed of root_x is k", "", "the seed of root_x is k"),
        ("output output is a file", "output", "--output output is a file"),
        ("labelled folder x", "labelled folder", "labelled folder x"),
        ("--root x is a file; the root", "--root", "--root x is a file; the root"),
    ],
)
def test_an_error_speaks_of_options(error, settings, text):
    """Plain words are options only where the error says so; all names with an underscore or a value are."""
    named = [settings] if settings.startswith("labelled") else settings.split()
    assert as_options(ConfigError(error, *named)) == text
    assert as_options(pickle.loads(pickle.dumps(ConfigError(error, *named)))) == text  # from another process


@pytest.mark.parametrize(("values", "name"), [
    ({"k": 0}, "--k"), ({"epochs": 0}, "--epochs"), ({"method": "x"}, "--method"), ({"seeds": 1}, "seeds"),
    ({"preset": "x"}, "--preset"), ({"diagnose": {"every": 0}}, "--diagnose-every"),
    ({"dataset": "digits", "channels": 3}, "--channels"),
])  # fmt: skip
def test_the_first_word_of_a_wrong_setting_is_its_option(values, name):
    with pytest.raises(ConfigError) as error:
        resolve(**values)
    assert as_options(error.value).startswith(f"{name} ")


def test_an_error_about_a_file_does_not_speak_of_options():
    error = ConfigError("run.json: lambda_p must be >= 0, got -1.0")
    error.__cause__ = ConfigError("lambda_p must be >= 0, got -1.0")
    assert as_options(error) == str(error)
