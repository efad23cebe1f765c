"""Which calls differ, in words: only in bfloat16, only in batches above one, only compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from attncheck.golden.calls import GoldenCall
from attncheck.golden.holding import HeldCall

Trait = Callable[[GoldenCall], bool]


def only_where(calls: Sequence[HeldCall]) -> str:
    """What the calls that differ have in common and no other call has, in one trait or two; empty
    where nothing sets them apart.
    """
    wrong = [each.call for each in calls if each.held == "different"]
    right = [each.call for each in calls if each.held in ("identical", "rounding")]
    if not wrong or not right:
        return ""
    shared = {
        words: trait
        for words, trait in _traits([*wrong, *right]).items()
        if all(map(trait, wrong)) and not all(map(trait, right))
    }
    exact = [words for words, trait in shared.items() if not any(map(trait, right))]
    if exact:
        return f"only {exact[0]}"
    for one, other in combinations(shared, 2):
        if not any(shared[one](each) and shared[other](each) for each in right):
            return f"only {one} and {other}"
    return ""


def _traits(calls: Sequence[GoldenCall]) -> dict[str, Trait]:
    dtypes = dict.fromkeys(call.dtype for call in calls)
    attns = dict.fromkeys(call.spec.attn for call in calls if call.spec.attn)
    ways = dict.fromkeys(call.way for call in calls)
    return {
        **{f"in {dtype}": _of_dtype(dtype) for dtype in dtypes},
        "below float64": lambda call: call.dtype != "float64",
        "in batches above one": lambda call: len(call.spec.tokens) > 1,
        "in one row": lambda call: len(call.spec.tokens) == 1,
        "on a cache": lambda call: bool(call.spec.chunks or call.new_tokens),
        "without a cache": lambda call: not (call.spec.chunks or call.new_tokens),
        "under padding": lambda call: call.spec.mask is not None or bool(call.padding),
        "compiled": lambda call: bool(call.backend),
        "in generate()": lambda call: bool(call.new_tokens),
        **{f"under {attn}": _of_attn(attn) for attn in attns},
        **{f"in `{way}`": _of_way(way) for way in ways},
    }


def _of_dtype(dtype: str) -> Trait:
    return lambda call: call.dtype == dtype


def _of_attn(attn: str) -> Trait:
    return lambda call: call.spec.attn == attn


def _of_way(way: str) -> Trait:
    return lambda call: call.way == way
