"""The trunk cache on real files, in real processes, with the data of `digits`."""

import dataclasses
import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import small_caches
import torch
from small_caches import first, make_data, make_encoder

from eagc_ops.bench.pixel_views import PixelViews
from eagc_ops.training.data import draw_key, train_loader
from eagc_ops.training.data.loaders import Draw
from eagc_ops.training.data.trunk_cache import (
    CachedViews,
    TrunkCache,
    cache_bytes,
    choose_views,
    trunk_cache,
)


@pytest.fixture(scope="module")
def encoder():
    return make_encoder()


@pytest.fixture(scope="module")
def data():
    return make_data()


@pytest.fixture(scope="module")
def cache(tmp_path_factory, encoder, data):
    return trunk_cache(tmp_path_factory.mktemp("cache"), encoder, data, views=3, batch_size=8, progress=False)


def test_tokens_are_those_of_the_trunk_bit_for_bit(cache, encoder, data):
    """View v of image i by hand: the transform under a generator seeded with the key (seed, -1, i, v)."""
    for rows in (
        range(8),
        range(16, 24),
        range(48, 50),
    ):  # the batches of the build: another batch size may take another GEMM
        views = []
        for i in rows:
            image = data.images.image(i)
            for v in range(3):
                torch.manual_seed(draw_key(0, -1, i, v))
                views.append(data.train_transform(image))
            views.append(data.test_transform(image))
        want = encoder.trunk(torch.stack(views)).unflatten(0, (len(rows), 4))
        got = torch.stack([torch.stack([cache.tokens(i, v) for v in (0, 1, 2, None)]) for i in rows])
        assert got.dtype == torch.float32
        assert torch.equal(got, want)
        assert len({tuple(t.tolist()) for t in got.flatten(2).flatten(0, 1)}) == 4 * len(
            rows
        )  # images and views differ


def test_cached_loader_gives_what_the_trunk_gives_for_the_same_views(cache, encoder, data):
    """The loader on the cache and the loader on the pixels of its views give the same numbers."""
    settings = {"batch_size": 16, "seed": 5}
    cached = train_loader(data, **settings, fetch=CachedViews(cache, data, seed=5))
    pixels = train_loader(data, **settings, fetch=PixelViews(data, 3, seed=5))
    plain = train_loader(data, **settings)
    batches = 0
    for a, b, c in zip(cached.epoch(1), pixels.epoch(1), plain.epoch(1), strict=True):
        for name in ("label", "uq_idx", "mask"):
            assert torch.equal(getattr(a, name), getattr(b, name))
            assert torch.equal(getattr(a, name), getattr(c, name))
        tokens, images = torch.cat(a.views), torch.cat(b.views)
        torch.testing.assert_close(tokens, encoder.trunk(images), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(
            encoder.student(tokens), encoder.student(encoder.trunk(images)), atol=1e-5, rtol=1e-5
        )
        assert not torch.equal(a.views[0], a.views[1])
        batches += 1
    assert batches == len(cached) == 3
    with_workers = train_loader(data, **settings, workers=1, fetch=CachedViews(cache, data, seed=5))
    last = list(cached.epoch(1))[-1]
    (resumed,) = with_workers.epoch(1, start=2)
    assert all(torch.equal(a, b) for a, b in zip(last.views, resumed.views, strict=True))


def test_test_view(cache, encoder, data):
    fetch = CachedViews(cache, data, views=None)
    for i in (3, 25):
        (tokens,), label, uq_idx, labelled = fetch[Draw(0, 0, i)]
        image, want_label, want_uq, want_labelled = data.merged[i]
        torch.testing.assert_close(
            tokens, encoder.trunk(data.test_transform(image)[None])[0], atol=1e-5, rtol=1e-5
        )
        assert (label, uq_idx, labelled) == (want_label, want_uq, want_labelled)


def test_draw_rule():
    """Two different views, every ordered pair about equally often, keyed by (seed, epoch, position)."""
    pairs = [tuple(choose_views(0, Draw(e, p, index=0), 4)) for e in range(30) for p in range(40)]
    counts = {pair: pairs.count(pair) for pair in set(pairs)}
    assert len(counts) == 12
    assert all(a != b for a, b in counts)
    assert all(60 <= n <= 140 for n in counts.values())  # 1200 / 12 = 100, deviation about 9.6
    assert choose_views(0, Draw(2, 9, index=1), 4) == choose_views(0, Draw(2, 9, index=33), 4)
    for changed in ((1, Draw(2, 9, 1)), (0, Draw(3, 9, 1)), (0, Draw(2, 8, 1))):
        assert any(choose_views(0, Draw(2, 9, 1), n) != choose_views(*changed, n) for n in (50, 60))
    assert sorted(choose_views(0, Draw(0, 0, 0), 5, views=5)) == [0, 1, 2, 3, 4]


def test_half_precision(tmp_path, cache, encoder, data):
    half = trunk_cache(tmp_path, encoder, data, views=3, half=True, batch_size=8, progress=False)
    for i, v in ((0, 0), (31, 2), (49, None)):
        assert half.tokens(i, v).dtype == torch.float16
        assert torch.equal(half.tokens(i, v), cache.tokens(i, v).half())
    assert 2 * cache_bytes(encoder, data, views=3, half=True) == cache_bytes(encoder, data, views=3)


def test_the_trunk_runs_in_the_precision_of_the_run(tmp_path, cache, encoder, data):
    mixed = trunk_cache(tmp_path, encoder, data, views=3, precision="bf16", batch_size=8, progress=False)
    views = [data.test_transform(data.images.image(i)) for i in range(48, 50)]
    with torch.autocast("cpu", torch.bfloat16):
        want = encoder.trunk(torch.stack(views)).float()
    got = torch.stack([mixed.tokens(i, None) for i in (48, 49)])
    plain = torch.stack([cache.tokens(i, None) for i in (48, 49)])
    assert got.dtype == torch.float32
    assert torch.allclose(got, want, atol=0.02, rtol=0.02)  # another batch, another product
    assert not torch.equal(got, plain) and torch.allclose(got, plain, atol=0.1, rtol=0.1)


def test_disk_need_is_announced_and_right(tmp_path, encoder, data, capsys):
    trunk_cache(tmp_path, encoder, data, views=2, batch_size=25, progress=False)
    need = 50 * 3 * 17 * 96 * 4
    assert cache_bytes(encoder, data, views=2) == need == (tmp_path / "tokens.bin").stat().st_size
    message = capsys.readouterr().err
    assert "50 images x (2 + 1) views x 17 x 96 float32 = 0.001 GB" in message
    trunk_cache(tmp_path, encoder, data, views=2, progress=False)
    assert capsys.readouterr().err == ""  # nothing to build


def test_too_small_a_disk_is_refused_before_it_starts(tmp_path, encoder, data, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6 - 100, 100))
    with pytest.raises(OSError, match=r"needs 0\.001 GB"):
        trunk_cache(tmp_path, encoder, data, views=2, progress=False)
    assert not (tmp_path / "tokens.bin").exists()


