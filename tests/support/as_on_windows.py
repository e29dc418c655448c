"""What Windows lacks is taken away on import; its lock is put in the place of POSIX's.

Import it before anything else, or run tests with it: PYTHONPATH=tests/support pytest -p as_on_windows.
Nothing of this shows that the operator works on Windows, only that no line asks for what Windows lacks.
"""

# These ask which system this is when they are imported, by the modules they find: they get the true answer.
import asyncio  # noqa: F401
import getpass  # noqa: F401
import importlib.abc
import multiprocessing.util  # noqa: F401
import os
import shutil
import signal
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import types
import uuid  # noqa: F401

HIDDEN = ("fcntl", "resource", "pwd", "grp", "termios", "triton")


class _Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)
        return None


def _locking(descriptor: int, mode: int, size: int, lockf=os.lockf, test_and_lock=os.F_TLOCK) -> None:
    assert mode == 2, "LK_NBLCK alone is used"
    lockf(descriptor, test_and_lock, size)


def _open(path, flags, *arguments, original=os.open, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return original(path, flags, *arguments, **options)


for _name in HIDDEN:
    sys.modules.pop(_name, None)
sys.meta_path.insert(0, _Hidden())
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
sys.modules["msvcrt"].__dict__.update(locking=_locking, LK_NBLCK=2)
shutil._use_fd_functions = False  # it would open folders
for _name in ("lockf", "F_LOCK", "F_TLOCK", "pread", "pwrite", "sysconf", "O_DIRECTORY", "fork", "getuid"):
    delattr(os, _name)
for _name in ("pthread_sigmask", "pthread_kill", "SIGUSR1", "SIGUSR2", "SIGALRM", "alarm", "SIGKILL"):
    delattr(signal, _name)
os.open = _open
