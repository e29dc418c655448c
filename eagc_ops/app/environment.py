"""Versions, commit and machine: `eagc env` prints them, run folders and results files keep them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from .console import Parser, command

# The packages that decide the numbers of a run or of a benchmark.
PACKAGES = (
    "eagc-ops",
    "torch",
    "triton",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "scipy",
    "scikit-learn",
)


@command("eagc env")
def main(argv: list[str]) -> int:
    """Show the machine, the versions and the commit, for a bug report."""
    parser = Parser(prog="eagc env", description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args(argv).json
    content = describe()
    if as_json:
        print(json.dumps(content, indent=2))
        return 0
    for section, values in content.items():
        for name, value in values.items() if isinstance(values, dict) else [("", values)]:
            print(f"{section} {name}".ljust(24), "-" if value in (None, []) else value)
    return 0


def describe() -> dict[str, Any]:
    """Machine, versions and commit as JSON-ready values; nothing that names a user or a host."""
    return {"machine": _machine(), "versions": versions(), "commit": commit()}


def versions() -> dict[str, str | None]:
    """Versions of Python and of `PACKAGES`; None for a package that is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def commit() -> str | None:
    """The first 12 digits of the commit of the clone that this package runs from.

    A "+" follows if tracked files have changed. An installed wheel has no commit: None.
    """
    here = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != here.parent:
            return None  # a wheel in an environment that is inside an unrelated repository
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _machine() -> dict[str, Any]:
    import torch

    memory = None
    if hasattr(os, "sysconf"):
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": memory,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
