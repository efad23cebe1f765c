"""The JSON of a report, as pydantic types: its schema, how it is written and read back.

Numbers that are not finite are written as the strings "nan", "inf" and "-inf", since JSON has none.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    ValidationError,
    field_serializer,
)

from attncheck.core.finding import Control, Diagnosis, Finding, KnownFinding, Location, Trap
from attncheck.core.shard import Shard
from attncheck.core.verdict import Verdict
from attncheck.report.model import Report, TargetReport, TrapReport
from attncheck.report.numbers import finite
from attncheck.report.record_parts import (
    ADDED,
    SCHEMA,
    CaseRecord,
    Name,
    Record,
    part_of,
    without_empty,
)

# A list of numbers over many lines. No JSON text holds a line break, so this never matches in one.
ONE_BELOW_THE_OTHER = re.compile(r"\[\n((?:\s*-?\d[\d.eE+-]*,?\n)+)\s*\]")


class FindingRecord(Record):
    """What one probe found on one target."""

    added = (*ADDED, "traps", "shared_by")

    probe: Name
    verdict: Verdict
    seconds: NonNegativeFloat
    summary: str
    cases: tuple[CaseRecord, ...]
    controls: tuple[Control, ...]
    controls_missing: str = ""
    diagnosis: Diagnosis | None
    location: Location | None
    skip_reason: str | None
    error: str | None
    replay: Mapping[str, Any]
    known: KnownFinding | None = None
    traps: tuple[Trap, ...] = Field(
        (), description="Cases set aside, since reference models of the library warn as well."
    )
    shared_by: str = Field(
        "", description="A reference model of the library that has each failing case as well."
    )
    left: tuple[str, ...] = Field(
        (), description="What a run with --quick or --budget did not ask of it."
    )

    @field_serializer("diagnosis", "location")
    def _part(self, part: Diagnosis | Location | None) -> dict[str, Any] | None:
        return without_empty(dataclasses.asdict(part)) if part is not None else None

    def finding(self) -> Finding:
        """The finding that this record was written from."""
        return part_of(Finding, self, cases=tuple(each.measurement() for each in self.cases))


class QuestionsRecord(Record):
    """How many questions were asked and skipped, by kinds of reasons (docs/skips.md)."""

    asked: NonNegativeInt
    skipped: NonNegativeInt
    reasons: Mapping[str, NonNegativeInt]


class TargetRecord(Record):
    """One target under one setting."""

    target: str
    verdict: Verdict
    seconds: NonNegativeFloat
    load_seconds: NonNegativeFloat
    model: Mapping[str, Any]
    settings: Mapping[str, Any]
    results: tuple[FindingRecord, ...]
    error: str | None = Field(None, description="Why it could not be loaded.")
    notes: tuple[str, ...] = ()
    questions: QuestionsRecord | None = None
    place: NonNegativeInt = Field(0, description="Its place in a run that was split, from 1.")

    def target_report(self) -> TargetReport:
        """The target's report that this record was written from."""
        results = tuple(each.finding() for each in self.results)
        return part_of(TargetReport, self, results=results)


class Summary(Record):
    """How many probes came to each verdict."""

    pass_: NonNegativeInt = Field(alias="pass")
    fail: NonNegativeInt
    warn: NonNegativeInt
    noise: NonNegativeInt
    vacuous: NonNegativeInt
    skip: NonNegativeInt
    error: NonNegativeInt


class ReportRecord(Record):
    """What one run of attncheck found. Numbers that are not finite are the strings nan, inf and
    -inf.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": SCHEMA,
            "title": "attncheck report",
        }
    )

    schema_: Literal["attncheck/1"] = Field(alias="schema")
    attncheck: str = Field(description="The version that wrote it.")
    command: str
    started: str = Field(json_schema_extra={"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"})
    seconds: NonNegativeFloat
    exit_code: Literal[0, 1, 2, 3, 5, 129, 130, 143]
    environment: Mapping[str, Any]
    targets: tuple[TargetRecord, ...]
    summary: Summary
    traps: tuple[TrapReport, ...] = Field(
        (), description="What this version of the library does to models of a kind, each once."
    )
    notes: tuple[str, ...] = Field(
        (), description="Notes on the whole run, such as findings of the baseline that are gone."
    )
    fail_on: tuple[Verdict | Literal["trap"], ...] = Field(
        (), description="Verdicts that counted as failure in addition to fail."
    )
    incomplete: str = Field(
        "", description="How much was done before the run was stopped, such as `8 of 16 probes`."
    )
    accepted_skips: tuple[str, ...] | None = Field(None, description="Accepted kinds of skips.")
    shard: Shard | None = Field(None, description="Which part of a run that was split this is.")

    def report(self) -> Report:
        """The report that this record was written from."""
        targets = tuple(each.target_report() for each in self.targets)
        return part_of(Report, self, targets=targets, fail_on=tuple(map(str, self.fail_on)))


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding as data for JSON."""
    found: dict[str, Any] = finite(FindingRecord.model_validate(finding).model_dump())
    return found


def to_json(report: Report, indent: int | None = 1) -> str:
    """The report as JSON text."""
    data = finite(ReportRecord.model_validate(report).model_dump(by_alias=True))
    text = json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)
    return ONE_BELOW_THE_OTHER.sub(lambda found: f"[{' '.join(found.group(1).split())}]", text)


def from_json(text: str) -> Report:
    """A report from its JSON text.

    Raises:
        ValueError: not JSON, or not a report of this schema.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"not a report: expected `schema` to be `{SCHEMA}`")
    try:
        return ReportRecord.model_validate(data).report()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"not a report: {place}: {first['msg']}") from error
