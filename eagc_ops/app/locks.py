"""Locks between processes: a file that its holder keeps locked, and that names the holder.

The system drops the lock when the holder ends, however it ends, so a killed command leaves nothing stuck.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import shlex
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from . import byte_lock

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # answers of file systems without locks
_ATTEMPTS = 100  # to make a folder that others remove at the same time; below /proc nobody can make one
_NAMED_WITHIN = 0.5  # seconds after which a holder that has not written its name has no disk for it
# Files that this process has locked: it must not open them a second time.
_held: set[Path] = set()


class InUseError(RuntimeError):
    """A living process holds the lock."""


@contextlib.contextmanager
def lock(file: Path, what: object, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock `file` of `what` (a name for messages), and remove it at the end.

    If another process holds it: an `InUseError` that names the process; with `wait`, one line on stderr that
    names it, then wait until it has ended. The folders of `file` are made, and removed again if they stay
    empty.
    """
    file = file.absolute()
    if file in _held:
        raise InUseError(f"{what} is in use by this process: wait until it is done")
    made = [folder for folder in file.parents if not folder.exists()]
    while (descriptor := _take(file, what, wait)) is None:
        pass
    _held.add(file)
    try:
        yield
    finally:
        _held.discard(file)
        if not byte_lock.UNLINK_FIRST:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            file.unlink()
        if byte_lock.UNLINK_FIRST:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            for folder in made:  # the innermost first
                folder.rmdir()


def tidy(file: Path) -> None:
    """Remove the lock `file` if its holder was killed; nothing needs that, but it looks like work to do."""
    if file.exists():
        with contextlib.suppress(InUseError, OSError), lock(file, file):
            pass


def _take(file: Path, what: object, wait: bool) -> int | None:
    """The descriptor of the locked file; None if the holder before removed the file meanwhile."""
    descriptor = _open(file)
    try:
        _lock(descriptor, file, what, wait)
        if not _is(descriptor, file):
            os.close(descriptor)
            return None
    except BaseException:
        os.close(descriptor)
        raise
    with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, json.dumps(_me()).encode())
    return descriptor


def _open(file: Path) -> int:
    for _ in range(_ATTEMPTS):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            return os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError as error:  # the holder before removed the folder after it was made here
            fault: OSError = error
        except OSError as error:
            fault = error
            break
    raise OSError(f"{file.parent} cannot be written ({fault.strerror}): choose a different folder") from fault


def _lock(descriptor: int, file: Path, what: object, wait: bool) -> None:
    try:
        if byte_lock.take(descriptor):
            return
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            f"{file.parent} is on a file system without locks: do not start two commands on it",
            stacklevel=5,
        )
        return
    holder = _holder_soon(descriptor)
    text = "process {pid} on {host} since {since} ({command})".format(**holder) if holder else "another"
    if not wait:
        raise InUseError(f"{what} is in use by {text}: wait until it has ended, or choose a different folder")
    # The processes of one run share their work silently.
    if _run() is None or holder.get("run") != _run():
        print(f"waiting for {what}: in use by {text}", file=sys.stderr, flush=True)
    byte_lock.take(descriptor, wait=True)


def _is(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _me() -> dict[str, str | int | None]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.datetime.now().isoformat(" ", "seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "run": _run(),
    }


def _run() -> str | None:
    """What the processes of one distributed run have in common; None for a process that is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    return f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"


def _holder_soon(descriptor: int) -> dict[str, str | int | None]:
    """The holder, which writes its name just after it has taken the lock."""
    end = time.monotonic() + _NAMED_WITHIN
    while not (holder := _holder(descriptor)) and time.monotonic() < end:
        time.sleep(0.01)
    return holder


def _holder(descriptor: int) -> dict[str, str | int | None]:
    """What `_me` of the holder wrote; {} if it has the lock, and has not written its name yet."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        holder = json.loads(os.read(descriptor, 1 << 16))
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) and holder.keys() == _me().keys() else {}
