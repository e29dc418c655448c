"""Two folders of the user's own: what is listed, what is held out, and what is refused in which words."""

import importlib.util
import os
import shutil
import sys
import types

import numpy as np
import pytest
from photographs import KNOWN, digest, write_photographs
from PIL import Image

from eagc_ops.discovery.two_folders import list_folders
from eagc_ops.training.data import open_data
from eagc_ops.training.data.listing import Listing


@pytest.fixture
def photos(tmp_path):
    write_photographs(tmp_path / "photos")
    return tmp_path / "photos"


def listed(photos, **options):
    return list_folders(photos / "labelled", photos / "new", **options)


def refused(photos, message, **options):
    with pytest.raises((OSError, ValueError), match=message):
        listed(photos, **options)


def test_images_of_both_folders_and_a_share_held_out(photos):
    before = digest(photos)
    folders = listed(photos)
    assert folders.classes == KNOWN
    assert [len(folders.training), len(folders.held_out), len(folders.unlabelled_images)] == [18, 6, 30]
    assert [c for _, c in folders.held_out] == [0, 0, 1, 1, 2, 2]  # round(0.2 x 8) of every class
    everything = {path for path, _ in (*folders.training, *folders.held_out)}
    assert everything == {str(path) for path in (photos / "labelled").rglob("*.png")}
    assert folders.unlabelled_images == sorted(str(path) for path in (photos / "new").rglob("*.png"))
    assert all(os.path.basename(os.path.dirname(path)) == KNOWN[c] for path, c in folders.training)
    assert listed(photos) == folders
    assert digest(photos) == before


def test_the_images_of_a_file_are_those_that_were_listed(photos, tmp_path):
    folders = listed(photos, holdout=0.5)
    folders.write(tmp_path / "images.json")
    assert Listing.read(tmp_path / "images.json") == folders
    data = open_data("discover", photos / "labelled", split_file=tmp_path / "images.json", image_size=16)
    assert (data.known, data.novel, data.truth, data.known_names) == (3, 0, False, KNOWN)
    assert data.labelled.labels.tolist() == [c for _, c in folders.training]
    assert data.unlabelled.labels.tolist() == [-1] * 30
    assert data.merged[18][1:] == (-1, 18, False)
    assert [
        data.merged.labelled.images.source[i] for i in data.unlabelled.uq_idx
    ] == folders.unlabelled_images


def test_the_fingerprint_of_the_images(photos, tmp_path):
    """It is that of the names below the folders: a moved folder has the same, another image another one."""
    folders = listed(photos)
    shutil.copytree(photos, tmp_path / "moved")
    assert listed(tmp_path / "moved").split_hash == folders.split_hash
    assert listed(photos, holdout=0).split_hash != folders.split_hash
    next((tmp_path / "moved" / "new").rglob("*.png")).unlink()
    assert listed(tmp_path / "moved").split_hash != folders.split_hash


@pytest.mark.parametrize(
    ("holdout", "images", "held_out"), [(0, 9, 0), (0.2, 2, 0), (0.01, 3, 1), (0.2, 10, 2), (0.9, 10, 8)]
)
def test_two_images_of_a_class_stay_to_train_on(tmp_path, holdout, images, held_out):
    write_photographs(tmp_path, labelled=images)
    folders = listed(tmp_path, holdout=holdout)
    assert len(folders.held_out) == 3 * held_out


