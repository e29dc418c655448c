"""Images of every kind and damage in a folder of one's own: verified, then trained on.

What can be read trains. What cannot is named by `eagc data verify` (exit code 1) and by a training run that
meets it (exit code 2), and left out by both with `--skip-unreadable`.
"""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import call
from faults import trials
from PIL import Image

from eagc_ops.training.engine.run_folder import RunFolder

pytestmark = [
    pytest.mark.fault("images"),
    pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below"),
]


def picture(mode: str = "RGB", size: tuple[int, int] = (40, 40)) -> Image.Image:
    pixels = np.random.RandomState(0).randint(0, 256, (5, 5, 3)).astype(np.uint8)
    return Image.fromarray(pixels).resize(size, Image.BICUBIC).convert(mode)


def encoded(image: Image.Image, form: str, cut: float = 1, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()[: round(len(buffer.getvalue()) * cut)]


def deep(dtype) -> Image.Image:
    return Image.fromarray((np.asarray(picture("L")).astype(dtype)) * 256)


READABLE = {  # file -> content; each is one more image of class1
    "grey.png": encoded(picture("L"), "PNG"),
    "grey.jpg": encoded(picture("L"), "JPEG"),
    "one bit.png": encoded(picture("1"), "PNG"),
    "palette.png": encoded(picture("P"), "PNG"),
    "transparent.png": encoded(picture("RGBA"), "PNG"),
    "cmyk.jpg": encoded(picture("CMYK"), "JPEG"),
    "16 bit.png": encoded(deep(np.uint16), "PNG"),
    "16 bit.tif": encoded(deep(np.uint16), "TIFF"),
    "progressive.jpg": encoded(picture(), "JPEG", progressive=True),
    "one pixel.png": encoded(picture(size=(1, 1)), "PNG"),
    "narrow.png": encoded(picture(size=(1, 300)), "PNG"),
    "trailing bytes.jpg": encoded(picture(), "JPEG") + b"\0" * 9,
    "png named.jpg": encoded(picture(), "PNG"),
    "spaces and 'quotes'.JPG": encoded(picture(), "JPEG"),
    "Käfer-蛾-🐞.png": encoded(picture(), "PNG"),
    os.fsdecode(b"latin-\xe9.png"): encoded(picture(), "PNG"),
    "new\nline.png": encoded(picture(), "PNG"),
    "n" * 251 + ".png": encoded(picture(), "PNG"),
    "/".join(["deep" * 40] * 12) + "/a.png": encoded(picture(), "PNG"),
}
UNREADABLE = {  # file -> content, words of the reason
    "zero bytes.png": (b"", "the file is empty"),
    "text.png": (b"not an image\n", "not an image"),
    "page.jpg": (b"<html>404</html>", "not an image"),
    "cut.jpg": (encoded(picture(), "JPEG", 0.6), "truncated"),
    "cut header.jpg": (encoded(picture(), "JPEG", 0.02), ""),
    "cut.png": (encoded(picture(), "PNG", 0.6), "truncated"),
    "cut.bmp": (encoded(picture(), "BMP", 0.6), "truncated"),
    "cut.webp": (encoded(picture(), "WEBP", 0.6), ""),
    "cut progressive.jpg": (encoded(picture(), "JPEG", 0.6, progressive=True), "truncated"),
    "32 bit.tif": (encoded(deep(np.int32), "TIFF"), "no fixed range"),
    "float.tif": (encoded(deep(np.float32), "TIFF"), "no fixed range"),
    "Käfer-蛾.png": (b"", "the file is empty"),
    os.fsdecode(b"latin-\xe9.png"): (b"", "the file is empty"),
    "n" * 251 + ".png": (b"", "the file is empty"),
}


@pytest.fixture
def folder(data, tmp_path):
    """A copy of the small image folder: (its images, the options that name it)."""
    images = tmp_path / "images"
    shutil.copytree(data["root"], images)
    shutil.copy(data["split_file"], tmp_path / "split.json")
    return images, [
        "--dataset",
        "folder",
        "--root",
        str(images),
        "--split-file",
        str(tmp_path / "split.json"),
    ]


def add(images: Path, name: str, content: bytes) -> str:
    path = os.path.join(images, "class1", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
    return path


def train(capsys, data, options, run: Path, *more: str):
    """`eagc train` for one epoch, each image drawn once or more in the evaluation."""
    small = (
        "--method simgcd --preset baseline --backbone vit_digits --image-size 16 --epochs 1 --batch-size 32"
    )
    return call(
        capsys,
        *("train", *options, *small.split(), "--device", "cpu", "--weights", data["weights"], "-o", str(run)),
        *more,
    )


def printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode().replace("\n", "\\n")


@pytest.mark.parametrize("name", trials(sorted(READABLE), short=5), ids=ascii)
def test_what_can_be_read_trains(capsys, data, folder, tmp_path, name):
    images, options = folder
    add(images, name, READABLE[name])
    code, out, _ = call(capsys, "data", "verify", *options, "--deep")
    assert (code, "WRONG" in out) == (0, False), out
    assert "ok: 61 files can be read (all pixels decoded)" in out
    code, _, err = train(capsys, data, options, tmp_path / "run")
    assert code == 0, err[-500:]
    assert RunFolder.open(tmp_path / "run").facts.images == 61


@pytest.mark.parametrize("name", trials(sorted(UNREADABLE), short=4), ids=ascii)
def test_what_cannot_be_read_is_named_and_can_be_left_out(capsys, data, folder, tmp_path, name):
    images, options = folder
    content, reason = UNREADABLE[name]
    path, bad = add(images, name, content), tmp_path / "bad.json"
    code, out, _ = call(capsys, "data", "verify", *options, "--output", str(bad))
    named = [line for line in out.splitlines() if line.startswith(f"WRONG: {printable(path)}: ")]
    assert (code, len(named)) == (1, 1), out
    assert reason in named[0].lower()
    assert [*json.loads(bad.read_text())["unreadable"]] == [os.path.join("class1", name)]

    code, _, err = train(capsys, data, options, tmp_path / "stopped")
    last = err.splitlines()[-1]
    assert code == 2
    assert last.startswith(f"eagc train: cannot read the image {' '.join(printable(path).split())}: ")
    assert reason in last.lower()

    code, _, err = train(capsys, data, options, tmp_path / "run", "--skip-unreadable", str(bad))
    assert code == 0, err[-500:]
    assert "warning: 1 of 61 images are left out" in err
    assert RunFolder.open(tmp_path / "run").facts.images == 60


@pytest.mark.parametrize("role", ["known", "novel"])
def test_a_class_of_one_image_trains(capsys, data, folder, tmp_path, role):
    images, options = folder
    (images / "solo").mkdir()
    (images / "solo" / "a.png").write_bytes(encoded(picture(), "PNG"))
    known = ["class3", "class0", *(["solo"] if role == "known" else [])]
    (tmp_path / "split.json").write_text(json.dumps({"known_classes": known}))
    code, out, _ = call(capsys, "data", "verify", *options)
    assert code == 0
    run = tmp_path / "run"
    code, _, err = train(capsys, data, options, run)
    assert code == 0, err[-500:]
    assert RunFolder.open(run).facts.known == len(known)
    assert (" known classes have no labelled image (solo)" in out) == (
        " known classes have no labelled image (solo)" in err
    )


def test_a_run_goes_on_with_its_list_only(capsys, data, folder, tmp_path):
    _, options = folder
    run, bad, other = tmp_path / "run", tmp_path / "bad.json", tmp_path / "other.json"
    bad.write_text('{"unreadable": ["class1/3.png"]}')
    other.write_text('{"unreadable": ["class1/4.png"]}')
    assert train(capsys, data, options, run, "--skip-unreadable", str(bad))[0] == 0
    result = json.loads((run / "result.json").read_text())
    for with_checkpoint in (True, False):  # a run without a checkpoint starts again, with the same images
        (run / "result.json").unlink()
        if not with_checkpoint:
            (run / "last.safetensors").unlink()
        for wrong, why in ((str(other), "split_hash differs from run.json"), ("none", "none: no such file")):
            code, _, err = call(capsys, "train", "--resume", str(run), "--skip-unreadable", wrong)
            assert code == 2
            assert why in err.splitlines()[-1]
        moved = tmp_path / "moved" / "list.json"
        moved.parent.mkdir(exist_ok=True)
        shutil.copy(bad, moved)
        assert call(capsys, "train", "--resume", str(run), "--skip-unreadable", str(moved))[0] == 0
        assert json.loads((run / "result.json").read_text()) == result


def test_verifying_replaces_an_older_list_and_nothing_else(capsys, folder, tmp_path):
    images, options = folder
    file = tmp_path / "bad.json"
    for count in (1, 2):
        (images / "class0" / f"{count}.png").write_bytes(b"")
        assert call(capsys, "data", "verify", *options, "--output", str(file))[0] == 1
        assert len(json.loads(file.read_text())["unreadable"]) == count
    split = tmp_path / "split.json"
    before = split.read_text()
    code, _, err = call(capsys, "data", "verify", *options, "--output", str(split))
    assert (code, split.read_text()) == (2, before)
    assert "split.json" in err and "is not a list of unreadable files" in err
