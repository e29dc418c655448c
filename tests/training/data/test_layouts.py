"""Small copies of the official layouts, made of hard links, read by our readers and by torchvision's."""

import json
import os
import pickle
import re
import shutil

import numpy as np
import pytest
import torchvision.datasets as tv
from layouts import BUILDERS, VARIANTS, Linker, cub_root, herbarium_root, imagenet_root, write_split
from scipy.io import savemat

from eagc_ops.training.data import SPECS, open_data, read_images, verify
from eagc_ops.training.data.catalog import imagenet100_wnids

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*has md5.*:UserWarning",
    "ignore:.*has sha256.*:UserWarning",
    "ignore:.*have no labelled image:UserWarning",  # the classes of these copies are small
)


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


# sizes, positions, labels --------------------------------------------------------------------------------

SIZES = {  # |L|, |U|, test part: the numbers that the official loaders gave on the same fixture
    "cifar10": (25, 75, 10),
    "cifar100": (600, 900, 100),
    "imagenet100": (75, 225, 100),
    "cub": (150, 450, 200),
    "scars": (147, 441, 196),
    "aircraft": (75, 225, 100),
    "herbarium19": (511, 1538, 683),
}
DRAWN_ORDER = {"cifar10", "cifar100", "imagenet100", "scars"}  # official loaders that keep L in drawn order


@pytest.mark.parametrize("name", SIZES)
def test_split_of_every_layout(built, name):
    root, split_file, order = built(name)
    data = open_data(name, root, split_file=split_file)
    images = read_images(name, root)
    assert (len(data.labelled), len(data.unlabelled), len(read_images(name, root, "test"))) == SIZES[name]
    assert (data.known, data.novel) == (SPECS[name].known, SPECS[name].novel)
    assert (data.image_size, data.channels) == (224, 3)

    # An independent oracle: the protocol, word for word, with numpy's global generator.
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

    for i in range(0, len(data.merged), 37):  # an item has the same position, label and flag, and is RGB
        image, label, uq_idx, labelled = data.merged[i]
        assert image.mode == "RGB"
        assert labelled == (i < len(data.labelled))
        assert label == order.index(images.targets[uq_idx])
        assert data.test_transform(image).shape == (3, 224, 224)


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(("name", "cls"), [("cifar10", tv.CIFAR10), ("cifar100", tv.CIFAR100)])
def test_cifar_equals_torchvision(built, name, cls, part):
    class Unchecked(cls):  # the fixture's files have a different md5
        train_list = [[file, None] for file, _ in cls.train_list]  # noqa: RUF012
        test_list = [[file, None] for file, _ in cls.test_list]  # noqa: RUF012
        meta = {**cls.meta, "md5": None}  # noqa: RUF012

    root = built(name)[0]
    theirs, ours = Unchecked(root, train=part == "train"), read_images(name, root, part)
    assert ours.targets.tolist() == theirs.targets
    assert np.array_equal(ours.source, theirs.data)
    assert np.array_equal(np.asarray(ours.image(3)), np.asarray(theirs[3][0]))


def test_aircraft_equals_torchvision_and_both_roots_work(built, tmp_path):
    root = built("aircraft")[0]
    (tmp_path / "fgvc-aircraft-2013b").symlink_to(root)
    ours, below = read_images("aircraft", root), read_images("aircraft", tmp_path)
    theirs = tv.FGVCAircraft(tmp_path, "trainval")
    assert ours.targets.tolist() == below.targets.tolist() == theirs._labels
    assert below.source == theirs._image_files
    assert "the root itself" in ours.notes[0]
    assert "fgvc-aircraft-2013b, a folder inside the root" in below.notes[0]


@pytest.mark.parametrize("part", ["train", "test"])
def test_cars_equal_torchvision_and_both_roots_work(built, tmp_path, part):
    root, home = built("scars")[0], tmp_path / "stanford_cars"
    shutil.copytree(root, home, copy_function=os.link)
    labels = "cars_test_annos_withlabels.mat"  # torchvision wants it outside devkit; both places are read
    (home / "devkit" / labels).rename(home / labels)
    ours, below = read_images("scars", root, part), read_images("scars", tmp_path, part)
    theirs = tv.StanfordCars(tmp_path, part)
    assert list(zip(below.source, below.targets.tolist())) == theirs._samples
    assert ours.targets.tolist() == below.targets.tolist()


