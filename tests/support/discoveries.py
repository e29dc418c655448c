"""The files of a made-up discovery: what `eagc discover` leaves for the page, with images.

    python discoveries.py FOLDER [CATEGORIES [IMAGES]]

makes one to look at.
"""

import csv
import json
import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image

KNOWN_NAMES = ("barn owl", "fox", "hedgehog", "red squirrel", "heron", "badger")
MOTIFS = 40  # different pictures of a category at most; the other files are links to them


def write_discovery(
    folder: Path,
    known: int = 3,
    new: int = 5,
    images: int = 160,
    side: int = 48,
    names: dict[int, str] | None = None,
    file_names: dict[int, str] | None = None,
    seed: int = 0,
) -> dict:
    """Write assignments.csv, map.csv and categories.json into `folder`/out, and images into `folder`/photos.

    Image i belongs to category i modulo their number; the known ones come first. `names` has names of
    categories, `file_names` of images, by their numbers. Every ninth image is doubtful, every 25th fits
    nowhere; every third new category is doubtful. Returns the content of categories.json.
    """
    random = np.random.default_rng(seed)
    out, photos = folder / "out", folder / "photos"
    out.mkdir(parents=True)
    count = known + new
    titles = [KNOWN_NAMES[c] if c < len(KNOWN_NAMES) else f"species {c}" for c in range(known)]
    titles += [f"new-{c + 1}" for c in range(new)]
    titles = [(names or {}).get(c, title) for c, title in enumerate(titles)]
    angle = random.permutation(count) * 2.39996
    centers = np.stack([np.cos(angle), np.sin(angle)], 1) * np.sqrt(np.arange(count) + 0.5)[:, None] * 3
    palette = random.integers(0, 256, (count, 4, 4, 3))
    rows, motifs = [], {}
    for i in range(images):
        c = i % count
        path = photos / (file_names or {}).get(i, f"day {i % 7}/IMG_{i:05}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        motif = (c, i // count % MOTIFS)
        if motif in motifs:
            os.link(motifs[motif], path)
        else:
            _picture(random, palette[c], side).save(path, "JPEG", quality=88)
            motifs[motif] = path
        status = "nowhere" if i % 25 == 24 else "doubtful" if i % 9 == 8 else "clear"
        confidence = {"clear": 0.9, "doubtful": 0.45, "nowhere": 0.2}[status] + 0.09 * random.random()
        place = centers[c] + random.normal(0, 0.9 if status == "clear" else 2.2, 2)
        rows.append((str(path), c, status, confidence, random.random(), place))
    with open(out / "assignments.csv", "w", newline="", errors="surrogateescape") as file:
        table = csv.writer(file)
        table.writerow(["path", "category", "kind", "confidence", "margin", "distance", "status"])
        for path, c, status, confidence, distance, _ in rows:
            kind = "known" if c < known else "new"
            table.writerow([path, titles[c], kind, confidence, confidence / 2, distance, status])
    with open(out / "map.csv", "w", newline="", errors="surrogateescape") as file:
        table = csv.writer(file)
        table.writerow(["path", "x", "y"])
        table.writerows([path, *place] for path, *_, place in rows)
    categories = []
    for c, title in enumerate(titles):
        own = [row for row in rows if row[1] == c]
        doubtful = c >= known and (c - known) % 3 == 2
        categories.append(
            {
                "name": title,
                "kind": "known" if c < known else "new",
                "size": len(own),
                "labelled": 20 if c < known else 0,
                "doubtful": doubtful,
                "named": False,
                "why": "Its images are spread widely: it may be two categories." if doubtful else "",
                "confidence": float(np.mean([row[3] for row in own])) if own else 0.0,
                "nearest_known": {"name": titles[c % known], "similarity": 0.71} if c >= known else None,
                "typical": [row[0] for row in own if row[2] == "clear"][:8],
                "doubtful_images": [row[0] for row in own if row[2] == "doubtful"][:6],
            }
        )
    order = sorted(categories, key=lambda category: (category["kind"] == "known", -category["size"]))
    found = {
        "version": 2,
        "discovery": f"{seed:016x}",
        "labelled": str(folder / "labelled"),
        "unlabelled": str(photos),
        "backbone": "dinov2_vitb14_reg4",
        "weights": "pretrained",
        "method": "simgcd",
        "eagc": True,
        "k": count,
        "k_estimated": True,
        "k_range": [count - 1, count + 2],
        "k_text": "Where two measures agree best.",
        "empty": 0,
        "warnings": [],
        "round": 0,
        "changes": None,
        "answer": {
            "kind": "first",
            "training": "to come",
            "sentence": "This is the first answer: a clustering of the pretrained encoder's features.",
            "candidates": [
                {"kind": "first", "name": "first answer", "kept": True, "empty": 0, "score": None}
            ],
        },
        "images": {
            "labelled": 20 * known,
            "held_out": 4 * known,
            "unlabelled": images,
            "doubtful": sum(row[2] == "doubtful" for row in rows),
            "nowhere": sum(row[2] == "nowhere" for row in rows),
        },
        "rules": {
            "doubtful": "Two categories are almost equally likely.",
            "nowhere": "Farther from every category than 99 % of the labelled images are from theirs.",
            "doubtful_category": "More than half of its images are doubtful, or it is small.",
        },
        "map": "Images that look alike to the model are near each other.",
        "holdout": {"images": 4 * known, "right": 4 * known - 1, "accuracy": 1 - 1 / (4 * known)},
        "truth": None,
        "categories": order,
    }
    (out / "categories.json").write_text(json.dumps(found))
    return found


def _picture(random: np.random.Generator, palette: np.ndarray, side: int) -> Image.Image:
    """A smooth pattern in the colours of a category, with some noise: it compresses like a photograph."""
    coarse = np.clip(palette + random.integers(-50, 50, palette.shape), 0, 255).astype(np.uint8)
    middle = random.normal(0, 16, (side // 4, side // 4, 3))
    pixels = np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC), np.float32)
    detail = np.stack([np.kron(middle[..., i], np.ones((4, 4))) for i in range(3)], 2)
    return Image.fromarray(
        np.clip(pixels[: detail.shape[0], : detail.shape[1]] + detail, 0, 255).astype(np.uint8)
    )


if __name__ == "__main__":
    from eagc_ops.discovery.page import page_size, write_page

    home, categories, images = (
        Path(sys.argv[1]),
        int((sys.argv[2:] or ["22"])[0]),
        int((sys.argv[3:] or ["1500"])[0]),
    )
    write_discovery(home, known=categories // 3, new=categories - categories // 3, images=images, side=200)
    page = write_page(home / "out", progress=True)
    print(page, page_size(page))
