"""The page as `eagc open` serves it, in a browser: what people do is saved, and becomes a new answer."""

import json
import threading

import photographs
import pytest
import small_runs
from browser import browser, complaints, find, needs_browser, wait, window
from selenium.webdriver.common.keys import Keys

from eagc_ops.discovery import discover
from eagc_ops.discovery.serving import PageServer

pytestmark = needs_browser


@pytest.fixture(scope="module")
def driver():
    with browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    home = tmp_path_factory.mktemp("photos")
    photographs.write_photographs(home)
    weights = small_runs.write_files(tmp_path_factory.mktemp("weights"))["weights"]
    settings = {
        "backbone": "vit_digits",
        "image_size": 16,
        "weights": weights,
        "device": "cpu",
        "precision": "no",
        "k": 5,
    }
    output = tmp_path_factory.mktemp("found") / "out"
    discover(home / "labelled", home / "new", output, train=False, say=lambda _: None, **settings)
    return output


@pytest.fixture
def served(driver, output):
    with PageServer(output) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        window(driver, 1200)
        open_served(driver, server)
        yield server
        server.shutdown()
        thread.join()


def open_served(driver, server):
    driver.get(server.url)
    ready(driver)


def ready(driver):
    wait(lambda: driver.execute_script("return window.discovered && discovered.position(1)[0] > 0"))


def click(driver, selector):
    element = find(driver, selector)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def state(driver):
    return find(driver, "#changed").text


def test_a_round_of_work(driver, served, output):
    """A name and a moved image are saved as they are made, live over a reload, and in the new answer."""
    assert [find(driver, f"#{name}").is_displayed() for name in ("refine", "folders", "save")] == [
        True,
        True,
        False,
    ]
    assert not find(driver, "#refine").is_enabled()
    find(driver, "#c0 input.name").send_keys("heron", Keys.ENTER)
    wait(lambda: state(driver) == "1 change, saved")
    click(driver, "#c0 .look")
    click(driver, ".cell button")
    find(driver, "#target").send_keys("otter", Keys.ENTER)
    wait(lambda: state(driver) == "2 changes, saved")
    kept = json.loads((output / "edits.json").read_text())
    assert kept["names"] == {"new-1": "heron"}
    assert [*kept["move"].values()] == ["otter"]
    driver.refresh()
    ready(driver)
    wait(lambda: state(driver) == "2 changes, saved")
    tile = find(driver, "#c0 .tile")
    assert tile.get_attribute("href").startswith(f"{served.url}image/")
    click(driver, "#folders")
    wait(lambda: find(driver, "#told").text.startswith("Folders of links"))
    assert {folder.name for folder in (output / "by-category").iterdir()} >= {"heron", "otter"}
    driver.execute_script("window.before = true")
    click(driver, "#refine")
    wait(lambda: driver.execute_script("return !window.before"), 60)
    ready(driver)
    assert find(driver, ".badge.stage").text == "after 1 round of corrections"
    assert {"heron", "otter"} <= {title.text for title in driver.find_elements("css selector", ".card h2")}
    assert "1 image was corrected and 1 category was named" in find(driver, ".changes summary").text
    assert not (output / "edits.json").exists()
    found = json.loads((output / "categories.json").read_text())
    assert {entry["name"] for entry in found["categories"] if entry["named"]} == {"heron", "otter"}
    assert complaints(driver) == []


def test_undo_is_saved_too(driver, served, output):
    field = find(driver, ".card.known ~ .card.new input.name, .card.new input.name")
    field.send_keys("stork", Keys.ENTER)
    wait(lambda: state(driver).endswith(", saved"))
    assert "stork" in (output / "edits.json").read_text()
    click(driver, "#undo")
    wait(lambda: "stork" not in (output / "edits.json").read_text())
    complaints(driver)


def test_another_window_is_noticed(driver, served, output):
    names = json.loads((output / "categories.json").read_text())
    (output / "edits.json").write_text(json.dumps({"version": 1, "discovery": names["discovery"]}))
    open_served(driver, served)
    wait(
        lambda: driver.execute_script(
            "return performance.getEntriesByName(location.href + 'edits.json').length"
        )
    )
    (output / "edits.json").write_text(json.dumps({"discovery": names["discovery"], "merge": []}))
    find(driver, ".card.new input.name").send_keys("crane", Keys.ENTER)
    wait(lambda: "changed elsewhere, reload the page" in state(driver))
    assert "crane" not in (output / "edits.json").read_text()
    complaints(driver)
