"""The words of the page: its headline, how sure its numbers are, and its warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eagc_ops.discovery.number import collapsed
from eagc_ops.training.analysis.accuracy import wilson

__all__ = ["accuracy_text", "counts", "headline", "percent", "plural", "said_aloud"]


def headline(found: Mapping[str, Any]) -> str:
    """The first sentence: a collapse before anything else, then new categories and what is odd."""
    now = counts(found)
    if now["collapsed"]:
        of = f"{now['empty']} of the {plural(found['k'], 'category', 'categories')} stayed empty"
        return f"{of}: do not trust this answer"
    new = [c for c in found["categories"] if c["kind"] == "new" and c["size"]]
    doubtful = sum(c["doubtful"] for c in new)
    text = plural(len(new), "new category", "new categories") if new else "No new category"
    if new and doubtful == len(new):
        text += ", and it is doubtful" if doubtful == 1 else ", all of them doubtful"
    elif doubtful:
        text += f", {doubtful} of them doubtful"
    images = found["images"]
    for count, words in ((images["nowhere"], "fit nowhere"), (images["doubtful"], "are doubtful")):
        if count:
            return f"{text}; {percent(count / images['unlabelled'])} of the images {words}"
    return f"{text}; every image has a clear place"


def counts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Categories and shares of the unlabelled images, by kind, and the empty categories.

    `known` + `new` + `unseen` + `empty` = K: categories with unlabelled images, known ones without any, and
    empty ones.
    """
    total = max(found["images"]["unlabelled"], 1)
    kinds = {
        kind: [c for c in found["categories"] if c["kind"] == kind and c["size"]] for kind in ("known", "new")
    }
    given = sum(c["kind"] == "known" for c in found["categories"])
    taken = {kind: len(members) for kind, members in kinds.items()}
    shares = {f"{kind}_share": sum(c["size"] for c in members) / total for kind, members in kinds.items()}
    rest = {"unseen": given - taken["known"], "empty": max(found["k"] - given - taken["new"], 0)}
    return {**taken, **shares, **rest, "given": given, "collapsed": collapsed(rest["empty"], found["k"])}


def said_aloud(found: Mapping[str, Any]) -> list[str]:
    """Warnings below the headline; whoever overlooks them would trust the page too much."""
    sentences = [sentence.strip().rstrip(".") + "." for sentence in found.get("warnings") or ()]
    categories = [c for c in found["categories"] if c["size"]]
    total = found["images"]["unlabelled"]
    if len(categories) > 2 and (largest := max(categories, key=lambda c: c["size"]))["size"] > MOST * total:
        sentences.append(
            f"{percent(largest['size'] / total)} of the images are in one category, {largest['name']}: it "
            "may hold more than one thing."
        )
    return sentences


MOST = 0.8  # of the images in one of three or more categories


def accuracy_text(holdout: Mapping[str, Any]) -> dict[str, str]:
    """The accuracy on held-out images, with its interval and counts.

    >>> accuracy_text({"images": 12, "accuracy": 11 / 12})["interval"]
    '64 to 99 %'
    """
    images = holdout["images"]
    right = holdout.get("right", round(holdout["accuracy"] * images))
    low, high = wilson(right, images)
    return {
        "share": percent(right / images),
        "interval": f"{math.floor(100 * low)} to {math.ceil(100 * high)} %",  # rounded outwards
        "of": f"{right:,} of {plural(images, 'held-out image')}",
    }


def percent(share: float) -> str:
    """A share in words, never rounded to none or all. Its parts stay on one line.

    >>> percent(0.043), percent(0.003), percent(0.999), percent(0), percent(1)
    ('4 %', 'less than 1 %', 'more than 99 %', '0 %', '100 %')
    """
    if 0 < share < 0.01:
        return "less than 1 %"
    return "more than 99 %" if 0.99 < share < 1 else f"{round(100 * share)} %"


def plural(count: int, one: str, many: str = "") -> str:
    """A number and its noun.

    >>> plural(1, "image"), plural(1200, "image"), plural(2, "category", "categories")
    ('1 image', '1,200 images', '2 categories')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
