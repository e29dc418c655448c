"""Help, refusals and exit codes of the commands."""

import layouts
import pytest
from commands import call

from eagc_ops.app.cli import COMMANDS, main
from eagc_ops.training import runs
from eagc_ops.training.methods import METHODS


@pytest.mark.parametrize(
    "command",
    [
        *("train", "evaluate", "report", "data", "demo", "table", "estimate-k", "probe"),
        *("discover", "predict", "export", "pretrain"),
    ],
)
def test_every_command_has_help(command, capsys):
    assert command in COMMANDS
    code, out, err = call(capsys, command, "--help")
    assert (code, err) == (0, "")
    assert f"usage: eagc {command}" in out


def test_help_of_train_is_complete(capsys):
    text = " ".join(call(capsys, "train", "--help-all")[1].split())
    names = {name for method in METHODS.values() for name in method.Config.help_texts()}
    assert all(f"--{name.replace('_', '-')}" in text for name in names)
    assert "--no-eagc" in text
    assert "--resume RUN" in text
    assert "--split-file" in call(capsys, "data", "verify", "--help")[1]


ERRORS = {
    "unknown option": (["train", "--lamda-p", "3"], "unknown option --lamda-p; did you mean --lambda-p?"),
    "abbreviation": (["train", "--lambda", "3"], "unknown option --lambda"),
    "not a number": (["train", "--epochs", "many"], "--epochs"),
    "out of range": (["train", "--epochs", "0"], "epochs must be >= 1, got 0"),
    "unknown method": (["train", "--method", "magic"], "--method"),
    "unknown data set": (
        ["train", "--dataset", "birds"],
        "--dataset: invalid choice: 'birds' (choose from 'cifar10'",
    ),
    "missing root": (["train", "--dataset", "cub", "--root", "nowhere"], "--root nowhere is not a folder"),
    "no root": (["train", "--dataset", "cifar10"], "--root is missing: CIFAR-10 needs a folder with data_"),
    "digits with a root": (["train", "--root", "."], "digits come with scikit-learn and have no root"),
    "missing weights": (["train", "--weights", "none.pth"], "none.pth: no such file"),
    "setting of another method": (
        ["train", "--method", "simgcd", "--embedding-dim", "8"],
        "--embedding-dim is not a setting of simgcd",
    ),
    "too many blocks": (
        ["train", "--trainable-blocks", "9"],
        "--trainable-blocks must be <= 4, the blocks of vit_digits, got 9",
    ),
    "batch and accumulation": (
        ["train", "--batch-size", "8", "--accumulation", "3"],
        "--accumulation 3 does not divide --batch-size 8",
    ),
    "batch of more than all": (
        ["train", "--batch-size", "5000"],
        "--batch-size 5000 is larger than the 1797 images",
    ),
    "prompts and a trunk cache": (["train", "--method", "sptnet", "--trunk-cache", "x"], "--trunk-cache x:"),
    "half precision on a CPU": (
        ["train", "--precision", "fp16", "--device", "cpu"],
        "--precision fp16 needs a GPU",
    ),
    "resume and output": (["train", "--resume", "a", "-o", "b"], "leave --output out"),
    "resume of nothing": (["train", "--resume", "nothing"], "nothing is not a run folder"),
    "evaluate nothing": (["evaluate", "nothing"], "nothing is not a run folder"),
    "evaluate no name": (["evaluate"], "RUN"),
    "report on nothing": (["report", "nothing"], "nothing is not a run folder"),
    "report without runs": (["report"], "RUN"),
    "verify without a set": (["data", "verify"], "--dataset"),
    "verify a missing root": (
        ["data", "verify", "--dataset", "cub", "--root", "nowhere"],
        "--root nowhere is not a folder",
    ),
    "verify no root": (["data", "verify", "--dataset", "cub"], "--root is missing"),
    "no data command": (["data"], "COMMAND"),
    "demo without seeds": (["demo", "--seeds", "0"], "--seeds: must be a whole number >= 1, got 0"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_cannot_be_done_is_one_line_and_code_2(case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, message = ERRORS[case]
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith(f"eagc {arguments[0]}")
    assert message in err
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_a_bug_is_not_hidden_and_a_diverged_run_is_code_1(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def buggy(*_, **__):
        raise ValueError("not written for a user")

    monkeypatch.setattr(runs, "train", buggy)
    with pytest.raises(ValueError, match="not written for a user"):
        main(["train", "--weights", "random"])

    def diverged(*_, **__):
        raise FloatingPointError("the loss is nan")

    monkeypatch.setattr(runs, "train", diverged)
    code, _, err = call(capsys, "train", "--weights", "random")
    assert (code, err) == (1, "eagc train: the loss is nan\n")


def test_verify_names_the_option_that_was_left_out(pictures, tmp_path, capsys):
    layouts.Linker(pictures)(tmp_path / "class" / "image.jpg")
    code, out, _ = call(capsys, "data", "verify", "--dataset", "folder", "--root", str(tmp_path))
    assert code == 1
    assert "WRONG: --split-file is missing: image folder needs" in out and "split_file" not in out


def test_verify_tells_right_from_wrong(pictures, tmp_path, capsys):
    assert call(capsys, "data", "verify", "--dataset", "digits")[0] == 0
    layouts.cub_root(tmp_path, layouts.Linker(pictures))
    layouts.write_split(tmp_path / "split.pkl", 100, 100)
    code, out, _ = call(
        capsys,
        "data",
        "verify",
        "--dataset",
        "cub",
        "--root",
        str(tmp_path),
        "--split-file",
        str(tmp_path / "split.pkl"),
    )
    assert code == 1
    assert "WRONG: 600 training images, expected 5,994" in out
    assert "ok: 100 known classes" in out
