"""Runs as jobs of a real Slurm: order, failures, and what a job loses that is stopped (nothing)."""

import json
import re
import subprocess
import threading
import time
from pathlib import Path

import pytest
import slurm as loopback
import small_runs
import torch
from safetensors.torch import load_file

from eagc_ops.evidence import slurm
from eagc_ops.evidence.jobs import Job, run_job
from eagc_ops.evidence.slurm import Slurm, SlurmJobError, run_on_slurm, submissions
from eagc_ops.training.config import ConfigError

EPOCHS = 32


def job(folder, *after, **config):
    return Job(config, Path(folder), {}, tuple(map(Path, after)))


def test_arrays_have_what_waits_for_the_same_runs_and_come_in_order():
    jobs = [job("c", "b"), job("a"), job("b"), job("d", "b"), job("e", "gone"), job("f", "c")]
    arrays = [([one.folder.name for one in own], [*map(str, after)]) for own, after in submissions(jobs, 2)]
    assert arrays == [(["a", "b"], []), (["e"], []), (["c", "d"], ["b"]), (["f"], ["c"])]


def test_without_slurm_the_command_says_what_to_do(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="NOT TESTED: submitit is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no srun: .* --commands"):
        next(run_on_slurm([job("a")], Slurm(tmp_path), run_job, print))


@pytest.fixture(scope="module")
def here(data, tmp_path_factory):
    """A run like those that Slurm trains, trained by this process."""
    folder = tmp_path_factory.mktemp("here") / "whole"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run_job(Job(config(data), folder, {}))
    torch.set_num_threads(threads)
    return folder


@pytest.fixture(scope="module")
def trained(data, here, tmp_path_factory):
    """(folder of the runs, results by name, lines): all by one call, while two of the jobs are stopped.

    `told` is told to save, as a job that is preempted or whose time is over; `lost` is killed and given back,
    as one whose node is lost; `wrong` waits for `told`, and fails.
    """
    pytest.importorskip("submitit", reason="NOT TESTED: submitit is not installed")
    if why := loopback.missing():
        pytest.skip(f"NOT TESTED: {why}")
    home, lines = tmp_path_factory.mktemp("slurm"), []
    told, lost, wrong = (home / name for name in ("told", "lost", "wrong"))
    jobs = [
        Job(config(data, trainable_blocks=9), wrong, {}, (told,)),
        Job(config(data, checkpoint_epochs=1000), told, {}),  # it has none but that of being told
        Job(config(data), lost, {}),
    ]
    asked = Slurm(home / "logs", minutes=60, gpus=0, more={"mem": "100M"})
    stopping = [
        threading.Thread(target=stop_once, args=(told, asked, ["scancel", "--signal=USR2"])),
        threading.Thread(target=stop_once, args=(lost, asked, ["scontrol", "requeue"])),
    ]
    before, slurm.LOOK = slurm.LOOK, 0.5
    with loopback.cluster(tmp_path_factory.mktemp("cluster")), loopback.hurry():
        for thread in stopping:
            thread.start()
        results = {
            one.folder.name: result for one, result in run_on_slurm(jobs, asked, run_job, lines.append)
        }
    slurm.LOOK = before
    for thread in stopping:
        thread.join()
    return home, results, lines


def config(data, **switches):
    return small_runs.small_config(data, "simgcd", eagc=False, **{"epochs": EPOCHS, **switches})


def stop_once(run: Path, asked: Slurm, command: list[str]) -> None:
    """Stop the job of a run in the middle of its epochs, once."""
    while not (run / "metrics.jsonl").exists() or len(epochs(run)) < 2:
        time.sleep(0.02)
    number = json.loads((asked.folder / "jobs.json").read_text())[run.name]
    (run.parent / f"{run.name}.stopped").write_text(str(len(epochs(run))))
    subprocess.run([*command, number], check=True, timeout=60)


def number_of(home: Path, name: str) -> str:
    return json.loads((home / "logs/jobs.json").read_text())[name]


def said_of(home: Path, name: str) -> str:
    """What the job of a run printed."""
    return "".join((home / f"logs/{number_of(home, name)}_0_log.{end}").read_text() for end in ("out", "err"))


def epochs(run: Path) -> list[int]:
    whole_lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]  # it may be written just now
    lines = [json.loads(line) for line in whole_lines]
    return [line["epoch"] for line in lines if line["kind"] == "epoch"]


@pytest.mark.parametrize("name", ["told", "lost"])
def test_a_stopped_job_goes_on_by_itself_to_the_same_bits(name, trained, here):
    home, results, _ = trained
    assert int((home / f"{name}.stopped").read_text()) < EPOCHS
    assert said_of(home, name).count("Starting with") == 2
    assert results[name] == json.loads((home / name / "result.json").read_text())
    assert epochs(home / name) == list(range(EPOCHS))
    of_slurm, own = (load_file(run / "last.safetensors") for run in (home / name, here))
    assert of_slurm.keys() == own.keys()
    assert all(torch.equal(of_slurm[key], own[key]) for key in own)


def test_a_job_that_is_told_saves_before_it_goes_back(trained):
    said = said_of(trained[0], "told")
    assert "Requeued job" in said and "Requeued job" not in said_of(trained[0], "lost")
    drawn = [int(number) for number in re.findall(rf"epoch (\d+)/{EPOCHS}:", said)]
    assert 1 in drawn and drawn == sorted(drawn)  # it did not begin again


def test_a_job_begins_when_the_one_that_it_waits_for_has_ended(trained):
    home, results, lines = trained
    assert list(results)[-1] == "wrong" and any(", after " in line for line in lines)
    begun = re.search(r"INFO \((.+?),\d+\) - Starting with", said_of(home, "wrong"))[1]
    done = time.localtime((home / "told/result.json").stat().st_mtime)
    assert time.strptime(begun, "%Y-%m-%d %H:%M:%S") >= done


def test_a_failed_run_is_named_with_its_error_and_its_log(trained):
    home, results, _ = trained
    assert isinstance(results["wrong"], SlurmJobError)
    assert "must be <= 4, the blocks of vit_digits" in str(results["wrong"])
    assert f"{home}/logs/" in str(results["wrong"])
