"""An exclusive lock on one byte of an open file; the system drops it when its process ends, however it ends.

POSIX record locks belong to a process: a data worker that outlives its killed parent does not keep the lock,
and machines that share a folder over NFS exclude one another. filelock 3.20, which torch accepts like any
other version, locks by BSD's flock, which such a worker inherits and keeps; on Windows it locks byte 0, where
the holder's name has to be read. The twin for Windows has been run only on a stand-in for
msvcrt.
"""

from __future__ import annotations

import errno
import os
import time

__all__ = ["UNLINK_FIRST", "take"]

_BYTE = 1 << 30  # far behind the text in the file: Windows lets nobody read a locked byte
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)  # answers if another process holds the lock
_PATIENCE = 0.1  # seconds between two attempts on Windows, whose own waiting gives up after ten

POSIX = hasattr(os, "lockf")
# A POSIX holder must remove the file before it drops the lock, or it might remove that of the next one.
# Windows removes no file that is open, so there it is closed first.
UNLINK_FIRST = POSIX


def take(descriptor: int, wait: bool = False) -> bool:
    """Lock the file. Returns False if another process holds the lock; with `wait`, waits until it is free.

    Closing any descriptor of the file drops the lock of this process: it must not open the file twice.
    """
    while True:
        os.lseek(descriptor, _BYTE, os.SEEK_SET)
        try:
            if POSIX:
                os.lockf(descriptor, os.F_LOCK if wait else os.F_TLOCK, 1)
            else:
                import msvcrt

                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
            return True
        except OSError as error:
            if error.errno not in _HELD or (POSIX and wait):
                raise
        if not wait:
            return False
        time.sleep(_PATIENCE)
