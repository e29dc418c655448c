"""Folders and files are judged before they are used, and nothing is left behind."""

import os
from pathlib import Path

import pytest

from eagc_ops.app.places import (
    MissingPlaceError,
    PlaceError,
    readable_file,
    readable_folder,
    writable_file,
    writable_folder,
)


@pytest.fixture
def home(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize(
    ("check", "place", "message"),
    [
        (writable_folder, "file", "is a file; name a folder"),
        (writable_folder, "link", "is a broken link; name a folder"),
        (writable_folder, "file/a/b", "cannot be written: .*file is a file; choose a different place"),
        (writable_folder, "link/a", "cannot be written: .*link is a broken link"),
        (writable_file, "folder", "is a folder; pass the name of a file"),
        (writable_file, "file/a", "cannot be written: .*file is a file"),
        (readable_folder, "file", "is a file, not a folder; name an existing folder"),
        (readable_folder, "nowhere", "is not a folder: it does not exist; name an existing folder"),
        (readable_file, "folder", "is a folder, not a file; name an existing file"),
        (readable_file, "nowhere", ": no such file; name an existing file"),
        (readable_file, "link", ": no such file"),
        (readable_file, "empty", r"is empty \(0 bytes\)"),
        (readable_file, "pipe", "is a special file, not a file"),  # opening it would wait forever
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_place_that_will_not_do_is_named(check, place, message, home):
    with pytest.raises(PlaceError, match=rf"^--option .*{place}.*{message}"):
        check("--option", home / place)


def test_a_missing_place_is_also_a_missing_file(home):
    with pytest.raises(FileNotFoundError):
        readable_file("x", home / "nowhere")
    assert issubclass(MissingPlaceError, PlaceError)


def test_a_place_that_will_do_stays_as_it_was(home):
    before = sorted(home.rglob("*"))
    writable_folder("x", home / "folder")
    writable_folder("x", home / "new" / "folder")
    writable_file("x", home / "new" / "file")
    writable_file("x", home / "file")
    readable_folder("x", home / "folder")
    readable_file("x", home / "file")
    assert sorted(home.rglob("*")) == before


def test_a_file_system_that_takes_no_files_is_refused():
    with pytest.raises(PlaceError, match=r"^--output /proc/eagc/run cannot be written in /"):
        writable_folder("--output", Path("/proc/eagc/run"))
