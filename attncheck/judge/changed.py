"""The promise with one ingredient changed: what a layer that does not keep it may have done
instead.

Axes: B batch, H query heads, T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from attncheck.attention.reference import AttentionParams, tiled
from attncheck.judge.computed import Computed
from attncheck.judge.layer_spec import Option

NEARLY = 1e-6
"""A usual scale is meant where the fitted one is this near to it."""


@final
@dataclass(frozen=True)
class Change:
    """Other ingredients, the catalogue's name for them (empty where it has none), and words for
    them.
    """

    fault: str
    terms: AttentionParams
    words: str


def changes_of(
    case: Computed,
    option: Option,
    fitted: float,
    heads: tuple[int, ...],
    readable: Callable[[], Tensor],
) -> Iterator[Change]:
    """The promise with one ingredient changed, then with the observed reach as well."""
    terms = option.terms
    if terms.bias is not option.handed_bias:
        words = "its linear biases rise with other slopes than promised"
        yield Change("", replace(terms, bias=option.handed_bias), words)
    yield from _within(case, terms, fitted, heads)
    seen = replace(terms, allowed=readable())
    yield Change("reach", seen, "it reads other keys than promised")
    yield from _within(case, seen, fitted, heads)


def _within(
    case: Computed, terms: AttentionParams, fitted: float, heads: tuple[int, ...]
) -> Iterator[Change]:
    if terms.cap:
        yield Change(
            "softcap-missing",
            replace(terms, cap=None),
            f"the soft-cap of {terms.cap:g} is configured but absent",
        )
    if terms.sinks_H is not None:
        yield Change(
            "sink-missing",
            replace(terms, sinks_H=None),
            "the learned sinks take no part in the softmax",
        )
    yield from _heads(case, terms, heads)
    yield from _scales(case, terms, fitted)


def _heads(case: Computed, terms: AttentionParams, heads: tuple[int, ...]) -> Iterator[Change]:
    order = tiled(len(terms.heads), case.key_BGSD.shape[1])
    if order != terms.heads:
        yield Change(
            "kv-groups-tiled",
            replace(terms, heads=order),
            f"query heads read KV heads {_listed(order)}",
        )
    if heads not in (terms.heads, order):
        yield Change(
            "kv-groups-tiled",
            replace(terms, heads=heads),
            f"query heads read KV heads {_listed(heads)}",
        )


def _scales(case: Computed, terms: AttentionParams, fitted: float) -> Iterator[Change]:
    """Scales that faults produce: applied twice, not at all, by half or double, by what fits best."""
    width = case.query_BHTD.shape[-1]
    usual = [
        terms.scale * terms.scale,
        1.0,
        0.5 * terms.scale,
        2 * terms.scale,
        1 / width,
        width**-0.5,
    ]
    near = [value for value in usual if abs(value / fitted - 1) < NEARLY] if fitted > 0 else []
    for value in near or (usual if terms.cap else [fitted]):
        if value > 0:
            words = f"the scores are scaled by {value:.6g} where {terms.scale:.6g} is promised"
            yield Change("softmax-scale", replace(terms, scale=value), words)


def _listed(heads: tuple[int, ...]) -> str:
    return " ".join(map(str, heads))
