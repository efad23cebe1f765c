"""The outcome of many random faults: four rates, a table by architecture, and every miss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from attncheck.run.random_faults.parts import RandomFault
from attncheck.run.random_faults.trial import Trial

HEADING = "## Random faults"
COLUMNS = ("caught", "explained", "placed", "wrong")


def injected(trials: Sequence[Trial]) -> list[Trial]:
    """The trials in which a fault was injected."""
    return [each for each in trials if not each.reason and each.fault is not None]


def rates(trials: Sequence[Trial]) -> dict[str, tuple[int, int]]:
    """How many faults were caught, of all; of the caught ones, how many were explained by the
    right parts, placed in the right module, and explained wrongly.
    """
    ran = injected(trials)
    caught = [each for each in ran if each.caught]
    return {
        "caught": (len(caught), len(ran)),
        **{
            name: (sum(getattr(each, name) for each in caught), len(caught)) for name in COLUMNS[1:]
        },
    }


def sentence(trials: Sequence[Trial]) -> str:
    """The four rates in one line."""
    parts = (
        f"{name} {count}/{of} ({_percent(count, of)})"
        for name, (count, of) in rates(trials).items()
    )
    return ", ".join(parts)


def _percent(count: int, of: int) -> str:
    return f"{100 * count / of:.1f} %" if of else "none"


def outcome(trial: Trial) -> str:
    """What became of one fault, in a word or two."""
    if not trial.caught:
        return "NOT CAUGHT"
    flaws = {
        "not explained": not trial.explained,
        "not placed": not trial.placed,
        "WRONGLY EXPLAINED": trial.wrong,
    }
    return ", ".join(flaw for flaw, so in flaws.items() if so) or "caught, explained, placed"


def missed(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with any flaw."""
    return [each for each in injected(trials) if outcome(each) != "caught, explained, placed"]


def lines_of(trial: Trial) -> list[str]:
    """One fault with its composition and what each finding said of it."""
    head = f"{trial.target} {trial.fault or trial.reason}: {outcome(trial)}"
    return [head, *(f"    {each['said']}" for each in trial.said)]


def section(trials: Sequence[Trial], command: str) -> str:
    """The section of docs/coverage.md."""
    return "\n".join(
        [
            HEADING,
            "",
            f"Written by `{command}`. Faults that no catalogue lists: each is composed of what is",
            "changed, how, where and when, and moves the logits of some allowed call beyond",
            "rounding. *Explained*: a finding names the right parts, reproduced or measured.",
            "*Placed*: its module is the one that was changed. *Wrong*: a finding claims to have",
            "reproduced or measured another fault. Any line below can be tried alone:",
            '`attncheck selftest TARGET --fault "what=...,how=..."`.',
            "",
            f"{len(injected(trials))} faults: {sentence(trials)}.",
            "",
            *_table("target", trials, lambda trial, fault: trial.target.removeprefix("config:")),
            "",
            *_table("what", trials, lambda trial, fault: fault.what),
            "",
            *_table("when", trials, lambda trial, fault: fault.when),
            "",
            *_misses(trials),
        ]
    )


def _table(
    title: str, trials: Sequence[Trial], key: Callable[[Trial, RandomFault], str]
) -> list[str]:
    groups: dict[str, list[Trial]] = {}
    for trial in injected(trials):
        if trial.fault is not None:
            groups.setdefault(key(trial, trial.fault), []).append(trial)
    head = [f"| {title} | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    return [*head, *(_row(name, group) for name, group in sorted(groups.items()))]


def _row(name: str, trials: Sequence[Trial]) -> str:
    cells = (f"{count}/{of}" for count, of in rates(trials).values())
    return f"| {name} | {' | '.join(cells)} |"


def _misses(trials: Sequence[Trial]) -> list[str]:
    found = missed(trials)
    lines = [line for each in found for line in ("- " + lines_of(each)[0], *_said(each))]
    return ["Every miss, with what the findings said:", "", *lines, ""] if found else []


def _said(trial: Trial) -> list[str]:
    return [f"  - {each['said']}" for each in trial.said]


def written(path: Path, text: str) -> None:
    """Put a section, which begins with its heading, into a page: in the place of an earlier one, or
    at the end.
    """
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    heading = text.partition("\n")[0]
    kept, _, old = before.partition(f"{heading}\n")
    _, mark, after = old.partition("\n## ")
    parts = (kept.strip("\n"), text.strip("\n"), f"{mark.strip()} {after}".strip())
    path.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
