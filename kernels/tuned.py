"""The tiles that `eagc tune` found on this machine, in a file under the user's cache folder.

A tile belongs to a GPU, a dtype, a precision, a D and a range of rows, and to the versions it was timed with:
a different Triton or different kernels leave it unused.
"""

from __future__ import annotations

import functools
import hashlib
import json
import warnings
from pathlib import Path

import torch
import triton

from .cache_folder import cache_folder
from .tiles import Tile, architecture


def tile(device: torch.device, rows: int, dim: int, dtype: torch.dtype, precision: str) -> Tile | None:
    """The tile found for such a call; None if there is none."""
    found = _found()
    return found.get(key(device, rows, dim, dtype, precision)) if found else None


def key(device: torch.device, rows: int, dim: int, dtype: torch.dtype, precision: str) -> str:
    """What a tile was found for. Rows count in powers of two: 129 to 256 rows share a tile."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    upto = 1 << (rows - 1).bit_length()
    call = f"{str(dtype).removeprefix('torch.')}, {precision}, D={dim}, up to {upto} rows"
    return f"{gpu} ({architecture(device)}), {call}; {_versions()}"


def path() -> Path:
    """The file; XDG_CACHE_HOME moves it."""
    return cache_folder() / "tiles.json"


def read() -> dict[str, Tile]:
    """All tiles of the file, by key; raises ValueError if it is not a file of `eagc tune`."""
    try:
        content = json.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    tiles = {}
    for name, values in content.items() if isinstance(content, dict) else [("the file", content)]:
        fields = values if isinstance(values, dict) else {}
        *numbers, triangle = map(fields.get, Tile._fields)
        sizes = [size for size in numbers if type(size) is int and 0 < size <= 1024]
        if len(sizes) != len(numbers) or type(triangle) is not bool:
            raise ValueError(f"{name} is no tile: {str(values)[:80]}")
        tiles[name] = Tile._make((*sizes, triangle))
    return tiles


def forget() -> None:
    """Read the file again at the next call."""
    _found.cache_clear()


@functools.cache
def _found() -> dict[str, Tile]:
    try:
        return read()
    except (OSError, ValueError) as error:
        warnings.warn(
            f"the tiles of `eagc tune` cannot be read ({error}), so the launch table is used: remove "
            f"{path()}, or run `eagc tune` again",
            stacklevel=2,
        )
        return {}


@functools.cache
def _versions() -> str:
    kernels = hashlib.sha256(Path(__file__).with_name("fused.py").read_bytes()).hexdigest()[:12]
    return f"triton {triton.__version__}, kernels {kernels}"
