"""The pages in a real browser, in a wide and in a narrow window: what people click on works."""

import numpy as np
import pytest
from browser import (
    a_lonely_image,
    browser,
    complaints,
    dark,
    find,
    mouse,
    needs_browser,
    open_page,
    wait,
    window,
)
from discoveries import write_discovery
from written_runs import ACCURACY, write_run

from eagc_ops.discovery.page import write_page
from eagc_ops.training.report.page import write_report

pytestmark = needs_browser
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


@pytest.fixture(scope="module")
def driver():
    with browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """160 images of 3 known categories, of 5 new ones, of which one is doubtful."""
    home = tmp_path_factory.mktemp("discovery")
    names = {"names": {0: HOSTILE}, "file_names": {0: f"{HOSTILE.replace('/', '')}.jpg"}}
    write_discovery(home, **names)
    return write_page(home / "out")


@pytest.fixture(params=[1400, 390])
def discovered(request, driver, page):
    """The page, open and ready; after the test, nothing stands on the console."""
    window(driver, request.param)
    open_page(driver, page)
    wait(lambda: driver.execute_script("return window.discovered && discovered.position(1)[0] > 0"))
    complaints(driver)
    yield driver
    assert complaints(driver) == []
    assert driver.execute_script("return window.hacked") is None
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def shown_cards(driver):
    cards = driver.find_elements("css selector", ".card:not([hidden]) h2")
    return [driver.execute_script("return arguments[0].textContent", card) for card in cards]


def ink(driver):
    """The sum of the opacity of the map's pixels; of a copy, because reading the map slows it down."""
    return driver.execute_script("""
        const map = document.getElementById("map"), copy = new OffscreenCanvas(map.width, map.height);
        const pen = copy.getContext("2d", {willReadFrequently: true});
        pen.drawImage(map, 0, 0);
        const {data} = pen.getImageData(0, 0, map.width, map.height);
        return data.reduce((sum, value, i) => i % 4 < 3 ? sum : sum + value, 0);
    """)


def test_filters_show_their_categories_and_images(discovered):
    everything = ink(discovered)
    expected = {  # chip: (cards, images)
        "new": ([f"new-{i}" for i in range(1, 6)], 100),
        "known": ([HOSTILE, "fox", "hedgehog"], 60),
        "doubtful": (["new-3"], 17),
        "nowhere": (["Fit nowhere"], 6),
        "all": ([*(f"new-{i}" for i in range(1, 6)), HOSTILE, "fox", "hedgehog", "Fit nowhere"], 160),
    }
    for chip, (cards, images) in expected.items():
        find(discovered, f".chips input[value={chip}] + span").click()
        assert shown_cards(discovered) == cards
        named = len([card for card in cards if card != "Fit nowhere"])
        assert find(discovered, "#showing").text == f"{named} of 8 categories, {images} of 160 images"
        assert discovered.execute_script("return discovered.visible()") == images
        wait(lambda chip=chip: (ink(discovered) < 0.99 * everything) == (chip != "all"))
    find(discovered, "#query").send_keys("HEDGE")
    wait(lambda: shown_cards(discovered) == ["hedgehog"])
    find(discovered, "#query").send_keys("row")
    wait(lambda: find(discovered, "#empty").is_displayed())


def test_hovering_shows_the_image_and_a_click_opens_it(discovered, page):
    i, x, y = a_lonely_image(discovered)
    tip = find(discovered, "#tip")
    assert not tip.is_displayed()
    mouse(discovered, "mouseMoved", x, y)
    wait(tip.is_displayed)
    data = discovered.execute_script("return JSON.parse(document.getElementById('data').textContent)")
    name, kind, _ = data["categories"][data["category"][i]]
    lines = tip.text.splitlines()
    assert lines[0] == name
    assert lines[2].startswith(kind)
    target = (page.parent / "../photos").resolve()
    href = tip.get_attribute("href")
    assert href.startswith(target.as_uri())
    assert lines[1] in href
    # The thumbnail is loaded, and the square behind it shows the sheet at the place of the image.
    sheet = discovered.execute_script("return document.querySelector('.thumb').style.backgroundImage")
    assert "discovered_files/map-0000.webp" in sheet
    box = discovered.execute_script("""
        const [t, f] = ["tip", "frame"].map((id) => document.getElementById(id).getBoundingClientRect());
        return [t.left - f.left, f.right - t.right, t.top - f.top, f.bottom - t.bottom];
    """)
    assert min(box) >= 0  # the tip stays inside the map
    handle = discovered.current_window_handle
    for kind in ("mousePressed", "mouseReleased"):
        mouse(discovered, kind, x, y, button="left", clickCount=1)
    wait(lambda: len(discovered.window_handles) == 2)
    discovered.switch_to.window(next(h for h in discovered.window_handles if h != handle))
    try:
        wait(lambda: discovered.current_url == href)
        wait(
            lambda: discovered.execute_script("return document.images[0]?.naturalWidth") == 48
        )  # the picture itself
    finally:
        discovered.close()
        discovered.switch_to.window(handle)
    mouse(discovered, "mouseMoved", 2, 2)
    wait(lambda: not tip.is_displayed())


