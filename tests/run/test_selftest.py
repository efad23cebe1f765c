"""The self-test finds what is injected, says what it could not inject, and fails if one is missed."""

from __future__ import annotations

from probing import loaded
from typer.testing import CliRunner

from attncheck.cli.app import app
from attncheck.cli.selftest import left
from attncheck.core import registry
from attncheck.core.finding import Diagnosis
from attncheck.run.selftest import Row, Selftest, coverage, names

PROBES = ("future-token", "decode-paths", "kv-repeat")
FAULTS = (
    "causal-mask-missing",
    "position-restart",
    "kv-repeat-copied",
    "state-dropped",
    "label-shift",
)


def rows() -> list[Row]:
    return list(
        Selftest(loaded("builtin:gqa"), [registry.load(name) for name in PROBES]).run(FAULTS)
    )


def test_rows_say_caught_named_located_or_why_not() -> None:
    found = {row.fault: row for row in rows()}
    assert found["causal-mask-missing"].named == "yes"
    assert found["position-restart"].most_telling is not None
    assert found["position-restart"].most_telling.probe == "decode-paths"
    assert found["kv-repeat-copied"].named == "yes"
    assert "no recurrent state" in found["state-dropped"].reason
    assert found["label-shift"].missed


def test_the_page_counts_targets() -> None:
    page = coverage(rows(), PROBES)
    assert "| causal-mask-missing | 1 | · | · | 1/1 | 1/1 | model.layers.0.self_attn |" in page
    assert "| label-shift | · | · | · | 0/1 | 0/1 |  |" in page
    assert "cannot be injected" in page


def test_each_fault_is_injected_in_few_targets() -> None:
    injected = Row(target="one", fault="cache-stale", caught=())
    carried = [
        injected,
        Row(target="two", fault="cache-stale"),
        Row(target="one", fault="state-dropped", reason="no state"),
    ]
    assert left(["cache-stale", "state-dropped"], carried, 2) == ["state-dropped"]
    assert left(["cache-stale"], carried, None) == ["cache-stale"]
    page = coverage(carried, PROBES, 2)
    assert "`attncheck selftest one two --each 2 --coverage docs/coverage.md`" in page
    assert "2 times injected, 0 times caught" in page


def test_a_repair_is_no_name() -> None:
    assert not names("position-restart", Diagnosis(fault="position-restart", how="repaired"))
    assert not names("position-restart", None)
    assert names("generate-positions", Diagnosis(fault="position-offset", how="reproduced"))


def test_exit_codes() -> None:
    spec = ["selftest", "builtin:gqa", "--probe", "future-token", "--fault"]
    assert CliRunner().invoke(app, [*spec, "mask-off-by-one"]).exit_code == 0
    missed = CliRunner().invoke(app, [*spec, "cache-stale"])
    assert missed.exit_code == 1
    assert "MISSED: cache-stale" in missed.output


def test_the_page_has_a_table_of_the_smallest_doses_where_every_probe_ran() -> None:
    probes = [registry.load(name) for name in ("future-token", "window")]
    tried = Selftest(loaded("builtin:gqa"), probes, thorough=True)
    found = list(tried.run(["mask-off-by-one", "position-restart"]))
    assert [(row.smallest, bool(row.reason)) for row in found] == [
        (False, False),
        (True, False),
        (False, False),
        (True, True),
    ]
    assert {each.probe for each in found[1].caught} == {"future-token", "window"}
    _, _, least = coverage(found, ("future-token", "window")).partition("## The smallest dose")
    assert "| mask-off-by-one | 1 | 1 | 1/1 |" in least
    assert "position-restart" not in least
