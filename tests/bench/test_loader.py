"""The loading benchmark: all ways give the same bits, and the published one does the published work."""

import pytest
import torch
from PIL import Image
from records import records

from eagc_ops.bench import loader, tables
from eagc_ops.bench.measure import Spread
from eagc_ops.training.data import KeyedViews
from eagc_ops.training.data.catalog import Images
from eagc_ops.training.data.loaders import Draw
from eagc_ops.training.data.transforms import protocol_transforms


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "BATCH", 4)
        return loader.loader_tables(rounds=2, images=6)


def test_every_way_of_both_passes_is_measured(results):
    ways = [loader.PUBLISHED, loader.RESIZED_ONCE, loader.ON_CPU, loader.ON_DEVICE]
    assert [row["way"] for row in results["loader"]] == 2 * ways
    for row in results["loader"]:
        assert 0 < row["seconds_per_image"].low <= row["seconds_per_image"].high < 1
        assert isinstance(row["speed_up"], Spread)
    assert results["loader"][0]["speed_up"] == Spread(1, 1, 1)
    assert results["cache"]["bytes_per_image"] == 3 * 256 * 341
    assert results["cache"]["file_bytes_per_image"] > 20_000  # with the detail of a photograph
    shown = records(tables.loader(results["loader"]))
    assert [line["way"] for line in shown] == 2 * ways and shown[0]["speed-up"] == "1.00 (1.00-1.00)"
    assert "6 JPEG photographs of 500 x 375 pixels for an input of 224; 2 rounds" in tables.loader_note(
        results
    )


def test_the_published_way_transforms_every_view_of_a_decoded_file(tmp_path, monkeypatch):
    data = loader.photographs(tmp_path, 4)
    resized, image = [], Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda *a, **k: resized.append(1) or image(*a, **k))
    views = {}
    for name, change in (("published", loader.as_published), ("here", lambda views: views)):
        resized.clear()
        fetch = change(KeyedViews(data.merged, data.train_transform, 2, 0))
        views[name] = [fetch[Draw(0, i, i)][0] for i in range(4)]
        assert len(resized) == {"published": 8, "here": 4}[name]
    assert views["published"][0][0].dtype == torch.float32
    cached = loader.with_pixels(data, tmp_path / "pixels")
    monkeypatch.setattr(Images, "image", lambda *_: pytest.fail("an image was decoded"))
    fetch = KeyedViews(cached.merged, data.train_transform, 2, 0)
    for i in range(4):
        for expected, view in zip(views["published"][i], fetch[Draw(0, i, i)][0], strict=True):
            assert torch.equal(fetch.normalization(view), expected)


def test_a_way_with_other_bits_is_refused(monkeypatch):
    drawn = loader.with_pixels

    def wrong(data, folder):
        cached = drawn(data, folder)
        cached.cache._bytes[12345] ^= 1
        cached.cache._compared[:] = True
        return cached

    monkeypatch.setattr(loader, "with_pixels", wrong)
    monkeypatch.setattr(loader, "protocol_transforms", lambda size: loader_transforms(256))
    with pytest.raises(RuntimeError, match="must give the same bits"):
        loader.loader_tables(rounds=1, images=2)


def loader_transforms(size):
    """A crop of the whole height, so that most pixels are seen."""
    transforms = protocol_transforms(224)
    for transform in transforms:
        transform.transforms[1].size = (size, size)
    return transforms


def test_bars_are_judged_by_their_medians():
    def rows(on_cpu, on_device):
        ways = {loader.ON_CPU: on_cpu, loader.ON_DEVICE: on_device}
        spread = [
            {"pass": "training, two views", "way": way, "speed_up": Spread(s, 1, 99)}
            for way, s in ways.items()
        ]
        return [*spread, {"pass": "evaluation, one view", "way": loader.ON_CPU, "speed_up": Spread(1, 1, 1)}]

    assert [bar["met"] for bar in loader.bars(rows(7.0, 40.0))] == [True, True]
    assert [bar["met"] for bar in loader.bars(rows(6.9, 40.0))] == [False, True]
    assert [bar["met"] for bar in loader.bars(rows(7.0, 39.9))] == [True, False]
