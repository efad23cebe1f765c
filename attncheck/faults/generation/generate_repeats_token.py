"""What it is
    generate() feeds the last prompt token again on top of a cache that already holds it.

How it looks
    The first generated token has scores that a forward does not give; continued conversations
    stutter.

Where it comes from
    Input ids cut by the wrong length when a filled cache is passed in.

What to change
    Feed only the tokens that the cache does not hold: `input_ids[:, cache_length:]`.

Axes: B batch, T positions of this call, S positions in all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import (
    Fault,
    Hypothesis,
    Injected,
    Trusted,
    WrongForward,
    expected,
    injection,
)
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Let the first step after a prompt feed the prompt's last token once more."""
    last: list[Tensor] = []
    adapter = subject.forward_adapter

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT, before = call.get(adapter.ids_name), injection.tokens_before(subject, call)
        if not isinstance(ids_BT, Tensor):
            return call
        if ids_BT.shape[1] != 1 or not before:
            last[:] = [ids_BT[:, -1:]]
            return call
        # Positions of one token do not fit two: the model counts for itself.
        dropped = (adapter.positions_name, "cache_position")
        fed = {name: value for name, value in call.items() if name not in dropped}
        if last and last[0].shape == ids_BT.shape:
            fed[adapter.ids_name] = torch.cat([last.pop(), ids_BT], 1)
        return _lengthened(subject, fed, before + fed[adapter.ids_name].shape[1])

    subject.can.cache.require(CannotInject)
    injection.require_counting_cache(subject)
    return injection.at_arguments(subject, edit)


def _lengthened(subject: Subject, call: dict[str, Any], total: int) -> dict[str, Any]:
    """The call with a 2D mask that covers all `total` tokens."""
    name = subject.forward_adapter.mask_name or ""
    mask_BS = call.get(name)
    if not isinstance(mask_BS, Tensor) or mask_BS.ndim != 2:
        return call
    more_BS = mask_BS.new_ones(mask_BS.shape[0], max(0, total - mask_BS.shape[1]))
    return {**call, name: torch.cat([mask_BS, more_BS], 1)}


def _in_generate(forward: WrongForward) -> Iterator[Hypothesis]:
    spec = forward.spec
    if forward.provenance is not None and forward.chunked and spec.chunks[-1] == 1:
        for parameter, times in (("in the first step", 1), ("in every step", spec.length)):
            yield Hypothesis(parameter, predict=partial(_fed_again, times))


def _steps(spec: ForwardSpec) -> list[int]:
    """Where single-token steps begin."""
    return [start for start, stop in expected.chunk_bounds(spec)[1:] if stop - start == 1]


def _fed_again(times: int, trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """The first `times` steps feed the token before once more, so the row is longer by each."""
    steps = _steps(spec)[:times]
    order: list[int] = []
    extra: list[int] = []
    kept: list[int] = []
    for t in range(spec.length):
        again = t in steps
        order += [t - 1, t] if again else [t]
        extra += [1, 0] if again else [0]
        kept.append(len(order) - 1)
    # Every token moves by the number of tokens that were fed again before it.
    later = list(itertools.accumulate(extra))
    mask = spec.mask
    positions = spec.positions and tuple(
        tuple(row[t] + n for t, n in zip(order, later, strict=True)) for row in spec.positions
    )
    longer = ForwardSpec(
        _in_order(spec.tokens, order),
        positions=positions,
        mask=Mask2D(_in_order(mask.rows, order)) if isinstance(mask, Mask2D) else mask,
    )
    return trusted.logits(longer)[:, kept]


def _in_order(rows: tuple[Row, ...], order: list[int]) -> tuple[Row, ...]:
    return tuple(tuple(row[t] for t in order) for row in rows)


def _in_place(forward: WrongForward) -> Iterator[Hypothesis]:
    if 1 in forward.spec.chunks[1:]:
        yield Hypothesis(predict=_fed_instead)


def _fed_instead(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Single-token steps are fed the token before in place of their own."""
    steps = _steps(spec)
    fed = tuple(
        tuple(row[t - 1] if t in steps else token for t, token in enumerate(row))
        for row in spec.tokens
    )
    return trusted.logits(replace(spec, tokens=fed))


FAULT = Fault(
    name="generate-repeats-token",
    inject=inject,
    hypotheses={120: _in_generate, 440: _in_place},
    on_cache_only=True,
)
