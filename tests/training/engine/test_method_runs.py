"""Whole runs of LegoGCD and SPTNet with and without EAGC: resumed inside an epoch, and in two processes."""

import copy
import shutil
from dataclasses import replace

import pytest
import small_runs
import torch
from small_runs import small_config

from eagc_ops.training.config import resolve
from eagc_ops.training.data import open_data
from eagc_ops.training.engine import experiment as experiment_module
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.loop import Callback
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.runs import resume, train

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")

BATCHES = {
    "batch_size": 64,
    "checkpoint_every": 3,
    "log_every": 3,
    "device": "cpu",
    "reference_epochs": 1,
}  # 7 batches per epoch
WAYS = {
    "legogcd off": ("small_legogcd", {"eagc": False}),
    "legogcd on": ("small_legogcd", {"eagc": True}),
    "sptnet off": ("small_sptnet", {"eagc": False, "init": "off"}),
    "sptnet init": ("small_sptnet", {"eagc": True, "init": "on", "sptnet_eagc": "init"}),
    "sptnet on": ("small_sptnet", {"eagc": True, "init": "on", "sptnet_eagc": "on"}),
}
GENTLE = {"backbone_lr": 0.01, "head_lr": 0.01}  # steps that do not blow rounding up


class Snapshot(Callback):
    """Copies the folder at the fifth batch of the second epoch, as a kill would leave it."""

    def __init__(self, folder):
        self.folder = folder

    def before_update(self, loop, rows):
        if (loop.epoch, loop.position) == (1, 4):
            shutil.copytree(loop.folder.path, self.folder)


def a_quarter(*arguments, **options):
    """450 of the digits: an epoch takes a second."""
    data = open_data(*arguments, **options)
    parts = {"labelled": copy.copy(data.labelled), "unlabelled": copy.copy(data.unlabelled)}
    for part in parts.values():
        part.uq_idx, part.labels = part.uq_idx[::4], part.labels[::4]
    return replace(data, **parts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of all runs on the digits, which share a reference model; it holds the starts of SPTNet."""
    folder = tmp_path_factory.mktemp("digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment_module, "open_data", a_quarter)
        for eagc in (False, True):
            train(
                resolve("small", "digits", "release", eagc=eagc, epochs=1, **BATCHES),
                folder / ("on" if eagc else "off"),
            )
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_two_epochs_on_the_digits_and_the_same_bytes_after_a_resume(folder, way, monkeypatch):
    monkeypatch.setattr(experiment_module, "open_data", a_quarter)
    method, switches = WAYS[way]
    if method == "small_sptnet":
        switches = {**switches, "init": str(folder / switches["init"]), "phase_batches": 3}
    config = resolve(method, "digits", "release", epochs=2, **BATCHES, **switches)
    run, again = folder / way, folder / f"{way}, resumed"
    start = Experiment(config).student.state()
    result = train(config, run, [Snapshot(again)])
    assert load_checkpoint(again / "last.safetensors")[1]["position"] == 3
    assert resume(again) == result
    for name in ("last.safetensors", "best.safetensors"):
        (tensors, state), (other_tensors, other_state) = (
            load_checkpoint(run / name),
            load_checkpoint(again / name),
        )
        assert state == other_state
        assert tensors.keys() == other_tensors.keys()
        assert all(torch.equal(tensors[key], other_tensors[key]) for key in tensors)
    lines, others = (
        [
            {k: v for k, v in line.items() if k not in ("seconds", "steps")}
            for line in RunFolder.open(path).metrics()
        ]
        for path in (run, again)
    )
    assert lines == others
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [0, 1]

    tensors, _ = load_checkpoint(run / "last.safetensors")
    trained = [name for name in start if name.startswith(("encoder.", "method."))]
    assert all(
        not torch.equal(tensors[name], start[name]) for name in trained
    )  # block, heads, and the method's own state
    own = "qhat" if method == "small_legogcd" else "prompts"
    assert any(name.startswith(f"method.{own}") for name in trained)
    operator = way.endswith(" on")
    assert any(name.startswith("eagc.") for name in tensors) == operator
    assert any("tau_q50" in line for line in lines) == operator


def test_two_processes_take_the_steps_of_one(tmp_path):
    """qhat is made of the rows of both, and parameters that a phase leaves alone do not keep DDP waiting."""
    data = small_runs.write_files(tmp_path / "images")
    settings = {"epochs": 1, "precision": "no", **GENTLE}
    train(small_config(data, "small", **{**settings, "epochs": 2}), tmp_path / "simgcd")
    phases = {
        "init": str(tmp_path / "simgcd"),
        "phase_batches": 3,
        "pad_width": 2,
        "prompt_warmup": 4,
        "sptnet_eagc": "on",
    }
    configs = {
        "legogcd": small_config(data, "small_legogcd", dual_view_kl=True, threshold=0.2, **settings),
        "sptnet": small_config(data, "small_sptnet", prompt_lr=0.1, **phases, **settings),
    }
    scenarios = [
        {"kill": None, "world": 2, "config": config.to_json(), "output": str(tmp_path / f"{name} two")}
        for name, config in configs.items()
    ]
    small_runs.run_in_processes(scenarios, tmp_path)
    for name, config in configs.items():
        train(config, tmp_path / f"{name} one")
        one, two = (load_checkpoint(tmp_path / f"{name} {n}" / "last.safetensors")[0] for n in ("one", "two"))
        assert one.keys() == two.keys()
        for key in one:
            limit = 1e-5 * one[key].abs().max().item() if key.startswith("optimizer") else 2e-6
            torch.testing.assert_close(
                two[key], one[key], rtol=0, atol=limit, msg=lambda m, key=key: f"{key}: {m}"
            )
        lines = [
            line for line in RunFolder.open(tmp_path / f"{name} one").metrics() if line["kind"] == "step"
        ]
        assert name == "sptnet" or max(line["ler_rows"] for line in lines) > 0  # the gate was open
