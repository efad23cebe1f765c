"""The documentation site (`make docs`) in headless Chromium: search, pictures, narrow screens, and
nothing from elsewhere.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).parents[2] / "build" / "site" / "html"
pytestmark = pytest.mark.skipif(not SITE.is_dir(), reason="`make docs` builds the site")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        return


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def wait_for(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + 20
    while not (result := found()) and time.monotonic() < end:
        time.sleep(0.1)
    return result


def size(browser: Any, width: int) -> None:
    given = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", given)


def test_search_finds_a_fault_by_what_it_looks_like(browser: Any, address: str) -> None:
    size(browser, 1200)
    browser.get(f"{address}/index.html")
    browser.execute_script("document.querySelector('#__search').click()")
    field = browser.find_element("css selector", "input.md-search__input")
    wait_for(field.is_displayed)
    field.send_keys("tril(diagonal=1)")
    links = wait_for(lambda: browser.find_elements("css selector", ".md-search-result__link"))
    assert any("mask-off-by-one" in each.get_attribute("href") for each in links)


@pytest.mark.parametrize(
    "page", ["faults/mask-off-by-one", "faults/position-restart", "probes/future-token"]
)
def test_a_page_shows_its_picture(browser: Any, address: str, page: str) -> None:
    size(browser, 1200)
    browser.get(f"{address}/{page}.html")
    drawn = browser.find_elements("css selector", "figure.attncheck svg")
    assert drawn
    assert drawn[0].size["width"] > 100
    assert browser.find_element("css selector", "figcaption").text


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("page", ["index", "probes/decode-paths", "docs/scale"])
def test_pages_fit_and_fetch_nothing_from_elsewhere(
    browser: Any, address: str, page: str, width: int
) -> None:
    size(browser, width)
    browser.get(f"{address}/{page}.html")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    fetched = browser.execute_script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert [each for each in fetched if not each.startswith(address)] == []
