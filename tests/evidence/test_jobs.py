"""Sets of runs: several processes, order, what is skipped and refused, and a run that fails."""

import json
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures.process import BrokenProcessPool

import pytest
import small_runs
import torch
import warning_jobs
from run_facts import some_facts

from eagc_ops.evidence import jobs
from eagc_ops.evidence.jobs import Job, default_jobs, run_job, run_jobs, unfinished
from eagc_ops.training.config import ConfigError
from eagc_ops.training.engine.run_folder import RunFolder


def config(data, **switches):
    return small_runs.small_config(data, "simgcd", epochs=1, reference_epochs=1, **switches)


@pytest.fixture(scope="module")
def three(data, tmp_path_factory):
    """Jobs `first`, `second` (with the reference model of the first) and `broken`, done by two processes."""
    home = tmp_path_factory.mktemp("jobs")
    first = Job(config(data), home / "first", {})
    second = Job(config(data, lambda_a=0.0), home / "second", {}, after=(first.folder,))
    broken = Job(config(data, trainable_blocks=9), home / "broken", {})
    ended = list(run_jobs([first, second, broken], 2, run_job))
    return (first, second, broken), {job.folder.name: result for job, result in ended}


def test_a_job_waits_for_the_one_it_needs(three):
    (first, second, _), results = three
    assert list(results).index("first") < list(results).index("second")
    begun = (second.folder / "tensorboard").stat().st_ctime_ns
    assert begun > (first.folder / "result.json").stat().st_mtime_ns
    assert len(list((first.folder.parent / "references").glob("reference-*"))) == 1


def test_a_failure_is_given_and_the_others_go_on(three):
    (first, second, _), results = three
    assert isinstance(results["broken"], ConfigError)
    assert "must be <= 4, the blocks of vit_digits" in str(results["broken"])
    for job in (first, second):
        assert results[job.folder.name] == json.loads((job.folder / "result.json").read_text())


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_a_warning_is_one_line_with_the_name_of_its_run(at_a_time, data, tmp_path, capfd):
    pair = [Job(config(data, eagc=False, seed=seed), tmp_path / f"seed{seed}", {}) for seed in (0, 1)]
    results = dict.fromkeys(job.folder.name for job, _ in run_jobs(pair, at_a_time, warning_jobs.warn))
    said = [line for line in capfd.readouterr().err.splitlines() if "warning" in line.lower()]
    assert sorted(said) == [f"warning: {name}: numbers of little use" for name in sorted(results)]


def test_finished_jobs_are_not_done_again(three):
    (first, second, broken), _ = three
    assert unfinished([first, second, broken]) == [broken]
    moved = first._replace(config=first.config.replace(workers=3, root="elsewhere", log_every=1))
    assert unfinished([moved]) == []  # settings of the machine are no part of a run
    facts = RunFolder.open(first.folder).facts
    same = first._replace(facts={"trunk": facts.trunk, "split_hash": facts.split_hash})
    assert unfinished([same]) == []


@pytest.mark.parametrize("what", ["settings", "weights", "data"])
def test_a_folder_of_a_different_run_is_refused(three, what):
    first = three[0][0]
    other = {
        "settings": first._replace(config=first.config.replace(lambda_p=0.1)),
        "weights": first._replace(facts={"trunk": "of other weights"}),
        "data": first._replace(facts={"split_hash": "of other data"}),
    }[what]
    with pytest.raises(
        ConfigError, match="holds a run with different settings, data or weights: look elsewhere"
    ):
        unfinished([other], "look elsewhere")


def test_a_killed_process_fails_its_jobs_and_nothing_hangs(data, tmp_path):
    def kill_one():
        while not list(tmp_path.glob("*/run.json")):  # a run has begun
            time.sleep(0.02)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    pair = [Job(config(data, eagc=False, seed=seed), tmp_path / f"seed{seed}", {}) for seed in (0, 1)]
    pair.append(Job(config(data, eagc=False, seed=2), tmp_path / "seed2", {}, after=(pair[0].folder,)))
    thread = threading.Thread(target=kill_one)
    thread.start()
    ended = {job.folder: result for job, result in run_jobs(pair, 2, run_job)}
    thread.join()
    assert ended.keys() == {job.folder for job in pair}
    failed = [job for job in pair if isinstance(ended[job.folder], BrokenProcessPool)]
    assert failed and unfinished(pair) == failed  # a short run may have ended before the kill
    assert [result["last"]["epoch"] for _, result in run_jobs(failed, 1, run_job)] == [0] * len(
        failed
    )  # begun or not, they go on
    assert unfinished(pair) == []


def test_the_environment_is_left_as_it_was(three):
    assert "TQDM_DISABLE" not in os.environ


def test_in_one_process_a_failure_does_not_stop_the_others(data, tmp_path):
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "run.json.partial").write_text("{")  # killed before it began
    pair = [
        Job(config(data, trainable_blocks=9), tmp_path / "bad", {}),
        Job(config(data, eagc=False), tmp_path / "good", {}),
    ]
    (_, bad), (_, good) = run_jobs(pair, 1, run_job)
    assert isinstance(bad, ConfigError)
    assert good["last"]["epoch"] == 0


def test_an_estimated_k_is_the_run_that_asked_for_it(tmp_path, data):
    asked = config(data, k="estimate")
    RunFolder.create(tmp_path / "run", asked.replace(k=6), some_facts(k_estimate={"k": 6}))
    assert [job.folder.name for job in unfinished([Job(asked, tmp_path / "run", {})])] == ["run"]
    RunFolder.create(tmp_path / "given", asked.replace(k=6), some_facts())
    with pytest.raises(ConfigError, match="different settings"):
        unfinished([Job(asked, tmp_path / "given", {})])


def test_one_run_per_gpu(monkeypatch):
    monkeypatch.setattr(jobs.os, "cpu_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert default_jobs() == 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (default_jobs(), default_jobs("cpu"), jobs._gpus()) == (2, 3, ["0", "1"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert jobs._gpus() == ["5", "7"]
