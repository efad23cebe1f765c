"""Labels given alone: an encoder-decoder model then makes its decoder input from them, shifted by
one.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attncheck.probing import (
    REFUSALS,
    Measurement,
    Row,
    Subject,
    Unsupported,
    classified,
    first_line,
    for_rows,
    not_measured,
)

AHEAD = "labels alone: not read before they are predicted"
BEHIND = "labels alone: read right after they are predicted"
START = "decoder_start_token_id"
MISSING = object()


def labels_alone(subject: Subject) -> Iterator[Measurement]:
    """Changes one label: the logits that predict it and those before must stay, the next ones must
    move.

    Nothing for a model without an encoder in front of its decoder.
    """
    if not subject.forward_adapter.fixed:
        return
    row, middle = subject.inputs.row, subject.inputs.length // 2
    try:
        before_BTV = _logits(subject, row)
        after_BTV = _logits(subject, subject.inputs.other(row, middle, middle + 1, salt=41))
    except Unsupported as reason:
        yield not_measured(AHEAD, reason)
        return
    kept, following = slice(0, middle + 1), slice(middle + 1, middle + 2)
    note = f"the label of position {middle} was changed"
    yield subject.compare(AHEAD, after_BTV[:, kept], before_BTV[:, kept], note=note)
    pair, note = (after_BTV[:, following], before_BTV[:, following]), "where it must be read"
    yield subject.compare(BEHIND, *pair, expect="differ", offset=middle + 1, note=note)


@contextlib.contextmanager
def _start_token(config: Any) -> Iterator[None]:
    """Checkpoints name the token that a decoder starts with; a bare config need not."""
    if getattr(config, START, None) is not None:
        yield
        return
    before = vars(config).get(START, MISSING)
    setattr(config, START, 0)
    try:
        yield
    finally:
        delattr(config, START)
        if before is not MISSING:
            setattr(config, START, before)


def _logits(subject: Subject, labels: Row) -> Tensor:
    ids_BT = subject.passes.ids((labels,))
    fixed = {
        name: for_rows(value, ids_BT, subject.dtype)
        for name, value in subject.forward_adapter.fixed.items()
    }
    with torch.no_grad(), subject.numerics(), _start_token(subject.config):
        subject.passes.on_forward(ids_BT.shape[1])
        try:
            logits_BTV: Tensor = subject.model(**fixed, labels=ids_BT).logits
        except REFUSALS as error:
            kind = type(subject.model).__name__
            message = f"{kind} with `labels` alone raises {first_line(error)}"
            # some families shift the encoder's input, not the labels
            raise classified(error, message, documented=False) from error
    if logits_BTV.shape[:2] != ids_BT.shape:
        raise Unsupported(f"{type(subject.model).__name__} returns no logits for every label")
    return logits_BTV
