"""The baseline: known stays silent, new fails, vanished is reported; order and noise change
nothing.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from report.reports import case, crashed, failing, passing, report, target, vacuous

from attncheck.core.errors import UsageError
from attncheck.core.finding import Finding
from attncheck.core.measurement import Comparison
from attncheck.core.verdict import Verdict
from attncheck.report import baseline
from attncheck.report.fingerprint import case_kind, fingerprints


def known(finding: Finding, later: Finding) -> bool:
    """Whether a baseline made of the first finding silences the second."""
    made = baseline.of_report(report(target("builtin:gqa", finding)))
    return made.mark(target("builtin:gqa"), later).known is not None


def test_the_same_finding_with_other_numbers_in_another_order_is_known() -> None:
    later = failing(summary="other words", seconds=9.0)
    noisy = tuple(
        replace(
            each,
            divergence=replace(each.divergence, max_abs=each.max_abs * 1.3, first_position=5),
        )
        for each in reversed(later.cases)
        if isinstance(each, Comparison)
    )
    assert known(failing(), replace(later, cases=noisy))


def test_other_chunk_lengths_are_the_same_kind_of_case() -> None:
    assert known(failing(), failing(cases=(case("chunks 6+6+6+6, 2D mask", 0.9),)))


@pytest.mark.parametrize(
    "later",
    [
        failing(cases=(case("chunks 12+12, explicit positions", 0.9),)),
        failing(cases=(*failing().cases, case("one token at a time, 2D mask", 0.9))),
        failing(probe="position-reset"),
        failing(verdict=Verdict.ERROR, cases=()),
    ],
)
def test_another_case_probe_or_verdict_is_new(later: Finding) -> None:
    assert not known(failing(), later)


def test_another_fault_is_new_and_a_fault_found_later_is_not() -> None:
    explained, unexplained = failing(), failing(diagnosis=None)
    assert explained.diagnosis is not None
    other = failing(diagnosis=replace(explained.diagnosis, fault="window-ignored"))
    assert not known(explained, other)
    assert known(
        explained, failing(diagnosis=replace(explained.diagnosis, fault="position-restart (by -4)"))
    )
    assert known(unexplained, explained)
    assert not known(explained, unexplained)


def test_another_target_or_implementation_is_new() -> None:
    made = baseline.of_report(report(target("builtin:gqa", failing())))
    assert made.mark(target("builtin:mha"), failing()).known is None
    assert made.mark(target("builtin:gqa", settings={"attn": "eager"}), failing()).known is None


def test_a_pass_has_no_fingerprint() -> None:
    assert fingerprints(target("a"), passing()) == ()
    assert not known(passing(), passing())


def test_crashes_and_missed_controls_have_one() -> None:
    assert [each.case for each in fingerprints(target("a"), crashed())] == ["ValueError"]
    assert [each.case for each in fingerprints(target("a"), vacuous())] == [
        "missed padding-visible"
    ]


def test_what_is_gone_is_reported_but_not_what_did_not_run() -> None:
    made = baseline.of_report(report(target("builtin:gqa", failing(), vacuous())))
    now = report(target("builtin:gqa", passing("decode-paths")))
    assert made.vanished(now) == (
        "builtin:gqa: decode-paths, chunks #, 2D mask: in the baseline and gone",
    )
    assert made.vanished(report(target("builtin:gqa", failing(), vacuous()))) == ()


def test_a_baseline_survives_its_file(tmp_path: Path) -> None:
    made = baseline.of_report(report(target("b", failing(), crashed()), target("a", vacuous())))
    file = tmp_path / "baseline.json"
    file.write_text(baseline.to_text(made))
    assert baseline.read(file) == made
    assert len(file.read_text().splitlines()) == len(made.known) + 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected `schema` to be `attncheck-baseline/1`"),
        (
            '{"schema": "attncheck-baseline/1", "findings": [{"target": 1}]}',
            r"findings\[0\]: expected the strings `attn`, `case`",
        ),
    ],
)
def test_a_broken_baseline_is_told(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        baseline.read(file)


def test_a_missing_baseline_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No such file or directory .*--write-baseline"):
        baseline.read(tmp_path / "no.json")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("chunks 12+12, implicit positions", "chunks #, implicit positions"),
        ("4D block mask, restarted positions", "4D block mask, restarted positions"),
        ("window 4096, one forward, 2D mask", "window #, one forward, 2D mask"),
        ("row 3 of 8", "row # of #"),
    ],
)
def test_kinds_of_cases(name: str, kind: str) -> None:
    assert case_kind(name) == kind
