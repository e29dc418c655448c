"""The drawn characters: the same bits for everybody, one file in the cache, and what they are made of."""

import hashlib
import subprocess
import sys

import glyph_characters
import numpy as np
import pytest
import torch
from glyph_characters import choose_characters

from eagc_ops.training.config import Glyphs, resolve
from eagc_ops.training.data import glyphs, open_data, verify
from eagc_ops.training.data.glyphs import class_characters, draw, other_characters
from eagc_ops.training.data.loaders import train_loader
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.store import reference_key

# sha256 of the images of the default settings
DEFAULT = "af4ec53afda3b54be20ba09c34ca61d9a5a2c2e0d0e15d593c20773a83aa553e"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "eagc-ops" / "glyphs"


def same_drawing() -> bool:
    """Whether Pillow and FreeType draw here what they drew for the project; test-lowest has older ones."""
    return glyphs.specimen() == glyphs.SPECIMEN


def test_the_images_are_pinned(cache):
    drawn = glyphs.drawn_glyphs(Glyphs())
    digest = hashlib.sha256(drawn.pixels.tobytes()).hexdigest()
    noted = any("draw other pixels here" in note for note in drawn.notes)
    assert (digest == DEFAULT) == same_drawing() == (not noted)


def test_other_versions_of_pillow_are_noted_and_used(cache, monkeypatch):
    monkeypatch.setattr(glyphs, "SPECIMEN", "of other versions")
    data = open_data("glyphs", glyphs=Glyphs(classes=4, known=2, per_class=2))
    assert any("draw other pixels here" in note and "FreeType" in note for note in data.notes)
    assert len(data.merged) == 8


def test_an_image_depends_on_its_character_and_its_number_alone():
    characters = class_characters()[:3]
    few, many = draw(characters[1], 3, 0.7), draw(characters, 20, 0.7)
    assert np.array_equal(few[0], many[1, :3])
    assert len({image.tobytes() for image in many.reshape(60, -1)}) == 60
    assert not np.array_equal(few, draw(characters[1], 3, 0.8))


def test_without_strength_a_drawing_is_plain():
    plain = draw(class_characters()[0], 16, 0.0)[0]
    assert all((image[:3] == image[0, 0]).all() for image in plain)  # a flat background
    assert all(image.max() > image[0, 0] + 50 for image in plain)


def test_the_lists_follow_the_rule():
    classes, others = choose_characters() if same_drawing() else (class_characters(), other_characters())
    assert (classes, others) == (class_characters(), other_characters())
    assert (
        len(classes)
        == glyph_characters.CHARACTERS
        == len(set(classes))
        == Glyphs.model_fields["classes"].metadata[1].le
    )
    assert len(others) == len(set(others) - set(classes)) > 500
    # Latin, Greek and Cyrillic letters of one form are one class; 0 and O differ enough
    assert {"O", "0", "P", "B"} <= set(classes)
    assert not {"Ο", "О", "Р", "Ρ", "В", "Β"} & {*classes, *others}  # noqa: RUF001


def test_look_alikes_are_those_that_correlate(monkeypatch):
    """With a limit above any correlation every character stays; with one below all, the first alone."""
    monkeypatch.setattr(glyph_characters, "_candidates", lambda: iter("OОQ"))  # noqa: RUF001
    monkeypatch.setattr(glyph_characters, "CHARACTERS", 2)
    assert sorted(choose_characters()[0]) == ["O", "Q"]
    monkeypatch.setattr(glyph_characters, "_ALIKE", 1.1)
    assert len("".join(choose_characters())) == 3


def test_settings_decide_the_classes(cache):
    small = Glyphs(classes=5, known=2, per_class=4)
    data = open_data("glyphs", glyphs=small)
    assert (data.known, data.novel, len(data.labelled), len(data.unlabelled)) == (2, 3, 4, 16)
    assert set(data.labelled.labels.tolist()) <= {0, 1}
    assert (data.channels, data.image_size) == (1, 32)
    (view, other), *_ = next(train_loader(data, batch_size=8, seed=0).epoch(0))
    assert view.shape == (8, 1, 32, 32)
    assert not torch.equal(view, other)
    config = resolve("simgcd", "glyphs", glyphs=small)
    assert config.published_sizes()[:3] == (data.known, len(data.merged), len(data.labelled))


def test_skipped_characters_give_other_classes(cache):
    whole = glyphs.drawn_glyphs(Glyphs(classes=5, known=2, per_class=4))
    later = glyphs.drawn_glyphs(Glyphs(classes=3, known=1, per_class=4, skip=2))
    assert later.characters == whole.characters[2:] == class_characters()[2:5]
    assert np.array_equal(later.pixels, whole.pixels[8:])
    assert later.targets.tolist() == whole.targets[:12].tolist()
    assert len(glyphs.drawn_glyphs(Glyphs(classes=2, known=1, per_class=2, skip=198)).characters) == 2
    with pytest.raises(ValueError, match="skip must be <= 140, because there are 200 characters and 60 are"):
        Glyphs(skip=141)


@pytest.mark.parametrize("other", [{"strength": 0.5}, {"skip": 3}])
def test_other_images_have_a_reference_model_of_their_own(cache, other):
    """The split is the same, as numbers of classes and of images; the default's key is as it was."""

    def key(**settings):
        drawn = {"classes": 5, "known": 2, "per_class": 8, **settings}
        experiment = Experiment(resolve("simgcd", "glyphs", glyphs=drawn, batch_size=8))
        encoder, config = experiment.student.encoder, experiment.config
        return reference_key(encoder, config, experiment.data, experiment.facts.inputs)

    assert key(**other) == {**key(), **other}


def test_no_view_is_mirrored():
    assert "Flip" not in repr(open_data("glyphs").train_transform)


def test_the_specification_has_the_defaults():
    assert verify("glyphs").ok


def test_images_are_drawn_once_and_damage_is_noticed(cache, monkeypatch):
    small = Glyphs(classes=2, known=1, per_class=3)
    first = glyphs.drawn_glyphs(small).pixels
    (file,) = cache.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(glyphs, "draw", None)
        assert np.array_equal(glyphs.drawn_glyphs(small).pixels, first)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert np.array_equal(glyphs.drawn_glyphs(small).pixels, first)
    with monkeypatch.context() as patch:
        patch.setattr(glyphs, "draw", None)
        assert np.array_equal(glyphs.drawn_glyphs(small).pixels, first)


def test_two_processes_draw_once(cache, tmp_path):
    log = tmp_path / "drawn"
    script = (
        "from eagc_ops.training.config import Glyphs\n"
        "from eagc_ops.training.data import glyphs\n"
        "real = glyphs.draw\n"
        "def counted(*settings):\n"
        f"    open({str(log)!r}, 'a').write('drawn\\n')\n"
        "    return real(*settings)\n"
        "glyphs.draw, glyphs._notes = counted, list\n"
        "glyphs.drawn_glyphs(Glyphs(classes=20, known=1, per_class=10))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    assert log.read_text() == "drawn\n"
    assert [file.suffix for file in cache.iterdir()] == [".npz"]


def test_a_cache_folder_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be kept"):
        drawn = glyphs.drawn_glyphs(Glyphs(classes=2, known=1, per_class=2))
    assert drawn.pixels.shape == (4, 36, 36)