@pytest.mark.parametrize("name", ["cub", "cifar10", "cifar100"])
def test_the_archive_folder_itself_is_a_root_too(built, name):
    root = built(name)[0]
    inside = read_images(name, root / SPECS[name].inner)
    assert np.array_equal(inside.targets, read_images(name, root).targets)


def test_cub_order_is_that_of_images_txt(built, tmp_path):
    home = tmp_path / "CUB_200_2011"
    shutil.copytree(built("cub")[0] / "CUB_200_2011", home, copy_function=shutil.copy2)
    before = read_images("cub", tmp_path)
    lines = (home / "images.txt").read_text().splitlines()
    # The other two files keep their order: the three are joined on the id.
    (home / "images.txt").write_text("\n".join(reversed(lines)))
    after = read_images("cub", tmp_path)
    assert after.source == before.source[::-1]
    assert after.targets.tolist() == before.targets.tolist()[::-1]
    assert before.targets[0] == 0  # annotations count from 1


def test_herbarium_classes_are_lexicographic_ranks(built):
    root = built("herbarium19")[0]
    images = read_images("herbarium19", root)
    folders = [os.path.basename(os.path.dirname(path)) for path in images.source]
    assert dict(zip(folders, images.targets.tolist()))["10"] == 2
    data = open_data("herbarium19", root)
    labels = {
        int(i): int(y) for part in (data.labelled, data.unlabelled) for i, y in zip(part.uq_idx, part.labels)
    }
    assert labels[0] == 245  # the first image, folder "0"


def test_imagenet100_is_chosen_by_wnid(built, tmp_path, pictures):
    wnids = imagenet100_wnids()
    assert (wnids[0], wnids[49], wnids[50], wnids[99]) == ("n01443537", "n03017168", "n03026506", "n13052670")
    everything = open_data("imagenet100", built("imagenet100")[0])
    imagenet_root(tmp_path / "hundred", Linker(pictures), wnids)
    hundred = open_data("imagenet100", tmp_path / "hundred")
    assert hundred.split_hash == everything.split_hash
    assert [os.path.basename(p) for p in hundred.labelled.images.source] == [
        os.path.basename(p) for p in everything.labelled.images.source
    ]
    assert "1000 wnid folders" in everything.notes[1]


def test_a_different_imagenet100_is_refused(built, tmp_path, pictures):
    wnids = imagenet100_wnids()
    others = sorted(set(os.listdir(built("imagenet100")[0] / "train")) - set(wnids))[:93] + wnids[:7]
    imagenet_root(tmp_path / "others", Linker(pictures), others)
    report = verify("imagenet100", tmp_path / "others")
    assert not report.ok
    assert "has 100 folders and lacks 93 of the protocol's 100 wnids" in str(report)


# a folder of one's own, digits ---------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path, pictures):
    """A folder of one's own with 4 + 5 + 6 + 3 images."""
    link = Linker(pictures)
    for name, n in (("ant", 4), ("bee", 5), ("cat", 6), ("007", 3)):
        for i in range(n):
            link(tmp_path / "tree" / name / "deeper" / f"{i}.jpg")
    return tmp_path / "tree"


def test_folder_with_json_and_yaml(tree, tmp_path):
    (tmp_path / "split.json").write_text(
        json.dumps({"known_classes": ["cat", "ant"], "labelled_fraction": 0.3})
    )
    (tmp_path / "split.yaml").write_text("known_classes: [cat, ant]\nlabelled_fraction: 0.3\n")
    data = open_data("folder", tree, split_file=tmp_path / "split.json", image_size=32)
    assert (data.known, data.novel) == (2, 2)
    assert (len(data.labelled), len(data.unlabelled)) == (3, 15)  # int(0.3 * 10)
    names = [os.path.basename(os.path.dirname(os.path.dirname(p))) for p in data.labelled.images.source]
    for part in (data.labelled, data.unlabelled):
        assert part.labels.tolist() == [
            ["cat", "ant", "007", "bee"].index(names[i]) for i in part.uq_idx.tolist()
        ]
    assert data.train_transform(data.labelled[0][0]).shape == (3, 32, 32)
    assert open_data("folder", tree, split_file=tmp_path / "split.yaml").split_hash == data.split_hash
    assert verify("folder", tree, tmp_path / "split.yaml").ok


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("known_classes: [007, cat]", "in quotes"),
        ("known_classes: [dog]", "not among the folders: ['dog']"),
        ("known_classes: [cat, cat]", "each once"),
        ("known_classes: [cat, ant, bee, '007']", "not all"),
        ("known: [cat]", "'known_classes'"),
        ("known_classes: [cat\n", "cannot be parsed"),
        ("known_classes: [cat]\nlabelled_fraction: 1.5", "between 0 and 1, got 1.5"),
        ("known_classes: [cat]\nlabelled_fraction: 0.1", "none labelled"),
    ],
)
def test_a_wrong_split_of_a_folder_is_named(tree, tmp_path, content, message):
    (tmp_path / "bad.yaml").write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        open_data("folder", tree, split_file=tmp_path / "bad.yaml")


