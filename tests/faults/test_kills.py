"""SIGKILL at random moments and inside every write: the same command goes on, and ends with the same bits."""

import hashlib
import random
import shutil
import time
from pathlib import Path

import nursery as processes
import pytest
from faults import trials

pytestmark = pytest.mark.fault("kills")

METHODS = ("small", "small_legogcd", "small_sptnet", "small_selex")
SEEDS = range(12)
WRITES = 12  # of one run; a test below counts them


def killed_at_random(nursery, seed: int, job: tuple, seconds: float) -> None:
    """Do a job that takes `seconds` of CPU time, killing it three times, at least once after a first write.

    A kill before the first write can lose nothing, so it is no trial.
    """
    draw, trials = random.Random(seed), 0
    while not trials:
        for _ in range(3):
            if kill(nursery, job, draw.uniform(0, 0.8 * seconds)):
                trials += has_written(Path(job[-1]))
            elif not trials:  # it was done sooner than it was timed: kill it earlier
                shutil.rmtree(job[-1])
                seconds /= 2
    nursery.run(*job)


def kill(nursery, job: tuple, seconds: float) -> bool:
    """Do a job, and kill it after some CPU time; returns whether it was still at work."""
    child = nursery.start(*job)
    while not child.ended() and processes.cpu_seconds(child.pid) < seconds:
        time.sleep(0.005)
    child.kill()
    return child.wait() != 0


def has_written(folder: Path) -> bool:
    return any(file.is_file() and not file.name.endswith("lock") for file in folder.rglob("*"))


@pytest.fixture(scope="module")
def seconds(nursery):
    """The CPU time that a job takes on this machine, which does not depend on what else the machine does."""
    known = {}

    def measure(name: str, job: tuple) -> float:
        if name not in known:
            child = nursery.start(*job)
            while not child.ended():
                time.sleep(0.01)
            known[name] = processes.cpu_seconds(child.pid)
            assert child.wait() == 0, child.errors
        return known[name]

    return measure


@pytest.mark.parametrize(
    ("method", "seed"), trials([(method, seed) for method in METHODS for seed in SEEDS], short=4)
)
def test_a_run_killed_at_random_ends_with_the_same_bits(
    nursery, undisturbed, seconds, same_bits, tmp_path, method, seed
):
    config, whole = undisturbed(method)
    job = ("go_on", config.to_json(), str(tmp_path / "run"))
    took = seconds(method, ("go_on", config.to_json(), str(tmp_path / "timed" / "run")))
    killed_at_random(nursery, seed, job, took)
    same_bits(tmp_path / "run", whole)


@pytest.mark.parametrize("seed", trials(SEEDS, short=1))
def test_a_cache_killed_at_random_has_the_same_bytes(nursery, seconds, tmp_path, seed):
    took = seconds("cache", ("build_cache", str(tmp_path / "whole")))
    if not (tmp_path / "whole").exists():
        nursery.run("build_cache", str(tmp_path / "whole"))
    killed_at_random(nursery, seed, ("build_cache", str(tmp_path / "cache")), took)
    assert digests(tmp_path / "cache") == digests(tmp_path / "whole")


def digests(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("number", "point"),
    trials([(number, point) for number in range(1, WRITES + 1) for point in processes.POINTS], short=7),
)
def test_a_kill_inside_a_write_leaves_a_run_that_goes_on(
    nursery, undisturbed, same_bits, tmp_path, number, point
):
    config, whole = undisturbed("small")
    job = ("go_on", config.to_json(), str(tmp_path / "run"))
    assert nursery.start("die_in_write", point, number, *job).wait() == -9
    nursery.run(*job)
    same_bits(tmp_path / "run", whole)


@pytest.mark.parametrize(
    ("number", "point"),
    trials([(number, point) for number in (1, 2, 3, 7, 14) for point in processes.POINTS], short=1),
)
def test_a_kill_inside_a_write_of_a_cache_leaves_a_cache_that_goes_on(nursery, tmp_path, number, point):
    nursery.run("build_cache", str(tmp_path / "whole"))
    assert nursery.start("die_in_write", point, number, "build_cache", str(tmp_path / "cache")).wait() == -9
    nursery.run("build_cache", str(tmp_path / "cache"))
    assert digests(tmp_path / "cache") == digests(tmp_path / "whole")


def test_the_trials_above_reach_every_write_of_a_run(nursery, undisturbed, tmp_path):
    config, _ = undisturbed("small")
    nursery.run("die_in_write", "never", 0, "go_on", config.to_json(), str(tmp_path / "run"))
    assert int((tmp_path / "writes").read_text()) == WRITES
