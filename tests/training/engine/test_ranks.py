"""When one of two processes dies, the other ends with a clear error, wherever it is at that moment."""

import json
import signal
import socket

import nursery as processes
import pytest
from small_runs import small_config

from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.run_folder import RunFolder


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    started = processes.Nursery(tmp_path_factory.mktemp("nursery"))
    yield started
    started.close()


def start_two(nursery, config, run):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        nursery.start("rank", config.to_json(), str(run), env={**world, "RANK": str(r), "LOCAL_RANK": str(r)})
        for r in range(2)
    ]


@pytest.mark.parametrize(("moment", "dies"), [("a step", 1), ("a step", 0), ("the reference model", 1)])
def test_the_others_end_when_one_dies(nursery, data, tmp_path, moment, dies):
    run = tmp_path / "run"
    long = {"epochs": 1000, "reference_epochs": 1} if moment == "a step" else {"reference_epochs": 100_000}
    ranks = start_two(nursery, small_config(data, log_every=1, **long), run)
    metrics = run / "metrics.jsonl"
    begun = {
        "a step": lambda: metrics.exists() and metrics.stat().st_size > 0,
        # One process trains it and the other waits, so neither is in a collective.
        "the reference model": lambda: any(tmp_path.glob("references/*.lock")),
    }[moment]
    ranks[dies].wait_until(begun)
    ranks[dies].kill()
    assert ranks[dies].wait() == -signal.SIGKILL
    other = ranks[1 - dies]
    other.wait_at_most(60)  # "within a minute" is the promise
    assert other.wait() == 2
    said = f"process {dies} of 2 has ended, and process {1 - dies} cannot go on without it; to go on: "
    assert said in other.errors
    assert "Traceback" not in other.errors


@pytest.mark.parametrize("told", [(0, 1), (1,)])
def test_sigterm_to_all_or_to_one_saves_the_step_and_ends_all(nursery, data, tmp_path, told):
    """Slurm tells all processes, a cloud one machine; with torch's launcher, all of them."""
    run = tmp_path / "run"
    config = small_config(data, log_every=1, epochs=1000, reference_epochs=1)
    ranks = start_two(nursery, config, run)
    metrics = run / "metrics.jsonl"
    ranks[1].wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
    for i in told:
        ranks[i].kill(signal.SIGTERM)
    for rank in ranks:
        rank.wait_at_most(30)
    assert [rank.wait() for rank in ranks] == [143, 143], [rank.errors for rank in ranks]
    assert [rank.errors.count("interrupted by SIGTERM; to go on: ") for rank in ranks] == [1, 0]
    assert not any("Traceback" in rank.errors or "has ended" in rank.errors for rank in ranks)
    _, state = load_checkpoint(run / "last.safetensors")
    step = json.loads(metrics.read_text().splitlines()[-1])["step"]  # every step has a line
    assert step == state["epoch"] * RunFolder.open(run).facts.steps_per_epoch + state["position"]


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_two_that_end_as_they_should_say_nothing(nursery, data, tmp_path, device):
    config = small_config(data, epochs=1, reference_epochs=1, device=device)
    ranks = start_two(nursery, config, tmp_path / "run")
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.errors for rank in ranks]
    assert not any("has ended" in rank.errors or "waiting for" in rank.errors for rank in ranks)
    assert (tmp_path / "run" / "result.json").exists()
    assert len(list(tmp_path.glob("run/tensorboard/*"))) == 1  # one of them writes


def test_an_error_of_its_own_is_not_taken_for_a_loss(nursery, data, tmp_path):
    """Both find the same wrong setting; each says it, and not that the other has gone."""
    config = small_config(data, epochs=1, batch_size=9)
    ranks = start_two(nursery, config, tmp_path / "run")
    assert [rank.wait() for rank in ranks] == [2, 2]
    assert all("batch_size=9 must be a multiple of 2 processes" in rank.errors for rank in ranks)
