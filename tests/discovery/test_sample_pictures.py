"""The sample pictures of `eagc discover --demo`."""

import csv
import re
import shlex
import unicodedata

import photographs
import pytest
from commands import call
from PIL import Image

from eagc_ops.app.places import PlaceError
from eagc_ops.discovery import sample_pictures
from eagc_ops.discovery.sample_pictures import CATEGORIES, KNOWN, LABELLED, UNLABELLED, write_sample_pictures
from eagc_ops.training.data.glyphs import class_characters, draw


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("demo")
    write_sample_pictures(home)
    return home


def pixels(path):
    with Image.open(path) as image:
        return image.tobytes()


def test_every_picture_is_a_drawing_of_its_category(home):
    """The truth names the new pictures; no picture is there twice."""
    sample = write_sample_pictures(home)
    with sample.truth.open() as file:
        truth = {row["path"]: row["class"] for row in csv.DictReader(file)}
    assert {*truth} == {path.name for path in sample.unlabelled.iterdir()}
    known = {path.name for path in sample.labelled.iterdir()}
    assert (len(known), len({*truth.values()})) == (KNOWN, CATEGORIES)
    assert known <= {*truth.values()}
    for character, drawings in zip(class_characters()[:2], draw(class_characters()[:2], 40, 0.7)):
        name = unicodedata.name(character).lower()
        labelled = {pixels(path) for path in (sample.labelled / name).iterdir()}
        new = {pixels(sample.unlabelled / path) for path, category in truth.items() if category == name}
        larger = [Image.fromarray(drawing).resize((144, 144), Image.BICUBIC) for drawing in drawings]
        drawn = [image.tobytes() for image in larger]
        assert (labelled, new) == ({*drawn[:LABELLED]}, {*drawn[LABELLED:]})
    contents = [path.read_bytes() for path in (home / "pictures").rglob("*.png")]
    assert len({*contents}) == len(contents) == KNOWN * LABELLED + CATEGORIES * UNLABELLED


def test_pictures_that_are_there_are_left_as_they_are(home):
    before = photographs.digest(home)
    write_sample_pictures(home)
    assert photographs.digest(home) == before


def test_half_of_a_demo_is_drawn_again_and_a_folder_of_the_users_is_not_touched(home, tmp_path):
    half = tmp_path / "pictures" / "labelled"
    half.mkdir(parents=True)
    (half / "left.png").touch()
    sample = write_sample_pictures(tmp_path)
    assert sample.truth.read_text() == (home / "pictures" / "truth.csv").read_text()
    assert not (half / "left.png").exists()
    theirs = tmp_path / "mine" / "pictures"
    theirs.mkdir(parents=True)
    (theirs / "cat.jpg").touch()
    with pytest.raises(PlaceError, match="has a folder pictures that is not of the demo; name a new folder"):
        write_sample_pictures(tmp_path / "mine")
    assert (theirs / "cat.jpg").exists()


def test_the_demo_discovers_in_pictures_that_it_draws(tmp_path, monkeypatch, capsys):
    for name, number in {"CATEGORIES": 4, "KNOWN": 2, "LABELLED": 6, "UNLABELLED": 8}.items():
        monkeypatch.setattr(sample_pictures, name, number)
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(capsys, "discover", "--demo", "--k", "4", "--holdout", "0", "--device", "cpu")
    assert code == 0 and (tmp_path / "eagc-demo" / "found" / "discovered.html").exists()
    assert out.splitlines()[-3].endswith("  eagc open eagc-demo/found")
    scores = re.search(r"All +([\d.]+)%", out)
    assert float(scores[1]) > 90
    # The command that it names does the same, and goes on with the same folder
    named = next(line for line in out.splitlines() if line.startswith("now: eagc discover "))
    code, again, _ = call(capsys, *shlex.split(named)[2:], "--k", "4", "--holdout", "0", "--device", "cpu")
    assert code == 0 and "continuing the discovery" in again and scores[0] in again


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--demo photos", "--demo draws its own pictures, got photos; leave one of them out"),
        ("photos", "the following arguments are required: UNLABELLED, -o/--output"),
    ],
)
def test_pictures_are_ones_own_or_those_of_the_demo(capsys, words, error):
    code, _, err = call(capsys, "discover", *words.split())
    assert (code, err) == (2, f"eagc discover: {error}\n")