def test_a_list_of_paths(photos, tmp_path):
    (photos / "list.txt").write_text("new/2024/01.png\n\nnew/2024/21.png\nnew/2024/01.png\n")
    folders = list_folders(photos / "labelled", photos / "list.txt")
    assert folders.unlabelled_images == [str(photos / "new/2024/01.png"), str(photos / "new/2024/21.png")]
    assert "lines of list.txt that repeat a path, left out: 1" in folders.notes
    (photos / "list.txt").write_text("new/2024/01.png\nnew/gone.png\n")
    with pytest.raises(ValueError, match=r"list\.txt: 1 of its lines name no file, the first is .*gone\.png"):
        list_folders(photos / "labelled", photos / "list.txt")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_list_of_paths_as_windows_writes_it(photos, tmp_path, encoding):
    text = "new/2024/01.png\r\nnew/2024/21.png\r\n"
    (photos / "list.txt").write_bytes(text.encode(encoding))
    folders = list_folders(photos / "labelled", photos / "list.txt")
    assert folders.unlabelled_images == [str(photos / "new/2024/01.png"), str(photos / "new/2024/21.png")]


def test_an_image_in_the_place_of_a_list(photos):
    with pytest.raises(ValueError, match=r"01\.png is no text file; name a folder, or a text file with one"):
        list_folders(photos / "labelled", photos / "new/2024/01.png")


def test_what_is_no_image_and_links_in_a_circle_are_left_out(photos):
    (photos / "new" / "notes.txt").write_text("mine")
    (photos / "new" / ".hidden.png").write_bytes(b"")
    (photos / "new" / "2024" / "again").symlink_to(photos / "new")
    folders = listed(photos)
    assert len(folders.unlabelled_images) == 30
    assert folders.notes == ["files of other types, left out: 1 .txt", "hidden files, left out: 1"]


def test_no_labelled_image(photos):
    for file in (photos / "labelled" / "cat").iterdir():
        file.unlink()
    refused(photos, "1 class folders have no image .cat.")
    shutil.rmtree(photos / "labelled")
    (photos / "labelled").mkdir()
    refused(photos, "no labelled images: .*it has no class folders")


def test_one_class(photos):
    for kind in ("cat", "dog"):
        shutil.rmtree(photos / "labelled" / kind)
    refused(photos, "labelled has one class folder, bee: a discovery needs at least two known classes")


def test_names_that_differ_by_case(photos):
    (photos / "labelled" / "cat").rename(photos / "labelled" / "Bee")
    refused(photos, "class folders whose names differ only by case: Bee, bee; merge or rename them")


def test_a_name_of_new_categories(photos):
    (photos / "labelled" / "cat").rename(photos / "labelled" / "new-2")
    refused(photos, "has a class folder new-2: new categories get such names")


def test_one_folder_inside_of_the_other(photos):
    with pytest.raises(ValueError, match=r"unlabelled images .*cat lies inside of labelled folder"):
        list_folders(photos / "labelled", photos / "labelled" / "cat")
    with pytest.raises(ValueError, match=r"labelled folder .* lies inside of unlabelled images"):
        list_folders(photos / "labelled", photos)
    (photos / "alias").symlink_to(photos / "labelled")
    with pytest.raises(ValueError, match="alias: this is the labelled folder"):
        list_folders(photos / "labelled", photos / "alias")


def test_no_unlabelled_image(photos):
    (photos / "empty").mkdir()
    (photos / "empty" / "a.txt").write_text("x")
    with pytest.raises(ValueError, match=r"empty has no images; files of other types, left out: 1 .txt"):
        list_folders(photos / "labelled", photos / "empty")


