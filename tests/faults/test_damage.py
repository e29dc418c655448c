"""Flipped and missing bytes in every file that a run reads: named, or without effect; never trained on."""

import random
import shutil

import pytest
import torch
from faults import trials
from safetensors.torch import load_file
from small_runs import small_config

from eagc_ops.app.console import is_for_the_user
from eagc_ops.training.engine.checkpoint import load_checkpoint, save_checkpoint, tensor_digest
from eagc_ops.training.runs import evaluate, resume, train

pytestmark = [
    pytest.mark.fault("damaged files"),
    pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below"),
]

FILES = {  # place of the file, and how a run comes to read it
    "checkpoint": ("run/last.safetensors", "resume"),
    "best checkpoint": ("run/best.safetensors", "evaluate"),
    "run.json": ("run/run.json", "resume"),
    "log": ("run/metrics.jsonl", "resume"),
    "reference model": ("references/reference-*.safetensors", "resume"),
    "subspace": ("references/subspace-*.safetensors", "resume"),
    "cached tokens": ("cache/tokens.bin", "new with tokens"),
    "checksums of a cache": ("cache/checksums.bin", "new with tokens"),
    "record of a cache": ("cache/cache.json", "new with tokens"),
    "split": ("split.json", "resume"),
    "weights of ours": ("ours.safetensors", "new with ours.safetensors"),
    "weights, .pth": ("weights.pth", "new with weights.pth"),
    "start of SPTNet": ("start.safetensors", "new from start.safetensors"),
}
HARMS = ("cut in half", "empty", *(f"bit {i}" for i in range(6)))


@pytest.fixture(scope="module")
def home(undisturbed, data, tmp_path_factory):
    """A folder with a run that lacks its result, and everything that runs read."""
    home = tmp_path_factory.mktemp("home")
    _, whole = undisturbed("small")
    shutil.copytree(whole.parent, home, dirs_exist_ok=True)
    shutil.copy(data["split_file"], home / "split.json")
    shutil.copy(whole / "best.safetensors", home / "start.safetensors")
    vit = load_file(data["weights"])
    save_checkpoint(home / "ours.safetensors", vit, {"key": "weights"})
    torch.save(vit, home / "weights.pth")
    tokens = {"trunk_cache": str(home / "cache"), "cache_views": 2}
    cached = small_config(data, "small", epochs=1, eagc=False, warm_start=False, **tokens)
    train(cached, home / "cached")
    (home / "run" / "result.json").unlink()
    return cached, home


def harm(file, how: str, seed: int) -> None:
    content = bytearray(file.read_bytes())
    if how.startswith("bit"):
        draw = random.Random(f"{file.name} {how} {seed}")
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    else:
        del content[0 if how == "empty" else len(content) // 2 :]
    file.write_bytes(content)


def use(way: str, cached, home, data):
    """What comes of a run that reads the files of `home`: its result, and the bits of its weights."""
    if way == "resume":
        return resume(home / "run", split_file=str(home / "split.json")), bits(home / "run")
    if way == "evaluate":
        return evaluate(home / "run", "best")
    name = way.split()[-1]
    if name == "tokens":
        config = cached.replace(trunk_cache=str(home / "cache"))
    elif way.startswith("new with"):
        weights = {**data, "weights": str(home / name)}
        config = small_config(weights, "small", epochs=1, eagc=False, warm_start=False)
    else:
        start = {"init": str(home / name), "phase_batches": 2, "pad_width": 2, "precision": "no"}
        config = small_config(data, "small_sptnet", epochs=1, eagc=False, **start)
    return train(config, home / "new"), bits(home / "new")


def bits(run) -> str:
    return tensor_digest(load_checkpoint(run / "last.safetensors")[0])


@pytest.fixture(scope="module")
def unharmed(home, data, tmp_path_factory):
    """What a run says with whole files, by the way it reads them."""
    said = {}

    def result(way: str):
        if way not in said:
            copy = tmp_path_factory.mktemp("unharmed") / "home"
            shutil.copytree(home[1], copy)
            said[way] = use(way, home[0], copy, data)
        return said[way]

    return result


@pytest.mark.parametrize(
    ("what", "how"), trials([(what, how) for how in HARMS for what in FILES], short=len(FILES) + 7)
)
def test_damage_is_named_or_has_no_effect(home, data, unharmed, tmp_path, what, how):
    cached, original = home
    place, way = FILES[what]
    copy = tmp_path / "home"
    shutil.copytree(original, copy)
    (file,) = copy.glob(place)
    harm(file, how, seed=0)
    trained = [run.stat().st_mtime_ns for run in copy.glob("*/last.safetensors")]
    error = None
    try:
        said = use(way, cached, copy, data)
    except Exception as raised:
        error = raised
    if error is None:  # white space, padding, the remains of a line
        assert how.startswith("bit") or what == "log", "a file that is cut short was read"
        assert said == unharmed(way)
        return
    assert is_for_the_user(error), repr(error)
    named = [file.name, str(file.parent), str(copy / "run")]
    if what == "run.json":  # a path in it names another place now
        named += [f"{place} " for place in ("root", "split_file", "weights")]
    assert any(name in str(error) for name in named), error
    assert [run.stat().st_mtime_ns for run in copy.glob("*/last.safetensors")] == trained
