"""Encoder inputs of unequal lengths in one batch, read by a decoder that runs in steps.

Axes: B batch, S encoder positions, T decoder positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from attncheck.probing import (
    Cause,
    Measurement,
    Padded,
    Subject,
    Unsupported,
    encoder_padding,
    generation,
    merged,
    reference_forward,
)

NAME = "attention_mask"
STEPS = 2


def padded_encoder(subject: Subject, batch: Padded, name: str) -> Measurement:
    """The usual encoder input, padded, beside a longer one: in either row of the batch it gives
    what it gives alone.
    """
    subject.can.steps.require()
    wide = generation.padded_encoder(subject, batch.padding(len(batch.rows) - 1))
    row, cases = subject.inputs.row, []
    want_BTV = subject.logits(reference_forward(subject, row, len(row) - STEPS))
    for number, note in ((1, "behind a longer one"), (0, "in front of a longer one")):
        got_BTV = _decoded(subject, _beside_longer(subject, wide, number))[number : number + 1]
        cases.append(subject.compare(name, got_BTV, want_BTV, note=note))
    case = merged(name, cases)
    if not case.beyond:
        return case
    cause = _cause(subject, wide)
    note = f"{cause.module}: {encoder_padding.READS}" if cause.module else case.note
    return replace(case, note=note, cause=cause)


def passed_output(subject: Subject, batch: Padded, name: str) -> Measurement:
    """What the encoder made of a padded input, passed in its place beside the same mask, as
    `generate()` does.
    """
    wide = generation.padded_encoder(subject, batch.padding(len(batch.rows) - 1))
    tokens, mask = (subject.inputs.row,), {NAME: wide[NAME]}
    cached = bool(subject.can.steps)  # a forward without a cache may be another one
    with torch.no_grad():
        usual = subject.passes.call(tokens, use_cache=cached, extra=wide)
        made = {"input_ids": None, "encoder_outputs": _made(subject, wide, usual.output)}
        passed, unmasked = (
            subject.passes.call(tokens, use_cache=cached, extra={**made, **each})
            for each in (mask, {NAME: torch.ones_like(wide[NAME])})
        )
    case = subject.compare(name, passed.logits_BTV, usual.logits_BTV)
    if not case.beyond:
        return case
    opened = subject.compare("", passed.logits_BTV, unmasked.logits_BTV)
    if opened.beyond:
        return case
    note = "its mask hides nothing beside `encoder_outputs`"
    return replace(case, note=note, cause=Cause("padding-visible", opened.max_abs))


def _made(subject: Subject, wide: dict[str, Tensor], output: Any) -> Any:
    """What the model's encoder returns by itself, else the states that a forward returns."""
    encoder = getattr(subject.model, "get_encoder", lambda: None)()
    # a model without a named encoder returns itself
    if encoder is not None and encoder is not subject.model:
        with subject.numerics():
            return encoder(**wide)
    states_BSW = getattr(output, "encoder_last_hidden_state", None)
    if not isinstance(states_BSW, Tensor):
        raise Unsupported("the output holds no encoder states")
    return BaseModelOutput(states_BSW)


def _cause(subject: Subject, wide: dict[str, Tensor]) -> Cause:
    """The padding is read in steps, where a mask that hides none of it gives the same logits from
    the first step on; else by one module; otherwise the mask may be that of another row.
    """
    module = encoder_padding.reader_of_padding(subject, wide)
    masked = _decoded(subject, wide)
    open_ = {**wide, NAME: torch.ones_like(wide[NAME])}
    unmasked, first = _decoded(subject, wide, open_), len(subject.inputs.row) - STEPS
    case = subject.compare("", masked[:, first:], unmasked[:, first:])
    if case.beyond and not module:
        return Cause("encoder-mask-of-first-row")
    return Cause("padding-visible", None if case.beyond else case.max_abs, module=module)


def _beside_longer(subject: Subject, wide: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """The padded input as row `number` of two, beside one without padding."""
    ids_BS, mask_BS = wide["input_ids"], wide[NAME]
    longer_BS = ids_BS.flip(1)
    rows = [(longer_BS, torch.ones_like(mask_BS))]
    rows.insert(number, (ids_BS, mask_BS))
    return {
        "input_ids": torch.cat([ids for ids, _ in rows]),
        NAME: torch.cat([mask for _, mask in rows]),
    }


def _decoded(
    subject: Subject, encoder: dict[str, Any], in_steps: dict[str, Any] | None = None
) -> Tensor:
    """logits_BTV of the main row as decoder input of every row, the last tokens in steps, which may
    get other arguments.
    """
    row, parts, cache = subject.inputs.row, [], None
    with torch.no_grad():
        for start, stop in _bounds(len(row)):
            chunk = (row[start:stop],) * len(encoder[NAME])
            extra = (in_steps or encoder) if start else encoder
            reply = subject.passes.call(chunk, cache=cache, use_cache=True, extra=extra)
            cache = reply.cache
            parts.append(reply.logits_BTV)
    return torch.cat(parts, 1)


def _bounds(length: int) -> list[tuple[int, int]]:
    first = length - STEPS
    return [(0, first), *((at, at + 1) for at in range(first, length))]
