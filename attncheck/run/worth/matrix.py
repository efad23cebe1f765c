"""The matrix fault x question: which question of which probe catches which fault, at what cost.

A record of JSON lines grows while it is measured, so that it can be made in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

Asked = tuple[str, str]
"""A probe, and the key of one of its questions."""


@final
@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one question costs alone: the forwards that others can share, by a digest of how each is
    called, and those of its own.
    """

    probe: str
    question: str
    target: str
    shared: Mapping[str, int] = field(default_factory=dict)
    own: int = 0

    @property
    def asked(self) -> Asked:
        """The probe and the question."""
        return self.probe, self.question

    @property
    def forwards(self) -> int:
        """All forwards, where nothing ran before."""
        return self.own + sum(self.shared.values())

    @property
    def under_fault(self) -> int:
        """The forwards of a control: capabilities are known then."""
        known = sum(calls for name, calls in self.shared.items() if name.startswith("can "))
        return self.forwards - known


@final
@dataclass(frozen=True, kw_only=True)
class FaultRow:
    """One fault in one target and the questions that catch it; `reason` says why it could not be
    injected.
    """

    target: str
    fault: str
    random: bool = False
    caught: tuple[Asked, ...] = ()
    reason: str = ""


@final
@dataclass
class Matrix:
    """All that was measured: a cost for each question, on the first target that has it, and a row
    for each fault.
    """

    costs: dict[Asked, Cost] = field(default_factory=dict)
    rows: list[FaultRow] = field(default_factory=list)

    def take(self, each: Cost | FaultRow) -> None:
        """Add one line."""
        if isinstance(each, Cost):
            self.costs.setdefault(each.asked, each)
        else:
            self.rows.append(each)

    @property
    def caught(self) -> list[FaultRow]:
        """The rows of faults that some question catches."""
        return [row for row in self.rows if row.caught]

    @property
    def missed(self) -> list[FaultRow]:
        """The rows of faults that were injected and that no question catches."""
        return [row for row in self.rows if not row.caught and not row.reason]


def read(path: Path | None) -> Matrix:
    """The matrix of a record; an empty one where there is none yet."""
    matrix = Matrix()
    if path is not None and path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            matrix.take(_entry(json.loads(line)))
    return matrix


def append(path: Path | None, entries: Iterable[Cost | FaultRow]) -> None:
    """Add lines to a record."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(asdict(each)) + "\n" for each in entries)


def _entry(data: dict[str, Any]) -> Cost | FaultRow:
    if "fault" not in data:
        return Cost(**data)
    return FaultRow(**{**data, "caught": tuple(tuple(each) for each in data["caught"])})
