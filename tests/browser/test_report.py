"""The HTML report in headless Chromium (`make browser`): filter, keyboard, narrow, dark, no
network.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from report.reports import everything

from attncheck.report.html import html

FAINT = """
function color(text) { const m = text.match(/[\\d.]+/g).map(Number); return m.length > 3 && m[3] === 0 ? null : m; }
function luminance([r, g, b]) {
  const f = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
}
function behind(node) {
  for (; node; node = node.parentElement) {
    const found = color(getComputedStyle(node).backgroundColor);
    if (found) return found;
  }
  return [255, 255, 255];
}
return [...document.querySelectorAll("h1, h2, h3, p, a, b, .v, .soft, td, th, summary span, code")]
  .filter(node => node.checkVisibility() && node.innerText && !node.closest("label:has(input:not(:checked))"))
  .map(node => [luminance(color(getComputedStyle(node).color)), luminance(behind(node)), node.outerHTML.slice(0, 80)])
  .map(([a, b, html]) => [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), html])
  .filter(([ratio]) => ratio < 4.5);
"""


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    path = tmp_path / "report.html"
    path.write_text(html(everything()), encoding="utf-8")
    emulate(browser, 1200, "light")
    browser.get(path.as_uri())
    return browser


def emulate(browser: Any, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wanted = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})


def shown(page: Any, selector: str) -> int:
    script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).length"
    return int(page.execute_script(script, selector))


def test_nothing_is_fetched_and_nothing_is_complained_about(page: Any) -> None:
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert page.get_log("browser") == []


def test_a_verdict_that_is_switched_off_is_hidden(page: Any) -> None:
    failing, passing = shown(page, "details.fail"), shown(page, "details.pass")
    assert min(failing, passing, shown(page, ".cause.fail")) > 0
    page.find_element("css selector", "label:has(#show-fail)").click()
    assert (shown(page, "details.fail"), shown(page, ".cause.fail")) == (0, 0)
    assert shown(page, "details.pass") == passing
    page.find_element("css selector", "label:has(#show-fail)").click()
    assert shown(page, "details.fail") == failing


def test_the_keyboard_reaches_the_findings_and_the_filter(page: Any) -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    page.find_element("css selector", "body").send_keys(keys.TAB)
    first = page.switch_to.active_element
    assert first.text == "Skip to the findings"
    assert first.rect["x"] >= 0
    box = page.find_element("id", "show-pass")
    box.send_keys(keys.SPACE)
    assert shown(page, "details.pass") == 0
    fold = page.find_element("css selector", "details.fail > summary")
    was = page.execute_script("return arguments[0].parentElement.open", fold)
    fold.send_keys(keys.ENTER)
    assert page.execute_script("return arguments[0].parentElement.open", fold) is not was


def test_what_is_wrong_comes_first_and_links_to_its_findings(page: Any) -> None:
    titles = [each.text for each in page.find_elements("css selector", "main h2")]
    assert titles[0] == "What is wrong"
    link = page.find_element("css selector", ".cause a[href*='-decode-paths']")
    link.click()
    top = page.execute_script(
        "return document.querySelector(location.hash).getBoundingClientRect().top"
    )
    assert -1 <= top < 900


@pytest.mark.parametrize("width", [400, 768, 1200])
def test_no_width_needs_scrolling_to_the_side(page: Any, width: int) -> None:
    emulate(page, width, "light")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out(page: Any, scheme: str) -> None:
    emulate(page, 1200, scheme)
    page.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.execute_script(FAINT) == []


def test_a_screen_reader_has_a_name_for_everything(page: Any) -> None:
    tree = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = ("image", "img", "link", "checkbox", "button", "region", "heading", "table")
    silent = [
        node["role"]["value"]
        for node in tree
        if node["role"]["value"] in named[:-1]
        and not node["ignored"]
        and not node.get("name", {}).get("value")
    ]
    assert silent == []
    levels = page.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3')].map(e => Number(e.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
