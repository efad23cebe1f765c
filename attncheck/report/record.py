"""The JSON of a report, as pydantic types: its schema, how it is written and read back.

Numbers that are not finite are written as the strings "nan", "inf" and "-inf", since JSON has none.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_serializer,
    model_serializer,
    model_validator,
)

from attncheck.core.divergence import Divergence, PrecisionLevel, Profile
from attncheck.core.finding import Control, Diagnosis, Finding, KnownFinding, Location, Trap
from attncheck.core.measurement import (
    AtMost,
    BrokenCall,
    Cause,
    Comparison,
    Expectation,
    Figure,
    Measurement,
    Skipped,
    verdict_of,
)
from attncheck.core.verdict import Verdict
from attncheck.report.model import Report, TargetReport, TrapReport
from attncheck.report.numbers import finite

SCHEMA = "attncheck/1"
# A list of numbers over many lines. No JSON text holds a line break, so this never matches in one.
ONE_BELOW_THE_OTHER = re.compile(r"\[\n((?:\s*-?\d[\d.eE+-]*,?\n)+)\s*\]")
ADDED = ("sentence", "family", "parts", "source")
Piece = TypeVar("Piece")
Name = Annotated[str, Field(json_schema_extra={"minLength": 1})]
Drawing = Annotated[str, Field(json_schema_extra={"pattern": "^[#+.-]*$"})]


class Record(BaseModel):
    """A part of a report. Fields of a later version are ignored."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _of_dataclass(cls, data: Any) -> Any:
        return fields_of(data) if dataclasses.is_dataclass(data) else data


class CaseRecord(Record):
    """One case of a probe. Fields that its kind does not have stand at their defaults."""

    name: Name
    verdict: Verdict
    expect: Expectation = "equal"
    broken: Verdict = Verdict.FAIL
    max_abs: float | None = None
    mean_abs: float | None = None
    kl: float | None = None
    top1_flips: int | None = None
    positions: NonNegativeInt
    first_position: int | None = None
    budget: float | None = None
    budget_from: str = ""
    scale: float | None = None
    nonfinite: NonNegativeInt
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    note: str = ""
    ladder: tuple[PrecisionLevel, ...] = ()
    profile: tuple[float, ...] = Field(
        (), description="The largest difference in each of equally wide stretches of positions."
    )
    start: NonNegativeInt = 0
    stride: int = Field(1, ge=1)
    cuts: tuple[NonNegativeInt, ...] = Field(
        (), description="Positions at which a new chunk begins."
    )
    reach: tuple[Drawing, ...] = Field(
        (), description="The visible keys of each query: # read, + too many, - missing, . neither."
    )
    beside: tuple[tuple[str, int | float], ...] = ()
    fault: str = ""
    fault_residual: float | None = None
    module: str = ""

    def measurement(self) -> Measurement:
        """The case that this record was written from, without what a diagnosis reruns."""
        cause = Cause(self.fault, self.fault_residual, self.module)
        if self.expect == "skip":
            return _part(Skipped, self, cause=cause)
        if self.expect == "runs":
            return _part(BrokenCall, self, cause=cause)
        if self.expect == "at-most":
            return _part(AtMost, self, cause=cause, visible=self.reach)
        if self.value is not None:
            return _part(Figure, self, cause=cause)
        profile = Profile(self.profile, self.start, self.stride)
        divergence = _part(Divergence, self, profile=profile)
        return _part(Comparison, self, cause=cause, divergence=divergence)


class FindingRecord(Record):
    """What one probe found on one target."""

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

    @field_serializer("diagnosis", "location")
    def _without_empty(self, part: Diagnosis | Location | None) -> dict[str, Any] | None:
        """Fields that came after the first version are written where they say something."""
        found = dataclasses.asdict(part) if part is not None else None
        return found and {name: found[name] for name in found if found[name] or name not in ADDED}

    @model_serializer(mode="wrap")
    def _without_no_traps(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Most findings have none, and those of the first version never."""
        found: dict[str, Any] = write(self)
        return {name: value for name, value in found.items() if name != "traps" or value}

    def finding(self) -> Finding:
        """The finding that this record was written from."""
        return _part(Finding, self, cases=tuple(each.measurement() for each in self.cases))


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

    def target_report(self) -> TargetReport:
        """The target's report that this record was written from."""
        results = tuple(each.finding() for each in self.results)
        return _part(TargetReport, self, results=results)


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

    def report(self) -> Report:
        """The report that this record was written from."""
        targets = tuple(each.target_report() for each in self.targets)
        return _part(Report, self, targets=targets, fail_on=tuple(map(str, self.fail_on)))


def _part(kind: type[Piece], record: Record, **given: Any) -> Piece:
    """An object of this kind, from the fields of a record that have the same names."""
    names = [each.name for each in dataclasses.fields(cast("Any", kind)) if each.init]
    return kind(**{name: getattr(record, name) for name in names if hasattr(record, name)} | given)


def fields_of(part: Any) -> dict[str, Any]:
    """The fields of a record for one part of a report: its own and those that follow from them."""
    if isinstance(part, Measurement):
        return _fields_of_case(part)
    found = dict(vars(part))
    if isinstance(part, Report):
        found |= {"schema": SCHEMA, "summary": part.summary, "traps": part.traps}
    if isinstance(part, TargetReport):
        found["verdict"] = part.verdict
    return found


def _fields_of_case(case: Measurement) -> dict[str, Any]:
    found = {
        **vars(case),
        "verdict": verdict_of(case),
        "expect": case.expect,
        "positions": case.positions,
        "nonfinite": case.nonfinite,
        "fault": case.cause.fault,
        "fault_residual": case.cause.residual,
        "module": case.cause.module,
    }
    if isinstance(case, AtMost):
        found["reach"] = case.visible
    if isinstance(case, Comparison):
        profile = case.divergence.profile
        found |= {**vars(case.divergence), **vars(profile), "profile": profile.values}
    return found


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding as data for JSON."""
    found: dict[str, Any] = finite(FindingRecord.model_validate(finding).model_dump())
    return found


def to_json(report: Report, indent: int | None = 1) -> str:
    """The report as JSON text."""
    data = finite(ReportRecord.model_validate(report).model_dump(by_alias=True))
    if not report.incomplete:  # a whole report looks as it did in the first version
        del data["incomplete"]
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
