"""The machine's C++ part: compiled on first use, kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .decode import SOURCES

# No contraction: a product and a sum in PTX are two roundings. Registers are read as different types.
FLAGS = (
    "-std=c++20",
    "-O2",
    "-ftree-vectorize",
    "-march=native",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
)


class NoCompiler(RuntimeError):
    """The machine cannot be built here."""


def compiler() -> str | None:
    """The C++ compiler: $CXX, g++ or clang++; None if there is none."""
    return next(
        filter(None, map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "clang++")))), None
    )


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled machine. Another source, compiler or processor gives another file in the cache."""
    path = _cache_folder() / f"machine-{_key()}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.parent / "lock", "w") as lock:  # one process builds, the others wait for it
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _build(path)
    loaded = ctypes.CDLL(str(path))
    loaded.ptx_machine_run.restype = ctypes.c_int
    return loaded


def _cache_folder() -> Path:
    """XDG_CACHE_HOME moves it. It need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ptx-machine")


def _key() -> str:
    command = _compiler()
    version = subprocess.run([command, "--version"], capture_output=True, check=True).stdout
    cpu = Path("/proc/cpuinfo")
    flags = (
        [line for line in cpu.read_text().splitlines() if line.startswith("flags")] if cpu.exists() else []
    )
    parts = [version, " ".join(FLAGS).encode(), "".join(flags[:1]).encode()]
    parts += [file.read_bytes() for file in sorted(SOURCES.iterdir())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _build(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "machine.so"
        sources = map(str, sorted(SOURCES.glob("*.cpp")))
        command = [_compiler(), *FLAGS, "-shared", "-fPIC", *sources, "-o", str(made)]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            raise NoCompiler(f"{' '.join(command)} failed:\n{ran.stderr[-2000:]}")
        made.replace(path)  # whole or not at all


def _compiler() -> str:
    found = compiler()
    if found is None:
        raise NoCompiler("the PTX machine needs a C++ compiler: install g++ or clang++, or set CXX")
    return found
