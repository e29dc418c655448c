"""Every script of examples/ runs on a CPU as a user starts it, is short, and prints that it worked."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from documents import ROOT

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
NEEDS = {"timm_vit.py": "timm", "lightning_module.py": "lightning", "accelerate_script.py": "accelerate"}

# Where Hugging Face's package is not installed: what its Trainer does with a model, in few words.
TRAINER = """
import torch

class TrainingArguments:
    def __init__(self, folder, **settings):
        self.__dict__.update(settings)

class State:
    log_history = []

class Trainer:
    def __init__(self, model, args, train_dataset):
        self.model, self.args, self.rows, self.state = model, args, train_dataset, State()

    def train(self):
        args, parts = self.args, self.args.gradient_accumulation_steps
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, args.learning_rate)
        for epoch in range(args.num_train_epochs):
            losses = []
            order = torch.randperm(len(self.rows))
            for step, rows in enumerate(order.split(args.per_device_train_batch_size)):
                batch = [self.rows[i] for i in rows]
                columns = {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
                loss = self.model(**columns)["loss"]
                losses.append(loss.item())
                (loss / parts).backward()
                if step % parts == parts - 1:
                    optimizer.step()
                    optimizer.zero_grad()
            self.state.log_history.append({"loss": sum(losses) / len(losses)})
"""

# A process whose group still has threads at its end may abort, once in some starts (the gloo of torch 2.11).
COUNT_THREADS = """
import atexit, os, time

@atexit.register
def count():
    until = time.monotonic() + 10  # a thread that was joined may be listed for a moment
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    if "RANK" in os.environ:
        # Not printed: what two processes print at once may be mixed within a line.
        with open(os.path.join(os.path.dirname(__file__), "threads" + os.environ["RANK"]), "w") as file:
            file.write(str(len(os.listdir("/proc/self/task"))))
"""


def run(script: str, folder, *, processes: int = 0) -> str:
    """What the script prints, started in a folder from which the clone cannot be imported.

    Each of several processes writes to the folder how many threads it has at its end.
    """
    if script in NEEDS:
        pytest.importorskip(NEEDS[script])
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        if processes
        else []
    )
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "ACCELERATE_USE_CPU": "1",
    }
    if processes:
        (folder / "sitecustomize.py").write_text(COUNT_THREADS)
        environment |= {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, *launcher, EXAMPLES / script],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def number(text: str, before: str) -> float:
    """The number that follows a text in the output."""
    return float(re.search(rf"{re.escape(before)}: (-?[\d.]+(?:e[+-]\d+)?)", text)[1])


def assert_groups_have_ended(folder, processes: int) -> None:
    assert [(folder / f"threads{rank}").read_text() for rank in range(processes)] == ["1"] * processes


def assert_loss_falls(text: str) -> None:
    first, last = map(float, re.search(r"loss: (-?[\d.]+) -> (-?[\d.]+)", text).groups())
    assert last < first - 0.2


@pytest.mark.parametrize("script", SCRIPTS)
def test_is_short_and_uses_the_public_names_only(script):
    source = (EXAMPLES / script).read_text()
    assert len(source.splitlines()) < 80
    imported = re.findall(r"^(?:from|import) (eagc_ops[\w.]*)", source, re.MULTILINE)
    assert imported == ["eagc_ops"]


def test_own_loop(tmp_path):
    printed = run("own_loop.py", tmp_path)
    assert_loss_falls(printed)
    assert 0 < number(printed, "mean tau of the last batch's unlabelled rows") < 1


def test_hugging_face_trainer(tmp_path, monkeypatch):
    if importlib.util.find_spec("transformers") is None:
        (tmp_path / "transformers.py").write_text(TRAINER)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    printed = run("hugging_face_trainer.py", tmp_path)
    assert_loss_falls(printed)
    assert "the reference model is unchanged: True" in printed
    assert "the subspace is in the state dict: True" in printed
    lines = (EXAMPLES / "hugging_face_trainer.py").read_text().splitlines()
    assert sum(line.endswith("  # EAGC") for line in lines) == 5


def test_the_marked_lines_of_own_loop_are_all_that_eagc_adds():
    """Without them the script is a plain training loop."""
    lines = (EXAMPLES / "own_loop.py").read_text().splitlines()
    plain = [line for line in lines if not line.endswith("# EAGC") and "last_tau" not in line]
    assert len(lines) - len(plain) == 5
    assert "eagc" not in "\n".join(plain[plain.index("import copy") :]).lower()
    namespace = {"__name__": "plain"}
    exec(compile("\n".join(plain), "plain.py", "exec"), namespace)
    namespace["main"]()


def test_timm_vit(tmp_path):
    printed = run("timm_vit.py", tmp_path)
    assert_loss_falls(printed)
    assert number(printed, "frozen parameters with a gradient") == 0
    assert number(printed, "rows of z_ref that were not computed") > 0


def test_amp_accumulation(tmp_path):
    printed = run("amp_accumulation.py", tmp_path)
    assert_loss_falls(printed)
    assert number(printed, "against the plain one, with the token") < 1e-5
    assert number(printed, "against the plain one, without it") > 0.1


def test_ddp(tmp_path):
    printed = run("ddp.py", tmp_path, processes=2)
    assert_loss_falls(printed)
    assert number(printed, "gradient of 2 processes against one") < 1e-5
    assert_groups_have_ended(tmp_path, 2)


def test_lightning_module(tmp_path):
    printed = run("lightning_module.py", tmp_path)
    assert_loss_falls(printed)
    assert "the reference model is unchanged: True" in printed
    assert "the subspace is in the state dict: True" in printed


@pytest.mark.parametrize("processes", [0, 2])
def test_accelerate_script(processes, tmp_path):
    printed = run("accelerate_script.py", tmp_path, processes=processes)
    assert_loss_falls(printed)
    assert number(printed, "processes") == max(processes, 1)
    assert_groups_have_ended(tmp_path, processes)
