"""generate() of an encoder-decoder model, whose prompts are the encoder's: a padded batch against
each of its sequences alone.

Axes: B batch, S encoder positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncheck.core.measurement import Comparison
from attncheck.core.merging import merged
from attncheck.model.generation import run
from attncheck.model.inputs import Tokens
from attncheck.model.padding import Padded, Side
from attncheck.model.subject import Subject


def reads_prompts(subject: Subject) -> bool:
    """Whether an encoder reads the prompts."""
    return isinstance(subject.forward_adapter.fixed.get("input_ids"), Tensor)


def encoder_case(
    subject: Subject, rows: Tokens, side: Side, pad: int, new: int, name: str
) -> Comparison:
    """The logits of the batch's own greedy text against those of one forward over it for each row
    with its encoder input alone.

    Raises:
        Unsupported: generate() raises.
    """
    batch = Padded(rows=rows, length=max(map(len, rows)), pad=pad, inputs=subject.inputs)
    start = _start(subject)
    ids_BT = subject.passes.ids(((start,),) * len(rows))
    given = _encoder(subject, batch.tokens(side), batch.mask(side).rows)
    output = run(subject, ids_BT, torch.ones_like(ids_BT), new, None, given)
    logits_BNV, cases = torch.stack(output.logits, 1), []
    for index, row in enumerate(rows):
        answer = tuple(map(int, output.sequences[index, 1:]))
        alone = _encoder(subject, (row,), ((1,) * len(row),))
        with torch.no_grad():
            forward = subject.passes.call(((start, *answer[:-1]),), use_cache=False, extra=alone)
        want_BNV, got_BNV = forward.logits_BTV, logits_BNV[index : index + 1]
        cases.append(subject.compare(name, got_BNV.to(want_BNV.device), want_BNV))
    return merged(name, cases)


def _encoder(subject: Subject, tokens: Tokens, mask: Tokens) -> dict[str, Any]:
    return {"input_ids": subject.passes.ids(tokens), "attention_mask": subject.passes.ids(mask)}


def _start(subject: Subject) -> int:
    """The token that the decoder starts with; any where nothing says which."""
    homes = (getattr(subject.model, "generation_config", None), subject.config)
    found = (getattr(home, "decoder_start_token_id", None) for home in homes)
    return next((each for each in found if isinstance(each, int)), subject.inputs.row[0])
