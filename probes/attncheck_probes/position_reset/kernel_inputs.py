"""Whether a model that takes positions counts by itself all the same, so that those it is handed
are lost on the way.

Many models take `position_ids` and have no use for them (biases instead of positions, recurrent
states): nothing is lost there.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.probing import (
    AttentionCall,
    Cause,
    ForwardSpec,
    Measurement,
    Subject,
    Unsupported,
    all_ones,
    beyond,
    counting,
    hooked,
    max_abs,
)

NAME = "position_ids"
CLOSE = 1e-6
"""Relative: far below what turning by one position does, far above what rounding leaves in float64.
"""
ROUNDINGS = 16
"""Units in the last place that rounding may leave in a lower precision."""


def unread(subject: Subject, reason: str) -> Measurement:
    """One case, for a model whose logits stay whatever positions it is handed: they must move,
    since it has positions.

    Raises:
        Unsupported: no position can be seen in it, so that there is nothing to be read; `reason`
        says what was tried.
    """
    lost = _own_count(subject) or _turned_anyway(subject)
    if lost is None:
        raise Unsupported(reason)
    tokens, length = subject.inputs.tokens, subject.inputs.length
    mask = all_ones(tokens) if subject.can.mask_2d else None
    usual = ForwardSpec(tokens, positions=counting(1, length), mask=mask, use_cache=None)
    turned = replace(usual, positions=(tuple(reversed(range(length))),))
    pair = (subject.logits(turned), subject.logits(usual))
    case = subject.compare(
        "other positions must differ", *pair, expect="differ", note=lost[1], spec=(turned, usual)
    )
    return replace(case, cause=Cause("position-ids-ignored", case.max_abs, lost[0]))


def _own_count(subject: Subject) -> tuple[str, str] | None:
    """A module that is handed 0, 1, 2, … as positions, or looks them up, where the caller counts
    down; and what to say of it.
    """
    length = subject.inputs.length
    down_BT = torch.arange(length - 1, -1, -1, device=subject.device)[None]
    with _received(subject.model) as seen, torch.no_grad():
        subject.passes.call(subject.inputs.tokens, positions_BT=down_BT, use_cache=False)
    for name, given in seen:
        if given.shape[-1] == length and bool((given.diff(dim=-1) == 1).all()):
            return name, f"`{name}` gets positions that the model counts by itself"
    return None


@contextlib.contextmanager
def _received(model: nn.Module) -> Iterator[list[tuple[str, Tensor]]]:
    """While active, whole numbers that modules inside the model get as positions, or look up in a
    table, with their names.
    """
    seen: list[tuple[str, Tensor]] = []
    handles = []
    for name, module in model.named_modules():
        wanted = "input" if isinstance(module, nn.Embedding) else NAME
        signature = inspect.signature(module.forward)
        if name and wanted in signature.parameters:
            note = _noting(name, wanted, signature, seen)
            handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    with hooked(handles):
        yield seen


def _noting(
    name: str, wanted: str, signature: inspect.Signature, seen: list[tuple[str, Tensor]]
) -> Any:
    def note(module: nn.Module, args: tuple[Any, ...], call: dict[str, Any]) -> None:
        with contextlib.suppress(TypeError):  # a call that does not fit is the model's own to raise
            given = signature.bind_partial(*args, **call).arguments.get(wanted)
            if isinstance(given, Tensor) and not given.is_floating_point() and given.ndim:
                seen.append((name, given))

    return note


def _turned_anyway(subject: Subject) -> tuple[str, str] | None:
    """An attention layer whose queries turn with the position although every token is the same; and
    what to say of it.

    Where the values are equal from end to end, the layer's input is: then only positions can have
    turned its queries.
    """
    same = ((subject.inputs.row[0],) * subject.inputs.length,)
    try:
        calls = subject.record_calls(same, lambda call: (call.module, _rotates(call)))
    except Unsupported:
        return None
    found = next((module for module, rotates in calls if rotates), None)
    names = {id(module): name for name, module in subject.model.named_modules()}
    text = "queries of equal tokens turn with the position: the model counts by itself"
    return (names.get(id(found), ""), text) if found is not None else None


def _rotates(call: AttentionCall) -> bool:
    if call.query_BHTD.shape[2] != call.value_BGSD.shape[2]:
        return False
    lengths_BHT1 = call.query_BHTD.norm(dim=-1, keepdim=True)
    same = _constant(call.value_BGSD) and _constant(lengths_BHT1)
    return same and not _constant(call.query_BHTD)


def _constant(tensor_BHTD: Tensor) -> bool:
    """Whether every position holds the same."""
    slack = max(CLOSE, ROUNDINGS * torch.finfo(tensor_BHTD.dtype).eps)
    return not beyond(tensor_BHTD, tensor_BHTD[:, :, :1], slack * max_abs(tensor_BHTD))
