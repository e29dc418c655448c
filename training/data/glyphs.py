"""The data set `glyphs`: characters drawn with the fonts that come with matplotlib, and deformed.

A class is a character. `glyphs.txt` lists those that serve as classes, in the order in which they are taken,
and then the others, for pretraining; the rule is in `tests/support/glyph_characters.py`. Every image is keyed
by its character and its number, so its bits depend neither on how many classes nor on how many images are
asked for. They depend on what draws them: `SPECIMEN` tells whether Pillow, FreeType, numpy and scipy drew
here what they drew for this project.
"""

from __future__ import annotations

import functools
import hashlib
import io
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
import scipy
from PIL import Image, ImageDraw, ImageFont, features
from scipy import ndimage

from eagc_ops.app.files import atomic_write, fingerprint, remove_partials
from eagc_ops.app.locks import lock
from eagc_ops.kernels.cache_folder import cache_folder
from eagc_ops.training.config.schema import Glyphs

__all__ = [
    "SIDE",
    "SPECIMEN",
    "DrawnGlyphs",
    "Font",
    "class_characters",
    "draw",
    "drawn_character",
    "drawn_glyphs",
    "fonts",
    "other_characters",
    "specimen",
]

SIDE = 36  # pixels of an image
# sha256 of `specimen()`, as drawn by Pillow 13.0, FreeType 2.14.3, numpy 2.4 and scipy 1.17
SPECIMEN = "724f790a93bd475fbf41e9d7fe5cf631d17b8ee94385fc468d928285368caa3f"

_FORMAT = 1  # of the images: a change of the drawing changes it
_FONTS = [
    f"{family}{style}"
    for family, styles in {
        "DejaVuSans": ("", "-Bold", "-Oblique", "-BoldOblique"),
        "DejaVuSansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
        "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic"),
        "STIXGeneral": ("", "Bol", "Italic", "BolIta"),
    }.items()
    for style in styles
]
_CANVAS, _INK = 64, 44  # pixels: a drawn character, and the longer side of its ink


class DrawnGlyphs(NamedTuple):
    """The images of the classes 0, 1, ..., in this order."""

    pixels: np.ndarray  # uint8 (classes * per_class, SIDE, SIDE)
    targets: np.ndarray  # int64 (classes * per_class,)
    characters: str  # by class
    notes: tuple[str, ...]


def drawn_glyphs(settings: Glyphs) -> DrawnGlyphs:
    """The images that the settings ask for, drawn once and kept in the user's cache folder.

    >>> glyphs = drawn_glyphs(Glyphs(classes=3, known=1, per_class=2))
    >>> glyphs.pixels.shape, glyphs.targets.tolist()
    ((6, 36, 36), [0, 0, 1, 1, 2, 2])
    """
    characters = class_characters()[settings.skip :][: settings.classes]
    pixels = _cached(characters, settings).reshape(-1, SIDE, SIDE)
    targets = np.repeat(np.arange(settings.classes), settings.per_class)
    return DrawnGlyphs(pixels, targets, characters, tuple(_notes()))


def draw(characters: str, per_class: int, strength: float) -> np.ndarray:
    """`per_class` images of every character, uint8 (characters, per_class, SIDE, SIDE)."""
    images = np.empty((len(characters), per_class, SIDE, SIDE), np.uint8)
    for of_character, character in zip(images, characters):
        clean = [
            drawn_character(character, font.pillow) for font in fonts() if ord(character) in font.characters
        ]
        for i, font in zip(range(per_class), _font_order(character, len(clean))):
            of_character[i] = _deformed(clean[font], np.random.default_rng([ord(character), i + 1]), strength)
    return images


def class_characters() -> str:
    """The characters that serve as classes, in the order in which they are taken."""
    return _listed()[0]


def other_characters() -> str:
    """Characters that resemble no class and not each other."""
    return _listed()[1]


def specimen() -> str:
    """The sha256 of a few images that use every part of the drawing."""
    return hashlib.sha256(draw(class_characters()[:4], 20, 1.0).tobytes()).hexdigest()


@functools.cache
def _listed() -> tuple[str, str]:
    classes, others = Path(__file__).with_name("glyphs.txt").read_text(encoding="utf-8").splitlines()
    return classes, others


# Drawing --------------------------------------------------------------------------------------------------


class Font(NamedTuple):
    name: str
    pillow: ImageFont.FreeTypeFont
    characters: frozenset[int]


@functools.cache
def fonts() -> tuple[Font, ...]:
    import matplotlib
    from fontTools.ttLib import TTFont  # comes with matplotlib

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    found = []
    for name in _FONTS:
        file = folder / f"{name}.ttf"
        # The basic layout: another one may not be there, and single characters need none.
        pillow = ImageFont.truetype(str(file), 56, layout_engine=ImageFont.Layout.BASIC)
        with TTFont(file, lazy=True) as opened:
            found.append(Font(name, pillow, frozenset(opened.getBestCmap())))
    return tuple(found)


def _font_order(character: str, count: int) -> Iterator[int]:
    """Font after font in random order, each once before one comes again; endless."""
    generator = np.random.default_rng(ord(character))
    while True:
        yield from generator.permutation(count)


