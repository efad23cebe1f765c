"""Answers in which several candidate tokens are checked by one forward, and those that do not fit
are rolled back.

Axes: B batch, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from attncheck.probing import (
    PIECES,
    Cause,
    Measurement,
    Row,
    Subject,
    cache_kinds,
    cached_length,
    max_abs,
    rollback_cache,
)
from attncheck_probes.generate.answers import RowAnswers, answers, of_generate, wanted

LOOKUP, ITSELF = "prompt lookup", "assisted by itself"
CANDIDATES = 3
NEVER = 2**30
"""An end token that no vocabulary has: some releases look for one among the candidates, and raise
where there is none."""
PERIOD = 5
"""Tokens of a prompt that repeats itself, so that candidates are found in it."""


def looked_up(subject: Subject, prompt: Row, new: int) -> Measurement:
    """Candidates are what followed the same tokens earlier in a prompt that repeats itself; few of
    them fit.
    """
    subject.can.cache.require()
    repeated = (prompt[:PERIOD] * len(prompt))[: len(prompt)]
    rows = (repeated,)
    found = answers(subject, rows, new, prompt_lookup_num_tokens=CANDIDATES, eos_token_id=NEVER)
    return _compared(subject, LOOKUP, found)


def assisted(subject: Subject, prompt: Row, new: int) -> Measurement:
    """Candidates come from the model itself, so that all of them fit and none is rolled back. The
    reason is named where cropping nothing is seen to shorten the cache.
    """
    subject.can.cache.require()
    found = answers(subject, (prompt,), new, given={"assistant_model": subject.model})
    case = _compared(subject, ITSELF, found)
    cropping = _crops_nothing_wrongly(subject, prompt) if case.beyond else ""
    return replace(case, cause=Cause("crop-of-nothing", module=cropping)) if cropping else case


def _crops_nothing_wrongly(subject: Subject, prompt: Row) -> str:
    """The operation of the cache that shortens it by cropping nothing; empty where it does not."""
    with torch.no_grad():
        cache = subject.passes.call(
            (prompt,), cache=rollback_cache(subject, ""), use_cache=True
        ).cache
    before = cached_length(cache)
    cache_kinds.crop(cache, 0)
    return f"{type(cache).__name__}.crop" if cached_length(cache) != before else ""


def _compared(subject: Subject, name: str, found: RowAnswers) -> Measurement:
    """The logits behind the answer; the library rounds them to float32 to compare candidates."""
    want_BNV = wanted(subject, found.rows[0], found.tokens[0])
    rounding = torch.finfo(torch.float32).eps * max_abs(want_BNV)
    budget = replace(
        subject.budget,
        value=subject.budget.value + rounding,
        source=f"{subject.budget.source}, and one float32 rounding",
    )
    offset = len(found.rows[0]) - 1
    got_BNV = found.logits_BNV.to(want_BNV.dtype)
    case = subject.compare(name, got_BNV, want_BNV, offset=offset, budget=budget)
    return of_generate(subject, case, {PIECES: 1})
