"""Small copies of the official data set layouts, made of hard-linked images of several sizes and modes."""

import io
import os
import pickle

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.RandomState(3)
    for i, (mode, size) in enumerate(
        [("RGB", (40, 30)), ("RGB", (30, 44)), ("L", (33, 33)), ("CMYK", (37, 50)), ("P", (40, 31))]
    ):
        pixels = Image.fromarray(rng.randint(0, 256, (size[1], size[0], 3), np.uint8))
        pixels.convert(mode).save(
            folder / f"{i}", "PNG" if mode == "P" else "JPEG"
        )  # a palette image: PNG under a .jpg name
    return sorted(folder.iterdir())


class Linker:
    def __init__(self, pictures):
        self.pictures, self.count = pictures, 0

    def __call__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(self.pictures[self.count % len(self.pictures)], path)
        self.count += 1


class Python2Pickler(pickle._Pickler):
    """Writes str and bytes as Python 2 did (and numpy names as numpy 1 did), the format of the official CIFAR
    files.
    """

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
    return split["known_classes"] + [
        c for level in ("Hard", "Medium", "Easy") for c in split["unknown_classes"][level]
    ]


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
        (home / name).write_bytes(
            python2_pickle({"data": pixels, "fine_labels": [37 * t % 100 for t in range(n)]})
        )
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
    for part, n, file in (
        ("train", 588, "cars_train_annos.mat"),
        ("test", 196, "cars_test_annos_withlabels.mat"),
    ):
        rows = np.zeros((1, n), [(field, object) for field in fields])
        for t in range(n):
            name = f"{t + 1:05d}.jpg"
            rows[0, t] = (
                *[np.array([[v]], np.uint16) for v in (1, 2, 30, 20)],
                np.array([[5 * t % 196 + 1]], np.uint8),
                name,
            )
            link(root / f"cars_{part}" / name)
        savemat(root / "devkit" / file, {"annotations": rows})
    savemat(
        root / "devkit" / "cars_meta.mat",
        {"class_names": np.array([[f"Car {i}" for i in range(196)]], object)},
    )


VARIANTS = [
    *(f"Type {i}-{j}/Mk {k}" for i in range(7, 12) for j in (1, 10) for k in "ab"),
    *(f"{i}-{900 - i}" for i in range(80)),
]


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
    "cifar10": cifar10_root,
    "cifar100": cifar100_root,
    "imagenet100": imagenet_root,
    "cub": cub_root,
    "scars": scars_root,
    "aircraft": aircraft_root,
    "herbarium19": herbarium_root,
}
