"""Processes that share rows give the answer of one process that has them all."""

import subprocess
import sys

import pytest
import torch

from eagc_ops.training.analysis import first_answer as module

SCRIPT = """
import datetime, sys
import torch
import torch.distributed as dist
from eagc_ops.training.analysis import first_answer as module
from eagc_ops.training.analysis.processes import ALONE, Processes

module.SAMPLE = 300  # fewer than the rows: the sample has to be gathered
generator = torch.Generator().manual_seed(0)
category = torch.randint(0, 6, (900,), generator=generator)
features = torch.randn(6, 24, generator=generator)[category] + 1.1 * torch.randn(900, 24, generator=generator)
label = torch.where((category < 3) & (torch.arange(900) % 4 == 0), category, -1)

def answer(world, rank):
    ends = [0, 500, 900] if world == 2 else [0, 200, 200, 900]  # uneven parts; one process without rows
    part = slice(0, 900) if world == 1 else slice(ends[rank], ends[rank + 1])
    processes = ALONE
    if world > 1:
        minute = datetime.timedelta(seconds=120)
        store = f"file://{sys.argv[1]}/store{world}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=minute)
        processes = Processes(dist.group.WORLD)
    found = module.first_answer(features[part], label[part], 6, 3, processes=processes)
    joined = {name: processes.joined(getattr(found, name)) for name in ("assignment", "probabilities")}
    content = {**joined, "centres": found.centres, "quality": vars(found.quality), "category": category}
    torch.save(content, f"{sys.argv[1]}/{world}-{rank}.pt")

answer(int(sys.argv[2]), int(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    (folder / "ranks.py").write_text(SCRIPT)
    for world in (2, 3):
        ranks = [
            subprocess.Popen([sys.executable, folder / "ranks.py", folder, str(world), str(rank)])
            for rank in range(world)
        ]
        assert [rank.wait(300) for rank in ranks] == [0] * world
    arguments = sys.argv
    sys.argv = ["", str(folder), "1", "0"]
    before = module.SAMPLE
    try:
        exec(compile(SCRIPT, "ranks.py", "exec"), {})
    finally:
        sys.argv, module.SAMPLE = arguments, before
    return {file.stem: torch.load(file) for file in folder.glob("*.pt")}


@pytest.mark.parametrize("world", [2, 3])
def test_the_first_answer_is_that_of_one_process(answers, world):
    one = answers["1-0"]
    assert (one["assignment"] == one["category"])[one["category"] < 3].float().mean() > 0.9
    for rank in range(world):
        found = answers[f"{world}-{rank}"]
        assert torch.equal(found["assignment"], one["assignment"])
        torch.testing.assert_close(found["centres"], one["centres"])
        torch.testing.assert_close(found["probabilities"], one["probabilities"])
        for name in ("cosine", "certainty", "agreement", "recognized", "empty"):
            assert found["quality"][name] == pytest.approx(one["quality"][name], abs=1e-5)
