"""Working on the page of a discovery, in a browser: what people name, merge and move ends in edits.json."""

import csv
import itertools
import json

import pytest
from browser import a_lonely_image, browser, complaints, find, mouse, needs_browser, open_page, wait, window
from discoveries import write_discovery
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from eagc_ops.discovery.page import write_page

pytestmark = needs_browser
HOSTILE = "=<b>1</b> \"'& 100%.jpg"


@pytest.fixture(scope="module")
def driver():
    with browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """160 images of 3 known categories, and of 5 new ones: 20 images of each."""
    home = tmp_path_factory.mktemp("discovery")
    write_discovery(home, file_names={3: HOSTILE})
    return write_page(home / "out")


@pytest.fixture(params=[1400, 390])
def discovered(request, driver, page):
    """The page without any edits; after the test, nothing stands on the console."""
    window(driver, request.param)
    open_page(driver, page)
    driver.execute_script("localStorage.clear()")
    open_page(driver, page)
    wait(lambda: driver.execute_script("return window.discovered && discovered.position(1)[0] > 0"))
    complaints(driver)
    yield driver
    assert complaints(driver) == []
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def edits(driver):
    return {
        name: value for name, value in driver.execute_script("return discovered.edits()").items() if value
    }


def titles(driver):
    return [card.text for card in driver.find_elements("css selector", ".card:not([hidden]) h2")]


def images_of(driver, card):
    return find(driver, f"{card} .size").text


def choose(driver, card, act, prepare=lambda: None):
    """An act of the dialog of a card."""
    click(driver, f"{card} .more")
    prepare()
    click(driver, f"#editor button[value={act}]")


def click(driver, selector):
    element = find(driver, selector)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def type_name(driver, card, *keys):
    field = find(driver, f"{card} input.name")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
    field.clear()
    field.send_keys(*keys)


def reload(driver, page):
    open_page(driver, page)
    wait(lambda: driver.execute_script("return window.discovered && discovered.position(1)[0] > 0"))


def paths_of(page, category):
    with open(page.parent / "assignments.csv", newline="") as file:
        return [row["path"] for row in csv.DictReader(file) if row["category"] == category]


def test_a_name_is_kept_over_a_reload_and_undone(discovered, page):
    type_name(discovered, "#c0", "  grey   heron ", Keys.ENTER)
    assert titles(discovered)[:2] == ["grey heron", "new-2"]
    # Enter goes on to the next card.
    assert discovered.switch_to.active_element == find(discovered, "#c1 input.name")
    discovered.switch_to.active_element.send_keys("=stork", Keys.ENTER)
    assert edits(discovered) == {"names": {"new-1": "grey heron", "new-2": "=stork"}}
    assert find(discovered, "#changed").text == "2 changes, kept in this browser"
    click(discovered, "#undo")
    assert titles(discovered)[:2] == ["grey heron", "new-2"]
    reload(discovered, page)
    assert titles(discovered)[:2] == ["grey heron", "new-2"]
    assert find(discovered, "#c0 input.name").get_attribute("value") == "grey heron"
    find(discovered, "#query").send_keys("HERON")
    wait(lambda: titles(discovered) == ["grey heron"])


def test_two_categories_of_one_name_are_one(discovered):
    type_name(discovered, "#c0", "Fox", Keys.ENTER)  # one of the known ones
    assert edits(discovered) == {"merge": [["fox", "new-1"]]}
    assert "new-1" not in titles(discovered)
    assert images_of(discovered, "#c6") == "40 images"
    assert find(discovered, "#showing").text == "7 of 7 categories, 160 of 160 images"
    find(discovered, "body").send_keys(Keys.CONTROL, "z")
    assert edits(discovered) == {}
    assert images_of(discovered, "#c6") == images_of(discovered, "#c0") == "20 images"


def test_merging_splitting_and_dissolving(discovered):
    def into(name):
        options = find(discovered, "#mergeInto").find_elements("css selector", "option")
        next(option for option in options if option.text == name).click()

    choose(discovered, "#c1", "merge", lambda: into("new-3"))
    choose(discovered, "#c3", "merge", lambda: into("new-3"))
    assert edits(discovered) == {"merge": [["new-3", "new-2", "new-4"]]}
    assert images_of(discovered, "#c2") == "60 images"
    assert find(discovered, "#c2 .edited").text == "with new-2, new-4"
    choose(discovered, "#c2", "separate")
    assert edits(discovered) == {}
    choose(discovered, "#c4", "split", lambda: find(discovered, "#parts").send_keys(Keys.UP))
    assert edits(discovered) == {"split": {"new-5": 3}}
    assert find(discovered, "#c4 .edited").text == "to split into 3"
    choose(discovered, "#c4", "dissolve")
    assert edits(discovered) == {"not_one_category": ["new-5"]}
    click(discovered, "#c5 .more")  # of a known category: it keeps its name and its images
    assert not find(discovered, "#dissolve").is_displayed()
    assert [option.text for option in discovered.find_elements("css selector", "#mergeInto option")] == [
        f"new-{i}" for i in range(1, 6)
    ]
    find(discovered, "#editor button[value=close]").click()


