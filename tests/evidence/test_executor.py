"""Where runs are trained: what would be submitted, commands for other schedulers, and collecting alone."""

import argparse
import csv
import json
import shlex
from pathlib import Path

import pytest
from commands import call
from run_facts import some_facts

from eagc_ops.evidence import sets
from eagc_ops.evidence.paper.planning import Order
from eagc_ops.evidence.paper.tables import TABLES
from eagc_ops.evidence.slurm import Slurm, SlurmJobError
from eagc_ops.evidence.studies import running as study_running
from eagc_ops.evidence.studies.study import Study
from eagc_ops.evidence.waterfall.plan import Plan
from eagc_ops.training.config import add_config_arguments, config_from_arguments
from eagc_ops.training.config.options import train_command
from eagc_ops.training.engine.run_folder import RunFolder


def planned_runs():
    """Every run that a table, the study or the waterfall plans; a seed of each will do."""
    home, places = Path("a folder"), {"root": "my images", "split_file": "split.json", "weights": "w.pth"}
    for name, table in TABLES.items():
        for dataset in dict.fromkeys([group.dataset for group in table.groups] + ["digits"]):
            yield from Order(name, dataset, home, seeds=1, null=True, trunk_cache=True, places=places).runs()
    yield from Study(home).runs()
    yield from Plan(home).runs()


def test_the_command_of_a_run_trains_that_run():
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", dest="output")
    add_config_arguments(parser)
    runs = {run.folder.name: run for run in planned_runs()}
    assert len(runs) > 400
    for name, run in runs.items():
        eagc, train, *words = shlex.split(shlex.join(train_command(run.config, str(run.folder))))
        typed = parser.parse_args(words)
        assert (eagc, train, typed.output) == ("eagc", "train", f"a folder/runs/{name}")
        del typed.output
        assert config_from_arguments(typed) == run.config, name


def test_a_command_for_each_run_that_is_left(tmp_path, capsys):
    words = ("table", "main", "--dataset", "digits", "--seeds", "1", "-o", str(tmp_path), "--commands")
    code, out, _ = call(capsys, *words)
    lines = out.splitlines()
    assert code == 0 and not (tmp_path / "runs").exists()
    encoder = f"{tmp_path}/digits.safetensors"
    assert lines[0] == f"eagc pretrain --dataset digits --epochs 10 -o {encoder}"
    folders = [word.split(" -o ")[1].split()[0] for word in lines if word.startswith("eagc train")]
    runs = Order("main", "digits", tmp_path, seeds=1).runs()
    assert sorted(folders) == sorted({str(run.folder) for run in runs})
    # A run that others need comes before the comment that says so, and they come after it.
    for run in runs:
        if start := getattr(run.config, "init", None):
            comment = next(i for i, line in enumerate(lines) if line[0] == "#" and Path(start).name in line)
            own = next(i for i, line in enumerate(lines) if f"-o {run.folder} " in line)
            assert next(i for i, line in enumerate(lines) if f"-o {start} " in line) < comment < own


def test_a_dry_run_shows_what_would_be_submitted(tmp_path, capsys):
    words = ["waterfall", "-o", str(tmp_path), "--known", "10", "--replicates", "0", "1"]
    words += ["--recipes", "null", "EAGC", "--dry-run", "--executor", "slurm", "--partition", "long"]
    words += ["--time", "30", "--gpus", "0", "--jobs", "2", "--sbatch", "account=birds"]
    code, out, _ = call(capsys, *words)
    names = ["EAGC-0", "null-0", "EAGC-1", "null-1"]
    asked = "sbatch --time=30 --ntasks-per-node=1 --partition=long --requeue --account=birds"
    assert code == 0
    assert out.splitlines()[-1] == "4 runs, 0 of them finished"
    assert [line.strip() for line in out.splitlines() if line.startswith("  ")] == [
        f"10of60-{name}" for name in (names[0], names[2], names[1], names[3])
    ]
    arrays = [line for line in out.splitlines() if line.startswith("sbatch")]
    # The null run of a replicate needs the reference model that its run with EAGC makes.
    assert arrays[0] == f"{asked}: 2 jobs, 2 at a time"
    assert arrays[1] == f"{asked}: 1 job, 2 at a time, when 10of60-EAGC-0 have ended"
    assert not tmp_path.joinpath("runs").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            "--partition long",
            "--partition belongs to --executor slurm: name that too, or leave --partition out",
        ),
        ("--array-size 3 --executor local", "--array-size belongs to --executor slurm"),
        ("--executor slurm --sbatch account", "--sbatch takes NAME=VALUE, got account: as account=birds"),
    ],
)
@pytest.mark.parametrize("command", ["table main --dataset digits", "study", "waterfall"])
def test_options_that_do_nothing_are_refused(command, options, text, tmp_path, capsys):
    code, _, err = call(capsys, *command.split(), *options.split(), "--dry-run", "-o", str(tmp_path))
    assert code == 2
    assert text in err


