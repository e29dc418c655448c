"""Small copies of the official layouts, made of hard-linked images, read by the real readers and by torchvision's classes."""

import io
import json
import os
import pickle
import shutil

import numpy as np
import pytest
import torchvision.datasets as tv
from PIL import Image
from scipy.io import savemat

from eagc_ops.training.data import SPECS, open_data, read_images, verify
from eagc_ops.training.data.catalog import imagenet100_wnids

pytestmark = pytest.mark.filterwarnings("ignore:.*has md5.*:UserWarning", "ignore:.*has sha256.*:UserWarning")


# ---- the fixture: images of several sizes and modes, and one root per dataset --------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.RandomState(3)
    for i, (mode, size) in enumerate([("RGB", (40, 30)), ("RGB", (30, 44)), ("L", (33, 33)), ("CMYK", (37, 50)), ("P", (40, 31))]):
        pixels = Image.fromarray(rng.randint(0, 256, (size[1], size[0], 3), np.uint8))
        pixels.convert(mode).save(folder / f"{i}", "PNG" if mode == "P" else "JPEG")  # a palette image: PNG under a .jpg name
    return sorted(folder.iterdir())


class Linker:
    def __init__(self, pictures):
        self.pictures, self.count = pictures, 0

    def __call__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(self.pictures[self.count % len(self.pictures)], path)
        self.count += 1


