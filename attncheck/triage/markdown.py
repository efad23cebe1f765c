"""A triage as Markdown, to be pasted into an issue."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.report.markdown import escape
from attncheck.report.numbers import seconds
from attncheck.triage.answer import Triage
from attncheck.triage.page import LADDER, cells, mentioned, parts


def markdown(triage: Triage) -> str:
    """The whole answer."""
    return "\n".join(_lines(triage)).rstrip() + "\n"


def _lines(triage: Triage) -> Iterator[str]:
    yield f"### {triage.answer.value}: {escape(triage.target)}"
    yield ""
    yield f"{_said(triage.headline)}."
    yield ""
    for title, words in parts(triage):
        yield f"- **{title}**: {_said(words)}"
    yield ""
    if triage.lines:
        yield from _table(LADDER, [cells(line) for line in triage.lines])
    for remark in mentioned(triage):
        yield f"- {_said(remark.title)}. {_said(remark.words)}"
    yield ""
    yield "<details><summary>What was tried</summary>"
    yield ""
    yield from _table(
        ("tried", "verdict", "what came out"),
        [(s.name, s.verdict.value, s.words) for s in triage.steps],
    )
    yield "</details>"
    yield ""
    if triage.script:
        yield "<details><summary>Reproduction, without attncheck</summary>"
        yield f"\n```python\n{triage.script.rstrip()}\n```\n\n</details>\n"
    yield f"What would change this: {_said(triage.mind)}"
    yield ""
    read = ", ".join(f"{name} {value}" for name, value in triage.read)
    yield f"<sub>{escape(read)}; {seconds(triage.seconds)}. `{triage.command}`</sub>"


def _said(text: str) -> str:
    """Words with their code spans kept, everything else escaped."""
    spans = text.split("`")
    if len(spans) % 2 == 0:
        return escape(text)
    return "`".join(span if number % 2 else _edged(span) for number, span in enumerate(spans))


def _edged(span: str) -> str:
    """Escaped, with the blanks at its ends kept."""
    if not span.strip():
        return span
    return f"{span[: len(span) - len(span.lstrip())]}{escape(span)}{span[len(span.rstrip()) :]}"


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield f"| {' | '.join(escape(cell) for cell in row)} |"
    yield ""
