"""The parts of a report as pydantic types: what they share, and a case.

Fields that came after the first version are written only where they say something.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from attncheck.core.divergence import Divergence, PrecisionLevel, Profile
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
from attncheck.core.skips import Questions
from attncheck.core.verdict import Verdict
from attncheck.report.model import Report, TargetReport

SCHEMA = "attncheck/1"
# A list of numbers over many lines. No JSON text holds a line break, so this never matches in one.
ONE_BELOW_THE_OTHER = re.compile(r"\[\n((?:\s*-?\d[\d.eE+-]*,?\n)+)\s*\]")
ADDED = (
    *("sentence", "family", "parts", "source"),
    *("questions", "accepted_skips", "incomplete", "shard", "place", "left"),
)
BROKEN = "broken calls"
Piece = TypeVar("Piece")
Name = Annotated[str, Field(json_schema_extra={"minLength": 1})]
Drawing = Annotated[str, Field(json_schema_extra={"pattern": "^[#+.-]*$"})]


class Record(BaseModel):
    """A part of a report. Fields of a later version are ignored."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())
    added: ClassVar[tuple[str, ...]] = ADDED

    @model_validator(mode="before")
    @classmethod
    def _of_dataclass(cls, data: Any) -> Any:
        return fields_of(data) if dataclasses.is_dataclass(data) else data

    @model_serializer(mode="wrap")
    def _without_empty(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_empty(write(self), self.added)


def without_empty(found: dict[str, Any], added: tuple[str, ...] = ADDED) -> dict[str, Any]:
    """The fields, those that were `added` after the first version only where they say something."""
    return {name: value for name, value in found.items() if value or name not in added}


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
            return part_of(Skipped, self, cause=cause)
        if self.unit == BROKEN:
            return part_of(BrokenCall, self, cause=cause)
        if self.expect == "at-most":
            return part_of(AtMost, self, cause=cause, visible=self.reach)
        if self.value is not None:
            return part_of(Figure, self, cause=cause)
        profile = Profile(self.profile, self.start, self.stride)
        divergence = part_of(Divergence, self, profile=profile)
        return part_of(Comparison, self, cause=cause, divergence=divergence)


def part_of(kind: type[Piece], record: Record, **given: Any) -> Piece:
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
    if isinstance(part, Questions):
        found["skipped"] = part.skipped
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
    if isinstance(case, BrokenCall):  # the schema of the first version knows no such case
        found |= {"value": 1.0, "limit": 0.0, "unit": BROKEN, "positions": 1}
    if isinstance(case, AtMost):
        found["reach"] = case.visible
    if isinstance(case, Comparison):
        profile = case.divergence.profile
        found |= {**vars(case.divergence), **vars(profile), "profile": profile.values}
    return found