def test_images_are_moved_by_clicks(discovered, page):
    click(discovered, "#c0 .look")
    assert find(discovered, "#galleryTitle").text == "new-1"
    assert find(discovered, "#galleryMeta").text == "20 images"
    for cell in discovered.find_elements("css selector", ".cell button")[:2]:
        cell.click()
    assert find(discovered, "#picked").text == "2 images selected"
    find(discovered, "#target").send_keys("hedge", Keys.ENTER)
    moved = edits(discovered)["move"]
    assert list(moved.values()) == ["hedgehog"] * 2
    assert {*moved} <= {*paths_of(page, "new-1")}
    assert find(discovered, "#galleryMeta").text == "18 images"
    assert find(discovered, "#told").text == "2 images moved to hedgehog."
    # By Shift from one to another, into a category that did not exist
    cells = discovered.find_elements("css selector", ".cell button")
    cells[0].click()
    ActionChains(discovered).key_down(Keys.SHIFT).click(cells[4]).key_up(Keys.SHIFT).perform()
    find(discovered, "#target").send_keys("otter")
    click(discovered, "#places button")
    click(discovered, "#back")
    assert titles(discovered)[0] == "otter"
    assert images_of(discovered, "#c8-made") == "5 images"
    assert images_of(discovered, "#c0") == "13 images"
    assert len(discovered.find_elements("css selector", "#c8-made .tile")) == 5
    # Tiles of images that are elsewhere now do not stay on the card.
    assert len(discovered.find_elements("css selector", "#c0 .tile:not([hidden])")) < 8
    type_name(discovered, "#c8-made", "beaver", Keys.ENTER)
    assert sorted(edits(discovered)["move"].values()) == ["beaver"] * 5 + ["hedgehog"] * 2
    reload(discovered, page)
    assert titles(discovered)[0] == "beaver"
    # Back where it came from, an image is no edit.
    find(discovered, "#c8-made .look").click()
    click(discovered, "#all")
    find(discovered, "#target").send_keys("new-1", Keys.ENTER)
    assert sorted(edits(discovered)["move"].values()) == ["hedgehog"] * 2


def test_a_picture_is_dragged_to_another_card(discovered, page):
    tile = find(discovered, "#c0 .tile")
    discovered.execute_script("arguments[0].scrollIntoView({block: 'center'})", tile)
    # The events of a drag: a headless browser has no drags of its own.
    discovered.execute_script(
        """
        const [tile, card] = ["#c0 .tile", "#c1"].map((selector) => document.querySelector(selector));
        const dataTransfer = new DataTransfer(), more = {bubbles: true, cancelable: true, dataTransfer};
        tile.dispatchEvent(new DragEvent("dragstart", more));
        window.taken = !card.dispatchEvent(new DragEvent("dragover", more));
        card.dispatchEvent(new DragEvent("drop", more));
        tile.dispatchEvent(new DragEvent("dragend", more));
        """
    )
    assert discovered.execute_script("return taken")
    name = tile.get_attribute("title")
    path = next(path for path in paths_of(page, "new-1") if path.endswith(name))
    assert edits(discovered) == {"move": {path: "new-2"}}


def test_a_lasso_selects_images_of_the_map(discovered):
    i, x, y = a_lonely_image(discovered)
    corners = [
        (x - 14, y + 14),
        (x + 14, y + 14),
        (x + 14, y - 14),
        (x - 14, y - 14),
    ]  # it may begin at an edge
    mouse(discovered, "mousePressed", *corners[0], button="left", clickCount=1, modifiers=8)
    for corner in corners[1:]:
        mouse(discovered, "mouseMoved", *corner, button="left", buttons=1, modifiers=8)
    mouse(discovered, "mouseReleased", *corners[3], button="left", clickCount=1, modifiers=8)
    wait(lambda: i in discovered.execute_script("return discovered.selected()"))
    selected = discovered.execute_script("return discovered.selected()")
    assert len(selected) < 12
    click(discovered, "#peek")
    assert find(discovered, "#galleryMeta").text.startswith(f"{len(selected)} image")
    find(discovered, "#target").send_keys("fox", Keys.ENTER)
    # Those that were foxes before are confirmed.
    assert [*edits(discovered)["move"].values()] == ["fox"] * len(selected)


