"""Encoder inputs of unequal lengths in one batch, read by a decoder that runs in steps.

Axes: B batch, S encoder positions, T decoder positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.probing import (
    Cause,
    Measurement,
    Padded,
    Subject,
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
    return replace(case, cause=Cause("encoder-mask-of-first-row")) if case.beyond else case


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


def _decoded(subject: Subject, encoder: dict[str, Any]) -> Tensor:
    """logits_BTV of the main row as decoder input of both rows, the last tokens in steps."""
    row, parts, cache = subject.inputs.row, [], None
    with torch.no_grad():
        for start, stop in _bounds(len(row)):
            chunk = (row[start:stop],) * 2
            reply = subject.passes.call(chunk, cache=cache, use_cache=True, extra=encoder)
            cache = reply.cache
            parts.append(reply.logits_BTV)
    return torch.cat(parts, 1)


def _bounds(length: int) -> list[tuple[int, int]]:
    first = length - STEPS
    return [(0, first), *((at, at + 1) for at in range(first, length))]
