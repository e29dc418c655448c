"""The page of a discovery, read as text; test_browser.py opens it."""

import csv
import json
import os
import re
import sys
import types
from html.parser import HTMLParser
from urllib.parse import unquote, unquote_to_bytes

import numpy as np
import pytest
from discoveries import write_discovery
from pages import Page
from PIL import Image

from eagc_ops.discovery import page as discovered
from eagc_ops.discovery import thumbnails
from eagc_ops.discovery.category_files import csv_text, quoted
from eagc_ops.discovery.page import page_size, write_page
from eagc_ops.discovery.verdict import counts, headline, said_aloud

HOSTILE_CLASS = "</script><script>alert('class')</script>\"'& ünï 日本"
HOSTILE_FILE = "<img src=x onerror=alert(1)>\"' #1?%20 &amp; ünï 日本.jpg"


class Links(HTMLParser):
    """All links and images of a page, as pairs (address, alternative text or title)."""

    def __init__(self, text):
        super().__init__()
        self.links, self.images, self.scripts = [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        assert not [name for name in values if name.startswith("on")]  # no handler was smuggled in
        self.scripts += tag == "script"
        if tag == "a" and "href" in values:
            self.links.append((values["href"], values["title"]))
        if tag == "img":
            self.images.append((values["src"], values["alt"], values["style"]))


def data_of(text):
    """The data that the script of the page reads."""
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A discovery with hostile names and one file that is no image, and its page."""
    home = tmp_path_factory.mktemp("discovery")
    write_discovery(home, names={0: HOSTILE_CLASS}, file_names={0: HOSTILE_FILE})
    broken = home / "photos" / "day 1" / "IMG_00001.jpg"
    broken.unlink()
    broken.write_bytes(b"\xff\xd8 not a picture")
    assert write_page(home / "out") == home / "out" / "discovered.html"
    return home


@pytest.fixture(scope="module")
def text(home):
    return (home / "out" / "discovered.html").read_text()


def test_it_opens_with_what_was_found(text):
    assert "<h1>5 new categories, 1 of them doubtful; 4\xa0% of the images fit nowhere.</h1>" in text
    words = " ".join(Page(text).text.split())
    assert "Given 60 labelled images of 3 categories, 160 unlabelled images were sorted." in words
    # Of what, and how sure: the Wilson interval of 11 in 12 is 64.6 to 98.5 %.
    assert (
        "right on known categories92 %11 of 12 held-out images; likely 64 to 99 % of all such images" in words
    )
    assert (
        "8 categories (estimated; between 7 and 10 are likely): 5 new and 3 known with images below. "
        "This is the first answer" in words
    )
    assert "GCD" not in words.split("How to read this page")[0].replace("EAGC", "")


@pytest.mark.parametrize(
    ("sizes", "doubtful", "nowhere", "sentence"),
    [
        ([9, 9], 0, 0, "2 new categories; 7 % of the images are doubtful"),
        ([9], 1, 30, "1 new category, and it is doubtful; 30 % of the images fit nowhere"),
        ([9, 9], 2, 0, "2 new categories, all of them doubtful; 7 % of the images are doubtful"),
        ([0], 0, 0.5, "No new category; less than 1 % of the images fit nowhere"),
    ],
)
def test_the_sentence_in_other_cases(sizes, doubtful, nowhere, sentence):
    categories = [{"kind": "new", "size": size, "doubtful": i < doubtful} for i, size in enumerate(sizes)]
    found = {"categories": categories, "images": {"unlabelled": 100, "nowhere": nowhere, "doubtful": 7}}
    found["k"] = sum(size > 0 for size in sizes)
    assert headline(found) == sentence
    found["images"] |= {"nowhere": 0, "doubtful": 0}
    assert headline(found).endswith("; every image has a clear place")


def test_a_collapse_is_the_headline(tmp_path):
    """K = 10, and half of the categories have no image: the page says nothing nicer first."""
    found = write_discovery(tmp_path, known=5, new=0, images=20)
    found |= {"k": 10, "empty": 5, "warnings": ["The encoder has random weights"]}
    (tmp_path / "out" / "categories.json").write_text(json.dumps(found))
    text = write_page(tmp_path / "out").read_text()
    assert "<h1 class=alarm>5 of the 10 categories stayed empty: do not trust this answer.</h1>" in text
    assert "<li>The encoder has random weights.</li>" in text
    words = " ".join(Page(text).text.split())
    assert "0 new and 5 known with images below, and 5 that stayed empty and have no card." in words


def test_one_empty_category_of_many_is_said_without_an_alarm(tmp_path):
    found = write_discovery(tmp_path, known=5, new=25, images=120)
    found |= {"k": 31, "empty": 1}
    (tmp_path / "out" / "categories.json").write_text(json.dumps(found))
    text = write_page(tmp_path / "out").read_text()
    assert "do not trust" not in text and "class=alarm" not in text
    assert "and 1 that stayed empty and has no card." in " ".join(Page(text).text.split())


def test_small_things_that_people_stumble_over(tmp_path):
    """Shares that stay on one line of a box, no t-SNE before the footer, and no likeness of nothing."""
    found = write_discovery(tmp_path, images=40)
    found["images"] |= {"doubtful": 1, "unlabelled": 400}
    found["holdout"] = {"images": 400, "right": 399, "accuracy": 399 / 400}
    found |= {"map": "t-SNE of the features", "round": 2, "k_estimated": False, "k_range": None}
    found["categories"][0]["nearest_known"]["similarity"] = -0.08
    (tmp_path / "out" / "categories.json").write_text(json.dumps(found))
    text = write_page(tmp_path / "out").read_text()
    assert "<dd>&lt;\xa01\xa0%</dd>" in text and "<dd>&gt;\xa099\xa0%</dd>" in text
    words = " ".join(Page(text).text.split())
    before, footer = words.split("How to read this page")
    assert "t-SNE" not in before and "t-SNE of the features. Its axes mean nothing." in footer
    assert "8 categories (after your corrections): 5 new" in before
    cards = [" ".join(Page(card).text.split()) for card in text.split("<article")[1:6]]
    assert "The middle square of an image, upright." in footer
    assert "like none of your categories" in cards[0] and "most like" not in cards[0]
    assert "most like fox (0.71)" in cards[1]


def test_cards_and_empty_categories_make_k(tmp_path):
    found = write_discovery(tmp_path, images=40)
    kinds = ("known", "new", "unseen", "empty")
    assert [counts(found)[kind] for kind in kinds] == [3, 5, 0, 0]
    found["categories"][0]["size"] = 0  # a new one
    found["categories"][-1]["size"] = 0  # a known one
    found["k"] = 10
    assert [counts(found)[kind] for kind in kinds] == [2, 4, 1, 3]


def test_one_category_of_almost_all_images_is_said_aloud(tmp_path):
    found = write_discovery(tmp_path, images=80)
    assert said_aloud(found) == []
    found["categories"][0] |= {"size": 66, "name": "new-1"}
    assert said_aloud(found) == [
        "82 % of the images are in one category, new-1: it may hold more than one thing."
    ]


@pytest.mark.parametrize("name", ["=1+1", "+49", "-x", "@home", "'=quoted", "'tis"])
def test_names_that_a_spreadsheet_would_compute(tmp_path, name):
    """They have an apostrophe in the table, and their own name on the page."""
    write_discovery(tmp_path, images=16, names={0: name})
    file = tmp_path / "out" / "assignments.csv"
    with open(file, newline="") as lines:
        rows = list(csv.reader(lines))
    for row in rows:
        row[1] = quoted(row[1])
        assert not row[1].startswith(("=", "+", "-", "@"))
    file.write_bytes(csv_text(rows[0], rows[1:]))
    data = data_of(write_page(tmp_path / "out").read_text())
    assert name in [title for title, *_ in data["categories"]]


def test_new_categories_come_first_and_empty_ones_last(tmp_path):
    found = write_discovery(tmp_path, images=19)  # the first three, the known ones, have one image more
    rest = {"typical": [], "doubtful_images": [], "size": 0, "confidence": 0.0, "labelled": 7}
    found["categories"].append({**found["categories"][-1], "name": "unseen", **rest})
    found["categories"].sort(key=lambda category: category["name"])
    (tmp_path / "out" / "categories.json").write_text(json.dumps(found))
    text = write_page(tmp_path / "out").read_text()
    names = re.findall(r"<h2>(.+?)</h2>", text)
    assert names == [*(f"new-{i}" for i in range(1, 6)), "barn owl", "fox", "hedgehog", "unseen"]
    card = " ".join(Page(text[text.index("<h2>unseen") :]).text.split())
    assert card.startswith("unseen known none of the images, but 7 of yours")


def test_names_of_users_stay_text(text):
    parsed = Links(text)
    assert parsed.scripts == 2  # the data, and the script of the page
    assert "alert(1)>" not in text
    assert "alert('class')" not in text
    page = Page(text)
    assert HOSTILE_CLASS in page.text
    titles = [title for _, title in parsed.links]
    assert HOSTILE_FILE in titles
    assert f"typical image of {HOSTILE_CLASS}: {HOSTILE_FILE}" in [alt for _, alt, _ in parsed.images]
    assert HOSTILE_CLASS in [name for name, *_ in data_of(text)["categories"]]


def test_every_link_leads_to_its_image(home, text):
    out = home / "out"
    for href, title in Links(text).links:
        assert (out / unquote(href)).name == title
        assert (out / unquote(href)).is_file()
    data = data_of(text)
    with open(out / "assignments.csv", newline="") as file:
        rows = {row["path"]: row for row in csv.DictReader(file)}
    assert len(data["url"]) == len(rows) == 160
    for i, url in enumerate(data["url"]):
        row = rows[os.path.normpath(out / unquote(data["base"] + url))]
        name, kind, _ = data["categories"][data["category"][i]]
        assert (name, kind) == (row["category"], row["kind"])
        assert ["clear", "doubtful", "nowhere"][data["status"][i]] == row["status"]
        assert data["confidence"][i] == round(100 * float(row["confidence"]))


def test_nothing_comes_from_elsewhere(text):
    assert not re.search(
        r"https?:|//[a-z]+\.|@import", re.sub(r'http-equiv|"http://www.w3.org[^"]*"', "", text)
    )
    assert "default-src 'none'" in text
    for src, alt, _ in Links(text).images:
        assert re.fullmatch(r"discovered_files/card-\d{4}\.webp", src)
        assert alt


def test_thumbnails_stand_where_the_page_looks_for_them(home, text):
    """The tiles of a sheet have the colours of their images, on the map and on the cards."""
    files, data = home / "out" / "discovered_files", data_of(text)

    def close(sheet, x, y, side, image):
        tile = np.asarray(sheet.crop((x, y, x + side, y + side)).resize((4, 4)), float)
        return np.abs(tile - np.asarray(Image.open(image).convert("RGB").resize((4, 4)), float)).mean() < 12

    sheet = Image.open(files / "map-0000.webp").convert("RGB")
    for i in range(0, 160, 7):
        x, y = data["side"] * (i % data["columns"]), data["side"] * (i // data["columns"])
        image = home / "out" / unquote(data["base"] + data["url"][i])
        assert image.name == "IMG_00001.jpg" or close(sheet, x, y, data["side"], image)
    parsed = Links(text)
    for (href, _), (src, _, style) in list(zip(parsed.links, parsed.images))[::5]:
        count, place = map(int, re.fullmatch(r"--n:(\d+);--i:(\d+)", style).groups())
        sheet = Image.open(home / "out" / src).convert("RGB")
        assert sheet.width == discovered.CARD_SIDE * count
        image = home / "out" / unquote(href)
        assert image.name == "IMG_00001.jpg" or close(
            sheet, discovered.CARD_SIDE * place, 0, discovered.CARD_SIDE, image
        )


def test_many_images_fill_several_sheets(tmp_path, monkeypatch):
    monkeypatch.setattr(discovered, "COLUMNS", 4)
    monkeypatch.setattr(discovered, "ROWS", 3)
    monkeypatch.setattr(thumbnails, "MAP_SIDES", ((10, 40), (None, 20)))
    write_discovery(tmp_path, images=27)
    data = data_of(write_page(tmp_path / "out").read_text())
    sheets = sorted((tmp_path / "out" / "discovered_files").glob("map-*.webp"))
    assert [Image.open(sheet).size for sheet in sheets] == [(80, 60), (80, 60), (80, 20)]
    assert (data["perSheet"], data["columns"], data["side"]) == (12, 4, 20)


def test_an_unreadable_image_has_a_grey_square(home, text):
    assert "1 image could not be read and appears as a grey square." in text
    data = data_of(text)
    i = [unquote(url).rpartition("/")[2] for url in data["url"]].index("IMG_00001.jpg")
    sheet = Image.open(home / "out" / "discovered_files" / "map-0000.webp").convert("RGB")
    corner = sheet.getpixel((data["side"] * (i % 16) + 8, data["side"] * (i // 16) + 8))
    assert np.abs(np.array(corner) - (0xB8, 0xBE, 0xC8)).max() < 8


def test_the_sizes_are_stated(home, text):
    page = home / "out" / "discovered.html"
    thumbnails = sum(file.stat().st_size for file in (home / "out" / "discovered_files").iterdir())
    expected = discovered.megabytes(page.stat().st_size), discovered.megabytes(thumbnails)
    assert f"This page: {expected[0]}; its thumbnails: {expected[1]}, in the folder" in text
    assert page_size(page) == f"{expected[0]}, and {expected[1]} of thumbnails in discovered_files"


def test_a_page_is_replaced_whole_or_not_at_all(tmp_path):
    write_discovery(tmp_path, images=24)
    out = tmp_path / "out"
    write_page(out)
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    lines = (out / "map.csv").read_text().splitlines()
    (out / "map.csv").write_text("\n".join(lines[:-1]))
    with pytest.raises(ValueError, match=r"map\.csv has no line for the image .*IMG_00023\.jpg"):
        write_page(out)
    (out / "map.csv").write_bytes(before[out / "map.csv"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thumbnails, "_thumbnail", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write_page(out)
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    (out / "discovered_files" / "map-0099.webp").write_bytes(b"of a larger discovery")
    write_page(out)
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


def test_images_of_any_mode_are_shown_as_people_see_them(tmp_path):
    halves = Image.new("RGB", (60, 40), "red")
    halves.paste("blue", (0, 20, 60, 40))
    turned = halves.rotate(90, expand=True)  # stored sideways, with a mark that says so
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    halves.convert("CMYK").save(tmp_path / "cmyk.jpg", quality=95)
    halves.convert("RGBA").save(tmp_path / "alpha.png")
    Image.fromarray(np.full((40, 60), 40_000, np.uint16)).save(tmp_path / "deep.png")
    for name in ("turned.jpg", "cmyk.jpg", "alpha.png"):
        tile = thumbnails._thumbnail(str(tmp_path / name), 32)
        above, below = np.array(tile.getpixel((16, 4)), int), np.array(tile.getpixel((16, 28)), int)
        assert above[0] > 180 > 90 > above[2], name
        assert below[2] > 180 > 90 > below[0], name
    assert abs(thumbnails._thumbnail(str(tmp_path / "deep.png"), 32).getpixel((9, 9))[0] - 156) <= 1


def test_heic_pictures_have_thumbnails_in_a_new_process(tmp_path, monkeypatch):
    """`eagc refine` reads no list of images, so nothing has told PIL of HEIC yet. (A stand-in.)"""
    told = []
    package = types.ModuleType("pillow_heif")
    package.register_heif_opener = lambda: told.append("heic")
    monkeypatch.setitem(sys.modules, "pillow_heif", package)
    write_discovery(tmp_path, images=8, file_names={0: "IMG_0001.HEIC"})
    text = write_page(tmp_path / "out").read_text()
    assert told and "could not be read" not in text


def test_paths_that_are_relative_or_no_text(tmp_path):
    odd = os.fsdecode(b"\xe9t\xe9.jpg")  # not UTF-8
    write_discovery(tmp_path, images=16, file_names={0: odd}, names={1: os.fsdecode(b"for\xeat")})
    for name in ("assignments.csv", "map.csv", "categories.json"):
        file = tmp_path / "out" / name
        file.write_bytes(file.read_bytes().replace(f"{tmp_path / 'photos'}/".encode(), b""))
    text = write_page(tmp_path / "out").read_bytes().decode()
    assert "could not be read" not in text
    hrefs = [href for href, _ in Links(text).links]
    assert any(unquote_to_bytes(href).endswith(b"photos/\xe9t\xe9.jpg") for href in hrefs)
    assert all(
        os.path.exists(os.fsencode(tmp_path / "out") + b"/" + unquote_to_bytes(href)) for href in hrefs
    )


def test_scores_that_do_not_exist(tmp_path):
    found = write_discovery(tmp_path, images=16)
    found |= {
        "holdout": None,
        "truth": {"all": 0.75, "old": 0.875, "new": float("nan")},
        "k_estimated": False,
    }
    (tmp_path / "out" / "categories.json").write_text(json.dumps(found))
    text = " ".join(Page(write_page(tmp_path / "out").read_text()).text.split())
    assert "75.0 % of all images, 87.5 % of images of known categories are right" in text
    assert "right on known" not in text
    assert "8 categories in all (as given)" in text
