"""Batches: keyed draws that no worker, rank, resume or other generator can change."""

import dataclasses
import hashlib
import json
import os
import random
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from eagc_ops.training.data import Batch, evaluation_loader, open_data, train_loader
from eagc_ops.training.data.loaders import Draw, labelled_loader, sampler_weights


@pytest.fixture(scope="module")
def digits():
    return open_data("digits")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Decoded files, random crops and flips: three classes of 20 JPEGs."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.RandomState(0)
    for c in "abc":
        (root / "tree" / c).mkdir(parents=True)
        for i in range(20):
            Image.fromarray(rng.randint(0, 256, (40 + i, 60 - i, 3), np.uint8)).save(
                root / "tree" / c / f"{i}.jpg"
            )
    (root / "split.json").write_text(json.dumps({"known_classes": ["b", "a"]}))
    return open_data("folder", root / "tree", split_file=root / "split.json", image_size=32)


def equal(a, b):
    return len(a.views) == len(b.views) and all(
        torch.equal(x, y) for x, y in zip([*a.views, *a[1:4]], [*b.views, *b[1:4]])
    )


def test_workers_change_nothing(photos):
    alone, helped = (train_loader(photos, batch_size=8, seed=3, workers=w) for w in (0, 2))
    for epoch, start in ((0, 0), (1, 0), (1, 4)):  # the second and third use the same, living workers
        expected, found = list(alone.epoch(epoch, start)), list(helped.epoch(epoch, start))
        assert len(expected) == len(found) == 7 - start
        assert all(equal(a, b) for a, b in zip(expected, found))
    alone, helped = (evaluation_loader(photos, batch_size=7, workers=w) for w in (0, 2))
    assert all(equal(a, b) for a, b in zip(alone, helped, strict=True))


def test_start_is_skipping(digits):
    loader = train_loader(digits, batch_size=128, seed=1)
    whole = list(loader.epoch(2))
    assert len(whole) == len(loader) == 14
    for start in (1, 9, 13, 14):
        rest = list(loader.epoch(2, start=start))
        assert len(rest) == 14 - start
        assert all(equal(a, b) for a, b in zip(rest, whole[start:]))
    reference = labelled_loader(digits, batch_size=32, seed=1)
    assert all(
        equal(a, b) for a, b in zip(reference.epoch(1, start=12), list(reference.epoch(1))[12:], strict=True)
    )


def test_an_abandoned_epoch_with_workers_leaves_nothing_behind(photos):
    loader, fresh = (train_loader(photos, batch_size=8, seed=3, workers=w) for w in (2, 0))
    first = loader.epoch(0)
    next(first)
    assert all(equal(a, b) for a, b in zip(loader.epoch(1), fresh.epoch(1), strict=True))
    with pytest.raises(RuntimeError, match="a new epoch of this loader was started"):
        next(first)


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_one_global_batch(digits, world):
    single = train_loader(digits, batch_size=64, seed=5)
    ranks = [train_loader(digits, batch_size=64, seed=5, rank=r, world=world) for r in range(world)]
    assert all(len(rank) == len(single) for rank in ranks)
    for whole, *parts in zip(
        single.epoch(1, start=20), *(rank.epoch(1, start=20) for rank in ranks), strict=True
    ):
        assert all(len(part.label) == 64 // world for part in parts)
        for v in range(2):
            assert torch.equal(torch.cat([part.views[v] for part in parts]), whole.views[v])
        for field in ("label", "uq_idx", "mask"):
            assert torch.equal(torch.cat([getattr(part, field) for part in parts]), getattr(whole, field))


def seed_of(*numbers):
    return (
        int.from_bytes(
            hashlib.blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=8).digest(), "little"
        )
        >> 1
    )