def test_what_is_right_can_be_said(discovered, page):
    """Doubtful images that are where they belong are doubtful no longer, and the next answer knows."""
    click(discovered, "[data-look=doubtful]")
    cells = discovered.find_elements("css selector", ".cell button")
    shown = [cell.get_attribute("title") for cell in cells[:3]]
    for cell in cells[:3]:
        cell.click()
    click(discovered, "#right")
    assert find(discovered, "#told").text == "3 images confirmed."
    assert find(discovered, "#galleryMeta").text == "14 images"
    moved = edits(discovered)["move"]
    where = {title.split(": ")[0]: title.split(": ")[1].split(",")[0] for title in shown}
    assert {path.split("/")[-1]: to for path, to in moved.items()} == where
    assert all(path in paths_of(page, to) for path, to in moved.items())
    # On its card it has a mark. Said twice, it is said once; moved away and back, it is no edit.
    click(discovered, "#back")
    name = next(iter(moved.values()))
    card = next(
        c
        for c in discovered.find_elements("css selector", ".card")
        if c.get_attribute("innerText").startswith(name)
    )
    discovered.execute_script("arguments[0].querySelector('.look').click()", card)
    marked = discovered.find_elements("css selector", ".cell.said button")
    assert len(marked) == [*moved.values()].count(name)
    assert marked[0].get_attribute("title").endswith("confirmed by you")
    marked[0].click()
    click(discovered, "#right")
    assert find(discovered, "#told").text == "Nothing to confirm."
    click(discovered, "#undo")
    assert edits(discovered) == {}


def test_a_filter_without_cards_leads_to_its_images(driver, tmp_path):
    """Doubtful images lie in categories that are not doubtful as a whole."""
    found = write_discovery(tmp_path, known=2, new=2, images=36)
    assert not any(category["doubtful"] for category in found["categories"])
    window(driver, 800)
    open_page(driver, write_page(tmp_path / "out"))
    wait(lambda: driver.execute_script("return window.discovered && discovered.position(1)[0] > 0"))
    find(driver, ".chips input[value=doubtful] + span").click()
    assert titles(driver) == []
    assert find(driver, "#empty").text == "No category is doubtful as a whole. Look at all 4 doubtful images"
    click(driver, "#empty button")
    assert find(driver, "#galleryMeta").text == "4 images"
    click(driver, "#back")
    find(driver, "#query").send_keys("no such name")
    assert find(driver, "#empty").text == "No category has this name."
    assert complaints(driver) == []


def test_the_gallery_by_keys(discovered):
    """Arrows go from image to image, Space selects, Enter shows one large, and from there its neighbours."""
    click(discovered, "#c0 .look")
    at = "return Number(document.activeElement.parentElement.dataset.i)"
    find(discovered, ".cell button").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.SPACE)
    assert discovered.execute_script(at) == 2
    assert discovered.execute_script("return discovered.selected()") == [2]
    press = ActionChains(discovered)
    press.send_keys(Keys.ENTER).perform()
    assert find(discovered, "#viewer").is_displayed()
    wait(lambda: discovered.execute_script("return document.getElementById('photo').naturalWidth") == 48)
    assert "3 of 20 images" in find(discovered, "#viewerMeta").text
    ActionChains(discovered).send_keys(Keys.ARROW_RIGHT).perform()
    assert "4 of 20 images" in find(discovered, "#viewerMeta").text
    click(discovered, "#pick")
    assert discovered.execute_script("return discovered.selected()") == [2, 3]
    ActionChains(discovered).send_keys(Keys.ESCAPE).perform()
    wait(lambda: not find(discovered, "#viewer").is_displayed())
    wait(lambda: discovered.execute_script(at) == 3)
    assert discovered.execute_script("return discovered.selected()") == [
        2,
        3,
    ]  # Escape closed the viewer alone
    ActionChains(discovered).send_keys(Keys.END).perform()
    assert discovered.execute_script(at) == 19
    ActionChains(discovered).send_keys(Keys.HOME, Keys.ARROW_DOWN).perform()
    assert discovered.execute_script(at) > 1