@pytest.mark.parametrize("command", ["table main --dataset digits", "study", "waterfall"])
def test_a_machine_that_cannot_submit_is_refused_before_anything_is_trained(
    command, tmp_path, capsys, monkeypatch
):
    pytest.importorskip("submitit", reason="NOT TESTED: submitit is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = call(capsys, *command.split(), "--executor", "slurm", "-o", str(tmp_path / "out"))
    assert (code, err.count("\n")) == (2, 1) and "this machine has no srun" in err
    assert not list(tmp_path.iterdir())


def test_what_is_finished_is_collected_without_training(tmp_path, capsys):
    plan = Plan(tmp_path)
    run = next(run for run in plan.runs() if run.arm.name == "EAGC" and run.problem.known == 10)
    folder = RunFolder.create(run.folder, run.config, some_facts())
    scores = {"epoch": 39, "all": 0.8, "old": 0.7, "new": 0.82}
    line = {"kind": "epoch", "epoch": 39, "seconds": 1.0, "steps": 1, **scores}
    (folder.path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    result = {"headline": "last", "last": scores, "best": scores, "warnings": []}
    (folder.path / "result.json").write_text(json.dumps(result))
    code, out, _ = call(capsys, "waterfall", "--executor", "none", "-o", str(tmp_path))
    assert code == 0 and "396 runs, 1 of them finished before; none now" in out
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert [(row["run"], float(row["all"])) for row in rows] == [("10of60-EAGC-0", 80.0)]
    assert "1 of 396 planned runs are finished." in (tmp_path / "evidence.md").read_text()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["10of60-EAGC-0"]


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("table ablation --dataset glyphs --seeds 1 --weights random", 1),
        ("study --known 10 --recipes paper --methods simgcd sptnet --seeds 1", 2),
        ("waterfall --known 10 --replicates 0", 1),
    ],
)
def test_slurm_gets_every_run_that_is_left_and_nothing_is_trained_here(
    command, needed, tmp_path, capsys, monkeypatch
):
    given = []

    def refuse(jobs, slurm, run, say):
        given.append((list(jobs), slurm))
        for job in jobs:
            yield job, SlurmJobError("the queue is full")

    monkeypatch.setattr(Slurm, "check", lambda _: None)
    monkeypatch.setattr(sets, "run_on_slurm", refuse)
    monkeypatch.setattr(sets, "run_jobs", lambda *_: pytest.fail("trained here"))
    monkeypatch.setattr(study_running, "_probe", lambda *_, **__: None)
    words = [*command.split(), "-o", str(tmp_path), "--executor", "slurm", "--time", "9", "--gpus", "0"]
    code, out, err = call(capsys, *words)
    ((jobs, slurm),) = given
    assert code == 1 and f"{len(jobs)} runs failed" in out
    assert (slurm.minutes, slurm.gpus, slurm.folder) == (9, 0, tmp_path / "slurm")
    assert len({job.folder for job in jobs}) == len(jobs) > needed
    assert all(set(job.after) <= {other.folder for other in jobs} for job in jobs)
    assert (out + err).count("FAILED: ") == len(jobs) and "the queue is full" in out + err
    assert not list(tmp_path.glob("trunk*"))
