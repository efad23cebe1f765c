"""Predictions for rotary tables that depend on the length of a call: keys in the cache were turned
by another table.

The tables are the model's own, seen where its rotary modules hand them out, for calls of each
length that the pass has.

Axes: B batch, T positions, R rotary width.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.core.errors import Unsupported
from attncheck.core.finding import BEYOND_ROUNDING
from attncheck.faults.engine.hypothesis import Hypothesis
from attncheck.faults.engine.schedule import scheduled_logits
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec, Mask2D, counting
from attncheck.model.provenance import AFTER, Provenance
from attncheck.numerics.divergence import beyond
from attncheck.numerics.hooks import hooked

Turn = tuple[Tensor, Tensor]
"""cos and sin, (B, T, R) each."""
Tables = dict[str, list[Turn]]
"""What each rotary module handed out during one forward, in order."""

SHORT = 2


def hypotheses(
    trusted: Trusted, spec: ForwardSpec, made: Provenance | None
) -> Iterator[Hypothesis]:
    """Tables of each call's own length, begun after a short call or after a long one; a table that
    a longer call left.
    """
    padded = isinstance(spec.mask, Mask2D) and any(0 in row for row in spec.mask.rows)
    if trusted.out_of_reach is not None or padded or not _depend(trusted):
        return
    if made is not None and made.how == AFTER:
        yield Hypothesis(
            fault="rope-scale-switch",
            parameter="the table of a longer call stayed",
            predict=_left_behind,
        )
    if made is not None and made.columns and not spec.chunks:
        said = "each token from a forward of its own"
        yield Hypothesis(
            fault="rope-scale-switch", parameter=said, predict=partial(_by_prefix, made.columns)
        )
    if len(spec.chunks) > 1:
        yield Hypothesis(fault="rope-scale-switch", parameter="", predict=partial(_as_fed, False))
        yield Hypothesis(
            fault="rope-scale-switch",
            parameter="begun after a longer call",
            predict=partial(_as_fed, True),
        )


def _depend(trusted: Trusted) -> bool:
    """Whether any table of the same positions differs between a short call, half the input and the
    whole of it.
    """
    row = trusted.subject.inputs.row
    shorter, whole = tables_of(trusted, row[: len(row) // 3]), tables_of(trusted, row)
    return any(
        not _same(one, other)
        for name in shorter
        for one, other in zip(shorter[name], whole.get(name, []), strict=False)
    )


def _same(shorter: Turn, longer: Turn) -> bool:
    length = shorter[0].shape[-2]
    rounding = torch.finfo(shorter[0].dtype).eps
    return not any(
        beyond(one, other[..., :length, :], BEYOND_ROUNDING * rounding)
        for one, other in zip(shorter, longer, strict=True)
    )


def tables_of(trusted: Trusted, *rows: tuple[int, ...]) -> Tables:
    """The tables of the last of some full forwards that run after a short one, in this order."""
    passes = trusted.subject.passes
    found: Tables = {}
    with torch.no_grad():
        passes.call((trusted.subject.inputs.row[:SHORT],), use_cache=False)
        for row in rows:
            with _watching(trusted.subject.model) as found:
                passes.call((row,), use_cache=False)
    return found


@contextlib.contextmanager
def _watching(model: nn.Module) -> Iterator[Tables]:
    seen: Tables = {}

    def hook(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if is_turn(output):
            seen.setdefault(name, []).append((output[0][:1].clone(), output[1][:1].clone()))

    with _hooked(model, hook):
        yield seen


@contextlib.contextmanager
def replaying(model: nn.Module, tables: Tables, start: int, stop: int) -> Iterator[None]:
    """While active, rotary modules hand out positions start..stop of these tables, forward after
    forward.
    """
    turns = {name: itertools.cycle(each) for name, each in tables.items()}

    def hook(name: str, module: nn.Module, args: Any, output: Any) -> Any:
        if name not in turns or not is_turn(output):
            return output
        return tuple(
            each[:, start:stop].expand(like.shape).to(like.dtype)
            for each, like in zip(next(turns[name]), output, strict=True)
        )

    with _hooked(model, hook):
        yield


@contextlib.contextmanager
def _hooked(model: nn.Module, hook: Any) -> Iterator[None]:
    bare = [
        (name, module)
        for name, module in model.named_modules()
        if next(module.parameters(), None) is None
    ]
    with hooked(module.register_forward_hook(partial(hook, name)) for name, module in bare):
        yield


def is_turn(output: Any) -> bool:
    """Whether a module's output is a cos and a sin for each position: their squares sum to one
    number everywhere.
    """
    if (
        not isinstance(output, tuple)
        or len(output) != 2
        or not all(isinstance(each, Tensor) for each in output)
    ):
        return False
    cos_BTR, sin_BTR = output
    if cos_BTR.ndim != 3 or cos_BTR.shape != sin_BTR.shape or not cos_BTR.is_floating_point():
        return False
    square_BTR = cos_BTR.double() ** 2 + sin_BTR.double() ** 2
    return (
        float(square_BTR.max() - square_BTR.min())
        <= BEYOND_ROUNDING * torch.finfo(cos_BTR.dtype).eps
    )


def _as_fed(stale: bool, trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Each chunk under the table of a call of its length, keys staying as they were turned."""
    if len(spec.tokens) > 1 or spec.positions not in (None, counting(1, spec.length)):
        raise Unsupported("tables are asked for one row whose positions count from the start")
    row, tables = spec.tokens[0], dict[int, Tables]()
    before = [trusted.subject.inputs.row] if stale else []
    for stop in itertools.accumulate(spec.chunks):
        before.append(row[:stop])
        tables[stop] = tables_of(trusted, *before)
    model = trusted.subject.model
    return scheduled_logits(
        trusted, spec, around=lambda start, stop: replaying(model, tables[stop], start, stop)
    )


def _left_behind(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """One forward under the table that a longer call before it has left."""
    row = spec.tokens[0]
    tables = tables_of(trusted, trusted.subject.inputs.row, row)
    with replaying(trusted.subject.model, tables, 0, len(row)):
        return trusted.logits(spec)


def _by_prefix(columns: tuple[int, ...], trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Each column from the forward that ends with it."""
    logits_BTV = trusted.logits(spec).clone()
    for column in columns:
        prefix = ForwardSpec(tuple(row[: column + 1] for row in spec.tokens))
        logits_BTV[:, column] = trusted.logits(prefix)[:, -1]
    return logits_BTV
