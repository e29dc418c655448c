"""Headless Chromium for the tests of pages, driven through Debian's chromedriver; nothing is downloaded."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