def test_a_folder_needs_a_split_file(tree):
    with pytest.raises(FileNotFoundError, match="known_classes"):
        open_data("folder", tree)
    alone = open_data("folder", tree, labelled_alone=True)
    assert (len(alone.labelled), len(alone.unlabelled)) == (len(alone.images), 0)
    assert (alone.known, alone.novel) == (len(alone.known_names), 0)


def test_digits():
    from sklearn.datasets import load_digits

    data, digits = open_data("digits"), load_digits()
    assert (data.known, data.novel, len(data.labelled), len(data.unlabelled)) == (5, 5, 450, 1347)
    assert (data.channels, data.image_size) == (1, 16)
    assert data.labelled.images.targets.tolist() == digits.target.tolist()
    for i in (0, 100, 1000):
        image, label, uq_idx = data.unlabelled[i]
        assert label == digits.target[uq_idx]
        assert np.array_equal(np.round(np.asarray(image) * (16 / 255)), digits.images[uq_idx])
    assert sorted(data.labelled.uq_idx.tolist() + data.unlabelled.uq_idx.tolist()) == list(range(1797))


def test_digits_have_no_root_and_no_test_part():
    with pytest.raises(ValueError, match="digits come with scikit-learn and have no root"):
        open_data("digits", "/tmp")
    with pytest.raises(ValueError, match="has no part 'test'"):
        read_images("digits", None, "test")


# faults of a root ----------------------------------------------------------------------------------------


@pytest.fixture
def whole_cub(tmp_path, pictures):
    """CUB with the published counts: 30 training images per class, 29 of three known and three novel ones."""
    order = write_split(tmp_path / "split.pkl", 100, 100)
    short = set(order[:3] + order[-3:])
    cub_root(tmp_path, Linker(pictures), lambda c: 30 - ((c - 1) in short), lambda c: 29 - (c <= 6))
    return tmp_path


def test_verify_accepts_a_root_with_the_published_counts(whole_cub):
    report = verify("cub", whole_cub, whole_cub / "split.pkl")
    assert report.ok, str(report)
    assert [line for line in report.lines if line.startswith("ok")] == [
        "ok: 5,994 training images",
        "ok: 5,994 files can be read (headers and ends read; --deep decodes all pixels)",
        "ok: 5,794 test images",
        "ok: 5,794 files can be read (headers and ends read; --deep decodes all pixels)",
        "ok: 100 known classes",
        "ok: 100 novel classes",
        "ok: 2,997 training images of known classes",
        "ok: 1,498 labelled (L)",
        "ok: 1,499 unlabelled, known class",
        "ok: 2,997 unlabelled, novel class",
        "ok: 4,496 unlabelled (U)",
    ]
    not_published = [line for line in report.lines if "48bdcaa05603d932" in line]  # the split file
    assert sum(line.startswith("warning") for line in not_published) == 1


def test_verify_names_missing_files(whole_cub):
    (whole_cub / "CUB_200_2011/images/001.Bird_1/Bird_0.jpg").unlink()
    report = verify("cub", whole_cub, whole_cub / "split.pkl")
    assert not report.ok
    assert any(
        line.startswith("WRONG: ") and line.endswith("001.Bird_1/Bird_0.jpg: No such file or directory")
        for line in report.lines
    )
    assert any(line.startswith("WRONG: 1 of 5,994 files cannot be read") for line in report.lines)
    (whole_cub / "CUB_200_2011/train_test_split.txt").unlink()
    report = verify("cub", whole_cub, whole_cub / "split.pkl")
    assert not report.ok
    assert "train_test_split.txt" in str(report)
    assert "Expected there: images/" in str(report)