def test_draws_and_views_are_functions_of_their_key(photos):
    """Written out once more, in another order and from another generator's state."""
    seed, epoch, size = 11, 4, 8
    weights = sampler_weights(20, 40)
    order = torch.multinomial(
        weights, 60, replacement=True, generator=torch.Generator().manual_seed(seed_of(seed, epoch))
    ).tolist()
    batches = list(train_loader(photos, batch_size=size, seed=seed, views=3).epoch(epoch))
    for position in reversed(range(len(batches) * size)):
        batch, row = batches[position // size], position % size
        image, label, uq_idx, labelled = photos.merged[order[position]]
        assert (label, uq_idx, labelled) == (
            int(batch.label[row]),
            int(batch.uq_idx[row]),
            bool(batch.mask[row]),
        )
        for v in range(3):
            torch.manual_seed(seed_of(seed, epoch, position, v))
            assert torch.equal(batch.views[v][row], photos.train_transform(image))


def test_views_epochs_and_seeds_differ_and_batch_size_does_not_matter(photos):
    first = [
        next(train_loader(photos, batch_size=30, seed=seed).epoch(epoch)).views[0]
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert len({views.numpy().tobytes() for views in first}) == 3
    batch = next(train_loader(photos, batch_size=60, seed=0).epoch(0))
    assert not torch.equal(batch.views[0], batch.views[1])
    same = [torch.equal(batch.views[0][i], batch.views[1][i]) for i in range(60)]
    assert sum(same) < 10  # 25 crop positions x 2 flips at this size: a chance of 1 in 50 or less
    small = list(train_loader(photos, batch_size=20, seed=0).epoch(0))
    assert torch.equal(torch.cat([b.views[1] for b in small]), batch.views[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_global_generators_are_left_alone(photos, workers):
    def states():
        return torch.get_rng_state().numpy().tobytes(), repr(np.random.get_state()), repr(random.getstate())  # noqa: NPY002

    runs = []
    for state in (1, 2):  # and what they hold does not matter
        torch.manual_seed(state), np.random.seed(state), random.seed(state)  # noqa: NPY002
        before = states()
        runs.append(list(train_loader(photos, batch_size=16, seed=0, workers=workers).epoch(0)))
        list(labelled_loader(photos, batch_size=16, workers=workers).epoch(0))
        list(evaluation_loader(photos, workers=workers))
        assert states() == before
    assert all(equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_new_process_resumes_with_the_same_batch():
    code = (
        "import hashlib, torch\n"
        "from eagc_ops.training.data import open_data, train_loader\n"
        "batch = next(train_loader(open_data('digits'), batch_size=64, seed=7).epoch(3, start=5))\n"
        "content = torch.cat(batch.views).numpy().tobytes() + batch.uq_idx.numpy().tobytes()\n"
        "print(hashlib.sha256(content).hexdigest())\n"
    )
    batch = list(train_loader(open_data("digits"), batch_size=64, seed=7, workers=2).epoch(3))[5]
    here = hashlib.sha256(
        torch.cat(batch.views).numpy().tobytes() + batch.uq_idx.numpy().tobytes()
    ).hexdigest()
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()
    assert there == here


def test_sampler_weights_and_labelled_share(digits):
    assert sampler_weights(2, 8).tolist() == [1.0] * 2 + [0.25] * 8
    assert sampler_weights(2, 8, "selex").tolist() == [1.0] * 2 + [0.2] * 8
    assert sampler_weights(2, 8).dtype == torch.float64
    n, unlabelled = 1797, 1347
    for weighting, share in (("simgcd", 0.5), ("selex", n / (n + unlabelled))):
        loader = train_loader(digits, batch_size=1, seed=0, weighting=weighting)
        found = np.mean([draw.index < 450 for epoch in range(30) for (draw,) in loader.draws(epoch)])
        assert abs(found - share) < 4 * (share * (1 - share) / (30 * n)) ** 0.5
    with pytest.raises(ValueError, match="one of 'simgcd', 'selex', got 'half'"):
        train_loader(digits, batch_size=8, seed=0, weighting="half")


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "steps"),
    [
        (1_498, 4_496, 46),
        (2_000, 6_144, 63),
        (1_666, 5_001, 52),
        (20_000, 30_000, 390),
        (31_860, 95_255, 993),
        (8_869, 25_356, 267),
    ],
)
def test_published_steps_per_epoch(digits, labelled, unlabelled, steps):
    sized = dataclasses.replace(digits, labelled=range(labelled), unlabelled=range(unlabelled))
    assert len(train_loader(sized, batch_size=128, seed=0)) == steps


def test_reference_loader_visits_every_labelled_image_once(digits):
    loader = labelled_loader(digits, batch_size=32, seed=2)
    orders = []
    for epoch in range(2):
        batches = list(loader.epoch(epoch))
        assert len(batches) == len(loader) == 15
        assert len(batches[-1].label) == 450 - 14 * 32  # the last partial batch is kept
        orders.append(torch.cat([b.uq_idx for b in batches]).tolist())
        assert sorted(orders[-1]) == sorted(digits.labelled.uq_idx.tolist())
        assert all(b.mask.all() and len(b.views) == 2 and int(b.label.max()) < 5 for b in batches)
    assert orders[0] != orders[1]
    with pytest.raises(
        TypeError
    ):  # a shuffled loader has no epoch of its own: plain iteration would repeat epoch 0
        iter(loader)


@pytest.mark.parametrize("which", ["labelled", "unlabelled"])
def test_sequential_loaders(digits, which):
    part = getattr(digits, which)
    loader = evaluation_loader(digits) if which == "unlabelled" else evaluation_loader(digits, labelled=True)
    for _ in range(2):  # re-iterable
        batches = list(loader)
        assert len(batches) == len(loader) == -(-len(part) // 256)
        assert torch.equal(torch.cat([b.uq_idx for b in batches]), part.uq_idx)
        assert torch.equal(torch.cat([b.label for b in batches]), part.labels)
        assert torch.equal(
            torch.cat([b.mask for b in batches]), torch.full((len(part),), which == "labelled")
        )
        expected = torch.stack([digits.test_transform(part[i][0]) for i in range(len(part))])
        assert torch.equal(torch.cat([b.views[0] for b in batches]), expected)
        assert all(len(b.views) == 1 for b in batches)


def test_fetch_replaces_decoding_and_keeps_the_draws(digits):
    class Echo(torch.utils.data.Dataset):
        def __getitem__(self, draw):
            return [torch.tensor(draw)], 0, draw.index, True

    loader = train_loader(digits, batch_size=16, seed=3, fetch=Echo(), rank=1, world=2)
    plain = train_loader(digits, batch_size=16, seed=3, rank=1, world=2)
    batch = next(loader.epoch(2, start=1))
    assert [Draw(*row) for row in batch.views[0].tolist()] == plain.draws(2, 1)[0]
    assert batch.views[0][:, 1].tolist() == list(range(24, 32))  # positions of the epoch, not of the rank


def test_errors(digits):
    for arguments, message in (
        ({"batch_size": 9, "world": 2}, "multiple of world=2, got 9"),
        ({"batch_size": 0}, "got 0"),
        ({"batch_size": 8, "rank": 2, "world": 2}, "rank=2"),
        ({"batch_size": 4000}, "larger than the 1797 images"),
        ({"batch_size": 8, "views": 0}, "views must be >= 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            train_loader(digits, seed=0, **arguments)
    with pytest.raises(ValueError, match=r"start in 0 \.\. 14, got epoch=0, start=15"):
        train_loader(digits, batch_size=128, seed=0).epoch(0, 15)


def test_float16_tokens_are_widened_on_the_device():
    stored = torch.randn(2, 3, 4).half()
    batch = Batch(
        [stored], torch.zeros(2, dtype=torch.int64), torch.arange(2), torch.zeros(2, dtype=torch.bool)
    )
    assert batch.select(slice(1)).stored[0].dtype == torch.float16
    assert torch.equal(batch.views[0], stored.float())
