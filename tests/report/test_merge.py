"""Reports that are joined count like one run, or are refused in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report.reports import failing, passing, skipping, target

from attncheck.core.errors import UsageError
from attncheck.core.finding import Finding, KnownFinding, Trap
from attncheck.core.shard import Shard
from attncheck.core.skips import questions
from attncheck.report.merge import SavedReport, merged, missing, read_reports
from attncheck.report.model import Report, TargetReport, exit_code
from attncheck.report.record import from_json, to_json

TRAP = Trap(trap="t", call="c", reference="builtin:gqa", max_abs=7.0, advice="pass positions")
TARGETS = tuple(
    replace(target(f"org/{number}", finding), place=number + 1)
    for number, finding in enumerate(
        (
            replace(passing(), traps=(TRAP,)),
            failing(),
            passing(),
            replace(skipping(), traps=(TRAP,)),
        )
    )
)
HERE = {"torch": "2.13.0", "transformers": "5.24.0", "device": "cpu"}


def report(*targets: TargetReport, **given: Any) -> Report:
    usual: dict[str, Any] = {"attncheck": "0.1.0", "command": "run", "environment": HERE}
    made = Report(**{**usual, "started": "2026-11-29T14:00:00Z", "targets": targets, **given})
    return replace(made, exit_code=given.get("exit_code", exit_code(made)))


def shard(index: int, *targets: TargetReport, count: int = 2, **given: Any) -> SavedReport:
    part = Shard(index=index, count=count, jobs=4, run=given.pop("run", "same"))
    return SavedReport(Path(f"s{index}.json"), report(*targets, shard=part, **given))


def saved(name: str, *targets: TargetReport, **given: Any) -> SavedReport:
    return SavedReport(Path(name), report(*targets, **given))


def test_shards_give_the_report_of_one_run() -> None:
    parts = [
        shard(2, TARGETS[1], TARGETS[2], seconds=2.0, started="2026-11-29T13:59:00Z"),
        shard(1, TARGETS[0], TARGETS[3], seconds=1.0),
    ]
    parts = [SavedReport(each.path, from_json(to_json(each.report))) for each in parts]
    whole = merged(parts)
    one = report(*(replace(each, place=0) for each in TARGETS))
    assert whole.targets == one.targets
    assert (whole.exit_code, whole.incomplete, whole.summary) == (1, "", one.summary)
    assert whole.traps == one.traps
    assert whole.traps[0].targets == ("org/0", "org/3")
    assert whole.questions == questions(finding for _, finding in one.findings)
    assert (whole.started, whole.seconds) == ("2026-11-29T13:59:00Z", 3.0)
    assert whole.shard is None
    assert whole.environment == HERE


def test_a_missing_shard_is_said_and_the_report_is_not_whole() -> None:
    part = shard(2, TARGETS[0], count=4)
    assert missing([part]) == ["shards 1/4, 3/4, 4/4 missing"]
    found = merged([part])
    assert (found.exit_code, found.incomplete) == (2, "shards 1/4, 3/4, 4/4 missing")


def test_a_stopped_shard_makes_the_whole_stopped() -> None:
    stopped = shard(1, TARGETS[1], incomplete="1 of 2 targets", exit_code=143)
    found = merged([stopped, shard(2, TARGETS[0])])
    assert (found.exit_code, found.incomplete) == (143, "1 of 2 targets in shard 1/2")


def test_an_empty_shard_has_nothing_to_do_and_leaves_no_note() -> None:
    note = "shard 2/2 has none of the 4 targets"
    empty = shard(2, notes=(note,))
    assert empty.report.exit_code == 0
    found = merged([shard(1, TARGETS[0], notes=("gone", "gone")), empty])
    assert (found.exit_code, found.notes) == (0, ("gone",))


def test_skips_alone_are_nothing_that_ran_and_known_findings_do_not_count() -> None:
    assert merged([shard(1, TARGETS[3]), shard(2)]).exit_code == 5
    known: Finding = replace(failing(), known=KnownFinding(by="baseline"))
    assert merged([shard(1, target("a", known)), shard(2, TARGETS[0])]).exit_code == 0


def test_a_target_that_was_not_loaded_comes_first() -> None:
    lost = replace(target("org/lost"), error="org/lost: no such model", place=4)
    assert merged([shard(1, TARGETS[1]), shard(2, lost)]).exit_code == 2


def test_what_counts_as_failure_is_that_of_the_runs() -> None:
    parts = [
        shard(index, each, fail_on=("skip",)) for index, each in ((1, TARGETS[0]), (2, TARGETS[3]))
    ]
    assert merged(parts).exit_code == 1


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([shard(1), shard(1)], "shard 1/2 is given twice: s1.json and s1.json"),
        (
            [shard(1), shard(2, run="other")],
            "s2.json is shard 2/2 of another run than s1.json: give all shards the same targets, settings and probes",
        ),
        (
            [shard(1), shard(2, count=3)],
            "s2.json is shard 2/3 of another run than s1.json: give all shards the same targets, settings and probes",
        ),
        ([shard(1), saved("a.json")], "a.json is no shard, and other reports are: merge one kind"),
        (
            [shard(1), shard(2, fail_on=("warn",))],
            "s1.json has --fail-on nothing, s2.json has --fail-on warn: they cannot be one report",
        ),
        (
            [saved("a.json"), saved("b.json", environment={**HERE, "transformers": "4.57.0"})],
            "a.json has transformers 5.24.0, b.json has transformers 4.57.0: they cannot be one report",
        ),
        (
            [saved("a.json", TARGETS[0]), saved("b.json", TARGETS[0])],
            "org/0 (sdpa, float64, cpu) is in a.json and in b.json",
        ),
    ],
)
def test_what_cannot_be_one_report_is_refused(parts: list[SavedReport], message: str) -> None:
    with pytest.raises(UsageError) as error:
        merged(parts)
    assert str(error.value) == message


def test_the_jobs_of_a_matrix_are_joined_in_the_order_given() -> None:
    first, second = (replace(each, place=0) for each in TARGETS[:2])
    eager = replace(second, settings={**second.settings, "attn": "eager"})
    other = replace(first, results=(passing("window"),))
    here = {**HERE, "device": "cuda"}
    found = merged(
        [saved("a.json", second, first), saved("b.json", eager, other, environment=here)]
    )
    assert [each.label for each in found.targets] == [
        "org/1 (sdpa, float64, cpu)",
        "org/0 (sdpa, float64, cpu)",
        "org/1 (eager, float64, cpu)",
        "org/0 (sdpa, float64, cpu)",
    ]
    assert (found.exit_code, found.environment["device"]) == (1, "cpu, cuda")


def test_reports_are_read_from_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.json", "deep/a.json"):
        (tmp_path / name).write_text(to_json(report(TARGETS[0])))
    assert len(read_reports([tmp_path, tmp_path / "b.json"])) == 3
    (tmp_path / "c.json").write_text('{"schema": "other"}')
    with pytest.raises(UsageError, match=r"c\.json: not a report of this tool \(ValueError: not a"):
        read_reports([tmp_path])
    with pytest.raises(UsageError, match=r"none\.json: not a report of this tool \(No such file"):
        read_reports([tmp_path / "none.json"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty: the folder holds no report \(\.json\)"):
        read_reports([tmp_path / "empty"])
