"""The reporter's own call with embeddings in the place of ids, against the call with ids.

Axes: B batch, T positions, W hidden width, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.layers import layer_lists
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import Comparison
from attncheck.core.ruling import describe
from attncheck.core.verdict import Verdict
from attncheck.model.embeddings import token_table
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs_diff
from attncheck.numerics.hooks import hooked
from attncheck.triage import axes
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import Material

NAME = "inputs_embeds in the place of ids"
SAME = 1e-6
"""Embeddings that are one multiple of others up to this part of their size."""


def embedded(subject: Subject, material: Material, pattern: CallPattern) -> Finding | None:
    """The fault of a forward over embeddings; None where it agrees with that over ids.

    Raises:
        Unsupported: the model cannot be called this way.
    """
    spec, rows, real = axes.spec_of(subject, material, pattern)
    got_BTV, got_BTW = _seen(subject, spec, True)
    want_BTV, want_BTW = _seen(subject, spec, False)
    at = [(row, place) for row, place in zip(range(len(rows)), real, strict=True)]

    def apart(left_BTV: Tensor, right_BTV: Tensor) -> Comparison:
        left, right = (torch.cat([x[n, p] for n, p in at])[None] for x in (left_BTV, right_BTV))
        return subject.compare(NAME, left, right, spec=(spec, spec))

    case = apart(got_BTV, want_BTV)
    if not axes.fails(case):
        return None
    name, words, residual = "", "", None
    if spec.mask is not None:
        bare_BTV, _ = _seen(subject, replace(spec, mask=None), False)
        if not axes.fails(bare := apart(got_BTV, bare_BTV)):
            name, residual = "attention-mask-ignored", bare.max_abs
            words = "with `inputs_embeds` the logits are those without an `attention_mask`"
    if not name and got_BTW is not None and want_BTW is not None:
        factor = float((got_BTW * want_BTW).sum() / want_BTW.square().sum())
        size = float(got_BTW.abs().max())
        if max_abs_diff(got_BTW, factor * want_BTW) <= SAME * size and abs(factor - 1) > SAME:
            name, residual = "embedding-scale", max_abs_diff(got_BTW, factor * want_BTW)
            words = f"embeddings that are passed in reach the first layer times {factor:.6g}"
    diagnosis = Diagnosis(
        fault=name,
        how="measured" if name else "unexplained",
        residual=residual,
        sentence=words,
        advice="Compare what forward does with `inputs_embeds` with what it does with ids.",
    )
    return Finding(
        probe="axes",
        verdict=Verdict.FAIL,
        summary=f"{NAME}: {describe(case)}" + (f"; {words}" if words else ""),
        cases=(case,),
        diagnosis=diagnosis,
        location=Location(module=_entrance(subject)),
    )


def _entrance(subject: Subject) -> str:
    """The module whose forward takes the embeddings: the one that holds the layers."""
    layers = max(layer_lists(subject.model), key=len, default=None)
    first = next(iter(layers), None) if layers is not None else None
    modules = subject.model.named_modules()
    name = next((name for name, module in modules if module is first), "")
    return name.rpartition(".")[0].rpartition(".")[0]


def _seen(subject: Subject, spec: ForwardSpec, embeds: bool) -> tuple[Tensor, Tensor | None]:
    """The logits_BTV of a forward, and the states_BTW that reach its first layer."""
    found: list[Tensor] = []
    layers = max(layer_lists(subject.model), key=len, default=None)

    def note(module: Any, args: Any, named: dict[str, Any]) -> None:
        given = [each for each in (*args, *named.values()) if isinstance(each, Tensor)]
        found.extend(each.detach().double() for each in given[:1])

    hooks = []
    if layers:
        hooks.append(next(iter(layers)).register_forward_pre_hook(note, with_kwargs=True))
    given = _as_embeddings(subject) if embeds else contextlib.nullcontext()
    with hooked(hooks), given, torch.no_grad(), subject.numerics():
        logits_BTV = subject.passes.run(spec)
    return logits_BTV, found[0] if found else None


@contextlib.contextmanager
def _as_embeddings(subject: Subject) -> Iterator[None]:
    """Pass embeddings in the place of ids to every forward of the model."""
    table, name = token_table(subject.model), subject.forward_adapter.ids_name

    def replace_ids(module: Any, args: Any, named: dict[str, Any]) -> Any:
        ids_BT = named.pop(name, None)
        args, ids_BT = (args[1:], args[0]) if ids_BT is None else (args, ids_BT)
        return args, {**named, "inputs_embeds": table(ids_BT)}

    with hooked([subject.model.register_forward_pre_hook(replace_ids, with_kwargs=True)]):
        yield
