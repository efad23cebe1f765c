"""JUnit XML counts what it contains and stays valid."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from report.reports import everything

from attncheck.report.junit import junit


def test_junit_counts_what_it_holds() -> None:
    root = ET.fromstring(junit(everything()))
    first, second, third = root.findall("testsuite")
    assert root.attrib | {"name": "attncheck"} == root.attrib
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == (
        "10",
        "3",
        "2",
        "3",
    )
    assert (
        first.get("tests"),
        first.get("failures"),
        first.get("errors"),
        first.get("skipped"),
    ) == ("8", "3", "1", "2")
    assert second.get("name") == "org/name (sdpa, float64, cpu)"
    assert third.find("testcase/error") is not None
    failures = {case.get("name"): case.find("failure") for case in first.iter("testcase")}
    decode = failures["decode-paths"]
    assert decode is not None
    assert "chunks 12+12, 2D mask" in (decode.text or "")
    assert failures["batch-rows"] is not None, "vacuous counts under fail_on"
    assert failures["kv-repeat"] is None, "a warning does not count"
    assert {
        case.get("time") for case in first.iter("testcase") if case.get("name") == "decode-paths"
    } == {"1.250"}


def test_junit_holds_no_character_that_xml_forbids() -> None:
    text = junit(everything())
    assert "\x07" not in text
    assert r"\x07 bell" in text
