"""The parser of all commands, and what becomes of an error."""

import sys
import warnings

import pytest

from eagc_ops.app import console
from eagc_ops.app.console import Parser, command, whole_number


def parser():
    main = Parser(prog="eagc x")
    main.add_argument("--count", type=whole_number())
    sub = main.add_subparsers().add_parser("sub")
    sub.add_argument("--rounds", type=whole_number(4, multiple_of=4, why="two views of two images"))
    return main


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--coun=3", "eagc x: unknown option --coun; did you mean --count?"),  # no abbreviations
        ("--fly", "eagc x: unknown option --fly; see eagc x --help"),
        ("--count 0", "eagc x: --count: must be a whole number >= 1, got 0"),
        ("--count 2.5", "eagc x: --count: must be a whole number >= 1, got 2.5"),
        ("sub --round 4", "eagc x sub: unknown option --round; did you mean --rounds?"),
        (
            "sub --rounds 6",
            "eagc x sub: --rounds: must be a positive multiple of 4, got 6 (two views of two images)",
        ),
    ],
)
def test_wrong_options_are_one_line(line, message, capsys):
    with pytest.raises(SystemExit) as exit:
        parser().parse_args(line.split())
    assert (exit.value.code, capsys.readouterr().err) == (2, message + "\n")


def raised(error):
    @command("eagc x")
    def main(argv):
        raise error

    return main([])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted; to go on: the same command"),
        (FloatingPointError("the loss is nan"), 1, "the loss is nan"),
        (OSError("no space\n  left"), 2, "no space left"),
    ],
)
def test_errors_for_the_user_are_one_line(error, code, message, capsys):
    assert raised(error) == code
    assert capsys.readouterr().err == f"eagc x: {message}\n"


def test_errors_of_our_classes_are_for_the_user(capsys):
    ours = type("ConfigError", (RuntimeError,), {"__module__": "eagc_ops.training.config"})
    assert raised(ours("lambda_p must be >= 0, got -1.0")) == 2
    assert capsys.readouterr().err == "eagc x: lambda_p must be >= 0, got -1.0\n"


def test_a_bug_is_not_hidden():
    with pytest.raises(ValueError, match="not written for a user"):
        raised(ValueError("not written for a user"))  # raised in this file, not in the package


def test_a_warning_is_one_line(capsys):
    @command("eagc x")
    def main(argv):
        warnings.warn("two\nlines", stacklevel=1)
        return 0

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main([]) == 0
    assert capsys.readouterr().err == "warning: two lines\n"


def test_a_path_may_begin_with_the_home_folder(monkeypatch):
    """A shell leaves the ~ of --output=~/runs as it is; a folder named ~ is what nobody wants to remove."""
    monkeypatch.setenv("HOME", "/home/me")
    assert str(console.path("~/runs")) == "/home/me/runs"


def test_one_line():
    assert console.one_line("a\n  b\tc") == "a b c"


@pytest.mark.parametrize("installed", [True, False])
def test_a_bar_needs_no_tqdm_and_leaves_the_output_alone(installed, capsys, monkeypatch):
    """Standard output gets the lines and nothing else; standard error is no terminal here, so no bar."""
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm", None)  # makes the import fail
    for item in console.bar([1, 2], "cases"):
        console.say(f"case {item}")
    assert capsys.readouterr() == ("case 1\ncase 2\n", "")
