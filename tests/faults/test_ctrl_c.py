"""Ctrl-C at real moments of real commands: one line, exit code 130, no process left, and the work goes on.

SIGTERM, which Slurm and spot machines send, does the same with exit code 143.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import nursery as processes
import photographs
import pytest
import torch
from faults import trials
from safetensors.torch import save_file
from small_runs import small_config

from eagc_ops.training.config import SPECS
from eagc_ops.training.models.backbones import load_backbone

pytestmark = pytest.mark.fault("Ctrl-C")
ENDINGS = (signal.SIGINT, signal.SIGTERM)
BY = {signal.SIGINT: "", signal.SIGTERM: " by SIGTERM"}  # what the line says of it


def interrupt(child, times: int = 1, number: int = signal.SIGINT) -> str:
    """Press Ctrl-C, or send another signal; returns the one line."""
    for _ in range(times):
        child.kill(number)
        time.sleep(0.02)
    assert child.wait() == 128 + number, child.errors
    wait_for_the_end(child.pid)
    # A cache says its size before it is built; one of several runs may have ended, and warned, before.
    said_before = ("trunk cache ", "warning: run")
    lines = [line for line in child.errors.splitlines() if not line.startswith(said_before)]
    assert len(lines) == 1, child.errors
    return lines[0]


def wait_for_the_end(session: int) -> None:
    """Nothing that the command started lives on (multiprocessing's tracker ends a bit later)."""
    for _ in range(200):
        if not (left := processes.session(session)):
            return
        time.sleep(0.05)
    pytest.fail(f"{len(left)} processes live on: {[Path(f'/proc/{p}/cmdline').read_text() for p in left]}")


TINY = {
    "backbone": "vit_digits",
    "image_size": 16,
    "batch_size": 8,
    "device": "cpu",
    "reference_epochs": 1,
}


def as_words(settings: dict) -> list[str]:
    return [w for name, value in settings.items() for w in (f"--{name.replace('_', '-')}", str(value))]


def words(data, *more: str) -> list[str]:
    return ["train", "--dataset", "folder", *as_words({**TINY, **data}), "--mlp-head-layers", "1", *more]


def steps(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


MOMENTS = {  # options of `eagc train`, and what is there at the moment
    "a step": (["--epochs", "2", "--log-every", "1"], lambda run: steps(run) > 2),
    "a step with data workers": (
        ["--epochs", "3", "--log-every", "1", "--workers", "2"],
        lambda run: steps(run) > 2,
    ),
    "the reference model": (
        ["--epochs", "1", "--reference-epochs", "40"],
        lambda run: any(run.parent.glob("references/*.lock")),
    ),
    "the trunk cache": (
        ["--epochs", "1", "--trunk-cache", "CACHE", "--cache-views", "30"],
        lambda run: (run.parent / "cache" / "tokens.bin").exists(),
    ),
}


@pytest.mark.parametrize(
    ("moment", "times"), trials([(moment, times) for moment in MOMENTS for times in (1, 3)], short=2)
)
def test_a_run_goes_on_with_the_command_of_the_line(nursery, data, same_bits, tmp_path, moment, times):
    options, there = MOMENTS[moment]
    run, whole = tmp_path / "one" / "run", tmp_path / "whole" / "run"

    def line(run):
        return words(
            data, *(str(run.parent / "cache") if w == "CACHE" else w for w in options), "-o", str(run)
        )

    child = nursery.start("eagc", *line(run))
    child.wait_until(lambda: there(run))
    said = interrupt(child, times)
    beginning, _, command = said.partition("; to go on: ")
    assert beginning == "eagc train: interrupted"
    begun = (run / "run.json").exists()
    assert shlex.split(command) == ["eagc", *(["train", "--resume", str(run)] if begun else line(run))]
    if moment.startswith("a step") and times == 1:
        assert (run / "last.safetensors").exists()  # in the first epoch: Ctrl-C saved it
    nursery.run("eagc", *shlex.split(command)[1:])
    nursery.run("eagc", *line(whole))
    same_bits(run, whole)
    assert not list(run.parent.rglob("*.lock"))


@pytest.mark.parametrize(
    ("number", "workers"),
    trials([(number, n) for number in (signal.SIGTERM, signal.SIGUSR2) for n in (0, 2)], short=2),
)
def test_what_a_cluster_sends_saves_the_step(nursery, data, same_bits, tmp_path, number, workers):
    """Slurm sends it to the run and to its data workers alike."""
    options = ("--epochs", "3", "--log-every", "1", "--workers", str(workers))
    run, whole = tmp_path / "one" / "run", tmp_path / "whole" / "run"
    child = nursery.start("eagc", *words(data, *options, "-o", str(run)))
    child.wait_until(lambda: steps(run) > 2)
    said = interrupt(child, number=number)
    name = signal.Signals(number).name
    assert said == f"eagc train: interrupted by {name}; to go on: eagc train --resume {run}"
    assert (run / "last.safetensors").exists()  # in the first epoch: the signal saved it
    nursery.run("eagc", "train", "--resume", str(run))
    nursery.run("eagc", *words(data, *options, "-o", str(whole)))
    same_bits(run, whole)


@pytest.mark.parametrize("number", trials(ENDINGS, short=1))
def test_a_discovery_goes_on_with_the_same_line(nursery, data, tmp_path, number):
    photographs.write_photographs(tmp_path / "photos")
    options = {**TINY, "weights": data["weights"], "k": 5}

    def line(output):
        places = [str(tmp_path / "photos" / name) for name in ("labelled", "new")]
        return ["discover", *places, "-o", str(tmp_path / output), "--fast", *as_words(options)]

    child = nursery.start("eagc", *line("found"))
    child.wait_until(lambda: (tmp_path / "found" / "discovery.json").exists())
    said = f"eagc discover: interrupted{BY[number]}; to go on: {shlex.join(['eagc', *line('found')])}"
    assert interrupt(child, number=number) == said
    assert not (tmp_path / "found" / "categories.json").exists()
    for output in ("found", "whole"):
        nursery.run("eagc", *line(output))
    for name in ("assignments.csv", "map.csv"):
        assert (tmp_path / "found" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """Weights for digits, of no quality."""
    file = tmp_path_factory.mktemp("encoder") / "vit.safetensors"
    torch.manual_seed(0)
    size = SPECS["digits"].image_size
    save_file(load_backbone("vit_digits", image_size=size, channels=1).state_dict(), file)
    return str(file)


COMMANDS = {  # the command, and the files that are there at the moment
    "demo": ("demo -o {home}", "*.lock"),
    "estimate-k": ("estimate-k --dataset digits --weights {encoder} --published --restarts 100", None),
    "probe": ("probe --dataset digits --weights {encoder} --choices 1000", None),
    "train, its encoder": ("train --dataset digits -o {home}/run", "*.lock"),
    "table": (
        "table ablation --dataset digits --weights {encoder} --seeds 1 --jobs 2 -o {home}",
        "runs/*/metrics.jsonl",
    ),
}


@pytest.mark.parametrize(
    ("name", "number"), trials([(name, number) for number in ENDINGS for name in COMMANDS], short=2)
)
def test_commands_on_digits(nursery, encoder, tmp_path, name, number):
    home = tmp_path / "home"
    line, there = COMMANDS[name]
    words = line.format(encoder=encoder, home=home).split()
    child = nursery.start("eagc", *words)
    if there is None:
        time.sleep(3)
        assert not child.ended()
    else:
        child.wait_until(lambda: any(home.glob(there)))
    said = f"eagc {words[0]}: interrupted{BY[number]}; to go on: {shlex.join(['eagc', *words])}"
    assert interrupt(child, number=number) == said
    assert not list(home.rglob("*.partial"))


@pytest.mark.parametrize(
    ("moment", "times", "number"),
    trials(
        [
            ("step", 1, signal.SIGTERM),
            *((moment, times, signal.SIGINT) for moment, times in (("step", 1), ("start", 1), ("step", 4))),
        ],
        short=1,
    ),
)
def test_runs_in_several_processes_save_their_steps_and_end(
    nursery, data, same_bits, tmp_path, moment, times, number
):
    configs = [
        small_config(data, "simgcd", epochs=3, log_every=1, eagc=False, warm_start=False, seed=seed)
        for seed in range(3)
    ]
    job = ("several_runs", [config.to_json() for config in configs], str(tmp_path))
    child = nursery.start(*job)
    runs = [tmp_path / f"run{i}" for i in range(3)]
    begun = {"start": lambda run: run.exists(), "step": steps}[moment]
    child.wait_until(lambda: any(map(begun, runs)))
    said = f"eagc table: interrupted{BY[number]}; to go on: eagc table"
    assert interrupt(child, times, number) == said
    if (moment, times) == ("step", 1):
        assert any((run / "last.safetensors").exists() for run in runs)  # in its first epoch: Ctrl-C saved it
    assert not runs[2].exists()  # it was not begun
    nursery.run(*job)
    nursery.run("go_on", configs[0].to_json(), str(tmp_path / "whole"))
    same_bits(runs[0], tmp_path / "whole")


REAL = {  # commands that restart themselves, or are interrupted while Python still imports
    "train": ["train", "--dataset", "digits"],
    "bench": ["bench", "operator"],
    "overhead": ["table", "overhead", "-o", "tables"],
}


@pytest.mark.parametrize(
    ("name", "cpu"),
    trials([(name, cpu) for name in REAL for cpu in (0.2, 0.5, 1.0, 2.0, 4.0, 6.0, 9.0)], short=1),
)
def test_a_real_process_after_some_cpu_time(tmp_path, name, cpu):
    """From 0.2 s of CPU time on: before, Python itself is starting, and no code of ours runs."""
    with open(tmp_path / "errors", "w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "eagc_ops.app.cli", *REAL[name]],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=tmp_path,
            start_new_session=True,
        )
    while processes.cpu_seconds(*processes.session(process.pid)) < cpu:
        assert process.poll() is None, (tmp_path / "errors").read_text()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130, (tmp_path / "errors").read_text()
    wait_for_the_end(process.pid)
    lines = processes.without_bars((tmp_path / "errors").read_text())
    command = shlex.join(["eagc", *REAL[name]])
    assert len(lines) == 1 and lines[0].endswith(f": interrupted; to go on: {command}"), lines
