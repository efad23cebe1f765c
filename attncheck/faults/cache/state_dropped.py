"""What it is
    A recurrent or convolution state starts from zero in a call that continues.

How it looks
    State-space and hybrid models: one forward is right, a second chunk has forgotten the first.
    Single steps may be right, since they take another path.

Where it comes from
    A scan over a chunk that takes no initial state; a branch `if seq_len == 1` that alone reads the
    cache.

What to change
    Pass the stored state as the initial state of the scan, and the last inputs as the left context
    of the convolution.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject, Unsupported
from attncheck.faults.engine import (
    Fault,
    Hypothesis,
    Injected,
    Trusted,
    WrongForward,
    expected,
    injection,
    schedule,
    store_edits,
    words,
)
from attncheck.model.caches import key_values, states
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond

CONVOLUTION = "conv"


def inject(subject: Subject) -> Injected:
    """Zero the recurrent and convolution states before each call on the cache."""
    if not states(injection.filled_cache(subject)):
        raise CannotInject("the cache holds no recurrent state")
    return store_edits.at_cache(subject, partial(_forget, ""))


def _forget(kind: str, cache: Any) -> None:
    """Zero the states of one kind: "conv", "not conv", or all of them."""
    for each in states(cache):
        convolution = any(CONVOLUTION in part for part in each.path)
        if not kind or convolution == (kind == CONVOLUTION):
            each.tensor.zero_()


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if not forward.chunked or not forward.trusted.keeps_states:
        return
    yield Hypothesis(predict=_chunks_alone)
    for several in (False, True):
        for kind in ("", CONVOLUTION, f"not {CONVOLUTION}"):
            yield Hypothesis(
                words(
                    f"{kind} states" if kind else "",
                    "in chunks of several tokens" if several else "",
                ),
                predict=partial(_in_steps, kind, several),
            )


def _chunks_alone(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Every chunk as a sequence of its own: for models that keep nothing but states."""
    if key_values(injection.filled_cache(trusted.subject)):
        raise Unsupported("the model keeps keys and values as well")
    parts = [
        tuple(row[start:stop] for row in spec.tokens) for start, stop in expected.chunk_bounds(spec)
    ]
    return torch.cat([trusted.logits(ForwardSpec(part)) for part in parts], 1)


def _in_steps(kind: str, several: bool, trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """The first chunk, then single steps; states are zeroed where chunks begin.

    Single steps often take another path than chunks, which is right where chunks are wrong.
    `several` zeroes the states only where a chunk of more than one token begins.
    """
    _require_sound_steps(trusted, spec)
    (_, first), *later = expected.chunk_bounds(spec)
    boundaries = {start for start, stop in later if stop - start > 1 or not several}
    logits_BTV, cache = schedule.model_step(trusted, spec, 0, first, None)
    outputs = [logits_BTV]
    for position in range(first, spec.length):
        if position in boundaries:
            _forget(kind, cache)
        logits_BTV, cache = schedule.model_step(trusted, spec, position, position + 1, cache)
        outputs.append(logits_BTV)
    return torch.cat(outputs, 1)


def _require_sound_steps(trusted: Trusted, spec: ForwardSpec) -> None:
    """Check that single steps after the first chunk agree with one forward.

    Raises:
        Unsupported: they do not, or the model keeps no states.
    """
    subject, first = trusted.subject, spec.chunks[0]
    stepwise = ForwardSpec(spec.tokens, chunks=(first, *(1,) * (spec.length - first)))
    if not states(subject.passes.cache(ForwardSpec(spec.tokens, use_cache=True))):
        raise Unsupported("the cache holds no recurrent state")
    whole_BTV = trusted.logits(ForwardSpec(spec.tokens))
    if beyond(subject.logits(stepwise), whole_BTV, subject.budget.value):
        raise Unsupported("single steps disagree with one forward as well")


FAULT = Fault(
    name="state-dropped", inject=inject, hypotheses={445: _hypotheses}, on_cache_only=True
)