def drawn_character(character: str, font: ImageFont.FreeTypeFont) -> np.ndarray:
    """float32 (_CANVAS, _CANVAS) in [0, 1]: the character, 1 where there is ink, in the middle."""
    left, top, right, bottom = map(int, font.getbbox(character))
    image = Image.new("L", (right - left + 8, bottom - top + 8))
    ImageDraw.Draw(image).text((4 - left, 4 - top), character, font=font, fill=255)
    ink = image.crop(image.getbbox())
    scale = _INK / max(ink.size)
    ink = ink.resize(
        (max(3, round(ink.width * scale)), max(3, round(ink.height * scale))), Image.Resampling.BICUBIC
    )
    canvas = Image.new("L", (_CANVAS, _CANVAS))
    canvas.paste(ink, ((_CANVAS - ink.width) // 2, (_CANVAS - ink.height) // 2))
    return np.asarray(canvas, np.float32) / 255


def _deformed(ink: np.ndarray, random: np.random.Generator, strength: float) -> np.ndarray:
    """uint8 (SIDE, SIDE): pen, affine and elastic change, then background and noise. 0: a plain drawing."""
    pen = random.uniform(-1, 1) * (random.random() < 1.4 * strength)
    if pen > 0.33:
        ink = ndimage.grey_dilation(ink, 3 if pen < 0.8 else 5)
    elif pen < -0.6:
        ink = 0.7 * ndimage.grey_erosion(ink, 3) + 0.3 * ink
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    places = _affine(y, x, random, strength) + _elastic(random, strength)
    image = ndimage.map_coordinates(ndimage.gaussian_filter(ink, 0.7), places + (_CANVAS - 1) / 2, order=1)
    image = ndimage.gaussian_filter(image, random.uniform(0, 0.9) * strength)
    if random.random() < 0.5 * strength:  # a stray line
        angle, offset = random.uniform(0, np.pi), random.uniform(-12, 12)
        distance = np.abs(np.cos(angle) * (y - SIDE / 2) + np.sin(angle) * (x - SIDE / 2) - offset)
        image = np.maximum(image, 0.7 * np.clip(1.2 - distance, 0, 1))
    image = _background(y, x, random, strength) + random.uniform(0.4, 0.75) * image
    image += random.standard_normal((SIDE, SIDE)) * random.uniform(0.02, 0.10) * strength
    return (np.clip(image, 0, 1) * 255).round().astype(np.uint8)


def _affine(y: np.ndarray, x: np.ndarray, random: np.random.Generator, strength: float) -> np.ndarray:
    """(2, SIDE, SIDE): the place on the canvas, from its middle, that a pixel shows."""
    angle = np.deg2rad(random.uniform(-15, 15) * strength)
    shear = random.uniform(-0.25, 0.25) * strength
    height, width = random.uniform(1 - 0.25 * strength, 1 + 0.12 * strength, 2)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = rotation @ np.array([[1, shear], [0, 1]]) @ np.diag([1 / height, 1 / width])
    dy, dx = random.uniform(-3, 3, 2) * strength
    middle = (SIDE - 1) / 2
    places = np.stack([y - middle + dy, x - middle + dx]) * (_CANVAS / SIDE)
    return np.einsum("ij,jyx->iyx", matrix, places)


def _elastic(random: np.random.Generator, strength: float) -> np.ndarray:
    """(2, SIDE, SIDE): smooth shifts of the places, in pixels of the canvas."""
    field = ndimage.gaussian_filter(random.standard_normal((2, SIDE, SIDE)), (0, 4, 4))
    return field * (random.uniform(0, 1.3) * strength * (_CANVAS / SIDE) / field.std())


def _background(y: np.ndarray, x: np.ndarray, random: np.random.Generator, strength: float) -> np.ndarray:
    """(SIDE, SIDE): a level, a gradient and a smooth texture."""
    level, (down, right) = random.uniform(0.05, 0.3), random.uniform(-1, 1, 2) * 0.25 * strength
    texture = ndimage.gaussian_filter(random.standard_normal((SIDE, SIDE)), 2.5)
    texture *= random.uniform(0, 0.10) * strength / texture.std()
    return level + down * (y / SIDE - 0.5) + right * (x / SIDE - 0.5) + texture


# The cache ------------------------------------------------------------------------------------------------


def _cached(characters: str, settings: Glyphs) -> np.ndarray:
    """The images of the characters, from the cache; one process draws them, others wait for its file."""
    made_of = {
        "format": _FORMAT,
        "characters": characters,
        "per_class": settings.per_class,
        "strength": settings.strength,
        "versions": _versions(),
    }
    file = cache_folder() / "glyphs" / f"{fingerprint(made_of)[:16]}.npz"
    shape = (len(characters), settings.per_class, SIDE, SIDE)
    if (found := _read(file, shape)) is not None:
        return found
    try:
        with lock(file.with_name(f"{file.name}.lock"), f"glyphs {file}", wait=True):
            if (found := _read(file, shape)) is not None:
                return found
            remove_partials(file.parent, file.name)
            pixels = draw(characters, settings.per_class, settings.strength)
            content = io.BytesIO()
            np.savez(content, pixels=pixels)
            atomic_write(file, content.getvalue())
            return pixels
    except OSError as error:
        warnings.warn(f"glyphs are drawn again in every run: they cannot be kept ({error})", stacklevel=3)
        return draw(characters, settings.per_class, settings.strength)


def _read(file: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """The images in a file of the cache; None if it does not exist or is damaged (it has checksums)."""
    try:
        with np.load(file) as content:
            pixels = content["pixels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return pixels if pixels.shape == shape and pixels.dtype == np.uint8 else None


def _notes() -> Iterator[str]:
    yield "glyphs are drawn with the fonts of matplotlib"
    if _specimen() != SPECIMEN:
        yield (
            f"{_versions()} draw other pixels here than those with which the encoder and the documentation "
            "of glyphs were made: numbers may differ a little from the documented ones"
        )


@functools.cache
def _specimen() -> str:
    return specimen()


def _versions() -> str:
    return (
        f"Pillow {PIL.__version__} with FreeType {features.version('freetype2')}, numpy {np.__version__}, "
        f"scipy {scipy.__version__}"
    )
