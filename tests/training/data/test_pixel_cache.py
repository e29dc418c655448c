"""Resized pixels on disk: the model gets the bits that it gets without them, and no damage goes unnoticed."""

import dataclasses
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small_runs import small_config

from eagc_ops.app.files import DiskFullError
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.config import ConfigError, resolve
from eagc_ops.training.data import batches as batches_module
from eagc_ops.training.data import open_data
from eagc_ops.training.data import pixel_cache as module
from eagc_ops.training.data.batches import AutomaticPixels
from eagc_ops.training.data.catalog import Images
from eagc_ops.training.data.image_files import ImageError
from eagc_ops.training.data.loaders import draw_key, evaluation_loader, labelled_loader, train_loader
from eagc_ops.training.data.pixel_cache import cache_bytes, find_pixels, pixel_cache
from eagc_ops.training.data.transforms import protocol_transforms, split_transform
from eagc_ops.training.data.trunk_cache import trunk_cache
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.models.backbones import load_backbone
from eagc_ops.training.runs import evaluate, train

SIZE = 32  # of the input: the short side is resized to 36
MODES = ("RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "I;16")
SHAPES = ((36, 36), (61, 40), (40, 61), (36, 200), (1, 1), (5, 90), (300, 37))


def write_picture(path, mode, size, seed=0):
    pixels = np.random.RandomState(seed).randint(0, 256, (6, 6, 3)).astype(np.uint8)
    image = Image.fromarray(pixels).resize(size, Image.BICUBIC)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    else:
        image = image.convert(mode)
    image.save(path, format="JPEG" if mode == "CMYK" else "PNG")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Every mode in every size: 2 known classes and 1 novel one."""
    root = tmp_path_factory.mktemp("modes")
    for i, (mode, size) in enumerate((mode, size) for mode in MODES for size in SHAPES):
        folder = root / "tree" / f"class{i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        write_picture(folder / f"{i}.{'jpg' if mode == 'CMYK' else 'png'}", mode, size, seed=i)
    (root / "split.json").write_text(json.dumps({"known_classes": ["class0", "class1"]}))
    return root


@pytest.fixture(scope="module")
def data(root):
    return open_data("folder", root / "tree", split_file=root / "split.json", image_size=SIZE)


def fixed_of(data):
    return split_transform(data.train_transform).fixed


def cached(data, folder, **settings):
    """The data with a cache in `folder`."""
    cache = pixel_cache(folder, data.labelled.images, fixed_of(data), progress=False, **settings)
    return dataclasses.replace(data, cache=cache)


@pytest.fixture(scope="module")
def with_cache(data, tmp_path_factory):
    return cached(data, tmp_path_factory.mktemp("cache"))


def batches_of(data, workers):
    loader = train_loader(data, batch_size=8, seed=3, workers=workers)
    yield from loader.epoch(0)
    yield from loader.epoch(1, start=2)
    yield from labelled_loader(data, batch_size=8, seed=5, workers=workers).epoch(0)
    yield from evaluation_loader(data, labelled=True, batch_size=8, workers=workers)
    yield from evaluation_loader(data, batch_size=8, workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_loader_gives_the_same_bits(data, with_cache, workers, monkeypatch):
    plain = list(batches_of(data, 0))
    monkeypatch.setattr(Images, "image", lambda *_: pytest.fail("an image was decoded"))
    found = list(batches_of(with_cache, workers))
    assert len(found) == len(plain) > 20
    for a, b in zip(plain, found):
        assert all(torch.equal(x, y) for x, y in zip(a[1:4], b[1:4]))
        assert all(view.dtype == torch.uint8 for view in b.stored)
        for x, y in zip(a.views, b.views, strict=True):
            assert x.dtype == torch.float32 and torch.equal(x, y)


def test_the_views_are_those_of_the_published_transform(data, with_cache):
    """Draw by draw: PIL image -> torchvision's pipeline under the key of the draw, bit for bit."""
    loader = train_loader(with_cache, batch_size=8, seed=3)
    for draws, batch in zip(loader.draws(0), loader.epoch(0)):
        for v in range(2):
            for row, draw in enumerate(draws):
                torch.manual_seed(draw_key(3, 0, draw.position, v))
                assert torch.equal(batch.views[v][row], data.train_transform(data.merged[draw.index][0]))
    tested = torch.cat([batch.views[0] for batch in evaluation_loader(with_cache)])
    expected = [data.test_transform(data.unlabelled[i][0]) for i in range(len(data.unlabelled))]
    assert torch.equal(tested, torch.stack(expected))


def test_images_in_memory_are_cached_too(tmp_path):
    source = np.random.RandomState(0).randint(0, 256, (9, 20, 20, 3)).astype(np.uint8)
    images, (transform, _) = Images(source, np.zeros(9, np.int64)), protocol_transforms(SIZE)
    split = split_transform(transform)
    cache = pixel_cache(tmp_path, images, split.fixed, progress=False)
    for i in range(9):
        torch.manual_seed(i)
        expected = transform(Image.fromarray(source[i]))
        torch.manual_seed(i)
        assert torch.equal(split.normalization(split.drawn(cache.pixels(i))), expected)
    assert cache_bytes(images, split.fixed) == 9 * 36 * 36 * 3 == cache.path.stat().st_size
    changed = Images(source[::-1], images.targets)
    assert find_pixels(tmp_path, images, split.fixed) is not None
    assert find_pixels(tmp_path, changed, split.fixed) is None


def test_a_trunk_cache_is_built_from_it(data, with_cache, tmp_path):
    torch.manual_seed(0)
    encoder = AnchoredEncoder(load_backbone("vit_digits", image_size=SIZE), 3)
    content = []
    for name, each in (("plain", data), ("cached", with_cache)):
        trunk_cache(tmp_path / name, encoder, each, views=3, batch_size=8, progress=False)
        content.append((tmp_path / name / "tokens.bin").read_bytes())
    assert content[0] == content[1]


# What a cache is made of ------------------------------------------------------------------------------------


@pytest.fixture
def few(tmp_path):
    """Six pictures, two known classes of three, in a folder of their own."""
    for i in range(6):
        (tmp_path / "tree" / f"class{i % 3}").mkdir(parents=True, exist_ok=True)
        write_picture(tmp_path / "tree" / f"class{i % 3}" / f"{i}.png", "RGB", (50 + i, 40), i)
    (tmp_path / "split.json").write_text(
        json.dumps({"known_classes": ["class0", "class1"], "labelled_fraction": 0.9})
    )

    def opened(size=SIZE, tree="tree"):
        return open_data("folder", tmp_path / tree, split_file=tmp_path / "split.json", image_size=size)

    return opened


def test_changed_files_and_other_sizes_have_caches_of_their_own(few, tmp_path, monkeypatch):
    folder = tmp_path / "pixels"
    first = cached(few(), folder).cache
    assert cached(few(), folder).cache.directory == first.directory
    os.rename(tmp_path / "tree", tmp_path / "moved")  # the same files elsewhere
    assert cached(few(tree="moved"), folder).cache.directory == first.directory
    picture = tmp_path / "moved" / "class1" / "1.png"
    seen = {first.directory}

    def is_new(data):
        cache = cached(data, folder).cache
        new = cache.directory not in seen
        seen.add(cache.directory)
        return new

    write_picture(picture, "RGB", (51, 40), 99)
    assert is_new(few(tree="moved"))
    os.utime(picture, ns=(1, 1))
    assert is_new(few(tree="moved"))
    os.rename(picture, picture.with_name("renamed.png"))
    assert is_new(few(tree="moved"))
    assert is_new(few(48, "moved"))
    monkeypatch.setattr(module.PIL, "__version__", "0.0")
    assert is_new(few(48, "moved"))


def test_the_size_is_said_before_it_starts(few, tmp_path, capsys):
    data = few()
    need = cache_bytes(data.labelled.images, fixed_of(data))
    cache = cached(data, tmp_path / "pixels").cache
    assert need == cache.path.stat().st_size
    assert f"6 images, resized = about {need / 1e9:.3f} GB; " in capsys.readouterr().err
    cached(data, tmp_path / "pixels")
    assert capsys.readouterr().err == ""  # nothing to build


def test_an_unreadable_image_is_named(few, tmp_path):
    data = few()
    picture = tmp_path / "tree" / "class2" / "5.png"
    picture.write_bytes(picture.read_bytes()[:-40])
    with pytest.raises(ImageError, match=r"class2/5\.png: .*truncated"):
        cached(data, tmp_path / "pixels")


def test_the_cache_travels_as_a_path(with_cache):
    text = pickle.dumps(with_cache.cache)
    assert len(text) < 5000
    assert torch.equal(pickle.loads(text).pixels(3), with_cache.cache.pixels(3))


def test_damage_is_named(few, tmp_path):
    data = few()
    files = cached(data, tmp_path / "pixels").cache
    content = files.path.read_bytes()
    files.path.write_bytes(content[:9000] + b"\0\1" + content[9002:])
    again = cached(data, tmp_path / "pixels").cache
    again.pixels(0)
    with pytest.raises(ValueError, match=r"pixels\.bin is damaged: image 1 does not match its checksum"):
        again.pixels(1)
    files.path.write_bytes(content[:-5])
    with pytest.raises(ValueError, match=rf"damaged: it has {len(content) - 5} of {len(content)} bytes"):
        cached(data, tmp_path / "pixels")
    files.path.write_bytes(content)
    sizes = files.directory / "sizes.bin"
    sizes.write_bytes(sizes.read_bytes()[:-12])
    with pytest.raises(ValueError, match=r"sizes\.bin is damaged: it has 5 of 6 entries"):
        cached(data, tmp_path / "pixels")


# Builds that end early --------------------------------------------------------------------------------------


def test_a_full_disk_is_named_and_the_build_goes_on(data, with_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 8)
    calls = []

    def fsync(fd):
        calls.append(fd)
        if len(calls) == 8:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DiskFullError, match=r"is full: pixels\.bin needs"):
        cached(data, tmp_path)
    monkeypatch.undo()
    directory = next(tmp_path.glob("*/cache.json")).parent
    done = json.loads((directory / "cache.json").read_text())["done"]
    assert 0 < done < len(data.merged)
    assert find_pixels(tmp_path, data.labelled.images, fixed_of(data)) is None
    again = cached(data, tmp_path).cache
    assert again.path.read_bytes() == with_cache.cache.path.read_bytes()


