"""`eagc env`: what a bug report or a results file should say about the machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

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
    "safetensors",
)


def describe() -> dict[str, Any]:
    """Machine, versions and commit; nothing that names a user or a host."""
    return {
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
            if hasattr(os, "sysconf")
            else None,
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": versions(),
        "commit": commit(),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide the numbers; None for a package that is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def commit() -> str | None:
    """The commit of the clone this package runs from, with "+" when the tree has changes; None for an installed wheel."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", here, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != here.parent:
            return None
        return git("rev-parse", "--short=12", "HEAD") + (
            "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def main(argv: list[str]) -> int:
    argparse.ArgumentParser(prog="eagc env", description=__doc__).parse_args(argv)
    for section, content in describe().items():
        for name, value in content.items() if isinstance(content, dict) else [("", content)]:
            print(f"{section} {name}".ljust(24), value if value not in (None, []) else "-")
    return 0


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
