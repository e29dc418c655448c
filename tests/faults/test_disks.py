"""A full disk, and a folder that cannot be written: real mounts, in a process of its own."""

import json
import re

import nursery as processes
import pytest
from faults import trials

pytestmark = [
    pytest.mark.fault("disks"),
    pytest.mark.skipif(
        not processes.mounts_are_possible(),
        reason="NOT TRIED: no mounts are allowed here, not even private ones",
    ),
]


# Each writes more than the one before it: run.json, reference model, subspace, logs, checkpoints.
SHARES = (0.002, 0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)


def size_of(folder) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("share", trials(SHARES, short=2))
def test_a_full_disk_is_named_and_the_run_goes_on(nursery, undisturbed, same_bits, tmp_path, share):
    config, whole = undisturbed("small")
    disk = tmp_path / "disk"
    disk.mkdir()
    size = int(share * size_of(whole.parent))
    job = ("go_on", config.to_json(), str(disk / "run"))
    nursery.run("on_a_small_disk", size, str(disk), *job)
    said = (tmp_path / "disk.said").read_text()
    assert re.fullmatch(
        rf"DiskFullError: the disk of {disk}/\S+ is full: \S+ needs .+ are free; make room.*", said
    )
    same_bits(tmp_path / "disk.after" / "run", whole)


@pytest.mark.parametrize("share", trials((0.01, 0.4, 0.9), short=1))
def test_a_disk_that_fills_while_a_cache_is_built(nursery, tmp_path, share):
    """The build asks for room before it starts; here it is not told the truth, as when others write too."""
    nursery.run("build_cache", str(tmp_path / "whole"))
    disk = tmp_path / "disk"
    disk.mkdir()
    size = int(share * size_of(tmp_path / "whole"))
    nursery.run("on_a_small_disk", size, str(disk), "build_cache_blindly", str(disk / "cache"))
    said = (tmp_path / "disk.said").read_text()
    assert said.startswith(f"DiskFullError: the disk of {disk / 'cache'} is full: ")
    for name in ("tokens.bin", "checksums.bin"):
        assert (tmp_path / "disk.after/cache" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def words(config, *more: str) -> list[str]:
    """The command line of a configuration."""
    known = json.loads(json.dumps(config.to_json()))
    names = ("root", "split_file", "weights", "backbone", "image_size", "epochs", "batch_size", "device")
    options = [word for name in names for word in (f"--{name.replace('_', '-')}", str(known[name]))]
    return ["train", "--method", "simgcd", "--dataset", "folder", *options, *more]


@pytest.mark.parametrize("what", trials(("new run", "resumed run", "references", "trunk cache"), short=2))
def test_a_read_only_folder_is_named_before_anything_is_trained(nursery, copied, tmp_path, what):
    config, run = copied
    folder = tmp_path / "folder"
    folder.mkdir()
    if what == "resumed run":
        folder, line = run, ["train", "--resume", str(run)]
    elif what == "new run":
        line = words(config, "-o", str(folder / "new"))
    elif what == "trunk cache":
        line = words(config, "-o", str(tmp_path / "new"), "--trunk-cache", str(folder / "cache"))
    else:
        folder = tmp_path / "references"
        folder.mkdir()
        line = words(config, "-o", str(tmp_path / "new"))
    before = sorted(folder.iterdir())
    child = nursery.start("read_only", str(folder), "eagc", *line)
    assert child.wait() == 2
    assert "\n" not in child.errors.strip()
    assert str(folder) in child.errors
    assert re.search("cannot be written|[Rr]ead-only", child.errors)
    assert sorted(folder.iterdir()) == before


def test_a_read_only_run_can_be_evaluated(nursery, undisturbed):
    _, run = undisturbed("small")
    child = nursery.start("read_only", str(run.parent), "eagc", "evaluate", str(run))
    assert (child.wait(), child.errors) == (0, "")
