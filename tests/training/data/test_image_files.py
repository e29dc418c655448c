"""Image files of every kind and damage: what is read, what is refused, and the list of those left out."""

import io
import json
import os
import warnings

import numpy as np
import pytest
from PIL import Image, ImageOps

from eagc_ops.training.data import open_data, verify
from eagc_ops.training.data.image_files import (
    ImageError,
    image_size,
    inspect,
    read_image,
    read_list,
    write_list,
)
from eagc_ops.training.data.loaders import train_loader

FORMATS = [
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("PNG", {}),
    ("BMP", {}),
    ("WEBP", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("PPM", {}),
]


def picture(mode="RGB", size=(40, 30), seed=0):
    pixels = np.random.RandomState(seed).randint(0, 256, (6, 6, 3)).astype(np.uint8)
    return Image.fromarray(pixels).resize(size, Image.BICUBIC).convert(mode)


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("orientation", [*range(1, 9), 77])
def test_upright_is_as_people_see_it(tmp_path, orientation):
    """As PIL's own function turns it; without `upright` it stays as it was stored.

    A TIFF file is turned by PIL itself as it is read, and must not be turned once more.
    """
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("a.png", "a.tif"):
        picture().save(tmp_path / name, exif=exif)
    with Image.open(tmp_path / "a.png") as image:
        seen = ImageOps.exif_transpose(image).convert("RGB")
    for path in map(str, (tmp_path / "a.png", tmp_path / "a.tif")):
        assert np.array_equal(np.asarray(read_image(path, upright=True)), np.asarray(seen))
        assert image_size(path, upright=True) == seen.size
    assert np.array_equal(np.asarray(read_image(str(tmp_path / "a.png"))), np.asarray(picture()))


# Reading ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")  # PIL's own remarks on damaged TIFF tags
@pytest.mark.parametrize(("form", "options"), FORMATS)
def test_a_file_that_was_cut_off_is_never_half_read(tmp_path, form, options):
    """Cut anywhere, a file is refused by reading and by inspection, or all its pixels are there."""
    content, path = encoded(picture(), form, **options), str(tmp_path / "image.dat")
    whole = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    size = len(content)
    refused = 0
    for cut in [*range(0, size, max(1, size // 12)), *range(size - 4, size), size]:
        with open(path, "wb") as file:
            file.write(content[:cut])
        found = inspect([path])
        try:
            pixels = read_image(path)
        except ImageError:
            refused += 1
            assert list(found.unreadable) == [path], cut
        else:
            assert np.array_equal(np.asarray(pixels), whole), cut
            assert found.unreadable == {}
    assert refused >= 12


def test_pixels_of_every_mode(tmp_path):
    def read(image, form="PNG"):
        path = tmp_path / "image"
        path.write_bytes(encoded(image, form))
        return np.asarray(read_image(str(path)))

    grey = np.asarray(picture("L"))
    assert np.array_equal(read(Image.fromarray(grey)), np.repeat(grey[:, :, None], 3, 2))
    # 16 bits: PIL's conversion would make everything above 255 white
    deep = grey.astype(np.uint16) * 256 + 77
    assert np.array_equal(read(Image.fromarray(deep)), np.repeat(grey[:, :, None], 3, 2))
    assert np.array_equal(read(Image.fromarray(deep), "TIFF"), np.repeat(grey[:, :, None], 3, 2))
    assert np.array_equal(
        read(Image.fromarray(deep.astype(">u2")), "TIFF"), np.repeat(grey[:, :, None], 3, 2)
    )
    for mode in ("1", "LA", "P", "RGBA"):  # transparency is dropped
        image = picture(mode)
        if "A" in mode:
            image.putalpha(Image.linear_gradient("L").resize(image.size))
        assert np.array_equal(read(image), np.asarray(image.convert("RGB"))), mode
    cmyk = picture("CMYK")
    assert np.array_equal(read(cmyk, "TIFF"), np.asarray(cmyk.convert("RGB")))
    for pixels in (deep.astype(np.int32), deep.astype(np.float32)):
        with pytest.raises(ImageError, match=r"32 bits per pixel .* have no fixed range; store 8 or 16"):
            read(Image.fromarray(pixels), "TIFF")


def test_the_exif_orientation_is_ignored(tmp_path):
    image, path = picture(size=(40, 30)), tmp_path / "turned.png"
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn by 90 degrees to look at it"
    image.save(path, exif=exif)
    assert Image.open(path).getexif()[0x0112] == 6
    assert np.array_equal(np.asarray(read_image(str(path))), np.asarray(image))


def test_faults_are_named_with_their_reason_and_modes_are_counted(tmp_path):
    good, jpeg = encoded(picture(), "JPEG"), encoded(picture(size=(80, 80)), "JPEG", quality=95)
    contents = {
        "good.jpg": good,
        "grey.png": encoded(picture("L"), "PNG"),
        "empty.jpg": b"",
        "text.png": b"hello",
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "trailing.jpg": good + b"\0\0",  # some cameras write more after the end
        "middle.png": bytearray(encoded(picture(size=(80, 80)), "PNG")),
        "checksum.png": bytearray(encoded(picture(), "PNG")),
    }
    contents["middle.png"][900] ^= 255
    contents["checksum.png"][-13] ^= 1  # the checksum of the pixels: PIL decodes them without a word
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / name) for name in [*contents, "absent.jpg"]]
    found = inspect(paths)
    assert {os.path.basename(path): reason for path, reason in found.unreadable.items()} == {
        "empty.jpg": "the file is empty",
        "text.png": "not an image, or damaged at its beginning",
        "cut.jpg": found.unreadable[paths[4]],
        "absent.jpg": "No such file or directory",
    }
    assert found.unreadable[paths[4]].startswith("image file is truncated")
    assert found.modes == {"RGB": 4, "L": 1}
    read_image(str(tmp_path / "checksum.png"))
    more = inspect(paths, deep=True).unreadable
    assert more.keys() - found.unreadable.keys() == {
        str(tmp_path / "middle.png"),
        str(tmp_path / "checksum.png"),
    }


@pytest.mark.parametrize("workers", [0, 1])
def test_training_names_the_file_in_one_line(tmp_path, workers):
    for name in ("a", "b"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        for i in range(4):
            (tmp_path / "tree" / name / f"{i}.png").write_bytes(encoded(picture(), "PNG")[:300])
    (tmp_path / "split.json").write_text('{"known_classes": ["a"]}')
    data = open_data("folder", tmp_path / "tree", split_file=tmp_path / "split.json", image_size=16)
    loader = train_loader(data, batch_size=4, seed=0, workers=workers)
    with pytest.raises(ImageError) as error:
        next(loader.epoch(0))
    message = str(error.value)
    assert message.startswith(f"cannot read the image {tmp_path}/tree/")
    assert "\n" not in message
    assert "truncated" in message


# Folders ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """Classes a .. d of six images each, a and b known."""
    for c, name in enumerate("abcd"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        for i in range(6):
            (tmp_path / "tree" / name / f"{i}.png").write_bytes(encoded(picture(seed=10 * c + i), "PNG"))
    (tmp_path / "split.json").write_text('{"known_classes": ["b", "a"]}')
    return tmp_path / "tree"


def opened(tree, **options):
    return open_data("folder", tree, split_file=tree.parent / "split.json", image_size=16, **options)


def test_hidden_and_other_files_change_nothing_and_are_noted(tree):
    before = opened(tree)
    for folder in (tree / ".ipynb_checkpoints", tree / "c" / ".ipynb_checkpoints", tree / "c" / "more"):
        folder.mkdir()
    (tree / ".ipynb_checkpoints" / "0.png").write_bytes((tree / "a" / "0.png").read_bytes())
    (tree / "c" / ".ipynb_checkpoints" / "0.png").write_bytes((tree / "c" / "0.png").read_bytes())
    (tree / "b" / "._0.png").write_bytes(b"resource fork")
    (tree / "a" / "7.GIF").write_bytes(b"GIF89a")
    (tree / "c" / "more" / "8.gif").write_bytes(b"GIF89a")
    (tree / "a" / "notes").write_text("x")
    (tree / "loose.png").write_bytes((tree / "a" / "0.png").read_bytes())
    after = opened(tree)
    assert after.labelled.images.source == before.labelled.images.source
    assert (after.split_hash, after.known, after.novel) == (before.split_hash, 2, 2)
    report = verify("folder", tree, tree.parent / "split.json")
    assert report.ok
    assert {
        "note: hidden folders are no classes: .ipynb_checkpoints",
        "note: files beside the class folders, left out: 1",
        "note: files of other types, left out: 2 .gif, 1 no extension",
        "note: hidden files, left out: 2",
    } <= set(report.lines)


def test_a_class_of_other_files_is_refused_with_what_it_holds(tree):
    (tree / "e").mkdir()
    (tree / "e" / "0.gif").write_bytes(b"GIF89a")
    with pytest.raises(FileNotFoundError, match=r"1 class folders have no image \(e\).*1 \.gif"):
        opened(tree)


def test_images_of_one_channel(tree):
    """Grey files keep their bits, files in colour are PIL's grey of them, and the notes say so."""
    grey = np.asarray(picture("L", seed=77))
    (tree / "a" / "0.png").write_bytes(encoded(Image.fromarray(grey), "PNG"))
    (tree / "a" / "1.png").write_bytes(encoded(Image.fromarray(grey.astype(np.uint16) * 256 + 9), "PNG"))
    colour, data = opened(tree), opened(tree, channels=1)
    assert (colour.channels, data.channels) == (3, 1)
    assert data.split_hash == colour.split_hash
    for i in (0, 1):
        assert np.array_equal(np.asarray(data.images.image(i)), grey)
        assert colour.images.image(i).mode == "RGB"
    assert np.array_equal(
        np.asarray(data.images.image(2)), np.asarray(picture(seed=2).convert("RGB").convert("L"))
    )
    for transform in (data.train_transform, data.test_transform):
        assert transform(data.images.image(2)).shape == (1, 16, 16)
    white, black = (data.test_transform(Image.new("L", (20, 20), value)) for value in (255, 0))
    assert (white - black).unique().item() == pytest.approx(1 / 0.226)
    assert [note for note in data.notes if "grey" in note] == [
        "images are read in grey, one channel; those in colour are converted"
    ]
    assert not [note for note in colour.notes if "grey" in note]
    batch = next(iter(train_loader(data, batch_size=4, seed=0).epoch(0)))
    assert batch.views_on("cpu")[0].shape == (4, 1, 16, 16)
    with pytest.raises(ValueError, match=r"channels=3: images of digits have 1; leave it out"):
        open_data("digits", channels=3)


def test_verify_says_that_all_images_are_grey(tree):
    def conversions():
        lines = verify("folder", tree, tree.parent / "split.json").lines
        return [line for line in lines if "converted to RGB" in line]

    for path in tree.glob("*/*.png"):
        path.write_bytes(encoded(picture("L"), "PNG"))
    assert conversions() == [
        "note: images to be converted to RGB: 24 in mode L; all are grey, and --channels 1 trains on one "
        "channel"
    ]
    (tree / "a" / "0.png").write_bytes(encoded(picture(), "PNG"))
    assert conversions() == ["note: images to be converted to RGB: 23 in mode L"]


def test_a_known_class_without_a_labelled_image_is_said(tree):
    (tree / "0solo").mkdir()
    (tree / "0solo" / "0.png").write_bytes(encoded(picture(), "PNG"))
    (tree.parent / "split.json").write_text('{"known_classes": ["0solo", "a"], "labelled_fraction": 0.3}')
    with pytest.warns(UserWarning, match=r"1 of 2 known classes have no labelled image \(0solo\)"):
        opened(tree)
    report = verify("folder", tree, tree.parent / "split.json")
    assert report.ok
    assert any(
        line.startswith("warning: 1 of 2 known classes have no labelled image") for line in report.lines
    )


# The list of files to leave out -----------------------------------------------------------------------------


def items(data):
    """File -> (label, whether it is labelled)."""
    source = data.labelled.images.source
    return {
        source[uq_idx]: (label, part is data.labelled)
        for part in (data.labelled, data.unlabelled)
        for label, uq_idx in zip(part.labels.tolist(), part.uq_idx.tolist())
    }


def with_list(tree, *paths):
    file = tree.parent / "bad.json"
    write_list(file, tree, {str(tree / path): "damaged" for path in paths})
    with pytest.warns(UserWarning, match=f"{len(paths)} of 24 images are left out: .*bad.json"):
        return opened(tree, skip_unreadable=file)


def with_an_empty_list(tree):
    file = tree.parent / "none.json"
    write_list(file, tree, {})
    with warnings.catch_warnings():  # nothing is left out
        warnings.simplefilter("error")
        return opened(tree, skip_unreadable=file)


def test_every_other_image_stays_where_it_is(tree):
    whole, skipped = items(opened(tree)), ["a/3.png", "b/0.png", "d/5.png"]
    data = with_list(tree, *skipped)
    gone = {str(tree / path) for path in skipped}
    assert items(data) == {path: item for path, item in whole.items() if path not in gone}
    positions = data.labelled.uq_idx.tolist() + data.unlabelled.uq_idx.tolist()
    assert sorted(positions) == list(range(21))  # SelEx keeps a table by position
    for part in (data.labelled, data.unlabelled):
        image, _, uq_idx = part[2]
        assert np.array_equal(np.asarray(image), np.asarray(Image.open(part.images.source[uq_idx])))


def test_the_fingerprint_depends_on_the_list_alone(tree):
    hashes = [with_list(tree, *paths).split_hash for paths in (["c/1.png"], ["c/2.png"], ["d/1.png"])]
    hashes.append(with_an_empty_list(tree).split_hash)
    assert len(set(hashes)) == 4
    assert hashes[3] == opened(tree).split_hash
    assert (
        with_list(tree, "d/1.png", "c/1.png").split_hash == with_list(tree, "c/1.png", "d/1.png").split_hash
    )


def test_a_list_survives_a_move_and_names_that_are_no_text(tree, tmp_path):
    odd = os.fsencode(tree / "c") + b"/\xff\nodd.png"
    with open(odd, "wb") as file:
        file.write(b"no image")
    report = verify("folder", tree, tree.parent / "split.json")
    assert [line for line in report.lines if "odd.png" in line] == [
        f"WRONG: {tree}/c/\\udcff\\nodd.png: not an image, or damaged at its beginning"
    ]
    write_list(tmp_path / "bad.json", tree, dict(report.unreadable))
    assert read_list(tmp_path / "bad.json") == [os.fsdecode(b"c/\xff\nodd.png")]
    tree.rename(tmp_path / "moved")
    with pytest.warns(UserWarning, match="1 of 25 images are left out"):
        data = opened(tmp_path / "moved", skip_unreadable=tmp_path / "bad.json")
    assert len(data.merged) == 24


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"unreadable": {"e/9.png": ""}}', "names 1 files that are no training images .* first is e/9.png"),
        ('{"known_classes": ["a"]}', "is not a list of unreadable files"),
        ('{"unreadable": [3]}', "is not a list of unreadable files"),
        ("a/0.png\n", "is not a list of unreadable files"),
    ],
)
def test_a_wrong_list_is_refused(tree, content, message):
    (tree.parent / "bad.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        opened(tree, skip_unreadable=tree.parent / "bad.json")


def test_a_list_must_leave_labelled_images(tree):
    labelled = [path for path, (_, is_labelled) in items(opened(tree)).items() if is_labelled]
    file = tree.parent / "bad.json"
    file.write_text(json.dumps({"unreadable": [os.path.relpath(path, tree) for path in labelled]}))
    with pytest.raises(ValueError, match="leaves no labelled image"):
        opened(tree, skip_unreadable=file)
