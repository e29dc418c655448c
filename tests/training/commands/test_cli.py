"""The command line: three layouts of data through the same options, what it prints and leaves, and how it fails."""

import json
import os
import re
import subprocess
import sys

import layouts
import pytest
import torch

from eagc_ops.cli import COMMANDS, main
from eagc_ops.training import runs
from eagc_ops.training.engine import loop
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods import METHODS

TINY = [
    "--backbone",
    "vit_digits",
    "--image-size",
    "16",
    "--device",
    "cpu",
    "--epochs",
    "2",
    "--reference-epochs",
    "1",
]
GENTLE = ["--backbone-lr", "0.01", "--head-lr", "0.01"]  # steps that do not blow rounding up


def folder_options(data):
    return [
        "--dataset",
        "folder",
        "--root",
        data["root"],
        "--split-file",
        data["split_file"],
        "--weights",
        data["weights"],
    ]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A run of two epochs of 7 steps on a plain image folder, by the command line: its folder."""
    run = tmp_path_factory.mktemp("runs") / "run"
    assert (
        main(
            [
                "train",
                "--method",
                "small",
                *folder_options(data),
                *TINY,
                "--batch-size",
                "8",
                "--preset",
                "release",
                "-o",
                str(run),
            ]
        )
        == 0
    )
    return run


def scores(text):
    """[All, Old, New] of every line that has them, as printed."""
    return [list(found) for found in re.findall(r"All (\S+)%  Old (\S+)%  New (\S+)%", text)]


def logged(run):
    epochs = [line for line in RunFolder.open(run).metrics() if line["kind"] == "epoch"]
    return [[f"{100 * line[name]:.2f}" for name in ("all", "old", "new")] for line in epochs]


# The three layouts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "method"), [("cub", "small"), ("cifar10", "small"), ("folder", "simgcd")]
)
def test_two_epochs_by_the_command_line(dataset, method, pictures, data, tmp_path, capsys):
    root, split = tmp_path / "data", tmp_path / "split.pkl"
    if dataset == "cub":
        layouts.cub_root(root, layouts.Linker(pictures))
        layouts.write_split(split, 100, 100)
        options = [
            "--root",
            str(root),
            "--split-file",
            str(split),
            "--batch-size",
            "128",
            "--reference-batch-size",
            "128",
        ]
    elif dataset == "cifar10":
        layouts.cifar10_root(root, None)
        options = ["--root", str(root), "--batch-size", "32"]
    else:
        options = [*folder_options(data)[2:], "--batch-size", "32"]
    run = tmp_path / "run"
    assert (
        main(
            [
                "train",
                "--method",
                method,
                "--dataset",
                dataset,
                *options,
                *TINY,
                "--warm-start",
                "-o",
                str(run),
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    epochs = logged(run)
    assert len(epochs) == 2
    assert scores(out)[0] == epochs[-1]  # the headline of the preset "paper" is the last epoch
    assert f"run: {run}" in out
    assert RunFolder.open(run).config.dataset == dataset
    assert any("tau_q50" in line for line in RunFolder.open(run).metrics())  # EAGC took part
    if dataset != "folder":  # these files are not the official ones, and that is said in one line each
        assert re.search(r"^warning: .* has (md5|sha256) ", err, re.MULTILINE)
    assert main(["evaluate", str(run)]) == 0
    assert scores(capsys.readouterr().out) == [epochs[-1]]


def test_a_report_by_the_command_line(trained, tmp_path, capsys):
    assert main(["report", str(trained), "-o", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"report: {tmp_path / 'out' / 'report.html'}\n"
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(f"<td>{float(value):.1f}</td>" in page for value in logged(trained)[-1])
    assert page.count("<svg") == 4  # accuracy, energy and tau curves, their histograms, loss


def test_best_weights_are_evaluated_on_request(trained, capsys):
    best = json.loads((trained / "result.json").read_text())["best"]
    assert main(["evaluate", str(trained), "--which", "best"]) == 0
    assert scores(capsys.readouterr().out) == [[f"{100 * best[name]:.2f}" for name in ("all", "old", "new")]]


def test_a_run_that_was_interrupted_goes_on(data, trained, tmp_path, capsys, monkeypatch):
    options = [
        "--method",
        "small",
        *folder_options(data),
        *TINY,
        "--batch-size",
        "8",
        "--preset",
        "release",
        "-o",
        str(tmp_path / "run"),
    ]
    finish = loop.Loop._finish_epoch

    def interrupted(self, *arguments):
        finish(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_finish_epoch", interrupted)
        assert main(["train", *options]) == 130
    assert capsys.readouterr().err.rstrip().endswith("eagc train: interrupted")
    assert main(["train", *options]) == 2  # not into the folder of a run that exists
    assert "resume the run in it" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "run"), "--workers", "1"]) == 0
    a, b = (load_checkpoint(run / "last.safetensors")[0] for run in (trained, tmp_path / "run"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert "is complete" in capsys.readouterr().out


def test_the_default_folder_names_the_run(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = [*folder_options(data), *TINY, "--batch-size", "8", "--epochs", "1"]
    assert main(["train", "--method", "small", *options, "--no-eagc", "--seed", "3"]) == 0
    assert (tmp_path / "runs" / "folder-small-paper-no-eagc-seed3" / "result.json").exists()
    capsys.readouterr()


# Two processes -------------------------------------------------------------------------------------------------------------------


def test_ten_steps_in_two_processes_are_those_of_one(data, tmp_path):
    options = [
        "--method",
        "simgcd",
        *folder_options(data),
        *TINY,
        *GENTLE,
        "--epochs",
        "1",
        "--batch-size",
        "6",
        "--preset",
        "release",
    ]
    options += ["--log-every", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "eagc_ops.cli",
    ]
    done = subprocess.run(
        [*launch, "train", *options, "-o", str(tmp_path / "two")],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(scores(done.stdout)) == 2  # last and best epoch, said by one of the processes
    assert main(["train", *options, "-o", str(tmp_path / "one")]) == 0
    one, two = (load_checkpoint(tmp_path / name / "last.safetensors")[0] for name in ("one", "two"))
    assert RunFolder.open(tmp_path / "two").facts.steps_per_epoch == 10
    rows = [
        sum(sum(line.get("tau_histogram", [])) for line in RunFolder.open(tmp_path / name).metrics())
        for name in ("one", "two")
    ]
    assert 0 < rows[1] < rows[0]  # each process had a share of the unlabelled rows
    assert one.keys() == two.keys()
    start = Experiment(RunFolder.open(tmp_path / "one").config).student.state()
    moved = max((one[name] - start[name]).abs().max().item() for name in start)
    assert moved > 1e-2
    for name in (
        name for name in one if not name.startswith("optimiser")
    ):  # momentum sums gradients: another scale
        torch.testing.assert_close(
            two[name], one[name], rtol=0, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}"
        )


# Help and errors -----------------------------------------------------------------------------------------------------------------


def call(capsys, *arguments):
    """(exit code, stdout, stderr) of a command."""
    try:
        code = main(list(arguments))
    except SystemExit as exit:
        code = exit.code
    return code, *capsys.readouterr()


@pytest.mark.parametrize("command", ["train", "evaluate", "report", "data", "demo", "table", "estimate-k"])
def test_every_command_has_help(command, capsys):
    assert command in COMMANDS
    code, out, err = call(capsys, command, "--help")
    assert (code, err) == (0, "")
    assert f"usage: eagc {command}" in out


def test_help_of_train_is_complete(capsys):
    text = " ".join(call(capsys, "train", "--help")[1].split())
    names = {name for method in METHODS.values() for name in method.Config.model_fields}
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
    "unknown data set": (["train", "--dataset", "birds"], "--dataset: invalid choice: 'birds'"),
    "missing root": (["train", "--dataset", "cub", "--root", "nowhere"], "root 'nowhere' is not a folder"),
    "no root": (["train", "--dataset", "cifar10"], "root 'None' is not a folder"),
    "digits with a root": (["train", "--root", "."], "digits come with scikit-learn and have no root"),
    "missing weights": (["train", "--weights", "none.pth"], "none.pth: no such file"),
    "setting of another method": (
        ["train", "--method", "simgcd", "--embedding-dim", "8"],
        "embedding_dim is not a setting of simgcd",
    ),
    "too many blocks": (["train", "--trainable-blocks", "9"], "vit_digits has only 4 blocks"),
    "batch and accumulation": (
        ["train", "--batch-size", "8", "--accumulation", "3"],
        "accumulation=3 does not divide batch_size=8",
    ),
    "batch of more than all": (
        ["train", "--batch-size", "5000"],
        "batch_size=5000 is larger than the 1797 images",
    ),
    "prompts and a trunk cache": (["train", "--method", "sptnet", "--trunk-cache", "x"], "trunk_cache='x'"),
    "half precision on a CPU": (
        ["train", "--precision", "fp16", "--device", "cpu"],
        "precision='fp16' needs a GPU",
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
    "demo without seeds": (["demo", "--seeds", "0"], "--seeds must be at least 1"),
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


def test_a_recipe_cannot_change_in_a_run_that_exists(trained, capsys):
    for arguments in (
        ["train", "--resume", str(trained), "--lambda-p", "2"],
        ["evaluate", str(trained), "--epochs", "3"],
    ):
        code, _, err = call(capsys, *arguments)
        assert (code, len(err.splitlines())) == (2, 1)


def test_a_damaged_checkpoint_is_one_line(trained, tmp_path, capsys):
    for name in ("run.json", "last.safetensors"):
        (tmp_path / name).write_bytes((trained / name).read_bytes()[: None if name == "run.json" else -100])
    code, _, err = call(capsys, "evaluate", str(tmp_path))
    assert (code, len(err.splitlines())) == (2, 1)
    assert "damaged" in err


def test_a_bug_is_not_hidden_and_a_diverged_run_is_code_1(capsys, monkeypatch):
    def buggy(*_):
        raise ValueError("not written for a user")

    monkeypatch.setattr(runs, "train", buggy)
    with pytest.raises(ValueError, match="not written for a user"):
        main(["train", "--weights", "none"])

    def diverged(*_):
        raise FloatingPointError("the loss is nan")

    monkeypatch.setattr(runs, "train", diverged)
    assert call(capsys, "train", "--weights", "none") == (1, "", "eagc train: the loss is nan\n")


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
