"""Known and novel classes, the labelled half, split files, and pickles that are refused."""

import dataclasses
import doctest
import hashlib
import importlib
import json
import os
import pickle
import re
import struct

import numpy as np
import pytest

from eagc_ops.training.data import SPECS, open_data
from eagc_ops.training.data.splits import ClassSplit, class_split, label_map, labelled_positions

GOLDEN = [  # n, first six, last three, sum of RandomState(0).permutation(n)[:n // 2]
    (25_000, [14149, 8946, 22378, 12162, 4879, 12710], [14868, 2999, 24074], 156100160),
    (40_000, [12836, 10913, 4214, 8198, 31403, 13917], [4547, 23545, 12688], 400327901),
    (63_720, [16563, 13750, 15328, 17120, 53706, 37066], [52122, 36739, 8635], 1015724201),
    (2_997, [1300, 263, 1948, 2116, 812, 1357], [2932, 1372, 2602], 2234274),
    (4_001, [2230, 668, 3617, 2363, 142, 538], [1301, 3903, 3702], 3967984),
    (3_332, [2063, 1185, 3064, 1357, 578, 1573], [986, 34, 690], 2738890),
    (17_739, [1985, 4019, 13494, 13067, 4202, 9197], [1778, 16626, 13886], 79128944),
    (1_885, [220, 506, 1758, 1678, 76, 27], [493, 1307, 601], 884550),
]


@pytest.mark.parametrize(("n", "first", "last", "total"), GOLDEN)
def test_labelled_half_golden(n, first, last, total):
    drawn, rest = labelled_positions(np.zeros(n, np.int64), ClassSplit((0,), (1,)), permuted=True)
    assert drawn[:6].tolist() == first
    assert drawn[-3:].tolist() == last
    assert drawn.sum() == total
    assert len(drawn) == n // 2
    ascending, _ = labelled_positions(np.zeros(n, np.int64), ClassSplit((0,), (1,)))
    assert ascending.tolist() == sorted(drawn.tolist())
    assert sorted(drawn.tolist() + rest.tolist()) == list(range(n))


@pytest.mark.parametrize(
    ("name", "labelled", "old", "new"),
    [
        ("cifar10", 12_500, 12_500, 25_000),
        ("cifar100", 20_000, 20_000, 10_000),
        ("imagenet100", 31_860, 31_860, 63_395),
        ("cub", 1_498, 1_499, 2_997),
        ("scars", 2_000, 2_001, 4_143),
        ("aircraft", 1_666, 1_666, 3_335),
        ("herbarium19", 8_869, 8_870, 16_486),
    ],
)
def test_published_sizes(name, labelled, old, new):
    spec = SPECS[name]
    targets = np.random.RandomState(1).permutation(np.repeat([0, 1], [spec.pool, spec.train - spec.pool]))
    L, U = labelled_positions(targets, ClassSplit((0,), (1,)))
    assert (len(L), int((targets[U] == 0).sum()), int((targets[U] == 1).sum())) == (labelled, old, new)
    assert (targets[L] == 0).all()
    assert U.tolist() == sorted(set(range(spec.train)) - set(L.tolist()))


def test_formula_splits():
    assert class_split("cifar100")[:2] == (tuple(range(80)), tuple(range(80, 100)))
    assert class_split("imagenet100")[:2] == (tuple(range(50)), tuple(range(50, 100)))
    assert class_split("digits")[:2] == ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
    herbarium = class_split("herbarium19")
    assert herbarium.known[:10] == (113, 378, 303, 504, 301, 490, 75, 491, 470, 558)
    assert herbarium.novel[:10] == (2, 4, 5, 9, 11, 13, 16, 19, 22, 23)
    assert (len(herbarium.known), len(herbarium.novel)) == (341, 342)
    with pytest.raises(ValueError, match=r"split_file x\.pkl: .* is a formula and reads no file"):
        class_split("cifar10", "x.pkl")


def test_label_map_follows_list_order():
    split = ClassSplit((4, 0, 2), (3, 1))
    assert [label_map(split)[c] for c in (4, 0, 2, 3, 1)] == [0, 1, 2, 3, 4]


def own_split(seed=2):
    classes = np.random.RandomState(seed).permutation(100).tolist()
    levels = {"Easy": classes[80:], "Hard": classes[50:60], "Medium": classes[60:80]}
    return classes, {
        "known_classes": classes[:50],
        "unknown_classes": levels,
        "closed_set_open_set_pairs": {"Easy": [(1, 2)]},
    }


def test_split_files_pickle_and_json_agree_and_digests_are_named(tmp_path):
    classes, content = own_split()
    (tmp_path / "own.pkl").write_bytes(pickle.dumps(content))
    (tmp_path / "own.json").write_text(json.dumps(content))
    digest = hashlib.sha256((tmp_path / "own.pkl").read_bytes()).hexdigest()
    with pytest.warns(
        UserWarning,
        match=f"{digest}, the published aircraft_osr_splits.pkl has {SPECS['aircraft'].split_sha256}",
    ):
        split = class_split("aircraft", tmp_path / "own.pkl")
    assert split.known == tuple(classes[:50])
    assert split.novel == tuple(classes[50:])  # Hard, Medium, Easy, although the file stores Easy first
    from_json = class_split("aircraft", tmp_path / "own.json")
    assert from_json[:2] == split[:2]
    assert "cannot be compared" in from_json.notes[0]


