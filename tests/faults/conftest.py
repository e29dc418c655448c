"""What the files of the fault suite share: forked processes, small data, and a run that nothing disturbed."""

import shutil
from pathlib import Path

import nursery as processes
import pytest
import small_runs
import torch

from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.run_folder import RunFolder


@pytest.fixture(scope="session")
def nursery(tmp_path_factory):
    started = processes.Nursery(tmp_path_factory.mktemp("nursery"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Settings that name a small image folder, its split and weights."""
    return small_runs.write_files(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def undisturbed(nursery, data, tmp_path_factory):
    """method -> (configuration, the folder of its whole run), made when it is first asked for."""
    made = {}

    def whole(method: str):
        if method not in made:
            settings = {"epochs": 2, "checkpoint_every": 3, "reference_epochs": 1}
            if method == "small_sptnet":
                start = whole("small")[1]
                settings |= {"init": str(start), "phase_batches": 2, "pad_width": 2, "precision": "no"}
            if method == "small_selex":
                settings |= {"embedding_dim": 32}
            config = small_runs.small_config(data, method, **settings)
            folder = tmp_path_factory.mktemp(method) / "run"
            nursery.run("go_on", config.to_json(), str(folder))
            made[method] = config, folder
        return made[method]

    return whole


@pytest.fixture
def same_bits():
    def compare(run: Path, whole: Path) -> None:
        """Both checkpoints, the log lines and the result of two runs are equal, and nothing else is left."""
        for name in ("last.safetensors", "best.safetensors"):
            (a, state), (b, other) = load_checkpoint(run / name), load_checkpoint(whole / name)
            assert state == other
            assert a.keys() == b.keys()
            assert all(torch.equal(a[key], b[key]) for key in a)
        assert lines(run) == lines(whole)
        results = ((folder / "result.json").read_text() for folder in (run, whole))
        assert next(results) == next(results)  # also the order of its keys
        assert sorted(file.name for file in run.iterdir()) == sorted(file.name for file in whole.iterdir())

    return compare


def lines(folder: Path) -> list[dict]:
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "steps")}
        for line in RunFolder.open(folder).metrics()
    ]


@pytest.fixture
def copied(undisturbed, tmp_path):
    """A copy of the whole run of SimGCD and of its reference model, without its result: it can be resumed."""
    config, folder = undisturbed("small")
    shutil.copytree(folder.parent, tmp_path / "copy")
    (tmp_path / "copy" / "run" / "result.json").unlink()
    return config, tmp_path / "copy" / "run"
