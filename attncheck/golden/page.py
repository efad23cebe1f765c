"""The answer of the gate as text: a page for a terminal, and a comment for a pull request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from attncheck.golden.answer import GateAnswer, said
from attncheck.golden.holding import HeldCall
from attncheck.report.markdown import escape
from attncheck.report.numbers import number

SIGNS = {"IDENTICAL": "✅", "ROUNDING": "✅", "DIFFERENT": "❌", "VACUOUS": "⚠️"}
MARK = "<!-- attncheck gate -->"
"""The first line of a comment, by which a workflow finds the one to replace."""
MOST_ROWS = 12


def lines(answer: GateAnswer, target: str) -> Iterator[str]:
    """The page: the answer first, what is behind it below."""
    yield f"{answer.word}  {said(answer)}"
    yield f"recorded {answer.golden}"
    yield f"now      {target}"
    yield ""
    for found in _wrong(answer)[:MOST_ROWS]:
        yield f"  {found.call.name}: {_amount(found)}"
    more = len(_wrong(answer)) - MOST_ROWS
    if more > 0:
        yield f"  and {more} more"
    if answer.source:
        yield f"  code: {_near(answer.source)}"
    yield from (f"  {words}" for words in _remarks(answer))


def _near(source: str) -> str:
    """A place in the code, from the folder of now on where it is inside."""
    return source.removeprefix(f"{Path.cwd()}{os.sep}")


def _wrong(answer: GateAnswer) -> list[HeldCall]:
    return [each for each in answer.calls if each.held == "different"]


def _amount(found: HeldCall) -> str:
    """How far one call differs, and where."""
    if found.times == float("inf"):
        return found.note
    text = f"{number(found.times)} times what rounding explains"
    if found.flips:
        text += f", best token differs at {found.flips} of {found.chosen} positions"
    if found.first is not None:
        text += f", first in {found.first.module}"
    if found.place is not None:
        row, position = found.place
        text += f", row {row}, position {position}"
    return text + (f"; {found.note}" if found.note else "")


def _remarks(answer: GateAnswer) -> Iterator[str]:
    if answer.controls:
        seen = sum(each.detected for each in answer.controls)
        yield (
            f"controls: {answer.controls[0].fault}: seen in {seen} of {len(answer.controls)} kinds "
            "of calls"
        )
    if answer.no_control:
        yield f"no further control: {answer.no_control}"
    if answer.weights:
        total = len(answer.golden.weights)
        yield f"weights: {len(answer.weights)} are not those of the recording, which has {total}"
    reasons = dict.fromkeys(each.note for each in answer.calls if each.held == "skipped")
    for reason in reasons:
        names = [each.call.name for each in answer.calls if each.note == reason]
        yield f"not compared: {len(names)} calls ({names[0]}, …): {reason}"
    for name, reason in answer.golden.skipped.items():
        yield f"not recorded: {name}: {reason}"


def comment(answer: GateAnswer, target: str) -> str:
    """The answer in Markdown."""
    return "\n".join(_comment(answer, target)).rstrip()


def _comment(answer: GateAnswer, target: str) -> Iterator[str]:
    yield MARK
    yield f"### {SIGNS[answer.word]} attncheck gate: {answer.word}"
    yield ""
    yield f"{escape(said(answer))}."
    yield ""
    worst = answer.worst
    if worst is not None and worst.first is not None:
        layer = f" (layer {worst.first.layer})" if worst.first.layer is not None else ""
        code = f", `{_near(answer.source)}`" if answer.source else ""
        yield f"First module that differs: `{worst.first.module}`{layer}{code}"
        yield ""
    yield "| call | answer | times rounding | largest difference of logits |"
    yield "|---|---|---:|---:|"
    ordered = sorted(answer.calls, key=lambda each: each.held != "different")
    for found in ordered[:MOST_ROWS]:
        numbers = f"{number(found.times)} | {number(found.largest)}"
        yield f"| {escape(found.call.name)} | {found.held} | {numbers} |"
    if len(ordered) > MOST_ROWS:
        yield f"| … {len(ordered) - MOST_ROWS} more | | | |"
    yield ""
    for words in _remarks(answer):
        yield f"- {escape(words)}"
    yield ""
    yield f"<sub>`{target}` against the recording of {escape(str(answer.golden))}</sub>"
