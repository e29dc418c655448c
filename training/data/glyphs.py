"""The data set `glyphs`: characters drawn with the fonts that come with matplotlib, and deformed.

A class is a character. `glyphs.txt` lists those that serve as classes, in the order in which they are taken,
and then the others, for pretraining; `choose_characters` made it. Every image is keyed by its character and
its number, so its bits depend neither on how many classes nor on how many images are asked for. They
depend on what draws them: `SPECIMEN` tells whether Pillow, FreeType, numpy and scipy drew here what they
drew for this project.
"""

from __future__ import annotations

import functools
import hashlib
import io
import unicodedata
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
import scipy
from PIL import Image, ImageDraw, ImageFont, features
from scipy import ndimage

from eagc_ops.files import atomic_write, fingerprint, remove_partials
from eagc_ops.kernels.cache_folder import cache_folder
from eagc_ops.locks import lock
from eagc_ops.training.config.schema import CHARACTERS, Glyphs

__all__ = [
    "SIDE",
    "SPECIMEN",
    "DrawnGlyphs",
    "choose_characters",
    "class_characters",
    "draw",
    "drawn_glyphs",
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
        clean = [_drawn(character, font.pillow) for font in _fonts() if ord(character) in font.characters]
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


# The characters -------------------------------------------------------------------------------------------

# In the order in which they are looked at: digits, Latin, Greek, Cyrillic, Armenian, Georgian, signs.
_RANGES = [
    (0x30, 0x3A),
    (0x41, 0x5B),
    (0x61, 0x7B),
    (0x391, 0x3CA),
    (0x410, 0x450),
    (0x402, 0x410),
    (0x452, 0x460),
    (0x531, 0x557),
    (0x561, 0x588),
    (0x10D0, 0x10F1),
    (0x21, 0x7F),
    (0xA1, 0x100),
    (0x2190, 0x21FF),
    (0x2200, 0x2300),
    (0x2100, 0x2150),
    (0x25A0, 0x2600),
    (0x2600, 0x2700),
    (0x180, 0x250),
    (0x250, 0x2B0),
]
_LEAST_FONTS = 12
_COMPARED = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic")
_ALIKE = 0.92  # correlation of blurred drawings from which on two characters are look-alikes


def choose_characters() -> tuple[str, str]:
    """(classes, others): the rule behind `glyphs.txt`.

    Characters are looked at in a fixed order. One stays if 12 of the 16 fonts have it and if it is no
    look-alike of one that stayed before: the correlation of their blurred drawings, averaged over those of
    five fonts that have both, is below 0.92. The first 200 that stay are the classes, shuffled once, so that
    the first N of them mix scripts.
    """
    fonts = [font for font in _fonts() if font.name in _COMPARED]
    kept: list[str] = []
    signatures = np.empty((2000, len(fonts), 256), np.float32)
    for character in _candidates():
        signature = _signature(character, fonts)
        before = signatures[: len(kept)]
        both = (before.any(2) & signature.any(1)).sum(1)
        alike = np.einsum("cfp,fp->c", before, signature) / np.maximum(both, 1)
        if (alike < _ALIKE).all():
            signatures[len(kept)] = signature
            kept.append(character)
    order = np.random.default_rng(0).permutation(CHARACTERS)
    return "".join(kept[i] for i in order), "".join(kept[CHARACTERS:])


def _candidates() -> Iterator[str]:
    seen: set[int] = set()
    for first, end in _RANGES:
        for code in range(first, end):
            if code not in seen and sum(code in font.characters for font in _fonts()) >= _LEAST_FONTS:
                seen.add(code)
                if unicodedata.category(chr(code)) not in ("Cf", "Cn", "Zs"):  # nothing to see
                    yield chr(code)


def _signature(character: str, fonts: Iterable[_Font]) -> np.ndarray:
    """float32 (fonts, 256): blurred drawings, centred and of unit norm; 0 where a font lacks it."""
    rows = []
    for font in fonts:
        if ord(character) not in font.characters:
            rows.append(np.zeros(256, np.float32))
            continue
        blurred = ndimage.gaussian_filter(_drawn(character, font.pillow), 2.0)[2::4, 2::4].ravel()
        blurred -= blurred.mean()
        rows.append(blurred / np.linalg.norm(blurred))
    return np.stack(rows)


@functools.cache
def _listed() -> tuple[str, str]:
    classes, others = Path(__file__).with_name("glyphs.txt").read_text(encoding="utf-8").splitlines()
    return classes, others


# Drawing --------------------------------------------------------------------------------------------------


class _Font(NamedTuple):
    name: str
    pillow: ImageFont.FreeTypeFont
    characters: frozenset[int]


@functools.cache
def _fonts() -> tuple[_Font, ...]:
    import matplotlib
    from fontTools.ttLib import TTFont  # comes with matplotlib

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    fonts = []
    for name in _FONTS:
        file = folder / f"{name}.ttf"
        # The basic layout: another one may not be there, and single characters need none.
        pillow = ImageFont.truetype(str(file), 56, layout_engine=ImageFont.Layout.BASIC)
        with TTFont(file, lazy=True) as opened:
            fonts.append(_Font(name, pillow, frozenset(opened.getBestCmap())))
    return tuple(fonts)


def _font_order(character: str, count: int) -> Iterator[int]:
    """Font after font in random order, each once before one comes again; endless."""
    generator = np.random.default_rng(ord(character))
    while True:
        yield from generator.permutation(count)


def _drawn(character: str, font: ImageFont.FreeTypeFont) -> np.ndarray:
    """float32 (_CANVAS, _CANVAS) in [0, 1]: the character, 1 where there is ink, in the middle."""
    left, top, right, bottom = font.getbbox(character)
    image = Image.new("L", (right - left + 8, bottom - top + 8))
    ImageDraw.Draw(image).text((4 - left, 4 - top), character, font=font, fill=255)
    ink = image.crop(image.getbbox())
    scale = _INK / max(ink.size)
    ink = ink.resize((max(3, round(ink.width * scale)), max(3, round(ink.height * scale))), Image.BICUBIC)
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
