"""Whether a forward leaves the tensors that it is given alone, and a row the next one of the same
tokens.

Axes: B batch, T positions, W hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.probing import (
    REFUSALS,
    AtMost,
    Cause,
    ForwardSpec,
    Measurement,
    Subject,
    Unsupported,
    Verdict,
    attempt,
    chosen,
    finitely_beyond,
    first_line,
    following,
    generation,
    skipped,
    takes_argument,
    token_table,
)
from attncheck_probes.generate.embeddings import embedded as by_embeddings

EMBEDDINGS = "inputs_embeds"
KEPT, TWICE = "arguments changed by a forward", "the same inputs_embeds twice"
ORDER = "the same tokens in another order"
SOURCE = "another encoder input"
LIKE_IDS = "inputs_embeds against ids"
WRITTEN = Cause("input-overwritten")


def argument_cases(subject: Subject) -> Iterator[Measurement]:
    """Token ids, mask, positions and embeddings are bit for bit what they were before a forward,
    and a second forward over the same embeddings gives the same logits. Another encoder input
    gives others, and so does another order of tokens.
    """
    yield attempt(ORDER, another_order, subject, ORDER)
    if subject.forward_adapter.fixed:
        yield attempt(SOURCE, another_source, subject, SOURCE)
    if not subject.can.decodes:  # of decoders `generate` asks it
        yield attempt(LIKE_IDS, _like_ids, subject, LIKE_IDS)
    if not chosen(KEPT):
        return
    ids_BT = subject.passes.ids(subject.inputs.tokens)
    tokens = {**subject.forward_adapter.token_arguments(ids_BT), **_beside(subject, ids_BT)}
    _, written = _watched(subject, tokens)
    outputs, count = [], len(tokens)
    try:
        embedded = _embedded(subject, ids_BT)
        for _ in range(2):
            logits_BTV, changed = _watched(subject, embedded)
            outputs.append(logits_BTV)
            written += [name for name in changed if name not in written]
        count += 1
        reason = ""
    except Unsupported as refusal:
        reason = str(refusal)
    note = f"a forward writes into {', '.join(written)}" if written else ""
    case = AtMost(KEPT, float(len(written)), "arguments", positions=count, note=note)
    yield replace(case, cause=WRITTEN) if written else case
    if reason:
        yield skipped(TWICE, reason)
        return
    twice = subject.compare(TWICE, outputs[1], outputs[0])
    yield replace(twice, cause=WRITTEN) if twice.beyond else twice


def _like_ids(subject: Subject, name: str) -> Measurement:
    """A warning only: some encoders want embeddings that have passed their own norms already."""
    case = by_embeddings(subject, name)
    return replace(case, broken=Verdict.WARN) if case.beyond else case


def another_source(subject: Subject, name: str) -> Measurement:
    """Other tokens in the encoder change the logits: a decoder that keeps what it read of the first
    encoder input gives those of the first.
    """
    usual = ForwardSpec(subject.inputs.tokens)
    subject.passes.drop(usual)
    usual_BTV = subject.logits(usual)
    source = generation.padded_encoder(subject, 0)
    other = subject.inputs.fresh(source["input_ids"].shape[1], salt=71)
    source["input_ids"] = subject.passes.ids((other,))
    with torch.no_grad():
        reply = subject.passes.call(usual.tokens, use_cache=usual.use_cache, extra=source)
    note = "after the first encoder input, other tokens in the encoder"
    return subject.compare(name, reply.logits_BTV, usual_BTV, expect="differ", note=note)


def another_order(subject: Subject, name: str) -> Measurement:
    """Two rows of the same tokens, two of them swapped: the second row gives alone what it gives
    in a batch beside the first, as the first does.
    """
    first = subject.inputs.fresh(subject.inputs.length, salt=61)
    second = _swapped(first)
    alone = [subject.logits(ForwardSpec((row,))) for row in (first, second)]
    together_BTV = subject.logits(ForwardSpec((first, second)))
    note = "after a row of the same length, sum and first tokens"
    case = subject.compare(name, alone[1], together_BTV[1:], note=note)
    if not case.beyond:
        return case
    other = subject.inputs.fresh(subject.inputs.length, salt=67)
    beside_BTV = subject.logits(ForwardSpec((first, other)))[1:]
    other_BTV = subject.logits(ForwardSpec((other,)))
    rows = ((together_BTV[:1], alone[0]), (beside_BTV, other_BTV))
    if any(finitely_beyond(got, want, subject.budget.value) for got, want in rows):
        return following(case, "batch-rows", "rows of a batch differ from the rows alone")
    return replace(case, cause=Cause("remembers-content"))


def _swapped(row: tuple[int, ...]) -> tuple[int, ...]:
    """The row with two unequal tokens behind its middle swapped; the last one stays."""
    places = range(len(row) // 2, len(row) - 1)
    pairs = ((i, j) for i in places for j in places if i < j and row[i] != row[j])
    i, j = next(pairs, (0, 0))
    if i == j:
        raise Unsupported("the row has no two unequal tokens behind its middle")
    swapped = list(row)
    swapped[i], swapped[j] = row[j], row[i]
    return tuple(swapped)


def _beside(subject: Subject, ids_BT: Tensor) -> dict[str, Tensor]:
    """A mask and positions for these tokens, where the model takes them."""
    adapter, found = subject.forward_adapter, dict[str, Tensor]()
    if subject.can.mask_2d:
        mask_BT = torch.ones_like(ids_BT)
        mask_BT[:, : ids_BT.shape[1] // 3] = 0
        found[str(adapter.mask_name)] = mask_BT
    if subject.can.takes_positions:
        positions_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        found[str(adapter.positions_name)] = positions_T[None] + subject.can.first_position
    return found


def _embedded(subject: Subject, ids_BT: Tensor) -> dict[str, Any]:
    """The arguments of a forward over embeddings in place of ids."""
    if subject.forward_adapter.codebooks is not None:
        raise Unsupported("embeddings of the tokens alone lack the codes beside them")
    if subject.forward_adapter.fixed or not takes_argument(subject.model, EMBEDDINGS):
        raise Unsupported(f"{type(subject.model).__name__} takes no `{EMBEDDINGS}` for its decoder")
    try:
        with torch.no_grad(), subject.numerics():
            embeddings_BTW = token_table(subject.model)(ids_BT)
    except REFUSALS as error:
        raise Unsupported(f"the table of embeddings raises {first_line(error)}") from error
    if not isinstance(embeddings_BTW, Tensor):
        raise Unsupported("the table of embeddings returns more than the embeddings")
    return {subject.forward_adapter.ids_name: None, EMBEDDINGS: embeddings_BTW.clone()}


def _watched(subject: Subject, call: dict[str, Any]) -> tuple[Tensor, list[str]]:
    """The logits of a call, and the names of the tensors that it changed."""
    before = {name: each.clone() for name, each in call.items() if each is not None}
    with torch.no_grad():
        reply = subject.passes.call(subject.inputs.tokens, use_cache=False, extra=call)
    changed = [name for name, each in before.items() if not torch.equal(each, call[name])]
    return reply.logits_BTV, changed
