"""Small runs on real image files, and a script that starts some of them to be killed.

    python small_runs.py SCENARIOS.json

forks one process per scenario after the imports are done, and prints the exit codes. A scenario is
{"config": {...}, "output": folder, "kill": [where, count] or null, "world": n}. The killing is patched in
from here; the package knows nothing of it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from eagc_ops.app import files
from eagc_ops.training import runs
from eagc_ops.training.config import from_json, resolve
from eagc_ops.training.engine import loop
from eagc_ops.training.methods import register
from eagc_ops.training.methods.legogcd import LegoGCD
from eagc_ops.training.methods.selex import SelEx
from eagc_ops.training.methods.simgcd import SimGCD
from eagc_ops.training.methods.sptnet import SPTNet
from eagc_ops.training.models.backbones import load_backbone


class SmallHead:
    """A small projector, whose outputs are not near 0 at the start."""

    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.projector = torch.nn.Sequential(
            torch.nn.Linear(problem.dim, 32), torch.nn.GELU(), torch.nn.Linear(32, 16)
        )


@register("small")
class Small(SmallHead, SimGCD):
    pass


@register("small_legogcd")
class SmallLegoGCD(SmallHead, LegoGCD):
    pass


@register("small_sptnet")
class SmallSPTNet(SmallHead, SPTNet):
    pass


@register("small_selex")
class SmallSelEx(SelEx):
    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.projector = torch.nn.Linear(problem.dim, 256)


@register("noisy")
class Noisy(Small):
    """Draws from the global generator in every forward, and keeps a number that `start_epoch` computed."""

    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.register_buffer("scale", torch.zeros(()))

    def start_epoch(self, epoch, features):
        z, _ = features.labelled()
        self.scale += z.std() / (epoch + 1)

    def forward(self, z):
        return super().forward(torch.nn.functional.dropout(z, 0.1, self.training) * (1 + 0.01 * self.scale))


def write_files(root: Path) -> dict[str, str]:
    """Write 5 classes x 12 images, 3 classes known: 18 labelled and 42 unlabelled images; and weights.

    Under these weights images differ (a ViT's usual random start makes them all alike). Returns the settings
    that name the files.
    """
    random = np.random.RandomState(0)
    for c in range(5):
        (root / "images" / f"class{c}").mkdir(parents=True)
        base = random.randint(0, 256, (5, 5, 3))
        for i in range(12):
            pixels = np.clip(base + random.randint(-40, 40, base.shape), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).resize((20, 20)).save(root / "images" / f"class{c}" / f"{i}.png")
    (root / "split.json").write_text(
        json.dumps({"known_classes": ["class3", "class0", "class4"], "labelled_fraction": 0.5})
    )
    torch.manual_seed(0)
    vit = load_backbone("vit_digits", image_size=16, channels=3)
    for parameter in vit.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    save_file(vit.state_dict(), root / "vit.safetensors")
    return {
        "root": str(root / "images"),
        "split_file": str(root / "split.json"),
        "weights": str(root / "vit.safetensors"),
    }


def small_config(data: dict[str, str], method: str = "small", preset: str = "release", **switches):
    """3 epochs of 7 steps."""
    settings = {
        "image_size": 16,
        "backbone": "vit_digits",
        "epochs": 3,
        "batch_size": 8,
        "reference_epochs": 2,
        "reference_batch_size": 8,
    }
    settings |= {"head_lr": 0.1, "mlp_head_layers": 1, "device": "cpu", "log_every": 3, **data}
    return resolve(method, "folder", preset, **{**settings, **switches})


class FirstStep(loop.Callback):
    """Gradients of the tail in the first step, and the coordinator."""

    found = None

    def before_update(self, loop, rows):
        if self.found is None:
            self.found = [p.grad.clone() for p in loop.student.encoder.tail.parameters()]
            self.eagc = loop.student.eagc


def published(method: str, preset: str, field: str) -> list:
    """A column of the published tables of settings."""
    names = ("cub", "scars", "aircraft", "cifar100", "imagenet100", "herbarium19", "cifar10")
    return [getattr(resolve(method, dataset, preset), field) for dataset in names]


def kill_at(where: str, count: int) -> None:
    """Make this process kill itself at the count-th time that it gets to `where`.

    That is an update, half-way through the write of a checkpoint, or just before a checkpoint gets its name.
    """

    def counted(name, function, before):
        calls = [0]

        def wrapper(*arguments, **options):
            if before(*arguments):
                calls[0] += 1
                if calls[0] == count:
                    if name == "write":
                        return DyingFile(function(*arguments, **options))
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return wrapper

    class DyingFile:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            raise AssertionError("the process should be dead")

        def write(self, data):
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def is_last(*arguments):
        return "last.safetensors" in str(arguments[0])

    if where == "update":
        loop.Loop._update = counted(where, loop.Loop._update, lambda *_: True)
    elif where == "write":
        files.open = counted(where, open, is_last)
    elif where == "rename":
        files.os.replace = counted(where, os.replace, is_last)
    else:
        raise ValueError(where)


def run_in_processes(scenarios: list[dict], folder: Path) -> None:
    """Run the scenarios in processes of their own, one after the other, and check their exit codes."""
    file = folder / "scenarios.json"
    file.write_text(json.dumps(scenarios))
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, __file__, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    codes = json.loads(done.stdout.splitlines()[-1])
    expected = [[-signal.SIGKILL] if s["kill"] else [0] * s["world"] for s in scenarios]
    assert codes == expected, done.stderr[-4000:]


def run_scenario(scenario: dict) -> None:
    if scenario["kill"]:
        kill_at(*scenario["kill"])
    runs.train(from_json(scenario["config"]), scenario["output"])


def fork(scenario: dict, rank: int, port: int) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        if scenario["world"] > 1:
            world = {
                "WORLD_SIZE": scenario["world"],
                "RANK": rank,
                "LOCAL_RANK": rank,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            os.environ.update({name: str(value) for name, value in world.items()})
        run_scenario(scenario)
        code = 0
    finally:
        os._exit(code)  # not the parent's exit handlers; a traceback was printed by then


if __name__ == "__main__":
    codes = []
    for scenario in json.loads(Path(sys.argv[1]).read_text()):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = [fork(scenario, rank, port) for rank in range(scenario["world"])]
        codes.append([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes])
    print(json.dumps(codes))
