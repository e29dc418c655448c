"""`eagc data verify`: what is printed, the exit code, and the list of files to leave out."""

import json
import shutil

import pytest
from commands import call


@pytest.fixture
def options(data, tmp_path):
    shutil.copytree(data["root"], tmp_path / "images")
    return ["--dataset", "folder", "--root", str(tmp_path / "images"), "--split-file", data["split_file"]]


def test_a_sound_folder(capsys, options, tmp_path):
    file = tmp_path / "new" / "bad.json"
    code, out, err = call(capsys, "data", "verify", *options, "--output", str(file))
    assert code == 0
    assert "ok: 60 files can be read (headers and ends read; --deep decodes all pixels)" in out
    assert f"0 unreadable training images are listed in {file}" in out
    assert json.loads(file.read_text()) == {"unreadable": {}}
    assert "60/60" in err  # the bar
    assert (
        "ok: 60 files can be read (all pixels decoded)"
        in call(capsys, "data", "verify", *options, "--deep")[1]
    )


def test_every_unreadable_file_is_named(capsys, options, tmp_path):
    images = tmp_path / "images"
    for name in ("class0/2.png", "class4/7.png", "class1/0.png"):
        (images / name).write_bytes(b"")
    code, out, _ = call(capsys, "data", "verify", *options)
    assert code == 1
    assert [line for line in out.splitlines() if line.startswith("WRONG")] == [
        *(
            f"WRONG: {images}/{name}: the file is empty"
            for name in ("class0/2.png", "class1/0.png", "class4/7.png")
        ),
        "WRONG: 3 of 60 files cannot be read (headers and ends read; --deep decodes all pixels)",
    ]


def test_a_data_set_without_files_has_an_empty_list(capsys, tmp_path):
    file = tmp_path / "bad.json"
    assert call(capsys, "data", "verify", "--dataset", "digits", "--output", str(file))[0] == 0
    assert json.loads(file.read_text()) == {"unreadable": {}}


def test_a_folder_that_cannot_be_listed_writes_no_list(capsys, options, tmp_path):
    for name in ("class0", "class1"):
        shutil.rmtree(tmp_path / "images" / name)
        (tmp_path / "images" / name).mkdir()
    file = tmp_path / "bad.json"
    code, out, _ = call(capsys, "data", "verify", *options, "--output", str(file))
    assert code == 1
    assert "2 class folders have no image (class0, class1)" in out
    assert not file.exists()