def read(directory):
    return (directory / "tokens.bin").read_bytes()


def test_a_full_disk_leaves_a_cache_that_goes_on(tmp_path, cache, encoder, data, monkeypatch):
    calls = []

    def fsync(fd):
        calls.append(fd)
        if len(calls) == 6:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space"):
        trunk_cache(tmp_path, encoder, data, views=3, batch_size=8, progress=False)
    monkeypatch.undo()
    assert 0 < json.loads((tmp_path / "cache.json").read_text())["done"] < 50
    trunk_cache(tmp_path, encoder, data, views=3, batch_size=8, progress=False)
    assert read(tmp_path) == read(cache.directory)


KILLED = """
import sys, time, torch
sys.path.insert(0, {tests!r})
from small_caches import make_data, make_encoder
from eagc_ops.training.data.trunk_cache import trunk_cache
encoder = make_encoder()
trunk = encoder.trunk
encoder.trunk = lambda images: (time.sleep(0.1), trunk(images))[1]
trunk_cache({directory!r}, encoder, make_data(), views=3, batch_size=8, progress=False)
"""


def test_a_killed_build_resumes_exactly(tmp_path, cache, encoder, data, monkeypatch):
    """SIGKILL while it writes, and rubbish behind the record: the result is that of an undisturbed build."""
    directory = tmp_path / "cache"
    program = KILLED.format(tests=os.path.dirname(small_caches.__file__), directory=str(directory))

    def done():
        record = directory / "cache.json"
        return json.loads(record.read_text())["done"] if record.exists() else -1

    process = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    )
    deadline = time.monotonic() + 120
    while done() < 8 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 8 <= done() < 50
    with pytest.raises(ValueError, match=rf"not complete: {done()} of 50 images"):
        TrunkCache(directory, cache.made_of).opened()
    start = done()
    size = 4 * 17 * 96 * 4
    assert read(directory)[: start * size] == read(cache.directory)[: start * size]
    with (directory / "tokens.bin").open("r+b") as file:
        file.seek(start * size)
        file.write(b"\xff" * (size // 2))
    seen = []
    trunk = encoder.trunk
    monkeypatch.setattr(encoder, "trunk", lambda images: (seen.append(len(images) // 4), trunk(images))[1])
    trunk_cache(directory, encoder, data, views=3, batch_size=8, progress=False)
    assert read(directory) == read(cache.directory)
    assert sum(seen) == 50 - start  # what was done is not done again


def other_pixels(data):
    images = dataclasses.replace(data.labelled.images, source=data.labelled.images.source[:, ::-1])
    flipped = [first(part, len(part)) for part in (data.labelled, data.unlabelled)]
    for part in flipped:
        part.images = images
    return dataclasses.replace(data, labelled=flipped[0], unlabelled=flipped[1])


@pytest.mark.parametrize(("change", "named"), [
    (lambda e, d: (make_encoder(seed=1), d, {}), ["weights"]),
    (lambda e, d: (make_encoder(grad_from_block=2), d, {}), ["weights", "grad_from_block: 3 there, 2 now"]),
    (lambda e, d: (e, dataclasses.replace(d, train_transform=d.test_transform), {}), ["train transform"]),
    (lambda e, d: (e, make_data(labelled=20, unlabelled=29), {}), ["images: 50 there, 49 now"]),
    (lambda e, d: (e, other_pixels(d), {}), ["sampled images"]),
    (lambda e, d: (e, d, {"views": 4}), ["views: 3 there, 4 now"]),
    (lambda e, d: (e, d, {"half": True}), ["dtype: float32 there, float16 now"]),
    (lambda e, d: (e, d, {"seed": 1}), ["seed: 0 there, 1 now"]),
    (lambda e, d: (e, d, {"precision": "bf16"}), ["precision: None there, bf16 now"]),
])  # fmt: skip
def test_a_stale_cache_is_refused_and_the_difference_named(cache, encoder, data, change, named):
    before = read(cache.directory)
    changed_encoder, changed_data, settings = change(encoder, data)
    with pytest.raises(ValueError, match="is stale") as caught:
        trunk_cache(
            cache.directory, changed_encoder, changed_data, **({"views": 3} | settings), progress=False
        )
    assert all(name in str(caught.value) for name in named)
    assert "views: " not in str(caught.value) or "views" in settings  # what is the same is not named
    assert read(cache.directory) == before


def test_runs_of_different_splits_share_a_cache(cache, encoder, monkeypatch):
    other = dataclasses.replace(make_data(labelled=10, unlabelled=40), split_hash="of another split")
    monkeypatch.setattr(encoder, "trunk", lambda _: pytest.fail("the trunk runs again"))
    again = CachedViews(trunk_cache(cache.directory, encoder, other, views=3, progress=False), other)
    for i in (0, 9, 10, 49):
        tokens, label, uq_idx, mask = again[Draw(0, 7, i)]
        views = choose_views(0, Draw(0, 7, i), 3)
        assert (label, uq_idx, mask) == other.merged[i][1:]
        assert all(torch.equal(got, cache.tokens(uq_idx, v)) for got, v in zip(tokens, views, strict=True))


def test_training_the_tail_does_not_make_a_cache_stale(cache, data):
    trained = make_encoder()
    with torch.no_grad():
        for parameter in trained.tail.parameters():
            parameter.add_(1.0)
    again = trunk_cache(cache.directory, trained, data, views=3, progress=False)
    assert torch.equal(again.tokens(4, 1), cache.tokens(4, 1))


def test_damaged_directories_are_refused(tmp_path, cache, encoder, data):
    build = lambda directory: trunk_cache(directory, encoder, data, views=3, progress=False)  # noqa: E731
    for name in ("cut", "record", "foreign"):
        shutil.copytree(cache.directory, tmp_path / name)
    os.truncate(tmp_path / "cut" / "tokens.bin", 1000)
    with pytest.raises(ValueError, match=r"tokens\.bin is damaged: it has 1000 of 1305600 bytes; delete"):
        build(tmp_path / "cut")
    (tmp_path / "cut" / "cache.json").write_text(json.dumps({"done": 40, "made of": cache.made_of}))
    with pytest.raises(ValueError, match="shorter than its record"):  # going on would leave a hole of zeros
        build(tmp_path / "cut")
    (tmp_path / "record" / "cache.json").write_text('{"done": 50')
    with pytest.raises(ValueError, match=r"cache\.json is damaged"):
        build(tmp_path / "record")
    (tmp_path / "foreign" / "cache.json").unlink()
    with pytest.raises(ValueError, match=r"no cache\.json"):
        build(tmp_path / "foreign")


def test_values_that_do_not_fit_are_refused(tmp_path, data):
    wide = make_encoder()
    with torch.no_grad():
        wide.vit.pos_embed.mul_(1e8)
    with pytest.raises(ValueError, match=r"images 0\.\.7 are not finite in float16"):
        trunk_cache(tmp_path, wide, data, views=2, half=True, batch_size=8, progress=False)
    with pytest.raises(ValueError, match="give it a __repr__"):
        trunk_cache(
            tmp_path,
            wide,
            dataclasses.replace(data, train_transform=lambda image: image),
            views=2,
            progress=False,
        )
    with pytest.raises(ValueError, match="views must be >= 1, got 0"):
        trunk_cache(tmp_path, wide, data, views=0, progress=False)


def test_out_of_range_reads_are_refused(cache, data):
    for index, view in ((-1, 0), (50, 0), (0, 3), (0, -1)):
        with pytest.raises(IndexError, match=rf"index={index}, view={view}"):
            cache.tokens(index, view)
    with pytest.raises(ValueError, match=r"views must be in 1 \.\. 3, the number of cached views, got 4"):
        CachedViews(cache, data, views=4)


def test_the_cache_is_mapped_and_travels_as_a_path(cache):
    assert isinstance(cache._array, np.memmap)
    assert not cache._array.flags.writeable
    text = pickle.dumps(cache)
    assert len(text) < 10_000  # the content stays on disk
    assert torch.equal(pickle.loads(text).tokens(11, 2), cache.tokens(11, 2))
