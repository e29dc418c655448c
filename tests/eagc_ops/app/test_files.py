"""Atomic writes: complete or not at all, by several processes, on a disk without room."""

import errno
import os

import pytest

from eagc_ops.app import files
from eagc_ops.app.files import DiskFullError, atomic_write, naming_full_disks, remove_partials


def test_two_processes_write_one_file(tmp_path):
    """What is read is always one whole content, and no temporary file is left."""
    file = tmp_path / "file"
    contents = [letter * 100_000 for letter in "abcd"]
    children = []
    for content in contents:
        children.append(os.fork())
        if children[-1] == 0:
            try:
                for _ in range(20):
                    atomic_write(file, content)
            except BaseException:
                os._exit(1)
            os._exit(0)
    seen = set()
    while children:
        if file.exists():
            seen.add(file.read_text())
        if os.waitpid(children[-1], os.WNOHANG)[0]:
            children.pop()
    assert seen <= set(contents)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    file = tmp_path / "file"
    atomic_write(file, "old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(DiskFullError, match=rf"the disk of {tmp_path} is full: file needs 1 kB, .+ are free"):
        atomic_write(file, "new")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("file", "old")]


def test_a_full_disk_says_how_much_is_missing(tmp_path, monkeypatch):
    usage = files.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage._replace(free=200_000))
    for number, words in ((errno.ENOSPC, "the disk of"), (errno.EDQUOT, "your quota of the disk of")):
        with pytest.raises(DiskFullError) as caught, naming_full_disks(tmp_path / "last", 5_000_000):
            raise OSError(number, "full")
        assert str(caught.value) == (
            f"{words} {tmp_path} is full: last needs 5.0 MB, 200 kB are free; make room for 4.8 MB more"
        )
    with pytest.raises(PermissionError), naming_full_disks(tmp_path / "last", 1):
        raise PermissionError(errno.EACCES, "another error")


def test_remains_of_one_file_are_removed(tmp_path):
    for name in ("a.1f.partial", "a.partial", "b.2e.partial", "a"):
        (tmp_path / name).touch()
    remove_partials(tmp_path, "a")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b.2e.partial"]
