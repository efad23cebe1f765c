"""The seven verdicts and their order. Standard library only, since the command line lists them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from attncheck.core.errors import UsageError, unknown


class Verdict(str, Enum):
    """The result of a case, a probe or a model."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"
    NOISE = "noise"
    VACUOUS = "vacuous"
    SKIP = "skip"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value


WORST_FIRST = (
    Verdict.FAIL,
    Verdict.ERROR,
    Verdict.VACUOUS,
    Verdict.WARN,
    Verdict.NOISE,
    Verdict.SKIP,
    Verdict.PASS,
)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of some verdicts; `skip` where there are none but skips."""
    seen = set(verdicts)
    return next((verdict for verdict in WORST_FIRST if verdict in seen), Verdict.SKIP)


def worst_of_model(verdicts: Iterable[Verdict]) -> Verdict:
    """A model's verdict: its worst probe, where a skipped probe counts only if nothing else ran."""
    return worst(verdict for verdict in verdicts if verdict is not Verdict.SKIP)


STRICT = frozenset({Verdict.VACUOUS, Verdict.WARN, Verdict.NOISE})


TRAP = "trap"
"""Counts traps of the library as failure, beside verdicts."""


def failing(names: Iterable[str], strict: bool = False) -> frozenset[str]:
    """What counts as failure beside `fail`: the verdicts that are named (or `trap`), and `STRICT`
    if strict. `skip=KIND,…` names `skip`.

    Raises:
        UsageError: a name that is no verdict.
    """
    verdicts = {verdict.value: verdict for verdict in Verdict if verdict is not Verdict.PASS}
    valid: dict[str, str] = {**verdicts, TRAP: TRAP}
    names = ["skip" if name.startswith("skip=") else name for name in names]
    for name in names:
        if name not in valid:
            raise UsageError(unknown("verdict", name, valid))
    return frozenset(valid[name] for name in names) | (STRICT if strict else frozenset())
