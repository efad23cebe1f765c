"""A triage on a terminal: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attncheck.report.markdown import escape
from attncheck.report.numbers import number, seconds
from attncheck.report.table import mark
from attncheck.triage.answer import (
    GreedySplit,
    PrecisionLine,
    Remark,
    Smallest,
    Triage,
    TriageAnswer,
)

STYLES = {
    TriageAnswer.CONFIRMED: "bold red",
    TriageAnswer.NOT_REPRODUCED: "bold",
    TriageAnswer.NUMERICS: "bold cyan",
    TriageAnswer.BEHAVIOUR: "bold yellow",
}
LADDER = ("dtype", "max|Δ|", "rounding explains", "top-1 flips", "most in")


def print_page(triage: Triage, console: Console) -> None:
    """The whole page."""
    for block in _blocks(triage):
        console.print(block)


def _blocks(triage: Triage) -> Iterator[RenderableType]:
    line = Text(overflow="fold").append(triage.answer.value, style=STYLES[triage.answer])
    yield line.append(f"  {triage.headline}")
    yield Text()
    for title, words in parts(triage):
        yield _paragraph(title, words)
    if triage.lines:
        yield Padding(_ladder(triage.lines), (0, 0, 0, 2))
        yield Text()
    for remark in mentioned(triage):
        yield _paragraph("note", f"{remark.title}. {remark.words}")
    yield Padding(_steps(triage), (0, 0, 0, 2))
    yield Text()
    if triage.script or triage.no_script:
        yield _paragraph(
            "script", triage.no_script or "written: it shows the fault without attncheck"
        )
    yield _paragraph("would change this", triage.falsifier)
    yield Text(
        ", ".join(f"{name} {value}" for name, value in triage.read)
        + f"; {seconds(triage.seconds)}",
        style="dim",
    )


def mentioned(triage: Triage) -> list[Remark]:
    """The remarks that are not already the answer."""
    return [remark for remark in triage.remarks if remark.words not in triage.advice]


def _paragraph(title: str, words: str) -> Padding:
    return Padding(
        Text(overflow="fold").append(f"{title}: ", style="bold").append(words), (0, 0, 1, 2)
    )


def parts(triage: Triage) -> Iterator[tuple[str, str]]:
    """(heading, words) of what stands between the headline and the tables."""
    diagnosis, place = triage.diagnosis, triage.location
    if diagnosis is not None:
        residual = f" to {number(diagnosis.residual)}" if diagnosis.residual is not None else ""
        rival = diagnosis.runner_up or {}
        other = f"; next best {rival.get('fault')} {number(rival.get('residual'))}" if rival else ""
        how = {
            "reproduced": "reproduced by",
            "repaired": "healed by",
            "unexplained": "no known fault gives these numbers",
        }
        yield "cause", f"{how[diagnosis.how]} {diagnosis.fault}{residual}{other}".strip()
    if place is not None and place.module:
        at = f", query position {place.query_position}" if place.query_position is not None else ""
        yield "first diverges in", f"{place.module}{at}{'; ' + place.note if place.note else ''}"
    if triage.smallest is not None:
        yield "smallest that still fails", smallest_words(triage.smallest)
    if triage.split is not None:
        yield "greedy text", split_words(triage.split)
    if triage.advice:
        yield "what to do", triage.advice


def smallest_words(found: Smallest) -> str:
    """The smallest pattern in words."""
    sizes = [f"{found.tokens} tokens" if found.tokens else "", _layers(found.layers)]
    said = ", ".join(filter(None, (found.words, *sizes)))
    said += f"; right {' or '.join(found.right)}" if found.right else ""
    return (
        f"{said} ({found.passes} passes{', stopped there' if found.spent else ''})"
        if found.passes
        else said
    )


def _layers(count: int | None) -> str:
    return "" if not count else f"the first {count} layers" if count > 1 else "the first layer"


def split_words(split: GreedySplit) -> str:
    """Where a greedy text turns, in words."""
    why = (
        "nearer than rounding moves them"
        if split.explained
        else "farther apart than rounding moves them"
    )
    return (
        f"at position {split.position} generate() chose {split.chosen} and a forward over the same ids {split.other}: the two "
        f"best are {number(split.margin)} apart and the logits differ by {number(split.difference)}, so they are {why}; "
        f"{split.flips} of {split.tokens} tokens flip"
    )


def _ladder(lines: tuple[PrecisionLine, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for heading in LADDER:
        table.add_column(heading, justify="left" if heading in ("dtype", "most in") else "right")
    for line in lines:
        table.add_row(*cells(line))
    return table


def cells(line: PrecisionLine) -> tuple[str, ...]:
    """One line of the ladder."""
    return (
        line.dtype,
        number(line.max_abs),
        number(line.budget),
        f"{line.flips} of {line.positions}",
        line.way,
    )


def _steps(triage: Triage) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("tried", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what came out", overflow="fold", ratio=1)
    for step in triage.steps:
        table.add_row(step.name, mark(step.verdict), step.words)
    return table


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
    yield f"What would change this: {_said(triage.falsifier)}"
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
