"""The pages of the documentation site, without building it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core import registry
from attncheck.faults import registry as faults
from scripts.site.links import dead_links
from scripts.site.pages import fault_page, probe_page, sections, write_pages
from scripts.site.pictures import picture


def test_a_docstring_becomes_sections() -> None:
    text = "What it checks\n    One row,\n    over two lines.\n\n    A second < paragraph.\n\nWhy\n    So.\n"
    assert sections(text) == (
        "## What it checks\n\nOne row,\nover two lines.\n\nA second &lt; paragraph.\n\n## Why\n\nSo."
    )


def test_a_mask_is_drawn_as_read_and_as_promised_and_other_faults_by_divergence(
    tmp_path: Path,
) -> None:
    mask = picture("mask-off-by-one", "future-token", tmp_path)
    assert mask.count("<svg") == 1
    assert "read but not expected" in mask
    moved = picture("position-restart", "decode-paths", tmp_path)
    assert 'class="curve"' in moved
    assert "layer" not in moved.partition("<figcaption>")[0]
    assert "\n\n" not in mask + moved
    assert "<code>builtin:gqa</code> with <code>position-restart</code> injected" in moved
    page = fault_page("position-restart", tmp_path)
    assert moved in page
    assert "## How it looks" in page
    assert "[decode-paths](../probes/decode-paths.md)" in page


def test_every_probe_and_fault_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.site.pages.picture", lambda *_: "")
    monkeypatch.setattr("scripts.site.pages.shown_by", lambda *_: ("", ""))
    write_pages(tmp_path / "src", tmp_path / "pictures")
    for group, names in (("probes", registry.documented()), ("faults", faults.names())):
        listed = (tmp_path / "src" / group / "index.md").read_text(encoding="utf-8")
        for name in names:
            text = (tmp_path / "src" / group / f"{name}.md").read_text(encoding="utf-8")
            assert text.startswith(f"# {name}\n")
            assert text.count("\n## ") >= 4
            assert f"[{name}]({name}.md)" in listed
    assert probe_page("window", tmp_path).count("## Controls") == 1


def test_dead_links_and_fetches_are_found(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="b/c.html#here">ok</a><a href="b/c.html#gone">x</a><a href="d.html">x</a>'
        '<a href="https://example.org">ok</a><script src="https://cdn.example.org/x.js"></script>'
    )
    (tmp_path / "b" / "c.html").write_text('<h1 id="here"><a href="../index.html">up</a></h1>')
    assert dead_links(tmp_path) == [
        "index.html: fetches https://cdn.example.org/x.js",
        "index.html: no such anchor: b/c.html#gone",
        "index.html: no such file: d.html",
    ]
