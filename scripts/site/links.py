"""Links of built pages that lead nowhere, and what a page would fetch from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class LinksOfPage(HTMLParser):
    """The links, anchors and fetched addresses of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag points to, and where it can be pointed at."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next", "alternate"):
            self.fetched.append(given.get("href", ""))
        elif given.get("src"):
            self.fetched.append(given["src"])


def dead_links(site: Path) -> list[str]:
    """A line for each link or file of the site that is not there, and each fetch from elsewhere."""
    return [line for path in sorted(site.rglob("*.html")) for line in _dead(site, path)]


@cache
def _page(path: Path) -> LinksOfPage:
    page = LinksOfPage()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _dead(site: Path, path: Path) -> Iterator[str]:
    page, here = _page(path), path.relative_to(site)
    for link in page.fetched:
        if urlsplit(link).netloc:
            yield f"{here}: fetches {link}"
    for link in (*page.links, *page.fetched):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        base = site if parts.path.startswith("/") else path.parent
        place = base / unquote(parts.path).lstrip("/") if parts.path else path
        place = place / "index.html" if place.is_dir() else place
        if not place.exists():
            yield f"{here}: no such file: {link}"
        elif (
            parts.fragment
            and place.suffix == ".html"
            and (
                unquote(parts.fragment) not in _page(place.resolve()).anchors
                and parts.fragment != "__"
            )
        ):
            yield f"{here}: no such anchor: {link}"
