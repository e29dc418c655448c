"""A discovery by two processes, as a launcher starts them, is that of one."""

import csv
import os
import socket
import subprocess
import sys

import pytest
from commands import call

from eagc_ops.discovery.launched import part_of
from eagc_ops.training.analysis.processes import Processes


def words(home, output, *more):
    places = [f"{home}/photos/labelled", f"{home}/photos/new", "-o", f"{home}/{output}"]
    encoder = f"--weights {home}/weights/vit.safetensors --backbone vit_digits --image-size 16"
    options = f"{encoder} --device cpu --precision no --k 5 --fast"
    return ["discover", *places, *options.split(), *more]


def table(folder):
    with (folder / "assignments.csv").open() as file:
        return list(csv.DictReader(file))


def launched(arguments, world=2):
    """(exit code, standard output, standard error) of every process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "eagc_ops.app.cli", *arguments]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    processes = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world)
    ]
    return [(*process.communicate(timeout=300), process.returncode) for process in processes]


def test_two_processes_find_what_one_finds_and_one_of_them_writes(capsys, home):
    assert call(capsys, *words(home, "alone"))[0] == 0
    (out, err, code), (quiet, errors, other) = launched(words(home, "shared"))
    assert (code, other) == (0, 0), err + errors
    assert "features of 54 images" in out and (quiet, "features" in errors) == ("", False)
    alone, shared = table(home / "alone"), table(home / "shared")
    assert len(shared) == 30
    for ours, theirs in zip(shared, alone):
        for name in ("path", "category", "status"):
            assert ours[name] == theirs[name]
        for name in ("confidence", "margin", "distance"):
            assert float(ours[name]) == pytest.approx(float(theirs[name]), abs=2e-4)
    assert {file.name for file in (home / "shared").iterdir()} == {
        file.name for file in (home / "alone").iterdir()
    }


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_parts_are_all_items_in_their_order(count):
    processes = Processes()
    processes.count, parts = count, []
    for processes.rank in range(count):
        parts.append(part_of("eleven items", processes))
    assert "".join(parts) == "eleven items" and max(map(len, parts)) - min(map(len, parts)) <= 1
