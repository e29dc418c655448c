"""The documentation, built and opened from the disk: search answers without a network."""

import os
import subprocess
import sys
import time

import pytest
from browser import browser, needs_browser, open_page
from documents import ROOT

pytestmark = needs_browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", site],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return site


def test_search_works_in_pages_opened_from_the_disk(site):
    # Every name of a server is unknown: what the page loads from elsewhere would be missing.
    with browser("--host-resolver-rules=MAP * ~NOTFOUND") as driver:
        open_page(driver, site / "index.html")
        assert driver.current_url.startswith("file://")
        driver.execute_script("document.querySelector('[data-md-toggle=search]').click()")
        field = driver.find_element("css selector", "input.md-search__input")
        for _ in range(200):  # the index is loaded by a worker, which then answers as one types
            field.clear()
            field.send_keys("aperture")
            found = driver.find_elements("css selector", ".md-search-result__link")
            if found:
                break
            time.sleep(0.1)
        assert any("operator.html" in link.get_attribute("href") for link in found)
        loaded = driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert [name for name in loaded if not name.startswith(("file:", "blob:", "data:"))] == []