def test_a_file_with_the_expected_digest_gives_no_warning(tmp_path, monkeypatch, recwarn):
    (tmp_path / "own.pkl").write_bytes(pickle.dumps(own_split()[1]))
    digest = hashlib.sha256((tmp_path / "own.pkl").read_bytes()).hexdigest()
    monkeypatch.setitem(SPECS, "aircraft", dataclasses.replace(SPECS["aircraft"], split_sha256=digest))
    class_split("aircraft", tmp_path / "own.pkl")
    assert len(recwarn) == 0


def test_herbarium_file_with_numpy_integers(tmp_path):
    order = np.random.RandomState(9).permutation(683)
    raw = pickle.dumps({"Old": list(order[:341]), "New": order[341:].tolist()}, protocol=3)
    assert b"numpy._core.multiarray\nscalar" in raw or b"numpy.core.multiarray\nscalar" in raw
    by_numpy_1 = raw.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n")
    (tmp_path / "h.pkl").write_bytes(by_numpy_1)
    with pytest.warns(UserWarning, match=SPECS["herbarium19"].split_sha256):
        split = class_split("herbarium19", tmp_path / "h.pkl")
    assert split.known + split.novel == tuple(order.tolist())
    assert all(type(c) is int for c in split.known)
    # What Herbarium19 may name, the others may not.
    (tmp_path / "a.pkl").write_bytes((tmp_path / "h.pkl").read_bytes())
    with pytest.raises(ValueError, match=r"it names numpy\.core\.multiarray\.scalar"):
        class_split("aircraft", tmp_path / "a.pkl")


@pytest.mark.parametrize("name", ["aircraft", "herbarium19"])
@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, name, protocol):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    classes, content = own_split()
    (tmp_path / "evil.pkl").write_bytes(
        pickle.dumps({**content, "Old": classes, "New": Evil()}, protocol=protocol)
    )
    with pytest.raises(ValueError, match=r"names \w+\.mkdir"):
        class_split(name, tmp_path / "evil.pkl")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "payload",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nload\n.",
    ],
)
def test_builtins_are_refused_too(tmp_path, payload):
    (tmp_path / "x.pkl").write_bytes(payload)
    with pytest.raises(ValueError, match="it names"):
        class_split("herbarium19", tmp_path / "x.pkl")


CLASSES, CONTENT = own_split()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**CONTENT, "known_classes": CLASSES[:49]}, "lists 49 known and 50 novel"),
        ({**CONTENT, "known_classes": [*CLASSES[:49], CLASSES[0]]}, "each once"),
        ({**CONTENT, "known_classes": ["1"] * 50}, "integer lists"),
        ({**CONTENT, "known_classes": [True] * 50}, "integer lists"),
        ({"known": CLASSES}, "KeyError('known_classes')"),
        (CLASSES, "does not have the keys"),
    ],
    ids=["short", "twice", "text", "true", "keys", "list"],
)
def test_a_wrong_split_file_is_named(tmp_path, content, message):
    (tmp_path / "wrong.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        class_split("aircraft", tmp_path / "wrong.json")
    assert "wrong.json" in str(error.value)


def test_a_damaged_or_foreign_split_file_is_named(tmp_path):
    (tmp_path / "cut.pkl").write_bytes(pickle.dumps(CONTENT)[:50])
    with pytest.raises(ValueError, match=r"cut\.pkl is refused or damaged"):
        class_split("aircraft", tmp_path / "cut.pkl")
    (tmp_path / "x.txt").write_text("text")
    with pytest.raises(
        ValueError, match=r"x\.txt must end in \.pkl, \.json: .* needs aircraft_osr_splits\.pkl"
    ):
        class_split("aircraft", tmp_path / "x.txt")
    (tmp_path / "x.json").write_text("")
    with pytest.raises(ValueError, match=r"x\.json is empty \(0 bytes\)"):
        class_split("aircraft", tmp_path / "x.json")


@pytest.mark.parametrize(
    ("name", "file"), [("cub", None), ("scars", "absent.pkl"), ("aircraft", "absent.pkl")]
)
def test_a_missing_split_file_is_named_with_its_publisher(tmp_path, name, file):
    publisher = "sgvaze/generalized-category-discovery.*data/ssb_splits"
    with pytest.raises(FileNotFoundError, match=rf"{name}_osr_splits\.pkl.*Semantic Shift.*{publisher}"):
        class_split(name, file and tmp_path / file)


def test_split_hash_covers_positions_and_label_map():
    data = open_data("digits")
    digest = hashlib.sha256()
    for part in (data.labelled.uq_idx.tolist(), data.unlabelled.uq_idx.tolist(), range(5), range(5, 10)):
        digest.update(struct.pack(f"<q{len(part)}q", len(part), *part))
    assert data.split_hash == digest.hexdigest()
    assert data.split_hash.startswith("9ef042a580342282")  # the same on every machine


@pytest.mark.parametrize(
    "module", ["", *(f".{m}" for m in ("catalog", "gcd", "loaders", "pickles", "splits", "verification"))]
)
def test_examples_of_the_documentation(module):
    result = doctest.testmod(importlib.import_module(f"eagc_ops.training.data{module}"))
    assert result.attempted > 0
    assert result.failed == 0
