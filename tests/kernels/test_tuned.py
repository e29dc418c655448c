"""The file of tuned tiles: what a tile belongs to, and what a launch does with a file that is wrong."""

import json
import warnings

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

from eagc_ops.kernels import launch, tuned
from eagc_ops.kernels.tiles import Tile, pick

CPU = torch.device("cpu")
TILE = Tile(16, 32, 32, 8, 2)
CALL = (CPU, 200, 64, torch.float32, "auto")


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes the file, as text or as JSON."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuned.forget()

    def write(content):
        tuned.path().parent.mkdir(exist_ok=True)
        tuned.path().write_text(content if isinstance(content, str) else json.dumps(content))
        tuned.forget()

    yield write
    tuned.forget()


def chosen(rows=200, dim=64, dtype=torch.float32, precision="auto", z_ref_dtype=None, basis=False):
    return launch._tile(torch.empty(rows, dim, dtype=dtype), precision, z_ref_dtype, basis, "interpreter")


def test_is_in_the_cache_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert tuned.path() == tmp_path / "cache/eagc-ops/tiles.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuned.path() == tmp_path / ".cache/eagc-ops/tiles.json"


def test_without_a_file_the_table_is_used(file):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen() == pick("interpreter", 200, 64, torch.float32)


def test_a_launch_takes_the_tile_of_its_own_kind_of_call_only(file):
    file({tuned.key(*CALL): {**TILE._asdict(), "seconds": 1e-5}})
    table = pick("interpreter", 200, 64, torch.float32)
    assert table != TILE
    assert chosen() == chosen(rows=129) == chosen(rows=256) == TILE
    assert chosen(z_ref_dtype=torch.float32) == TILE
    for other in (
        {"rows": 128},
        {"rows": 257},
        {"basis": True},
        {"dim": 32},
        {"dtype": torch.bfloat16},
        {"precision": "tf32"},
        {"z_ref_dtype": torch.bfloat16},
    ):
        assert chosen(**other) != TILE, other


def test_other_versions_and_other_gpus_leave_it_unused(file, monkeypatch):
    file({tuned.key(*CALL): TILE._asdict()})
    assert chosen() == TILE
    monkeypatch.setattr(tuned, "_versions", lambda: "triton 99")
    assert chosen() != TILE
    monkeypatch.undo()
    names = {tuned.key(*CALL)}
    for name, arch in (("NVIDIA A100-SXM4-80GB", "sm_80"), ("NVIDIA H100 80GB HBM3", "sm_90")):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        monkeypatch.setattr(tuned, "architecture", lambda device, arch=arch: arch)
        names.add(tuned.key(torch.device("cuda"), *CALL[1:]))
    assert len(names) == 3 and any("A100" in name and "sm_80" in name for name in names)


def test_a_change_of_the_kernels_is_a_new_version(monkeypatch):
    before = tuned._versions.__wrapped__()
    read = tuned.Path.read_bytes
    monkeypatch.setattr(tuned.Path, "read_bytes", lambda self: read(self) + b"#")
    assert tuned._versions.__wrapped__() != before


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1, 2]",
        "7",
        b"\xff\xfe".decode("latin-1"),
        {"a call": 3},
        {"a call": {"block_m": 16}},
        {"a call": {**TILE._asdict(), "warps": "8"}},
        {"a call": {**TILE._asdict(), "warps": True}},
        {"a call": {**TILE._asdict(), "block_m": -16}},
        {"a call": {**TILE._asdict(), "block_m": 1e300}},
    ],
    ids=range(11),
)
def test_a_corrupt_file_is_named_once_and_the_table_used(file, content):
    file(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert chosen() == chosen() == pick("interpreter", 200, 64, torch.float32)
    (message,) = [str(w.message) for w in caught]
    assert str(tuned.path()) in message and "eagc tune" in message


def test_a_folder_in_its_place_is_named_too(file):
    tuned.path().mkdir(parents=True)
    with pytest.warns(UserWarning, match="cannot be read"):
        assert chosen() == pick("interpreter", 200, 64, torch.float32)
