"""`eagc train`, `eagc evaluate` and `eagc report` on three layouts of data: what they print and leave."""

import json
import os
import re
import shutil
import subprocess
import sys

import layouts
import pytest
import torch
from commands import call

from eagc_ops.app.cli import main
from eagc_ops.training import runs
from eagc_ops.training.engine import loop
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.run_folder import RunFolder


def options(**settings):
    """Settings as options of a command."""
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


TINY = options(backbone="vit_digits", image_size=16, device="cpu", epochs=2, reference_epochs=1)
GENTLE = options(backbone_lr=0.01, head_lr=0.01)  # steps that do not blow rounding up


def train(run, *words):
    return main(["train", *words, "-o", str(run)])


def small_run(data):
    """Two epochs of 7 steps on a plain image folder."""
    return [
        *options(method="small", dataset="folder", **data),
        *TINY,
        *options(batch_size=8, preset="release"),
    ]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """The folder of a run made by the command line."""
    run = tmp_path_factory.mktemp("runs") / "run"
    assert train(run, *small_run(data)) == 0
    return run


def scores(text):
    """[All, Old, New] of every line that has them, as printed."""
    return [list(found) for found in re.findall(r"All (\S+)%  Old (\S+)%  New (\S+)%", text)]


def logged(run):
    epochs = [line for line in RunFolder.open(run).metrics() if line["kind"] == "epoch"]
    return [[f"{100 * line[name]:.2f}" for name in ("all", "old", "new")] for line in epochs]


# The three layouts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "method"), [("cub", "small"), ("cifar10", "small"), ("folder", "simgcd")]
)
def test_two_epochs_by_the_command_line(dataset, method, pictures, data, tmp_path, capsys):
    root, split = tmp_path / "data", tmp_path / "split.pkl"
    if dataset == "cub":
        layouts.cub_root(root, layouts.Linker(pictures))
        layouts.write_split(split, 100, 100)
        places = options(root=root, split_file=split, batch_size=128, reference_batch_size=128)
    elif dataset == "cifar10":
        layouts.cifar10_root(root, None)
        places = options(root=root, batch_size=32)
    else:
        places = options(**data, batch_size=32)
    batch = {"cub": 128, "cifar10": 32, "folder": 32}
    run = tmp_path / "run"
    chosen = options(method=method, dataset=dataset)
    assert train(run, *chosen, *places, *TINY, "--warm-start") == 0
    out, err = capsys.readouterr()
    epochs = logged(run)
    assert len(epochs) == 2
    assert scores(out)[0] == epochs[-1]  # the headline of the preset "paper" is the last epoch
    assert f"run: {run}" in out
    assert out.startswith(f"{method} with EAGC (preset paper) on ")  # the first line says what is trained
    assert out.splitlines()[1] == f"2 epochs, {batch[dataset]} images per step, seed 0, on cpu -> {run}"
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
    run = tmp_path / "run"
    finish = loop.Loop._finish_epoch

    def interrupted(self, *arguments):
        finish(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_finish_epoch", interrupted)
        assert train(run, *small_run(data)) == 130
    said = f"eagc train: interrupted; to go on: eagc train --resume {run}"
    assert capsys.readouterr().err.rstrip().endswith(said)
    assert train(run, *small_run(data), "--seed", "8") == 2  # not into the folder of another run
    assert "seed" in capsys.readouterr().err
    copy = shutil.copytree(run, tmp_path / "copy")
    assert train(copy, *small_run(data)) == 0  # the same command goes on
    assert capsys.readouterr().out.startswith("resumed: ")
    assert main(["train", "--resume", str(run), "--workers", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("note: ")  # of the data, as at the first start
    a, b, c = (load_checkpoint(path / "last.safetensors")[0] for path in (trained, run, copy))
    assert all(torch.equal(a[name], b[name]) and torch.equal(a[name], c[name]) for name in a)
    capsys.readouterr()
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "warnings": ["of little use"]}))
    assert main(["train", "--resume", str(run)]) == 0
    assert "is complete: there is nothing left to train\nwarning: of little use\n" in capsys.readouterr().out
    assert main(["train", "--resume", str(run), "--seed", "8"]) == 2
    out, err = capsys.readouterr()
    assert out == ""  # an error comes alone
    assert "--seed cannot change in an existing run" in err


