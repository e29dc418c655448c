"""Two commands that need the same folder or file: one works, the other is told who, and waits or leaves."""

import re

import pytest
from faults import trials
from small_runs import small_config

pytestmark = pytest.mark.fault("two at once")

HOLDER = r"in use by process {pid} on \S+ since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d \(.+\)"


def test_a_second_command_on_a_run_is_refused_and_the_first_is_not_disturbed(
    nursery, undisturbed, same_bits, tmp_path
):
    config, whole = undisturbed("small")
    run = tmp_path / "run"
    first = nursery.start("go_on", config.to_json(), str(run))
    first.wait_until((run / "run.json").exists)
    second = nursery.start("eagc", "train", "--resume", str(run))
    assert second.wait() == 2
    assert re.fullmatch(
        f"eagc train: {run} is {HOLDER.format(pid=first.pid)}: wait until .+, or choose .+", second.errors
    )
    assert first.wait() == 0
    same_bits(run, whole)


@pytest.mark.parametrize("end", ["done", "killed"])
def test_a_reference_model_is_trained_once(nursery, data, tmp_path, end):
    """The second run waits; if the first is killed, the second makes it."""
    config = small_config(data, "small", epochs=1, reference_epochs=60)
    first = nursery.start("go_on", config.to_json(), str(tmp_path / "first"))
    first.wait_until(lambda: any(tmp_path.glob("references/*.lock")))
    second = nursery.start("go_on", config.to_json(), str(tmp_path / "second"))
    second.wait_until(lambda: "waiting for" in second.errors)
    (lock,) = tmp_path.glob("references/*.lock")
    said = f"waiting for {str(lock).removesuffix('.lock')}: {HOLDER.format(pid=first.pid)}"
    assert re.search(said, second.errors)
    if end == "killed":
        first.kill()
    assert first.wait() == (-9 if end == "killed" else 0)
    assert second.wait() == 0
    (reference,) = tmp_path.glob("references/reference-*")
    begun = (tmp_path / "second" / "metrics.jsonl").stat().st_ctime_ns
    assert reference.stat().st_mtime_ns < begun
    assert not list(tmp_path.glob("references/*.lock"))


@pytest.mark.parametrize("words", trials(("table ablation --dataset digits", "demo"), short=2))
def test_a_second_table_or_demo_is_refused(nursery, tmp_path, words):
    line = [*words.split(), "-o", str(tmp_path)]

    def holds(child):
        lock = tmp_path / ".lock"
        return lambda: lock.exists() and f'"pid": {child.pid},' in lock.read_text()

    first = nursery.start("eagc", *line)
    first.wait_until(holds(first))
    second = nursery.start("eagc", *line)
    code = second.wait()
    first.kill()
    first.wait()
    assert (code, second.errors.count("\n")) == (2, 0)
    assert re.search(f"{tmp_path} is {HOLDER.format(pid=first.pid)}", second.errors)
    third = nursery.start("eagc", *line)
    third.wait_until(holds(third))  # the lock died with its holder
    third.kill()
    third.wait()


def test_the_encoder_of_digits_is_made_once(nursery, tmp_path):
    jobs = [nursery.start("encoder", str(tmp_path / "digits.safetensors")) for _ in range(2)]
    assert [job.wait() for job in jobs] == [0, 0], [job.errors for job in jobs]
    waited = [job for job in jobs if "waiting for" in job.errors]
    assert len(waited) == 1
