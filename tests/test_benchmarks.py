"""The benchmark counts what it says it counts: the same forwards on both sides, peaks of memory,
growth, one table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.checked import Call, Run, bare, checked
from benchmarks.growth import flags
from benchmarks.memory import allowed, summary
from benchmarks.models import Shape
from benchmarks.peaks import Sampling, meter
from benchmarks.processes import exponent, ratios, spread
from benchmarks.startup import COMMANDS
from benchmarks.table import END, START, put, table

TINY = Shape(layers=2, length=12, vocabulary=64)
PROBES = ["future-token", "kv-repeat"]


@pytest.fixture(scope="module")
def run() -> Run:
    return checked(TINY, "float32", PROBES)


def test_every_forward_of_the_probes_is_noted(run: Run) -> None:
    assert list(run.seconds) == list(run.peaks) == list(run.verdicts) == PROBES
    assert set(run.verdicts.values()) == {"pass"}
    calls = [call for made in run.calls for call in made]
    assert run.forwards == len(calls) > 20
    assert {call.rows * call.new for call in calls} >= {12}, "the full forward of the main input"
    assert any(call.cached and call.new == 1 for call in calls), "steps on a filled cache"
    assert {(call.gradient, call.dtype) for call in calls} == {(False, "float32")}


def test_the_bare_side_makes_these_forwards(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import checked as module

    made: list[tuple[int, int, bool]] = []
    forward = module.Replay._forward

    def spied(self: module.Replay, ids: object, call: Call, given: dict[str, object]) -> object:
        cache = next(iter(given.values()), None)
        assert (cache.get_seq_length() if cache is not None else 0) == call.cached  # type: ignore[attr-defined]
        made.append((*ids.shape, call.gradient))  # type: ignore[attr-defined]
        return forward(self, ids, call, given)

    monkeypatch.setattr(module.Replay, "_forward", spied)
    spent = bare(TINY, "float32", run.calls)
    assert made == [(call.rows, call.new, call.gradient) for each in run.calls for call in each]
    assert len(spent) == len(PROBES)
    assert all(seconds > 0 for seconds in spent)


def test_memory_is_held_against_the_formula(run: Run) -> None:
    terms = allowed(run)
    assert terms["L"] == max(5 * 12, 3 * _most(run)) * 64 * 4
    assert terms["D"] == terms["G"] == 0, "nothing ran in float64 or for a gradient"
    assert summary(run)["allowed_mib"] * 2**20 == sum(terms.values())


def _most(run: Run) -> int:
    return max(call.rows * (call.cached + call.new) for made in run.calls for call in made)


@pytest.mark.parametrize("make", [lambda: meter("cpu"), Sampling])
def test_a_peak_that_is_gone_is_still_seen(make: type[Sampling]) -> None:
    watch = make()
    watch.restart()
    before = watch.peak()
    block = bytearray(64 << 20)
    if isinstance(watch, Sampling):
        watch.peak()
        watch.most = max(watch.most, watch.process.memory_info().rss)
    del block
    assert watch.peak() - before > 48 << 20
    watch.restart()
    assert watch.peak() - before < 16 << 20


def test_exponents_and_ratios() -> None:
    assert exponent([1, 2, 4], [3, 6, 12]) == pytest.approx(1)
    assert exponent([1, 2, 4], [1, 4, 16]) == pytest.approx(2)
    assert ratios([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == (2.0, 1.0, 3.0)


def test_growth_that_is_not_the_model_s_own_is_flagged() -> None:
    found = {
        "sizes": (1, 2),
        "memory_mib": [1, 9],
        "allowed_mib": [4, 8],
        "memory_exponent": 3.2,
        "bare_exponent": 1.4,
        "exponent": 1.5,
    }
    assert flags(found) == ["memory grows with exponent 3.20", "memory above the formula at 2"]
    assert flags({**found, "exponent": 1.6})[0] == "seconds grow with exponent 1.60"


def test_the_table_and_its_place(tmp_path: Path) -> None:
    name = next(iter(COMMANDS))
    against = {"import rich": {"seconds": spread([0.2]), "ratio": spread([1.5, 1.4, 1.7])}}
    started = {name: {"seconds": spread([0.3]), "against": against}}
    text = table({"machine": "a machine", "startup": started})
    assert (
        "| start: `attncheck --help` | 0.3 s | `import rich`: 0.2 s | 1.50 (1.40 to 1.70) |" in text
    )
    page = tmp_path / "page.md"
    page.write_text(f"before\n{START}\nold\n{END}\nafter\n")
    assert put(page, text)
    assert page.read_text() == f"before\n{START}\n{text.strip()}\n{END}\nafter\n"
    page.write_text("no marks")
    assert not put(page, text)
