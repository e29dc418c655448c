"""Headless Chromium for the tests of pages, driven through Debian's chromedriver; nothing is downloaded."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="NOT TESTED: no chromium and chromedriver on PATH, so no page was opened in a browser; "
    "`apt-get install chromium chromium-driver` (.ci/run does it)",
)
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)


@contextlib.contextmanager
def browser(*flags: str) -> Iterator:
    """A Chromium with an empty profile; `--blink-settings=preferredColorScheme=0` makes it dark."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*_FLAGS, f"--user-data-dir={profile}", *flags):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # The path is given, so that Selenium Manager has nothing to look for on the network.
        driver = webdriver.Chrome(options, Service(DRIVER, env={**os.environ, "HOME": profile}))
        try:
            driver.set_page_load_timeout(60)
            yield driver
        finally:
            driver.quit()


def window(driver, width: int, height: int = 900) -> None:
    """The size of the page's viewport; a real window would not be narrower than 500 pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def dark(driver, on: bool) -> None:
    feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def complaints(driver) -> list[str]:
    """Errors and warnings on the console since the last call."""
    return [f"{entry['level']}: {entry['message']}" for entry in driver.get_log("browser")]


def open_page(driver, page: Path) -> None:
    driver.get(page.resolve().as_uri())


def wait(condition, seconds=20):
    for _ in range(seconds * 20):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("this did not become true in the browser")


def find(driver, selector):
    return driver.find_element("css selector", selector)


def a_lonely_image(driver):
    """(number, x, y) of the image that is farthest from its nearest neighbour, on the map of a discovery."""
    driver.execute_script("document.getElementById('frame').scrollIntoView({block: 'center'})")
    places = np.array(
        driver.execute_script(
            "const {left, top} = document.getElementById('map').getBoundingClientRect();"
            "return Array.from({length: 160}, (_, i) => discovered.position(i))"
            ".map(([x, y]) => [x + left, y + top])"
        )
    )
    distances = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1)) + 1e9 * np.eye(len(places))
    i = int(distances.min(1).argmax())
    return i, *places[i]


def mouse(driver, kind, x, y, **more):
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "x": float(x), "y": float(y), **more})
