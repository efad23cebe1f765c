"""The matrix as a section of docs/cost.md: what the chosen questions catch, and what each question
is worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from attncheck.report.write import write_text
from attncheck.run.worth.cover import Ranked, asked_forwards, caught_by
from attncheck.run.worth.matrix import Asked, FaultRow, Matrix

BEGIN, END = "<!-- cases -->", "<!-- /cases -->"


def summary(matrix: Matrix, order: Sequence[Ranked]) -> str:
    """How much the chosen questions catch, and for how many forwards."""
    chosen = [each.asked for each in order if each.chosen]
    caught = caught_by(matrix.caught, chosen)
    share = 100 * sum(caught) / max(1, len(caught))
    return (
        f"{len(chosen)} of {len(order)} questions, {asked_forwards(matrix, chosen)} forwards with "
        f"controls by this count, catch {sum(caught)} of {len(caught)} faults ({share:.1f} %)"
    )


HEAD = """\
Chosen for `--quick`, in the order in which they are asked. *New*: faults that nothing above
catches. *Forwards*: those that nothing above has run. *Alone*: where nothing ran before.
*Catches*: all faults that it catches.
"""
REST = """\
Left to a whole run; `--budget` asks the probes in this order. A question with a `=` catches no
fault that a cheaper one does not catch as well. A whole run keeps it, since each asks a call
that no other asks: the faults of released versions in [findings](findings.md) sit in single
calls, and no catalogue lists those of the next release.
"""


def section(matrix: Matrix, order: Sequence[Ranked], command: str) -> str:
    """The section between its markers."""
    chosen = [each for each in order if each.chosen]
    drawn = sum(row.random for row in matrix.caught)
    seen = caught_by(matrix.caught, [each.asked for each in chosen])
    lost = [row for row, caught in zip(matrix.caught, seen, strict=True) if not caught]
    return "\n".join(
        [
            BEGIN,
            f"Written by `{command}`: {len(matrix.caught)} faults that some question catches,",
            f"{drawn} of them drawn at random, and {len(matrix.missed)} that none does.",
            f"{summary(matrix, order)}.",
            "",
            HEAD,
            *_table(chosen),
            "",
            f"Not caught by them: {_named(lost)}.",
            "",
            REST,
            *_table([each for each in order if not each.chosen], without_worth(matrix, order)),
            END,
        ]
    )


def without_worth(matrix: Matrix, order: Sequence[Ranked]) -> list[Asked]:
    """The questions that catch no fault which one that takes no more forwards does not catch."""
    catches: dict[Asked, set[int]] = {each.asked: set() for each in order}
    for number, row in enumerate(matrix.caught):
        for asked in row.caught:
            catches.setdefault(asked, set()).add(number)
    cheap = sorted(order, key=lambda each: each.alone)
    seen: set[int] = set()
    found: list[Asked] = []
    for each in cheap:
        if catches[each.asked] <= seen:
            found.append(each.asked)
        seen |= catches[each.asked]
    return found


def _named(rows: Iterable[FaultRow]) -> str:
    return ", ".join(f"`{row.fault}` in {row.target}" for row in rows) or "nothing"


def _table(order: Iterable[Ranked], equalled: Sequence[Asked] = ()) -> list[str]:
    rows = (
        [
            each.probe,
            f"{each.question} =" if each.asked in equalled else each.question,
            *map(str, (each.new, each.forwards, each.alone, each.catches)),
        ]
        for each in order
    )
    head = ["| probe | question | new | forwards | alone | catches |", "|---|---|---|---|---|---|"]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows)]


def put(path: Path, text: str) -> None:
    """Write the section between the markers of a page, or at its end."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    head, _, rest = before.partition(BEGIN)
    tail = rest.partition(END)[2]
    write_text(path, f"{head.rstrip()}\n\n{text}\n{tail.lstrip(chr(10))}")
