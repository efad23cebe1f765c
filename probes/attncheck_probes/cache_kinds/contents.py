"""What a cache holds after an operation, against one that was filled with what should be in it.

Axes: B batch, G key/value heads, S slots, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.probing import CachedTensor, Cause, Comparison, Subject, key_values


def with_contents(
    subject: Subject, case: Comparison, operation: str, after: Any, right: Any, length: int
) -> Comparison:
    """The case with the first layer whose keys or values are not those of the right cache, of which
    the first `length` slots count; as it was where none can be told apart.
    """
    name, limit = f"{type(after).__name__}.{operation}", subject.budget.value
    pairs = zip(key_values(after), key_values(right), strict=False)
    # what a layer reads of an encoder changes the keys of the layers behind it
    for got, want in sorted(pairs, key=lambda pair: pair[0].layer or 0):
        found = next(_differences(got.tensor, want.tensor, length, limit), "")
        if found:
            note = f"after `{name}`, {_words(got)} {found}"
            return replace(
                case, note=f"{case.note}; {note}", cause=replace(case.cause, module=name)
            )
    layers = _other_states(after, right, limit)
    if layers:
        note = f"after `{name}`, states of layers {layers} are not those of the tokens in the cache"
        return replace(case, note=f"{case.note}; {note}", cause=replace(case.cause, module=name))
    return replace(case, cause=Cause(case.cause.fault, case.cause.residual, name))


def _other_states(after: Any, right: Any, limit: float) -> str:
    """The layers whose recurrent or convolution states, up to the columns that both caches keep,
    differ.
    """
    wanted = {each.path: each.tensor for each in CachedTensor.states_of(right)}
    layers = []
    for got in CachedTensor.states_of(after):
        want = wanted.get(got.path)
        if want is None or want.shape[:-1] != got.tensor.shape[:-1] or got.layer is None:
            continue
        kept = min(want.shape[-1], got.tensor.shape[-1])
        if bool(((got.tensor[..., -kept:] - want[..., -kept:]).abs() > limit).any()):
            layers.append(str(got.layer))
    return ", ".join(dict.fromkeys(layers))


def _words(part: CachedTensor) -> str:
    name = (
        f"cross-attention {part.name}" if any("cross" in each for each in part.path) else part.name
    )
    return f"{name} of layer {part.layer}" if part.layer is not None else name


def _differences(got_BGSD: Tensor, want_BGSD: Tensor, length: int, limit: float) -> Iterator[str]:
    """What differs in words: rows, slots, and which of them hold something else."""
    if got_BGSD.shape[0] != want_BGSD.shape[0]:
        yield f"are of {got_BGSD.shape[0]} rows instead of {want_BGSD.shape[0]}"
    elif got_BGSD.shape[2] != want_BGSD.shape[2]:
        yield f"have {got_BGSD.shape[2]} slots instead of {want_BGSD.shape[2]}"
    elif got_BGSD.shape == want_BGSD.shape:
        got, want = got_BGSD[:, :, :length], want_BGSD[:, :, :length]
        far_BS = ((got - want).abs() > limit).any(-1).any(1)
        if bool(far_BS.any()):
            yield _of_rows(got, want, limit) or _of_slots(far_BS)


def _of_rows(got_BGSD: Tensor, want_BGSD: Tensor, limit: float) -> str:
    """The rows that hold another one."""
    far_BB = (got_BGSD[:, None] - want_BGSD[None]).abs().amax((2, 3, 4)) > limit
    moved = [
        (row, int((~far_BB[row]).nonzero()[0]))
        for row in range(len(far_BB))
        if bool(far_BB[row, row]) and not bool(far_BB[row].all())
    ]
    texts = [f"in row {row} are those of row {source}" for row, source in moved]
    return ", ".join(texts)


def _of_slots(far_BS: Tensor) -> str:
    slots = far_BS.any(0).nonzero().flatten()
    first, last = int(slots.min()), int(torch.max(slots))
    return f"differ in slots {first}..{last}" if last > first else f"differ in slot {first}"