def test_images_that_cannot_be_read_are_named_or_left_out(photos):
    whole = (photos / "new" / "2024" / "01.png").read_bytes()
    (photos / "new" / "2024" / "01.png").write_bytes(whole[: len(whole) // 2])
    (photos / "labelled" / "cat" / "0.png").write_bytes(b"")
    refused(
        photos,
        r"2 of 54 images cannot be read: .*cat/0\.png \(the file is empty\); .*01\.png \(.*\); repair them, "
        "or leave them out with skip_unreadable",
    )
    folders = listed(photos, skip_unreadable=True, holdout=0)
    assert [os.path.basename(path) for path in folders.unreadable] == ["0.png", "01.png"]
    assert (len(folders.training), len(folders.unlabelled_images)) == (23, 29)
    assert any(note.startswith("images that cannot be read, left out: 2 (") for note in folders.notes)
    for file in (photos / "labelled" / "cat").iterdir():
        file.write_bytes(b"")
    refused(photos, "no image of cat can be read", skip_unreadable=True)


def test_images_on_both_sides_are_counted_and_dropped_on_request(photos):
    twin = photos / "new" / "2024" / "copy.png"
    shutil.copy(photos / "labelled" / "dog" / "3.png", twin)
    os.link(photos / "labelled" / "bee" / "1.png", photos / "new" / "same-file.png")
    other = Image.fromarray(np.zeros((20, 20, 3), np.uint8))  # of equal size on disk, but another image
    other.save(photos / "new" / "a.bmp")
    Image.fromarray(np.ones((20, 20, 3), np.uint8)).save(photos / "labelled" / "dog" / "b.bmp")
    folders = listed(photos, holdout=0.9)
    assert len(folders.unlabelled_images) == 33
    assert [[os.path.basename(path) for path in pair] for pair in folders.duplicates] == [
        ["same-file.png", "1.png"],
        ["copy.png", "3.png"],
    ]
    shown = (
        "images that are both labelled and unlabelled, used on both sides; drop_duplicates leaves them out: 2"
    )
    assert any(note.startswith(shown) for note in folders.notes)
    held = {path for path, _ in folders.held_out}
    assert not held & {path for _, path in folders.duplicates}  # they are seen in training
    dropped = listed(photos, drop_duplicates=True)
    assert len(dropped.unlabelled_images) == 31 and str(twin) not in dropped.unlabelled_images


def test_a_damaged_list_is_named(photos, tmp_path):
    (tmp_path / "images.json").write_text('{"version": 1, "labelled": "x"')
    with pytest.raises(
        ValueError, match=r"images.json is damaged .*start the discovery in a different folder"
    ):
        open_data("discover", photos / "labelled", split_file=tmp_path / "images.json")


def test_links_that_lead_outside_are_counted(photos, tmp_path):
    """A link to a file, and one to a folder; those that stay inside are nothing to tell."""
    (tmp_path / "elsewhere").mkdir()
    for i in range(3):
        shutil.copy(photos / "new" / "2024" / "01.png", tmp_path / "elsewhere" / f"{i}.png")
    os.symlink(tmp_path / "elsewhere", photos / "new" / "linked")
    os.symlink(tmp_path / "elsewhere" / "0.png", photos / "labelled" / "bee" / "linked.png")
    os.symlink(photos / "new" / "2024" / "01.png", photos / "new" / "again.png")
    links = [note for note in listed(photos).notes if note.startswith("images behind links")]
    assert [note.rpartition(" ")[2] for note in links] == ["1", "3"]


def test_a_class_folder_that_cannot_be_read_is_named(photos, monkeypatch):
    scandir = os.scandir

    def scan(place):
        if str(place).endswith("cat"):
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", scan)
    refused(photos, r"the folder .*labelled/cat cannot be read \(Permission denied\)")


@pytest.mark.skipif(importlib.util.find_spec("pillow_heif") is not None, reason="it is installed here")
def test_heic_pictures_name_the_package_that_reads_them(photos):
    (photos / "new" / "IMG_0001.HEIC").write_bytes(b"ftypheic")
    (note,) = [note for note in listed(photos).notes if "heic" in note]
    assert "1 .heic (HEIC pictures are read with the package pillow-heif: pip install pillow-heif)" in note


def test_heic_pictures_are_read_with_it(photos, monkeypatch):
    """A stand-in for the package: it registers an opener with PIL."""
    opened = types.ModuleType("pillow_heif")
    opened.register_heif_opener = lambda: None
    monkeypatch.setitem(sys.modules, "pillow_heif", opened)
    Image.new("RGB", (9, 9)).save(photos / "new" / "IMG_0001.heic", "PNG")  # PIL looks at the content
    assert str(photos / "new" / "IMG_0001.heic") in listed(photos).unlabelled_images
