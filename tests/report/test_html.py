"""The page needs nothing else, and its links work."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

from report.reports import everything, failing, passing

from attncheck.core.finding import Diagnosis, Trap
from attncheck.report.html import html
from attncheck.report.model import TargetReport


class Page(HTMLParser):
    """Counts tags, and keeps whatever a page would fetch."""

    VOID = frozenset({"meta", "br", "link", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if given.get("src"):
            self.fetched.append(str(given["src"]))
        if tag in ("link", "script"):
            self.fetched.append(tag)
        if "id" in given:
            self.ids.append(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_one_file_with_working_links() -> None:
    page = Page()
    text = html(everything())
    page.feed(text)
    assert page.open == []
    assert page.fetched == []
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert "<tag>" not in text
    assert "@import" not in text
    assert "url(" not in text


def test_html_unfolds_what_is_red_and_folds_what_is_known() -> None:
    text = html(everything())
    assert '<details id="m1-decode-paths" class="fail" open>' in text
    assert '<details id="m1-position-reset" class="fail">' in text
    assert '<details id="m1-future-token" class="pass">' in text


def test_numbers_carry_their_heading_for_narrow_screens() -> None:
    text = html(everything())
    assert '<td class="num" data-label="largest difference">1.8</td>' in text
    assert '<td data-label="decode-paths">' in text


def test_what_was_measured_stands_before_the_name_of_the_fault() -> None:
    diagnosis = Diagnosis(
        fault="cache-wrong-slot",
        how="measured",
        sentence="keys of slots 8..11 are those of layer 1",
    )
    finding = replace(failing(), diagnosis=diagnosis)
    text = html(replace(everything(), targets=(TargetReport(target="m", results=(finding,)),)))
    sentence = text.index("<p><b>keys of slots 8..11 are those of layer 1</b></p>")
    assert sentence < text.index("<b>measured: <code>cache-wrong-slot</code></b>")


def test_traps_are_folded_above_the_findings() -> None:
    trap = Trap(trap="padding-left", call="left", reference="builtin:gqa", max_abs=2.0, advice="no")
    finding = replace(failing(), traps=(trap,))
    text = html(replace(everything(), targets=(TargetReport(target="m", results=(finding,)),)))
    assert "1 trap of transformers" in text
    assert "(builtin:gqa does it as well: 2; met by m)" in text
    assert text.index("padding-left") < text.index('<main id="findings">')


def test_what_is_wrong_stands_first_with_its_cause() -> None:
    text = html(everything())
    wrong, overview = text.index('<h2 id="wrong-title">What is wrong</h2>'), text.index("Overview")
    assert wrong < overview
    block = text[wrong:overview]
    assert "logits differ by 1.8 from position 12, rounding explains 1e-13</p>" in block
    assert "reproduced: position-restart to 3.0e-13; next best mask-top-left 0.8" in block
    assert "Do: Add the length of the cache to the positions." in block
    assert '<a href="#m1-decode-paths">decode-paths</a>' in block
    assert "not loaded" in block


def test_each_verdict_can_be_switched_off_and_a_page_without_faults_has_no_causes() -> None:
    text = html(everything())
    for verdict, amount in everything().summary.items():
        label = f'<input type="checkbox" id="show-{verdict}" checked>{amount} {verdict}</label>'
        assert (label in text) is bool(amount)
        assert f"body:has(#show-{verdict}:not(:checked))" in text
    fine = replace(everything(), targets=(TargetReport(target="m", results=(passing(),)),))
    assert "What is wrong" not in html(fine)
