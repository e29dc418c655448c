"""Pickles that would run code, in every place where a file of the user's is read: nothing is executed."""

import io
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from small_runs import small_config

from eagc_ops.app.console import is_for_the_user
from eagc_ops.training.data import open_data
from eagc_ops.training.data.splits import class_split
from eagc_ops.training.engine.pretraining import pretrained_encoder
from eagc_ops.training.runs import evaluate, resume, train

pytestmark = pytest.mark.fault("hostile files")


class Trap:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place / "executed",)


def pickled(trap: Trap) -> bytes:
    return pickle.dumps({"Old": [trap], "known_classes": trap, b"data": trap})


def torch_zip(trap: Trap) -> bytes:
    """A .pth as torch writes it, with a hostile data.pkl inside."""
    whole = io.BytesIO()
    torch.save({"a": torch.zeros(2)}, whole)
    out = io.BytesIO()
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(out, "w") as target:
        for entry in source.infolist():
            content = pickled(trap) if entry.filename.endswith("data.pkl") else source.read(entry)
            target.writestr(entry.filename, content)
    return out.getvalue()


def yaml_text(trap: Trap) -> bytes:
    return f"known_classes: !!python/object/apply:os.mkdir ['{trap.place / 'executed'}']\n".encode()


def put(file: Path, content: bytes) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return str(file)


def new(home, data, **settings):
    return train(small_config({**data, **settings}, "small", epochs=1), home / "new")


def cifar(home, bad):
    put(home / "cifar-10-batches-py" / "batches.meta", bad)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        put(home / "cifar-10-batches-py" / name, bad)
    return open_data("cifar10", home)


def cars(home, bad):
    put(home / "devkit" / "cars_train_annos.mat", bad)
    (home / "cars_train").mkdir(parents=True)
    split = home / "split.json"
    split.write_text('{"known_classes": [], "unknown_classes": {"Hard": [], "Medium": [], "Easy": []}}')
    return open_data("scars", home, split_file=split)


def sptnet(home, data, bad):
    start = put(home / "start.safetensors", bad)
    settings = {"init": start, "phase_batches": 2, "pad_width": 2, "precision": "no"}
    return train(small_config(data, "small_sptnet", epochs=1, **settings), home / "new")


def encoder(home, bad):
    put(home / "digits.safetensors", bad)
    return pretrained_encoder(home / "digits.safetensors", open_data("digits"), 1)


def cache(home, data, name, bad):
    put(home / "cache" / name, bad)
    if name != "cache.json":
        put(home / "cache" / "cache.json", b"{}")
    return new(home, data, trunk_cache=str(home / "cache"), cache_views=2)


def in_run(home, run, name, bad, do):
    shutil.copytree(run.parent, home / "copy")
    (home / "copy" / "run" / "result.json").unlink()
    (file,) = (home / "copy").glob(name)
    file.write_bytes(bad)
    return do(home / "copy" / "run")


PLACES = {  # who reads a file of the user's: (folder, settings of the data, a whole run, the hostile bytes)
    "--weights .pth": lambda h, d, r, bad: new(h, d, weights=put(h / "w.pth", bad)),
    "--weights .safetensors": lambda h, d, r, bad: new(h, d, weights=put(h / "w.safetensors", bad)),
    "--split-file .json": lambda h, d, r, bad: new(h, d, split_file=put(h / "split.json", bad)),
    "--split-file .yaml": lambda h, d, r, bad: new(h, d, split_file=put(h / "split.yaml", bad)),
    "--split-file of CUB": lambda h, d, r, bad: class_split("cub", put(h / "split.pkl", bad)),
    "--split-file of Herbarium19": lambda h, d, r, bad: class_split("herbarium19", put(h / "s.pkl", bad)),
    "--root of CIFAR-10": lambda h, d, r, bad: cifar(h, bad),
    "--root of Cars": lambda h, d, r, bad: cars(h, bad),
    "--init": lambda h, d, r, bad: sptnet(h, d, bad),
    "--trunk-cache, record": lambda h, d, r, bad: cache(h, d, "cache.json", bad),
    "--trunk-cache, tokens": lambda h, d, r, bad: cache(h, d, "tokens.bin", bad),
    "--resume, checkpoint": lambda h, d, r, bad: in_run(h, r, "run/last.safetensors", bad, resume),
    "--resume, run.json": lambda h, d, r, bad: in_run(h, r, "run/run.json", bad, resume),
    "--resume, metrics": lambda h, d, r, bad: in_run(h, r, "run/metrics.jsonl", bad, resume),
    "--resume, reference model": lambda h, d, r, bad: in_run(h, r, "references/ref*", bad, resume),
    "--resume, subspace": lambda h, d, r, bad: in_run(h, r, "references/sub*", bad, resume),
    "eagc evaluate": lambda h, d, r, bad: in_run(
        h, r, "run/best.safetensors", bad, lambda run: evaluate(run, "best")
    ),
    "encoder of digits": lambda h, d, r, bad: encoder(h, bad),
}


@pytest.mark.parametrize("content", [pickled, torch_zip, yaml_text])
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_executed(undisturbed, data, tmp_path, place, content):
    home = tmp_path / "home"
    home.mkdir()
    bad = content(Trap(tmp_path))
    with pytest.raises(Exception) as caught:  # noqa: PT011  (which, is judged below)
        PLACES[place](home, data, undisturbed("small")[1], bad)
    assert not (tmp_path / "executed").exists()
    assert is_for_the_user(caught.value), repr(caught.value)
    assert str(home) in str(caught.value)  # the file, or its folder, is named


def test_the_trap_works(tmp_path):
    """Without care the same bytes do run."""
    pickle.loads(pickled(Trap(tmp_path)))
    assert (tmp_path / "executed").exists()
