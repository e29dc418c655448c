"""Discoveries that several processes train together: the answers are those of one, and all end together."""

import csv
import json
import signal
import socket

import nursery as processes
import photographs
import pytest
import small_runs
import torch

from eagc_ops.discovery.discovery import _for_so_many
from eagc_ops.discovery.frozen import TRAINED_FEATURES, Features
from eagc_ops.discovery.places import RESULTS, TRAINING
from eagc_ops.discovery.sample_pictures import SETTINGS, write_sample_pictures
from eagc_ops.training.config import resolve
from eagc_ops.training.engine.checkpoint import load_checkpoint

LIMIT = 600  # seconds: a launch that hangs fails


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    started = processes.Nursery(tmp_path_factory.mktemp("nursery"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    home = tmp_path_factory.mktemp("photos")
    photographs.write_photographs(home)
    return home


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    files = small_runs.write_files(tmp_path_factory.mktemp("weights"))
    return {
        **{"method": "small", "backbone": "vit_digits", "image_size": 16, "weights": files["weights"]},
        **{"epochs": 2, "batch_size": 12, "reference_epochs": 1, "device": "cpu", "k": 5},
        **{"precision": "no", "log_every": 1},
    }


class Launch:
    """The processes of one discovery; what they tell lies beside its output folder."""

    def __init__(self, nursery, world, photos, output, settings, faults=None):
        self.output = output
        self._told = [f"{output}-{rank}" for rank in range(world)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.ranks = [
            nursery.start(
                "discovery_rank",
                *(str(photos), str(output), settings, self._told[rank], (faults or {}).get(rank)),
                env={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(world)
        ]

    def codes(self):
        try:
            for rank in self.ranks:
                rank.wait_at_most(LIMIT)
        except AssertionError:
            for rank in self.ranks:  # those that have ended are not waited for yet, so the numbers are theirs
                rank.kill()
            raise
        return [rank.wait() for rank in self.ranks]

    @property
    def errors(self):
        return [rank.errors for rank in self.ranks]

    def told(self, rank, ending):
        return self.output.parent / f"{self._told[rank]}.{ending}"

    def contents(self):
        return [json.loads(self.told(rank, "json").read_text()) for rank in range(len(self.ranks))]

    def said(self):
        files = [self.told(rank, "txt") for rank in range(len(self.ranks))]
        return [file.read_text().splitlines() if file.exists() else [] for file in files]


@pytest.fixture(scope="module")
def launches(nursery, tmp_path_factory):
    """A discovery in the sample pictures, with the encoder that comes along, by 1, 2 and 3 processes."""
    home, made = tmp_path_factory.mktemp("launches"), {}
    for i, picture in enumerate(sorted(write_sample_pictures(home).unlabelled.iterdir())):
        if i % 2:  # half of them will do
            picture.unlink()
    settings = {**SETTINGS, "method": "small", "k": 12, "epochs": 2, "batch_size": 24, "precision": "no"}
    for world in (1, 2, 3):
        made[world] = Launch(nursery, world, home / "pictures", home / f"found{world}", settings)
        assert made[world].codes() == [0] * world, made[world].errors
    return made


@pytest.mark.parametrize("world", [2, 3])
def test_the_training_is_that_of_one_process(launches, world):
    """Sums of gradients have another order, which is 1e-7 of a value, and the steps multiply that a little.

    A picture on the border between two categories may change sides.
    """
    one, shared = launches[1], launches[world]
    weights, start = (
        [load_checkpoint(launch.output / TRAINING / "last.safetensors")[0] for launch in (one, shared)],
        torch.load(one.told(0, "pt"))[0],
    )
    ours, theirs = (tensors["method.classifier.weight"] for tensors in weights)
    assert (theirs - start).norm() > 0.01 * start.norm()  # it has learned
    for name, tensor in weights[0].items():
        if name.startswith(("encoder.", "method.")):
            torch.testing.assert_close(weights[1][name], tensor, atol=1e-5, rtol=1e-4)
    features = [Features.read(launch.output / TRAINED_FEATURES) for launch in (one, shared)]
    for part in ("labelled", "unlabelled", "held_out"):
        torch.testing.assert_close(*(getattr(of, part) for of in features), atol=1e-4, rtol=1e-4)
    results = [load_checkpoint(launch.output / RESULTS)[0] for launch in (one, shared)]
    for part in ("probabilities", "held_out"):
        torch.testing.assert_close(*(of[part] for of in results), atol=1e-4, rtol=0)
    assert _alike(*(of["probabilities"].argmax(1).tolist() for of in results)) > 0.99
    assert _alike(*map(_categories, (one, shared))) > 0.99
    for ours, theirs in zip(*(launch.contents()[0]["answer"]["candidates"] for launch in (one, shared))):
        assert all(ours[name] == theirs[name] for name in ("kind", "kept", "empty"))
        for counted in ("holdout", "rehearsal"):
            assert abs(ours[counted]["right"] - theirs[counted]["right"]) <= 1


def _alike(ours, theirs):
    assert len(ours) == len(theirs)
    return sum(a == b for a, b in zip(ours, theirs)) / len(ours)


def _categories(launch):
    with open(launch.output / "assignments.csv", newline="") as file:
        return [(row["path"], row["category"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("world", [2, 3])
def test_the_classifier_starts_with_the_same_bits_in_all(launches, world):
    """Both trainings, that of the known classes and the rehearsal, begin from the first answer."""
    starts = [torch.load(launches[world].told(rank, "pt")) for rank in range(world)]
    assert [len(both) for both in starts] == [2] * world
    for others in starts[1:]:
        assert all(map(torch.equal, others, starts[0]))
    for ours, theirs in zip(starts[0], torch.load(launches[1].told(0, "pt"))):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("world", [2, 3])
def test_one_speaks_and_writes_and_all_return(launches, world):
    launch = launches[world]
    first, *others = launch.said()
    assert "from the categories of the first answer" in "\n".join(first) and others == [[]] * (world - 1)
    assert [errors.count("trunk cache ") for errors in launch.errors] == [1] + [0] * (world - 1)
    assert launch.contents() == [json.loads((launch.output / "categories.json").read_text())] * world
    names = [sorted(file.name for file in of.output.iterdir()) for of in (launches[1], launch)]
    assert names[0] == names[1]


@pytest.mark.parametrize("told", [(0, 1), (1,)])
def test_a_signal_to_all_or_to_one_ends_all_after_a_step(nursery, photos, settings, tmp_path, told):
    launch = Launch(nursery, 2, photos, tmp_path / "found", {**settings, "epochs": 1000})
    metrics = tmp_path / "found" / TRAINING / "metrics.jsonl"
    launch.ranks[1].wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
    for rank in told:
        launch.ranks[rank].kill(signal.SIGTERM)
    assert launch.codes() == [143, 143], launch.errors
    assert [errors.count("interrupted by SIGTERM; to go on: ") for errors in launch.errors] == [1, 0]
    assert not any("Traceback" in errors or "has ended" in errors for errors in launch.errors)
    assert launch.said()[0][-1] == f"the first answer stays: {tmp_path}/found/discovered.html"
    assert (metrics.parent / "last.safetensors").exists()
    content = json.loads((tmp_path / "found" / "categories.json").read_text())
    assert content["answer"]["training"] == "to come"


def test_a_process_that_waits_for_another_one_hears_a_signal(nursery, photos, settings, tmp_path):
    launch = Launch(nursery, 2, photos, tmp_path / "found", settings, {0: "waits"})
    launch.ranks[0].wait_until(launch.told(0, "waits").exists)
    launch.ranks[1].kill(signal.SIGTERM)
    assert launch.codes() == [2, 143], launch.errors
    assert "process 1 of 2 has ended, and process 0 cannot go on without it" in launch.errors[0]


def test_an_error_in_one_ends_all_and_the_same_command_goes_on(nursery, photos, settings, tmp_path):
    launch = Launch(nursery, 2, photos, tmp_path / "found", settings, {1: "fails"})
    assert launch.codes() == [2, 2], launch.errors
    assert "process 1 of 2 has ended, and process 0 cannot go on without it" in launch.errors[0]
    assert "eagc discover: this process has no disk" in launch.errors[1]
    assert not any("Traceback" in errors for errors in launch.errors)
    again = Launch(nursery, 3, photos, tmp_path / "found", settings)  # by another number of processes
    assert again.codes() == [0, 0, 0], again.errors
    assert again.contents()[0]["answer"]["training"] == "done"


def test_a_training_that_diverges_in_one_stops_in_all(nursery, photos, settings, tmp_path):
    launch = Launch(nursery, 2, photos, tmp_path / "found", settings, {1: "diverges"})
    assert launch.codes() == [0, 0], launch.errors
    assert [content["answer"]["training"] for content in launch.contents()] == ["stopped"] * 2


def test_a_batch_is_divided_evenly(nursery, photos, settings, tmp_path):
    """One that somebody named is refused, before anything is written; else it is chosen so."""
    launch = Launch(nursery, 2, photos, tmp_path / "found", {**settings, "batch_size": 13})
    assert launch.codes() == [2, 2]
    assert all("batch_size=13 must be a multiple of 2 processes" in errors for errors in launch.errors)
    assert not (tmp_path / "found").exists()
    config = resolve("simgcd", "discover", "recommended", root="photos", split_file="images.json")
    sizes = {world: _for_so_many(config, 54, {}, world)["batch_size"] for world in (1, 2, 3)}
    assert sizes == {1: 13, 2: 12, 3: 12}
