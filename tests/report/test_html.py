"""The page needs nothing else, and its links work."""

from __future__ import annotations

from html.parser import HTMLParser

from report.reports import everything

from attncheck.report.html import html


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