def test_a_picture_that_no_browser_shows_has_its_thumbnail(driver, tmp_path):
    write_discovery(tmp_path, known=1, new=1, images=4)
    page = write_page(tmp_path / "out")
    window(driver, 800)
    open_page(driver, page)
    wait(lambda: driver.execute_script("return window.discovered && discovered.position(1)[0] > 0"))
    for file in (tmp_path / "photos").rglob("*.jpg"):
        file.write_bytes(b"ftypheic")
    click(driver, "#c0 .tile")
    wait(lambda: find(driver, "#small").is_displayed())
    assert "map-0000.webp" in driver.execute_script(
        "return document.getElementById('small').style.backgroundImage"
    )
    assert not find(driver, "#photo").is_displayed()
    complaints(driver)


def test_the_files_are_saved(discovered, page, tmp_path):
    discovered.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    assert not find(discovered, "#save").is_enabled()
    type_name(discovered, "#c0", '=1, "heron"', Keys.ENTER)
    find(discovered, "#query").send_keys("barn")
    discovered.execute_script("document.querySelector('[data-look=nowhere]').click()")
    click(discovered, "#save")
    click(discovered, "#csv")
    wait(lambda: {file.name for file in tmp_path.iterdir()} >= {"edits.json", "categories.csv"})
    wait(lambda: (tmp_path / "categories.csv").stat().st_size > 0)
    kept = json.loads((tmp_path / "edits.json").read_text())
    found = json.loads((page.parent / "categories.json").read_text())
    assert kept == {
        **{"version": 1, "discovery": found["discovery"], "names": {"new-1": '=1, "heron"'}},
        **{"merge": [], "split": {}, "move": {}, "not_one_category": []},
    }
    with open(tmp_path / "categories.csv", newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    with open(page.parent / "assignments.csv", newline="") as file:
        before = {row["path"]: row for row in csv.DictReader(file)}
    assert {row["path"] for row in table} == {*before}
    assert any(row["path"].endswith(HOSTILE) for row in table)
    for row in table:
        was = before[row["path"]]
        assert (row["was"], row["kind"]) == (was["category"], was["kind"])
        assert row["category"] == {"new-1": '\'=1, "heron"'}.get(row["was"], row["was"])


def test_all_doubtful_images_are_in_one_place(discovered):
    click(discovered, "[data-look=doubtful]")
    assert find(discovered, "#galleryMeta").text == "17 images"
    shown = discovered.execute_script(
        "const {confidence} = JSON.parse(document.getElementById('data').textContent);"
        "return [...document.querySelectorAll('.cell')].map((cell) => confidence[cell.dataset.i])"
    )
    assert shown == sorted(shown)  # least sure first
    find(discovered, "body").send_keys(Keys.ESCAPE)
    assert len(titles(discovered)) == 9


def test_a_filter_keeps_no_hidden_selection(discovered):
    click(discovered, "#c0 .locate")
    assert len(discovered.find_elements("css selector", ".card.marked")) == 1
    find(discovered, ".chips input[value=known] + span").click()
    find(discovered, ".chips input[value=all] + span").click()
    assert discovered.find_elements("css selector", ".card.marked") == []


def test_zoomed_in_the_map_shows_pictures(discovered):
    assert discovered.execute_script("return discovered.pictures()") == 0
    discovered.execute_script("document.getElementById('frame').scrollIntoView({block: 'center'})")
    find(discovered, "#in").click()
    wait(lambda: discovered.execute_script("return discovered.pictures()") >= 20)


def test_colours_of_categories_differ(discovered):
    colours = discovered.execute_script("return discovered.colours()")
    assert len({*colours}) == 8
    values = [[int(v) for v in colour[4:-1].split()] for colour in colours]
    assert min(max(abs(a - b) for a, b in zip(*pair)) for pair in itertools.combinations(values, 2)) > 40


def test_a_gallery_scrolls_through_any_number(driver, tmp_path):
    """3,000 images of one category: only what is near the window exists, and the last one can be reached."""
    write_discovery(tmp_path, known=1, new=1, images=6000, side=8)
    window(driver, 800)
    open_page(driver, write_page(tmp_path / "out"))
    wait(lambda: driver.execute_script("return window.discovered && discovered.position(1)[0] > 0"))
    click(driver, "#c0 .look")
    assert find(driver, "#galleryMeta").text == "3,000 images"
    cells = "return [...document.querySelectorAll('.cell')].map((cell) => Number(cell.dataset.i))"
    for share, image in ((0.2, 600), (0.5, 1500), (1, 2999)):
        driver.execute_script(f"scrollTo(0, {share} * document.documentElement.scrollHeight)")
        wait(lambda image=image: min(abs(i - image) for i in driver.execute_script(cells)) < 60)
        assert len(driver.execute_script(cells)) < 250
    assert 2999 in driver.execute_script(cells)
    assert complaints(driver) == []