def test_zoom_keeps_the_place_under_the_pointer_and_dragging_moves_it(discovered):
    i, x, y = a_lonely_image(discovered)

    def place():
        return np.array(
            discovered.execute_script(
                "const {left, top} = document.getElementById('map').getBoundingClientRect();"
                "return discovered.position(arguments[0]).map((v, j) => v + [left, top][j])",
                i,
            )
        )

    def zoom():
        return discovered.execute_script("return discovered.zoom()")

    mouse(discovered, "mouseMoved", x, y)
    for _ in range(5):
        mouse(discovered, "mouseWheel", x, y, deltaX=0, deltaY=-120)
    wait(lambda: zoom() > 7)
    np.testing.assert_allclose(place(), [x, y], atol=8)
    start = place()
    mouse(discovered, "mousePressed", x, y, button="left", clickCount=1)
    for step in range(1, 5):
        mouse(discovered, "mouseMoved", x + 10 * step, y - 5 * step, button="left", buttons=1)
    mouse(discovered, "mouseReleased", x + 40, y - 20, button="left", clickCount=1)
    wait(lambda: np.allclose(place() - start, [40, -20], atol=6))
    assert len(discovered.window_handles) == 1  # a drag is no click
    find(discovered, "#reset").click()
    wait(lambda: zoom() == 1)
    np.testing.assert_allclose(place(), [x, y], atol=1)
    for button, compare in (("in", 1.6), ("out", 1.0)):
        find(discovered, f"#{button}").click()
        assert zoom() == pytest.approx(compare)


def test_keys_do_what_the_mouse_does(discovered):
    canvas = find(discovered, "#map")
    discovered.execute_script("arguments[0].focus()", canvas)
    canvas.send_keys("+")
    wait(lambda: discovered.execute_script("return discovered.zoom()") == 1.5)
    tip = find(discovered, "#tip")
    assert tip.is_displayed()
    first = tip.get_attribute("href")
    for _ in range(6):
        canvas.send_keys("\ue014")  # to the right
    assert tip.get_attribute("href") != first
    canvas.send_keys("\ue00c")  # escape
    assert not tip.is_displayed()


def test_a_card_shows_its_images_and_marks_them_on_the_map(discovered):
    images = discovered.find_elements("css selector", "#c0 img")
    discovered.execute_script("arguments[0].scrollIntoView({block: 'center'})", images[0])
    wait(
        lambda: all(discovered.execute_script("return arguments[0].naturalWidth", image) for image in images)
    )
    before = ink(discovered)
    find(discovered, "#c0 .locate").click()
    assert find(discovered, "#c0 .locate").get_attribute("aria-pressed") == "true"
    wait(lambda: ink(discovered) < 0.6 * before)  # the others are faint
    find(discovered, "#c0 .locate").click()
    mouse(discovered, "mouseMoved", 2, 2)
    wait(lambda: ink(discovered) == pytest.approx(before, rel=0.02))


@pytest.fixture(scope="module")
def report_page(tmp_path_factory):
    """A report on two configurations, each with two seeds, and names that are hostile."""
    home = tmp_path_factory.mktemp("report")
    runs = {write_run(home / f"{eagc}{seed}", seed, eagc): eagc for eagc, seed in ACCURACY}
    names = {path: HOSTILE if eagc else "plain" for path, eagc in runs.items()}
    return write_report(list(runs), home / "out", names)


@pytest.fixture(params=[1400, 390])
def report(request, driver, report_page):
    window(driver, request.param)
    complaints(driver)
    open_page(driver, report_page)
    yield driver
    assert complaints(driver) == []
    assert driver.execute_script("return window.hacked") is None
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_runs_of_a_report_can_be_hidden_and_shown(report):
    def seen(i):
        """Marks of configuration i that are visible, and its row in the table."""
        marks = report.execute_script(
            "return [...document.querySelectorAll(`[data-run='${arguments[0]}']`)]"
            ".filter((mark) => mark.getBoundingClientRect().width).length",
            i,
        )
        return marks, report.find_elements("css selector", ".results tbody tr")[i].is_displayed()

    for element in report.find_elements("css selector", "details.fold > summary"):
        element.click()  # unfolds the diagnostics
    before = [seen(0), seen(1)]
    assert min(marks for marks, _ in before) >= 8
    find(report, ".runs input[value='1']").click()
    assert [seen(0), seen(1)] == [before[0], (0, False)]
    find(report, ".runs input[value='1']").click()
    assert [seen(0), seen(1)] == before


def test_a_report_opens_with_the_verdict_and_folds_the_diagnostics(report):
    tops = [
        find(report, selector).rect["y"] for selector in (".verdict", "figure", ".results table", ".runs")
    ]
    assert tops == sorted(tops)
    folded = report.find_elements("css selector", "details.fold figure")
    assert folded
    assert not any(figure.is_displayed() for figure in folded)
    sideways = "const t = document.querySelector('.results table'); return t.scrollWidth - t.clientWidth"
    assert report.execute_script(sideways) <= 0  # the table fits


def test_words_of_a_discovery_are_readable_in_light_and_dark(discovered):
    check_contrast(discovered)


def test_words_of_a_report_are_readable_in_light_and_dark(report):
    check_contrast(report)


def check_contrast(driver):
    """The contrast of all texts with what is behind them, as WCAG 2 counts it, is at least 4.5."""
    for on in (False, True):
        dark(driver, on)
        poor = driver.execute_script(CONTRAST)
        assert poor == [], poor
    dark(driver, False)


CONTRAST = """
const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
function behind(e) {
    for (; e; e = e.parentElement) {
        const c = rgb(getComputedStyle(e).backgroundColor);
        if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
}
const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const weights = [0.2126, 0.7152, 0.0722];
const luminance = (c) => weights.reduce((sum, weight, i) => sum + weight * linear(c[i] / 255), 0);
const poor = [];
for (const e of document.body.querySelectorAll("*")) {
    const words = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join("");
    if (!e.offsetParent || e.closest("svg, #tip") || !words) continue;
    const [a, b] = [rgb(getComputedStyle(e).color), behind(e)].map(luminance).sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) poor.push(`${e.tagName}.${e.className} ${words.slice(0, 20)} ${contrast.toFixed(2)}`);
}
return poor;
"""
