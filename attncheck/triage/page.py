"""A triage as blocks (paragraphs and tables), on a terminal or as Markdown for an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attncheck.core.finding import Diagnosis, Finding, Proof
from attncheck.core.verdict import Verdict
from attncheck.report.markdown import escape
from attncheck.report.numbers import number, seconds
from attncheck.report.table import STYLES as VERDICT_STYLES
from attncheck.report.table import fault_text, location_text
from attncheck.triage.answer import GreedySplit, Remark, Smallest, Triage, TriageAnswer

STYLES = {
    TriageAnswer.CONFIRMED: "bold red",
    TriageAnswer.NOT_REPRODUCED: "bold",
    TriageAnswer.NUMERICS: "bold cyan",
    TriageAnswer.BEHAVIOUR: "bold yellow",
}
HOW: dict[Proof, str] = {
    "reproduced": "reproduced by",
    "measured": "measured:",
    "repaired": "fixed by",
    "unexplained": "no known fault gives these logits",
}
FOLDERS = re.compile(r"(?<![\w:/.<])~?/(?:[\w.+@-]+/)+(?=[\w.+@-])")
"""An absolute path up to its last part."""
QUIET = (Verdict.PASS, Verdict.SKIP)
TOLD = ("finite values", "the reporter's own call", "lengths", "control")
"""Steps whose result is shown where they pass, too."""
SHARED, OTHERS = 4, " others"
NUMERIC = ("max|Δ|", "rounding explains", "top-1 flips")


@final
@dataclass(frozen=True)
class Grid:
    """A small table: its headings and its rows of cells."""

    headings: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]


def print_page(triage: Triage, console: Console) -> None:
    """The answer on a terminal, followed by its evidence."""
    line = Text(overflow="fold").append(triage.answer.value, style=STYLES[triage.answer])
    early = "stopped early, best guess so far: " if triage.stopped else ""
    console.print(line.append(f"  {early}{triage.headline}"))
    console.print()
    for title, words in parts(triage):
        _print_paragraph(console, title, words)
    if triage.lines:
        _print_grid(console, precision_grid(triage))
    for remark in mentioned(triage):
        _print_paragraph(console, "note", f"{remark.title}. {remark.words}")
    _print_grid(console, steps_grid(triage, brief=True), cropped=True)
    if triage.script or triage.no_script:
        written = "written: it shows the fault without attncheck"
        _print_paragraph(console, "script", triage.no_script or written)
    _print_paragraph(console, "would change this", triage.falsifier)
    console.print(Text(_resolved(triage), style="dim"))


def _print_paragraph(console: Console, title: str, words: str) -> None:
    text = Text(overflow="fold").append(f"{title}: ", style="bold").append(words)
    console.print(Padding(text, (0, 0, 1, 2)))


def _print_grid(console: Console, grid: Grid, cropped: bool = False) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for place, heading in enumerate(grid.headings):
        last = place == len(grid.headings) - 1
        table.add_column(
            heading,
            justify="right" if heading in NUMERIC else "left",
            no_wrap=not last,
            overflow="fold",
        )
    room = console.width - 4 - sum(2 + max(map(len, column)) for column in _columns(grid)[:-1])
    for cells in grid.cells:
        whole = not cropped or cells[0].endswith(OTHERS)
        shown = cells if whole else (*cells[:-1], _cut(cells[-1], room))
        table.add_row(*(_styled(cell) for cell in shown))
    console.print(Padding(table, (0, 0, 1, 2)))


def _cut(text: str, room: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= room else f"{line[: max(1, room - 1)]}…"


def _columns(grid: Grid) -> list[tuple[str, ...]]:
    return list(zip(grid.headings, *grid.cells, strict=True))


def _styled(cell: str) -> Text:
    verdict = next((each for each in Verdict if each.value == cell), None)
    return Text(cell) if verdict is None else Text(cell.upper(), style=VERDICT_STYLES[verdict])


def markdown(triage: Triage) -> str:
    """The answer as Markdown, without folders of this machine."""
    return without_folders("\n".join(_lines(triage)).rstrip() + "\n")


def without_folders(text: str) -> str:
    """Absolute paths shortened to their last part."""
    return FOLDERS.sub("", text)


def _lines(triage: Triage) -> Iterator[str]:
    yield f"### {triage.answer.value}: {escape(triage.target)}\n"
    yield f"{_escaped(triage.headline)}.\n"
    for title, words in parts(triage):
        yield f"- **{title}**: {_escaped(words)}"
    yield ""
    if triage.lines:
        yield from _table(precision_grid(triage))
    for remark in mentioned(triage):
        yield f"- {_escaped(remark.title)}. {_escaped(remark.words)}"
    yield "\n<details><summary>What was tried</summary>\n"
    yield from _table(steps_grid(triage))
    yield "</details>\n"
    if triage.script:
        yield "<details><summary>Reproduction, without attncheck</summary>"
        yield f"\n```python\n{triage.script.rstrip()}\n```\n\n</details>\n"
    yield f"What would change this: {_escaped(triage.falsifier)}\n"
    yield f"<sub>{escape(_resolved(triage))}. `{triage.command}`</sub>"


def _table(grid: Grid) -> Iterator[str]:
    yield f"| {' | '.join(grid.headings)} |"
    yield "|" + "---|" * len(grid.headings)
    for cells in grid.cells:
        yield f"| {' | '.join(escape(cell) for cell in cells)} |"
    yield ""


def _escaped(text: str) -> str:
    """Text with its code spans kept and everything else escaped."""
    spans = text.split("`")
    if len(spans) % 2 == 0:
        return escape(text)
    return "`".join(span if number % 2 else _edged(span) for number, span in enumerate(spans))


def _edged(span: str) -> str:
    """Escaped, with the spaces at both ends kept."""
    if not span.strip():
        return span
    return f"{span[: len(span) - len(span.lstrip())]}{escape(span)}{span[len(span.rstrip()) :]}"


def mentioned(triage: Triage) -> list[Remark]:
    """The remarks that are not already the answer."""
    said = f"{triage.advice} {triage.headline}"
    others = {each.title: each for each in triage.remarks if each.words.rstrip(".") not in said}
    return list(others.values())


def parts(triage: Triage) -> Iterator[tuple[str, str]]:
    """(heading, text) of the paragraphs between the headline and the tables."""
    diagnosis, place = triage.diagnosis, triage.location
    if triage.told:
        told = ", ".join(f"{name} {value}" for name, value in triage.told)
        yield "read from the issue", f"{told} (correct it by these options)"
    if triage.called:
        yield "run as reported", triage.called
    if diagnosis is not None:
        yield "cause", _cause(diagnosis)
    if place is not None and place.module:
        yield "first diverges in", location_text(place).removeprefix("first diverges in ")
    if triage.second is not None:
        yield "and another fault", second_words(triage.second)
    if triage.smallest is not None:
        yield "smallest that still fails", smallest_words(triage.smallest)
    if triage.split is not None:
        yield "greedy text", split_words(triage.split)
    if triage.advice:
        said = diagnosis.sentence if diagnosis is not None else ""
        yield "what to do", triage.advice.removeprefix(said).strip() or triage.advice


def _cause(found: Diagnosis) -> str:
    """The fault, or what was measured where no known fault does the same."""
    nameless = found.how == "measured" and not found.fault
    return f"{HOW[found.how]} {found.sentence if nameless else fault_text(found)}".strip()


def second_words(found: Finding) -> str:
    """What is still there once the first fault is explained."""
    cause = _cause(found.diagnosis) if found.diagnosis else ""
    place = f"{location_text(found.location)}: " if found.location else ""
    return f"{cause}; {place}{found.summary}"


def smallest_words(found: Smallest) -> str:
    """The smallest failing call in words."""
    layers = {None: "", 0: "", 1: "the first layer"}.get(
        found.layers, f"the first {found.layers} layers"
    )
    tokens = f"{found.tokens} tokens" if found.tokens else ""
    text = ", ".join(filter(None, (found.words, tokens, layers)))
    text += f"; right {' or '.join(found.right)}" if found.right else ""
    stopped = ", search stopped at its limit" if found.spent else ""
    return f"{text} ({found.passes} forwards{stopped})" if found.passes else text


def split_words(split: GreedySplit) -> str:
    """Where greedy text diverges, in words."""
    nearness = "nearer" if split.explained else "farther apart"
    return (
        f"at position {split.position} generate() chose {split.chosen} and a forward over the same "
        f"ids {split.other}: the two best are {number(split.margin)} apart and the logits differ "
        f"by {number(split.difference)}, so they are {nearness} than rounding moves them; "
        f"{split.flips} of {split.tokens} tokens flip"
    )


def precision_grid(triage: Triage) -> Grid:
    """One row per precision."""
    return Grid(
        ("dtype", *NUMERIC, "most in"),
        tuple(
            (
                line.dtype,
                number(line.max_abs),
                number(line.budget),
                f"{line.flips} of {line.positions}",
                line.way,
            )
            for line in triage.lines
        ),
    )


def steps_grid(triage: Triage, brief: bool = False) -> Grid:
    """One row per step that was tried; in brief, those that agree and are no more than a probe or a
    search share the last row.
    """
    shared = [step for step in triage.steps if brief and step.verdict in QUIET]
    shared = [step for step in shared if step.name not in TOLD] if len(shared) > SHARED else []
    rows = [
        (step.name, step.verdict.value, step.words) for step in triage.steps if step not in shared
    ]
    if shared:
        names = ", ".join(step.name for step in shared)
        rows.append((f"{len(shared)}{OTHERS}", Verdict.PASS.value, names))
    return Grid(("tried", "verdict", "result"), tuple(rows))


def _resolved(triage: Triage) -> str:
    read = ", ".join(f"{name} {value}" for name, value in triage.read)
    return f"{read}; {seconds(triage.seconds)}"
