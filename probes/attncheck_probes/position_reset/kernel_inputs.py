"""Whether a model that takes positions counts by itself, so that the caller's positions are lost.

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
"""Relative: far below a rotation by one position, far above the rounding of float64."""
ROUNDINGS = 16
"""Units in the last place that rounding may leave in a lower precision."""


def unread(subject: Subject, reason: str) -> Measurement:
    """A model whose logits do not depend on the positions that it takes: they must, where it has
    positions.
    """
    lost = _own_count(subject) or _rotated_anyway(subject)
    if lost is None:
        raise Unsupported(reason)
    module, note = lost
    tokens, length = subject.inputs.tokens, subject.inputs.length
    mask = all_ones(tokens) if subject.can.mask_2d else None
    usual = ForwardSpec(tokens, positions=counting(1, length), mask=mask, use_cache=None)
    backwards = replace(usual, positions=(tuple(reversed(range(length))),))
    name = "other positions must differ"
    case = subject.compare_forwards(name, backwards, usual, expect="differ", note=note)
    return replace(case, cause=Cause("position-ids-ignored", case.max_abs, module))


def _own_count(subject: Subject) -> tuple[str, str] | None:
    """A module that gets or looks up 0, 1, 2, … although the caller counts down; and a note."""
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
    """While active, integers that inner modules get as positions or look up, with their names."""
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


def _rotated_anyway(subject: Subject) -> tuple[str, str] | None:
    """An attention layer whose queries are rotated although every token is the same; and a note.

    Where the values are equal at all positions, so is the layer's input: then only positions can
    have rotated its queries.
    """
    same = ((subject.inputs.row[0],) * subject.inputs.length,)
    try:
        calls = subject.record_calls(same, lambda call: (call.module, _rotates(call)))
    except Unsupported:
        return None
    found = next((module for module, rotates in calls if rotates), None)
    names = {id(module): name for name, module in subject.model.named_modules()}
    note = "queries of equal tokens rotate with the position: the model counts by itself"
    return (names.get(id(found), ""), note) if found is not None else None


def _rotates(call: AttentionCall) -> bool:
    if call.query_BHTD.shape[2] != call.value_BGSD.shape[2]:
        return False
    lengths_BHT1 = call.query_BHTD.norm(dim=-1, keepdim=True)
    same = _constant(call.value_BGSD) and _constant(lengths_BHT1)
    return same and not _constant(call.query_BHTD)


def _constant(tensor_BHTD: Tensor) -> bool:
    """Whether all positions hold the same values."""
    slack = max(CLOSE, ROUNDINGS * torch.finfo(tensor_BHTD.dtype).eps)
    return not beyond(tensor_BHTD, tensor_BHTD[:, :, :1], slack * max_abs(tensor_BHTD))