def test_the_accuracy_that_the_release_reports_has_a_line_of_its_own(monkeypatch, capsys, tmp_path):
    epoch = {"epoch": 7, "all": 0.5, "old": 0.6, "new": 0.4}
    result = {"headline": "best", "last": epoch, "best": epoch, "warnings": []}
    words = options(method="selex", dataset="cub", preset="release", weights="file")
    monkeypatch.setattr("eagc_ops.training.commands.train.check_run", lambda *_: None)  # there are no images
    lines = []
    for more in ({}, {"best_start": {"epoch": 3, "all": 0.75, "old": 0.25, "new": None}}):
        monkeypatch.setattr(runs, "train", lambda config, run, say, more=more: {**result, **more})
        assert train(tmp_path / "run", *words) == 0
        lines.append(capsys.readouterr().out.splitlines())
    chosen = "best epoch, chosen with the truth (8)"
    assert [line.split(":")[0] for line in lines[0][2:]] == [chosen, "last epoch (8)", "run"]
    (added,) = set(lines[1]) - set(lines[0])
    start = "best start of an epoch, chosen with the truth"
    assert added.startswith(f"{start} (4): All 75.00%  Old 25.00%  New -    (as the released")


def test_the_default_folder_names_the_run(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *small_run(data), *options(preset="paper", epochs=1, seed=3), "--no-eagc"]) == 0
    assert (tmp_path / "runs" / "folder-small-paper-no-eagc-seed3" / "result.json").exists()
    capsys.readouterr()


def test_what_a_folder_leaves_out_is_said_at_the_start(data, tmp_path, capsys):
    images = shutil.copytree(data["root"], tmp_path / "images")
    (next(folder for folder in images.iterdir() if folder.is_dir()) / "moving.gif").write_bytes(b"GIF89a")
    words = [*small_run({**data, "root": images}), *options(epochs=1)]
    assert train(tmp_path / "run", *words, "--no-eagc") == 0
    lines = capsys.readouterr().out.splitlines()
    said = lines.index("note: files of other types, left out: 1 .gif")
    assert said < next(i for i, line in enumerate(lines) if scores(line))
    notes = [line.removeprefix("note: ") for line in lines if line.startswith("note: ")]
    assert notes == RunFolder.open(tmp_path / "run").facts.notes


# Two processes ----------------------------------------------------------------------------------------------

# The first that is registered runs last.
GROUP_AT_THE_END = """
import atexit, os, sys

@atexit.register
def tell():
    group = sys.modules.get("torch.distributed")
    if "RANK" in os.environ and group:
        print("rank", os.environ["RANK"], "ends with a group:", group.is_initialized())
"""


def test_ten_steps_in_two_processes_are_those_of_one(data, tmp_path):
    steps = options(epochs=1, batch_size=6, preset="release", log_every=1)
    words = [*options(method="simgcd", dataset="folder", **data), *TINY, *GENTLE, *steps]
    (tmp_path / "sitecustomize.py").write_text(GROUP_AT_THE_END)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, "-m", "eagc_ops.app.cli", "train", *words, "-o", str(tmp_path / "two")],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(re.findall(r"rank . ends with a group: \w+", done.stdout)) == [
        f"rank {rank} ends with a group: False" for rank in range(2)
    ]
    assert len(scores(done.stdout)) == 2  # last and best epoch, said by one of the processes
    assert train(tmp_path / "one", *words) == 0
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
    # The momentum of two processes sums gradients of a different scale.
    for name in (name for name in one if not name.startswith("optimizer")):
        torch.testing.assert_close(
            two[name], one[name], rtol=0, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}"
        )


# Refusals ---------------------------------------------------------------------------------------------------


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