KILLED = """
import sys, time
from eagc_ops.training.data import open_data, pixel_cache as module
from eagc_ops.training.data.catalog import Images
from eagc_ops.training.data.transforms import split_transform
module._CHUNK, image = 4, Images.image
Images.image = lambda self, i: (time.sleep(0.02), image(self, i))[1]
data = open_data("folder", sys.argv[1] + "/tree", split_file=sys.argv[1] + "/split.json", image_size={size})
fixed = split_transform(data.train_transform).fixed
module.pixel_cache(sys.argv[2], data.labelled.images, fixed, progress=False)
"""


def test_a_killed_build_goes_on_where_its_record_ends(root, data, with_cache, tmp_path, monkeypatch):
    def done():
        record = next(tmp_path.glob("*/cache.json"), None)
        return -1 if record is None else json.loads(record.read_text())["done"]

    process = subprocess.Popen(
        [sys.executable, "-c", KILLED.format(size=SIZE), str(root), str(tmp_path)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while done() < 8 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    start = done()
    assert 8 <= start < len(data.merged)
    with next(tmp_path.glob("*/pixels.bin")).open("ab") as file:
        file.write(b"rubbish")
    read, image = [], Images.image
    monkeypatch.setattr(Images, "image", lambda self, i: read.append(i) or image(self, i))
    again = cached(data, tmp_path).cache
    assert sorted(read) == list(range(start, len(data.merged)))  # what was done is not done again
    assert again.path.read_bytes() == with_cache.cache.path.read_bytes()


# In a run ---------------------------------------------------------------------------------------------------


@pytest.fixture
def places(root):
    return {"root": str(root / "tree"), "split_file": str(root / "split.json")}


def settings(places, **switches):
    return small_config({**places, "weights": "random"}, image_size=SIZE, epochs=1, **switches)


def weights(run):
    return load_file(run / "last.safetensors")


@pytest.mark.filterwarnings("ignore:the run predicts")
def test_a_run_is_the_same_with_it_and_without(places, tmp_path, monkeypatch):
    results = {}
    for name in ("off", "auto"):
        if name == "auto":
            monkeypatch.setattr(batches_module, "LEAST", 1)
            monkeypatch.setattr(module, "LEAST", 1)
        results[name] = train(settings(places, pixel_cache=name), tmp_path / name / "run")
    assert not (tmp_path / "off" / "pixels").exists()
    assert len(list((tmp_path / "auto" / "pixels").glob("*/pixels.bin"))) == 1
    assert results["off"] == results["auto"]
    a, b = (weights(tmp_path / name / "run") for name in ("off", "auto"))
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    # A run without a cache is evaluated with one, from which every image comes
    monkeypatch.setattr(Images, "image", lambda *_: pytest.fail("an image was decoded"))
    folder = str(tmp_path / "auto" / "pixels")
    assert evaluate(tmp_path / "off" / "run", pixel_cache=folder).all == results["off"]["last"]["all"]
    assert evaluate(tmp_path / "auto" / "run").all == results["off"]["last"]["all"]


def built(config, folder, build=True):
    return Experiment(config, AutomaticPixels(folder, build)).batches.train._loader.dataset.merged.cache


def test_what_is_cached_without_being_asked_for(places, data, tmp_path, monkeypatch):
    size = cache_bytes(data.labelled.images, fixed_of(data))
    auto = settings(places)
    assert auto.pixel_cache == "auto"
    assert built(auto, tmp_path / "small") is None  # decoding takes no time worth a file
    for patched in (batches_module, module):
        monkeypatch.setattr(patched, "LEAST", size)
    monkeypatch.setattr(module, "BUDGET", size - 1)
    assert built(auto, tmp_path / "large") is None
    monkeypatch.setattr(module, "BUDGET", size)
    assert built(auto, tmp_path / "no", build=False) is None
    assert built(auto.replace(pixel_cache="off"), tmp_path / "off") is None
    assert Experiment(auto).batches.train._loader.dataset.merged.cache is None  # no place is known
    usage = module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=2 * size - 1))
    assert built(auto, tmp_path / "full") is None
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=2 * size))
    assert list(tmp_path.iterdir()) == []
    assert built(auto, tmp_path / "yes") is not None
    assert built(auto, tmp_path / "yes", build=False) is not None
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    tokens = auto.replace(trunk_cache=str(tmp_path / "trunk"))
    assert len(Experiment(tokens, AutomaticPixels(tmp_path / "both")).batches.train) > 0
    assert not (tmp_path / "both").exists()


def test_digits_cannot_be_cached(tmp_path):
    with pytest.raises(ConfigError, match="the transforms of digits change every pixel at every draw"):
        Experiment(resolve("simgcd", "digits", pixel_cache=str(tmp_path)))
