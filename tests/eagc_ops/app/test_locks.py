"""Locks between real processes: held by the living, dropped by the dead."""

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from eagc_ops.app.locks import InUseError, lock, tidy


def hold(file) -> None:
    """Take the lock, and drop it."""
    with lock(file, "it"):
        pass


class Holder:
    """A forked process that holds a lock until it is told to end, or is killed."""

    def __init__(self, file, grandchild: bool = False) -> None:
        ready, self._end = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            with lock(file, "it"):
                if grandchild and os.fork() == 0:  # as a data worker: it lives on when its parent is killed
                    os.close(self._end[1])
                    os.read(self._end[0], 1)
                    os._exit(0)
                os.write(ready[1], b".")
                os.close(self._end[1])
                os.read(self._end[0], 1)
            os._exit(0)
        assert os.read(ready[0], 1) == b"."

    def end(self, number: int | None = None) -> None:
        if number is None:
            os.close(self._end[1])
        else:
            os.kill(self.pid, number)
        os.waitpid(self.pid, 0)


def test_a_second_process_is_refused_and_told_who(tmp_path):
    holder = Holder(tmp_path / "lock")
    with (
        pytest.raises(
            InUseError, match=rf"^it is in use by process {holder.pid} on \S+ since .+ \(.+\): wait"
        ),
        lock(tmp_path / "lock", "it"),
    ):
        pass
    holder.end()
    with lock(tmp_path / "lock", "it"):
        assert str(os.getpid()) in (tmp_path / "lock").read_text()


def test_a_holder_is_named_that_writes_its_name_a_moment_later(tmp_path, monkeypatch):
    """Else the processes of one run, which share their work silently, do not know one another."""
    truncate = os.ftruncate
    monkeypatch.setattr(os, "ftruncate", lambda *arguments: (time.sleep(0.2), truncate(*arguments)))
    file, end = tmp_path / "lock", os.pipe()
    holder = os.fork()
    if holder == 0:
        with lock(file, "it"):
            os.close(end[1])
            os.read(end[0], 1)
        os._exit(0)
    while not file.exists():
        time.sleep(0.001)
    time.sleep(0.05)  # locked, and not yet named
    assert file.read_text() == ""
    with pytest.raises(InUseError, match=rf"^it is in use by process {holder} on "):
        hold(file)
    os.close(end[1])
    os.waitpid(holder, 0)


@pytest.mark.parametrize("grandchild", [False, True])
def test_a_lock_dies_with_its_process_even_if_its_children_live_on(tmp_path, grandchild):
    holder = Holder(tmp_path / "lock", grandchild)
    holder.end(signal.SIGKILL)
    assert (tmp_path / "lock").exists()  # a file without a lock
    with lock(tmp_path / "lock", "it"):
        pass
    assert not (tmp_path / "lock").exists()
    if grandchild:
        os.close(holder._end[1])


def test_tidying_removes_the_file_of_a_dead_holder_only(tmp_path):
    holder = Holder(tmp_path / "lock")
    tidy(tmp_path / "lock")
    with pytest.raises(InUseError):  # it is still held
        hold(tmp_path / "lock")
    holder.end(signal.SIGKILL)
    tidy(tmp_path / "lock")
    assert not list(tmp_path.iterdir())
    with lock(tmp_path / "lock", "it"):
        tidy(tmp_path / "lock")
        assert (tmp_path / "lock").exists()  # nor does a process lose its own lock


def test_waiting_takes_the_lock_when_the_holder_ends(tmp_path):
    """Eight processes add to a number, each reading and writing it under the lock: no addition is lost."""
    number = tmp_path / "number"
    number.write_text("0")
    children = []
    for _ in range(8):
        children.append(os.fork())
        if children[-1] == 0:
            for _ in range(25):
                with lock(tmp_path / "lock", "the number", wait=True):
                    number.write_text(str(int(number.read_text()) + 1))
            os._exit(0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert number.read_text() == "200"


def test_the_folder_is_made_and_an_empty_one_is_removed_again(tmp_path):
    with lock(tmp_path / "new" / "lock", "it"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()
    with lock(tmp_path / "new" / "lock", "it"):
        (tmp_path / "new" / "kept").touch()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["kept"]


def test_a_process_does_not_take_a_lock_twice(tmp_path):
    with lock(tmp_path / "lock", "it"), pytest.raises(InUseError, match="in use by this process"):
        hold(tmp_path / "lock")


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=f"^{tmp_path / 'file'} cannot be written"):
        hold(tmp_path / "file" / "lock")


def test_a_folder_that_nobody_can_make_is_named():
    with pytest.raises(OSError, match=r"^/proc/none cannot be written \(No such file or directory\): choose"):
        hold(Path("/proc/none/lock"))


def test_a_folder_that_others_remove_is_made_again(tmp_path, monkeypatch):
    real, removed = os.open, []

    def removed_before(file, *arguments):
        if len(removed) < 3:
            removed.append(Path(file).parent.rmdir())
        return real(file, *arguments)

    monkeypatch.setattr(os, "open", removed_before)
    hold(tmp_path / "folder" / "lock")
    assert len(removed) == 3


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def none(descriptor, operation, size):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(os, "lockf", none)
    with pytest.warns(UserWarning, match="file system without locks: do not start two commands"):
        hold(tmp_path / "lock")
