"""Calls beyond forwards in one precision: `generate()`, compiled, and the lower precisions that
users run in. What agrees with itself in float64 may differ there alone.

One side is recorded in these calls as `attncheck record` does, and the other one held against it.
"""

from __future__ import annotations

from attncheck.compare.naming import NamedFault
from attncheck.core.errors import TargetError
from attncheck.golden.answer import GateAnswer, said
from attncheck.golden.calls import ONE, GoldenCall, planned
from attncheck.golden.conditions import only_where
from attncheck.golden.gate import hold
from attncheck.golden.recording import record
from attncheck.model.subject import Subject

PLAIN = str.maketrans("", "", "()`")
ONLY = "only-in-some-calls"
"""The name of a difference whose calls have nothing else in common."""


def further_calls(one: Subject, other: Subject) -> GateAnswer | None:
    """Both models in these calls; None where they are cut into other modules, which hides where
    rounding begins, or take none of the calls.
    """
    names = [[name for name, _ in each.model.named_modules()] for each in (one, other)]
    if names[0] != names[1]:
        return None
    wanted = [each for each in planned(one) if _is_further(each, one.dtype_name)]
    try:
        return hold(record(one, {}, calls=wanted), other, with_controls=False)
    except TargetError:
        return None


def _is_further(call: GoldenCall, highest: str) -> bool:
    """Whether a call is none of those that were compared already; one is kept to see which modules
    agree in the highest precision.
    """
    plain = call.dtype == highest and not call.backend and not call.new_tokens
    return not plain or (call.way == ONE and call.spec.attn is None)


def fault_of(answer: GateAnswer) -> NamedFault:
    """The difference in these calls as a fault with its condition and place."""
    worst = answer.worst
    first = worst.first if worst else None
    return NamedFault(
        name=_condition(answer),
        sentence=said(answer),
        module=first.module if first else "",
        other_module=first.module if first else "",
        layer=first.layer if first else None,
        layers=(first.layer,) if first and first.layer is not None else (),
    )


def _condition(answer: GateAnswer) -> str:
    """`only-in-bfloat16`, `only-in-generate`, `only-compiled`."""
    where = only_where(answer.calls)
    dtypes = {each.call.dtype for each in answer.calls if each.held == "different"}
    if not where and len(dtypes) == 1:
        where = f"only in {dtypes.pop()}"
    return "-".join(where.translate(PLAIN).split()) or ONLY