def test_verify_checks_totals_without_a_split_file(built):
    report = verify("scars", built("scars")[0])
    assert not report.ok
    assert "WRONG: 588 training images, expected 8,144" in report.lines
    assert "scars_osr_splits.pkl" in str(report)
    assert "sgvaze/generalized-category-discovery" in str(report)


def test_verify_names_wrong_counts_and_changed_files(built):
    report = verify("cifar10", built("cifar10")[0])
    assert "WRONG: 25 labelled (L), expected 12,500" in report.lines
    assert sum("has md5" in line and "c99cafc152244af753f735de768cd75f" in line for line in report.lines) == 1


def test_verify_names_wrong_folders(tmp_path, pictures):
    herbarium_root(tmp_path / "padded", Linker(pictures), lambda c: f"{c:03d}")
    report = verify("herbarium19", tmp_path / "padded")
    assert not report.ok
    assert "not padded with zeros" in str(report)
    assert "100 unexpected (000, 001, 002, 003, 004), 100 missing (0, 1, 2, 3, 4)" in str(report)


@pytest.mark.parametrize("name", BUILDERS)
def test_verify_says_what_an_empty_root_must_hold(tmp_path, name):
    report = verify(name, tmp_path)
    assert not report.ok
    assert SPECS[name].layout in str(report)


def test_verify_names_a_missing_root_and_an_unknown_data_set(tmp_path):
    assert "is not a folder" in str(verify("aircraft", tmp_path / "nowhere"))
    assert "dataset must be one of cifar10" in str(verify("mnist", tmp_path))


def test_a_missing_test_part_is_no_error(built, tmp_path):
    shutil.copytree(built("aircraft")[0], tmp_path / "a", copy_function=os.link)
    (tmp_path / "a/data/images_variant_test.txt").unlink()
    assert len(open_data("aircraft", tmp_path / "a", split_file=built("aircraft")[1]).labelled) == 75
    report = verify("aircraft", tmp_path / "a", built("aircraft")[1])
    assert any(line.startswith("note: no test part") for line in report.lines)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.replace("1 1\n", "1\n", 1), "image_class_labels.txt, line 1"),
        (lambda text: text.replace("1 1\n", "", 1), "do not list the same image ids"),
        (
            lambda text: text.replace(" 200\n", " 201\n"),
            "1 of 200 classes have no training image (class indices 199)",
        ),
        (lambda text: text.replace(" 200\n", " x\n"), "'x'"),
        (lambda text: text + "1 1\n", "line 801"),
    ],
    ids=["no class", "no line", "wrong class", "no number", "id twice"],
)
def test_malformed_annotations_of_cub_are_named(built, tmp_path, damage, message):
    home = tmp_path / "CUB_200_2011"
    shutil.copytree(built("cub")[0] / "CUB_200_2011", home, copy_function=shutil.copy2)
    labels = home / "image_class_labels.txt"
    labels.write_text(damage(labels.read_text()))
    with pytest.raises(ValueError, match=re.escape(message)):
        read_images("cub", tmp_path)


def test_a_missing_variant_of_aircraft_is_named(built, tmp_path):
    shutil.copytree(built("aircraft")[0], tmp_path / "a", copy_function=shutil.copy2)
    file = tmp_path / "a/data/images_variant_trainval.txt"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if VARIANTS[0] not in line))
    with pytest.raises(ValueError, match="names 99 variants instead of 100"):
        read_images("aircraft", tmp_path / "a")


def test_malformed_annotations_of_cars_are_named(built, tmp_path):
    shutil.copytree(built("scars")[0] / "devkit", tmp_path / "s/devkit")
    without_class = np.zeros((1, 3), [("fname", object)])
    savemat(tmp_path / "s/devkit/cars_train_annos.mat", {"annotations": without_class})
    with pytest.raises(
        ValueError, match=r"cars_train_annos.mat has no readable 'annotations' with fields class"
    ):
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