class Python2Pickler(pickle._Pickler):
    """Writes str and bytes as Python 2 did (and numpy names as numpy 1 did), the format of the official CIFAR files."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_string(self, value):
        raw = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + len(raw).to_bytes(4, "little") + raw)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(value):
    out = io.BytesIO()
    Python2Pickler(out, protocol=2).dump(value)
    return out.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def partition(known, novel, seed):
    """An unsorted class split of our own, stored Easy first like one of the published files."""
    classes = np.random.RandomState(seed).permutation(known + novel).tolist()
    rest, third = classes[known:], novel // 3
    levels = {"Easy": rest[2 * third :], "Medium": rest[third : 2 * third], "Hard": rest[:third]}
    return {"known_classes": classes[:known], "unknown_classes": levels}


def class_order(split):
    return split["known_classes"] + [c for level in ("Hard", "Medium", "Easy") for c in split["unknown_classes"][level]]


def write_split(path, known, novel, seed=5):
    split = partition(known, novel, seed)
    path.write_bytes(pickle.dumps(split))
    return class_order(split)


def cifar10_root(root, link):
    home = root / "cifar-10-batches-py"
    home.mkdir(parents=True)
    rng = np.random.RandomState(1)
    for b, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        n = 10 if name == "test_batch" else 20
        entry = {"data": rng.randint(0, 256, (n, 3072), np.uint8), "labels": [(b + t) % 10 for t in range(n)]}
        (home / name).write_bytes(python2_pickle(entry) if b % 2 else pickle.dumps(entry, protocol=4))
    (home / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}))


def cifar100_root(root, link):
    home = root / "cifar-100-python"
    home.mkdir(parents=True)
    for name, n in (("train", 1500), ("test", 100)):
        pixels = np.random.RandomState(n).randint(0, 256, (n, 3072), np.uint8)
        (home / name).write_bytes(python2_pickle({"data": pixels, "fine_labels": [37 * t % 100 for t in range(n)]}))
    (home / "meta").write_bytes(pickle.dumps({"fine_label_names": [str(i) for i in range(100)]}))


def imagenet_root(root, link, wnids=None):
    from timm.data import ImageNetInfo

    for wnid in wnids or ImageNetInfo("imagenet-1k").label_names():
        for i in range(3):
            link(root / "train" / wnid / f"{wnid}_{i}.JPEG")
        link(root / "val" / wnid / "val.JPEG")


def cub_root(root, link, train=lambda c: 3, test=lambda c: 1):
    home, lines = root / "CUB_200_2011", []
    for c in range(1, 201):
        for i in range(train(c) + test(c)):
            path = f"{c:03d}.Bird_{c}/Bird_{i}.jpg"
            link(home / "images" / path)
            lines.append((path, c, int(i < train(c))))
    for file, column in (("images.txt", 0), ("image_class_labels.txt", 1), ("train_test_split.txt", 2)):
        (home / file).write_text("".join(f"{n} {line[column]}\n" for n, line in enumerate(lines, 1)))


def scars_root(root, link):
    fields = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname"]
    (root / "devkit").mkdir(parents=True)
    for part, n, file in (("train", 588, "cars_train_annos.mat"), ("test", 196, "cars_test_annos_withlabels.mat")):
        rows = np.zeros((1, n), [(field, object) for field in fields])
        for t in range(n):
            name = f"{t + 1:05d}.jpg"
            rows[0, t] = (*[np.array([[v]], np.uint16) for v in (1, 2, 30, 20)], np.array([[5 * t % 196 + 1]], np.uint8), name)
            link(root / f"cars_{part}" / name)
        savemat(root / "devkit" / file, {"annotations": rows})
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": np.array([[f"Car {i}" for i in range(196)]], object)})


VARIANTS = [*(f"Type {i}-{j}/Mk {k}" for i in range(7, 12) for j in (1, 10) for k in "ab"), *(f"{i}-{900 - i}" for i in range(80))]


def aircraft_root(root, link):
    data = root / "data"
    data.mkdir(parents=True)
    (data / "variants.txt").write_text("".join(f"{v}\n" for v in sorted(VARIANTS)))
    number = 1_000_000
    for part, repeats in (("trainval", 3), ("test", 1)):
        lines = []
        for variant in VARIANTS * repeats:
            lines.append(f"{number:07d} {variant}\n")
            link(data / "images" / f"{number:07d}.jpg")
            number += 1
        (data / f"images_variant_{part}.txt").write_text("".join(lines))


def herbarium_root(root, link, folder=str):
    for c in range(683):
        for i in range(3):
            link(root / "small-train" / folder(c) / f"{c}_{i}.jpg")
        link(root / "small-validation" / folder(c) / f"{c}_v.jpg")


BUILDERS = {
    "cifar10": cifar10_root, "cifar100": cifar100_root, "imagenet100": imagenet_root, "cub": cub_root, "scars": scars_root,
    "aircraft": aircraft_root, "herbarium19": herbarium_root,
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory, pictures):
    """built(name) -> (root, split file or None, class order or None), made once per test run."""
    cache = {}

    def build(name):
        if name not in cache:
            base = tmp_path_factory.mktemp(name)
            BUILDERS[name](base / "root", Linker(pictures))
            file = order = None
            if name in ("cub", "scars", "aircraft"):
                file = base / "split.pkl"
                order = write_split(file, SPECS[name].known, SPECS[name].novel)
            cache[name] = base / "root", file, order
        return cache[name]

    return build


# ---- sizes, positions, labels ------------------------------------------------------------------------------------------

SIZES = {  # |L|, |U|, test: what the official loaders gave on the same fixture
    "cifar10": (25, 75, 10), "cifar100": (600, 900, 100), "imagenet100": (75, 225, 100), "cub": (150, 450, 200), "scars": (147, 441, 196),
    "aircraft": (75, 225, 100), "herbarium19": (511, 1538, 683),
}  # fmt: skip
DRAWN_ORDER = {"cifar10", "cifar100", "imagenet100", "scars"}  # official loaders that keep L in drawn order


@pytest.mark.parametrize("name", SIZES)
def test_split_of_every_layout(built, name):
    root, split_file, order = built(name)
    data = open_data(name, root, split_file=split_file)
    images = read_images(name, root)
    assert (len(data.labelled), len(data.unlabelled), len(read_images(name, root, "test"))) == SIZES[name]
    assert (data.known, data.novel, data.image_size, data.channels) == (SPECS[name].known, SPECS[name].novel, 224, 3)

    # An oracle of its own: the protocol's own words, with numpy's global generator.
    if order is None:
        order = list(range(data.known + data.novel))
        if name == "herbarium19":
            order = np.random.RandomState(0).choice(683, 341, replace=False).tolist()
            order += [c for c in range(683) if c not in set(order)]
    known = set(order[: data.known])
    pool = [i for i, target in enumerate(images.targets.tolist()) if target in known]
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002 - the official rule
    expected = [pool[s] for s in np.random.choice(range(len(pool)), int(0.5 * len(pool)), replace=False)]  # noqa: NPY002
    np.random.set_state(state)  # noqa: NPY002
    if name not in DRAWN_ORDER:
        expected = sorted(expected)
    assert data.labelled.uq_idx.tolist() == expected
    assert data.unlabelled.uq_idx.tolist() == [i for i in range(len(images)) if i not in set(expected)]
    for part in (data.labelled, data.unlabelled):
        assert part.labels.tolist() == [order.index(images.targets[i]) for i in part.uq_idx.tolist()]
    assert int(data.labelled.labels.max()) < data.known

    for i in range(0, len(data.merged), 37):  # items: the same position, label and flag; decoded to RGB whatever the file's mode
        image, label, uq_idx, labelled = data.merged[i]
        assert image.mode == "RGB"
        assert labelled == (i < len(data.labelled))
        assert label == order.index(images.targets[uq_idx])
        assert data.test_transform(image).shape == (3, 224, 224)


def test_cifar_equals_torchvision(built):
    for name, cls in (("cifar10", tv.CIFAR10), ("cifar100", tv.CIFAR100)):
        unchecked = type("Unchecked", (cls,), {
            "train_list": [[f, None] for f, _ in cls.train_list], "test_list": [[f, None] for f, _ in cls.test_list],
            "meta": {**cls.meta, "md5": None},
        })  # fmt: skip
        for part in ("train", "test"):
            theirs, ours = unchecked(built(name)[0], train=part == "train"), read_images(name, built(name)[0], part)
            assert ours.targets.tolist() == theirs.targets
            assert np.array_equal(ours.source, theirs.data)
            assert np.array_equal(np.asarray(ours.image(3)), np.asarray(theirs[3][0]))


def test_aircraft_and_cars_equal_torchvision_and_both_roots_work(built, tmp_path):
    root = built("aircraft")[0]
    (tmp_path / "fgvc-aircraft-2013b").symlink_to(root)
    ours, below = read_images("aircraft", root), read_images("aircraft", tmp_path)
    theirs = tv.FGVCAircraft(tmp_path, "trainval")
    assert ours.targets.tolist() == below.targets.tolist() == theirs._labels
    assert below.source == theirs._image_files
    assert "the given root itself" in ours.notes[0]
    assert "fgvc-aircraft-2013b, a folder of the given root" in below.notes[0]

    root = built("scars")[0]
    shutil.copytree(root, tmp_path / "stanford_cars", copy_function=os.link)
    (tmp_path / "stanford_cars/devkit/cars_test_annos_withlabels.mat").rename(tmp_path / "stanford_cars/cars_test_annos_withlabels.mat")
    for part in ("train", "test"):
        ours, below = read_images("scars", root, part), read_images("scars", tmp_path, part)
        theirs = tv.StanfordCars(tmp_path, part)
        assert list(zip(below.source, below.targets.tolist())) == theirs._samples
        assert ours.targets.tolist() == below.targets.tolist()


def test_the_archive_folder_itself_is_a_root_too(built):
    for name in ("cub", "cifar10", "cifar100"):
        root = built(name)[0]
        assert np.array_equal(read_images(name, root / SPECS[name].inner).targets, read_images(name, root).targets)


def test_cub_order_is_that_of_images_txt(built, tmp_path):
    home = tmp_path / "CUB_200_2011"
    shutil.copytree(built("cub")[0] / "CUB_200_2011", home, copy_function=shutil.copy2)
    before = read_images("cub", tmp_path)
    lines = (home / "images.txt").read_text().splitlines()
    (home / "images.txt").write_text("\n".join(reversed(lines)))  # the other two files keep their order: joined on the id
    after = read_images("cub", tmp_path)
    assert after.source == before.source[::-1]
    assert after.targets.tolist() == before.targets.tolist()[::-1]
    assert before.targets[0] == 0  # annotations count from 1


def test_herbarium_classes_are_lexicographic_ranks(built):
    root = built("herbarium19")[0]
    images = read_images("herbarium19", root)
    assert {os.path.basename(os.path.dirname(p)): t for p, t in zip(images.source, images.targets.tolist())}["10"] == 2
    data = open_data("herbarium19", root)
    labels = {int(i): int(y) for part in (data.labelled, data.unlabelled) for i, y in zip(part.uq_idx, part.labels)}
    assert labels[0] == 245  # the first image, folder "0"


def test_imagenet100_is_chosen_by_wnid(built, tmp_path, pictures):
    wnids = imagenet100_wnids()
    assert (wnids[0], wnids[49], wnids[50], wnids[99]) == ("n01443537", "n03017168", "n03026506", "n13052670")
    everything = open_data("imagenet100", built("imagenet100")[0])
    imagenet_root(tmp_path / "hundred", Linker(pictures), wnids)
    hundred = open_data("imagenet100", tmp_path / "hundred")
    assert hundred.split_hash == everything.split_hash
    assert [os.path.basename(p) for p in hundred.labelled.images.source] == [os.path.basename(p) for p in everything.labelled.images.source]
    assert "1000 wnid folders" in everything.notes[1]

    others = sorted(set(os.listdir(built("imagenet100")[0] / "train")) - set(wnids))[:93] + wnids[:7]
    imagenet_root(tmp_path / "others", Linker(pictures), others)
    report = verify("imagenet100", tmp_path / "others")
    assert not report.ok
    assert "has 100 folders and lacks 93 of the protocol's 100 wnids" in str(report)


# ---- a folder of one's own, digits -----------------------------------------------------------------------------------


def test_folder_with_json_and_yaml(tmp_path, pictures):
    link = Linker(pictures)
    for name, n in (("ant", 4), ("bee", 5), ("cat", 6), ("007", 3)):
        for i in range(n):
            link(tmp_path / "tree" / name / "deeper" / f"{i}.jpg")
    (tmp_path / "split.json").write_text(json.dumps({"known_classes": ["cat", "ant"], "labelled_fraction": 0.3}))
    (tmp_path / "split.yaml").write_text("known_classes: [cat, ant]\nlabelled_fraction: 0.3\n")
    data = open_data("folder", tmp_path / "tree", split_file=tmp_path / "split.json", image_size=32)
    assert (data.known, data.novel, len(data.labelled), len(data.unlabelled)) == (2, 2, 3, 15)  # int(0.3 * 10)
    names = [os.path.basename(os.path.dirname(os.path.dirname(p))) for p in data.labelled.images.source]
    for part in (data.labelled, data.unlabelled):
        assert part.labels.tolist() == [["cat", "ant", "007", "bee"].index(names[i]) for i in part.uq_idx.tolist()]
    assert data.train_transform(data.labelled[0][0]).shape == (3, 32, 32)
    assert open_data("folder", tmp_path / "tree", split_file=tmp_path / "split.yaml").split_hash == data.split_hash
    assert verify("folder", tmp_path / "tree", tmp_path / "split.yaml").ok

    for content, message in (
        ("known_classes: [007, cat]", "in quotes"),
        ("known_classes: [dog]", "not found: ['dog']"),
        ("known_classes: [cat, cat]", "each once"),
        ("known_classes: [cat, ant, bee, '007']", "not all"),
        ("known: [cat]", "'known_classes'"),
        ("known_classes: [cat\n", "cannot be parsed"),
        ("known_classes: [cat]\nlabelled_fraction: 1.5", "between 0 and 1, got 1.5"),
        ("known_classes: [cat]\nlabelled_fraction: 0.1", "none labelled"),
    ):
        (tmp_path / "bad.yaml").write_text(content)
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is checked below
            open_data("folder", tmp_path / "tree", split_file=tmp_path / "bad.yaml")
        assert message in str(error.value)
    with pytest.raises(FileNotFoundError, match="known_classes"):
        open_data("folder", tmp_path / "tree")


def test_digits():
    from sklearn.datasets import load_digits

    data, digits = open_data("digits"), load_digits()
    assert (data.known, data.novel, len(data.labelled), len(data.unlabelled), data.channels, data.image_size) == (5, 5, 450, 1347, 1, 16)
    assert data.labelled.images.targets.tolist() == digits.target.tolist()
    for i in (0, 100, 1000):
        image, label, uq_idx = data.unlabelled[i]
        assert label == digits.target[uq_idx]
        assert np.array_equal(np.round(np.asarray(image) * (16 / 255)), digits.images[uq_idx])
    assert sorted(data.labelled.uq_idx.tolist() + data.unlabelled.uq_idx.tolist()) == list(range(1797))
    with pytest.raises(ValueError, match="have no root"):
        open_data("digits", "/tmp")
    with pytest.raises(ValueError, match="has no part 'test'"):
        read_images("digits", None, "test")


# ---- what is wrong with a root ------------------------------------------------------------------------------------------


def test_verify_accepts_a_root_with_the_published_counts(tmp_path, pictures):
    order = write_split(tmp_path / "split.pkl", 100, 100)
    short = set(order[:3] + order[-3:])  # 30 training images per class, 29 for three known and three novel ones: 5,994, pool 2,997
    cub_root(tmp_path, Linker(pictures), lambda c: 30 - ((c - 1) in short), lambda c: 29 - (c <= 6))
    report = verify("cub", tmp_path, tmp_path / "split.pkl")
    assert report.ok, str(report)
    assert [line for line in report.lines if line.startswith("ok")] == [
        "ok: 5,994 training images", "ok: 5,794 test images", "ok: 100 known classes", "ok: 100 novel classes",
        "ok: 2,997 training images of known classes", "ok: 1,498 labelled (L)", "ok: 1,499 unlabelled, known class",
        "ok: 2,997 unlabelled, novel class", "ok: 4,496 unlabelled (U)",
    ]  # fmt: skip
    assert sum(line.startswith("warning") and "48bdcaa05603d932" in line for line in report.lines) == 1  # not the published split file

    (tmp_path / "CUB_200_2011/images/001.Bird_1/Bird_0.jpg").unlink()
    report = verify("cub", tmp_path, tmp_path / "split.pkl")
    assert not report.ok
    assert any(line.startswith("WRONG: 1 listed images are missing") and "001.Bird_1/Bird_0.jpg" in line for line in report.lines)
    (tmp_path / "CUB_200_2011/train_test_split.txt").unlink()
    report = verify("cub", tmp_path, tmp_path / "split.pkl")
    assert not report.ok
    assert "train_test_split.txt" in str(report)
    assert "Expected there: images/" in str(report)


def test_verify_names_what_is_wrong(built, tmp_path, pictures):
    report = verify("scars", built("scars")[0])  # no split file: totals are checked all the same
    assert not report.ok
    assert "WRONG: 588 training images, expected 8,144" in report.lines
    assert "scars_osr_splits.pkl" in str(report)
    assert "sgvaze/generalized-category-discovery" in str(report)

    report = verify("cifar10", built("cifar10")[0])
    assert "WRONG: 25 labelled (L), expected 12,500" in report.lines
    assert sum("has md5" in line and "c99cafc152244af753f735de768cd75f" in line for line in report.lines) == 1

    herbarium_root(tmp_path / "padded", Linker(pictures), lambda c: f"{c:03d}")
    report = verify("herbarium19", tmp_path / "padded")
    assert not report.ok
    assert "not padded with zeros" in str(report)
    assert "100 unexpected (000, 001, 002, 003, 004), 100 missing (0, 1, 2, 3, 4)" in str(report)

    assert "is not a folder" in str(verify("aircraft", tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    for name in BUILDERS:
        report = verify(name, tmp_path / "empty")
        assert not report.ok
        assert SPECS[name].layout in str(report)
    assert "choose one of cifar10" in str(verify("mnist", tmp_path))


def test_a_missing_test_part_is_no_error(built, tmp_path):
    shutil.copytree(built("aircraft")[0], tmp_path / "a", copy_function=os.link)
    (tmp_path / "a/data/images_variant_test.txt").unlink()
    assert len(open_data("aircraft", tmp_path / "a", split_file=built("aircraft")[1]).labelled) == 75
    assert any(line.startswith("note: no test part") for line in verify("aircraft", tmp_path / "a", built("aircraft")[1]).lines)


def test_malformed_annotations_are_named(built, tmp_path):
    home = tmp_path / "cub/CUB_200_2011"
    shutil.copytree(built("cub")[0] / "CUB_200_2011", home, copy_function=shutil.copy2)
    labels = (home / "image_class_labels.txt").read_text()
    for text, message in (
        (labels.replace("1 1\n", "1\n", 1), "image_class_labels.txt, line 1"),
        (labels.replace("1 1\n", "", 1), "do not list the same image ids"),
        (labels.replace(" 200\n", " 201\n"), "1 of 200 classes have no training image (class indices 199)"),
        (labels.replace(" 200\n", " x\n"), "'x'"), (labels + "1 1\n", "line 801"),
    ):  # fmt: skip
        (home / "image_class_labels.txt").write_text(text)
        with pytest.raises(ValueError) as error:  # noqa: PT011
            read_images("cub", tmp_path / "cub")
        assert message in str(error.value)

    shutil.copytree(built("aircraft")[0], tmp_path / "a", copy_function=shutil.copy2)
    file = tmp_path / "a/data/images_variant_trainval.txt"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if VARIANTS[0] not in line))
    with pytest.raises(ValueError, match="names 99 variants instead of 100"):
        read_images("aircraft", tmp_path / "a")

    shutil.copytree(built("scars")[0] / "devkit", tmp_path / "s/devkit")
    savemat(tmp_path / "s/devkit/cars_train_annos.mat", {"annotations": np.zeros((1, 3), [("fname", object)])})  # no class field
    with pytest.raises(ValueError, match=r"cars_train_annos.mat has no readable 'annotations' with fields class"):
        read_images("scars", tmp_path / "s")


def test_cifar_pickles_are_not_run(built, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    shutil.copytree(built("cifar100")[0], tmp_path / "c", copy_function=shutil.copy2)
    (tmp_path / "c/cifar-100-python/train").write_bytes(pickle.dumps({"data": Evil(), "fine_labels": []}))
    with pytest.raises(ValueError, match="mkdir"):
        open_data("cifar100", tmp_path / "c")
    assert not (tmp_path / "executed").exists()


def test_a_damaged_image_is_named(tmp_path, pictures):
    for name in ("a", "b"):
        Linker(pictures)(tmp_path / "tree" / name / "0.jpg")
        (tmp_path / "tree" / name / "1.jpg").write_bytes(pictures[0].read_bytes()[:200])
    (tmp_path / "s.json").write_text('{"known_classes": ["a"]}')
    data = open_data("folder", tmp_path / "tree", split_file=tmp_path / "s.json")
    with pytest.raises(OSError, match=r"cannot read the image .*b/1\.jpg"):
        data.unlabelled[len(data.unlabelled) - 1]
