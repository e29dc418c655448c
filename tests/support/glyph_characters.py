"""The rule behind `training/data/glyphs.txt`: which characters are classes, and which are for pretraining."""

import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np
from scipy import ndimage

from eagc_ops.training.config.schema import CHARACTERS
from eagc_ops.training.data.glyphs import Font, drawn_character, fonts

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
    compared = [font for font in fonts() if font.name in _COMPARED]
    kept: list[str] = []
    signatures = np.empty((2000, len(compared), 256), np.float32)
    for character in _candidates():
        signature = _signature(character, compared)
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
            if code not in seen and sum(code in font.characters for font in fonts()) >= _LEAST_FONTS:
                seen.add(code)
                if unicodedata.category(chr(code)) not in ("Cf", "Cn", "Zs"):  # nothing to see
                    yield chr(code)


def _signature(character: str, among: Iterable[Font]) -> np.ndarray:
    """float32 (fonts, 256): blurred drawings, centred and of unit norm; 0 where a font lacks it."""
    rows = []
    for font in among:
        if ord(character) not in font.characters:
            rows.append(np.zeros(256, np.float32))
            continue
        blurred = ndimage.gaussian_filter(drawn_character(character, font.pillow), 2.0)[2::4, 2::4].ravel()
        blurred -= blurred.mean()
        rows.append(blurred / np.linalg.norm(blurred))
    return np.stack(rows)
