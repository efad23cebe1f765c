"""How faults are injected: in the arguments of a forward, in attention calls, in hidden states.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width, W
hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall, Handler
from attncheck.attention.layers import attention_modules, layer_lists
from attncheck.attention.masks import allowed_BHTS, with_allowed
from attncheck.core.errors import CannotInject
from attncheck.faults.engine.dose import dosed_handler, dosed_hidden
from attncheck.faults.engine.outputs import hidden_in, with_first
from attncheck.model.compat import cached_length
from attncheck.model.embeddings import token_table
from attncheck.model.forward import Edit, edited
from attncheck.model.inputs import Row
from attncheck.model.loss import ignored_label
from attncheck.model.signature import LABELS
from attncheck.model.subject import Subject
from attncheck.numerics.hooks import hooked

IGNORED = -100
"""A label that the loss leaves out."""
Rule = Callable[[Row, int, int], list[int]]
"""Positions of a chunk, from the right ones of the whole row, for P cached and T new tokens."""


@contextlib.contextmanager
def at_kernel(subject: Subject, handler: Handler) -> Iterator[None]:
    """Change every attention call, at the kernel or in the model's own arithmetic.

    Raises:
        CannotInject: the model runs no attention that could be changed.
    """
    subject.can.watch.require(CannotInject)
    with subject.handle_calls(dosed_handler(handler)):
        yield


def at_own_kernel(subject: Subject, handler: Handler) -> AbstractContextManager[None]:
    """Change the calls of the current implementation only, as when one kernel drops an option.

    Raises:
        CannotInject: the model runs no attention that could be changed.
    """
    own = subject.attn
    return at_kernel(subject, lambda call: handler(call) if subject.attn == own else call.run())


def at_allowed(
    subject: Subject, change: Callable[[Tensor], Tensor]
) -> AbstractContextManager[None]:
    """Change the keys that each query may read, as booleans (B, H, T, S)."""

    def handler(call: AttentionCall) -> Any:
        return with_allowed(call, change(allowed_BHTS(call, CannotInject))).run()

    return at_kernel(subject, handler)


def at_arguments(subject: Subject, edit: Edit) -> AbstractContextManager[None]:
    """Change the arguments of the model's forward."""
    return edited(subject.model, edit)


def without_argument(subject: Subject, name: str | None) -> AbstractContextManager[None]:
    """Drop one argument of every forward."""
    return edited(subject.model, lambda call: {key: call[key] for key in call if key != name})


def with_positions(
    subject: Subject, positions: Callable[[dict[str, Any], int, int], Tensor | None]
) -> AbstractContextManager[None]:
    """Replace `position_ids` by what `positions` gives for a call with P cached and T new tokens.

    None leaves the call as it is.
    """
    adapter = subject.forward_adapter

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT = call.get(adapter.ids_name)
        if not isinstance(ids_BT, Tensor):
            return call
        given = positions(call, tokens_before(subject, call), ids_BT.shape[1])
        if given is None:
            return call
        if given.ndim == 1:
            given = given.to(ids_BT.device).expand(ids_BT.shape).contiguous()
        return {**call, str(adapter.positions_name): given}

    return at_arguments(subject, edit)


def with_cached_positions(subject: Subject, rule: Rule) -> AbstractContextManager[None]:
    """Give every call on a filled cache the positions of a rule.

    Raises:
        CannotInject: the model does not read positions, or does not decode in steps.
    """
    (subject.can.reads_positions & subject.can.steps).require(CannotInject)
    first = subject.can.first_position

    def positions(call: dict[str, Any], before: int, new: int) -> Tensor | None:
        if not before:
            return None
        return torch.tensor(rule(tuple(range(before + new)), before, new)) + first

    return with_positions(subject, positions)


def with_labels(subject: Subject, change: Callable[[Tensor], None]) -> AbstractContextManager[None]:
    """Change a copy of the labels of every call in place."""
    own = ignored_label(subject)  # asked by calls that must not be changed

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        name = subject.forward_adapter.labels_name or LABELS[0]
        labels_BT = call.get(name)
        if not isinstance(labels_BT, Tensor):
            return call
        changed_BT = labels_BT.clone()
        change(changed_BT)
        return {**call, name: torch.where(changed_BT == IGNORED, own, changed_BT)}

    return at_arguments(subject, edit)


def require_counting_cache(subject: Subject) -> None:
    """Check that steps agree with one forward and that the cache counts its tokens.

    Raises:
        CannotInject: they do not, or it does not.
    """
    subject.can.steps_agree.require(CannotInject)
    if not cached_length(filled_cache(subject)):
        raise CannotInject("the cache does not count its tokens")


def filled_cache(subject: Subject) -> Any:
    """The model's own cache, filled with the main input; only to be looked at."""
    return subject.can.filled_cache


def cache_argument(subject: Subject, call: dict[str, Any]) -> Any:
    """The cache among the arguments of a call, or None."""
    return call.get(subject.forward_adapter.cache_name or "")


def tokens_before(subject: Subject, call: dict[str, Any]) -> int:
    """How many tokens the cache of this call holds; from a cache that does not say, how many
    were fed before.
    """
    cache = cache_argument(subject, call)
    if cache is None or hasattr(cache, "get_seq_length"):
        return cached_length(cache)
    return cached_length(cache) or subject.forward_adapter.fed


def plain_calls(subject: Subject) -> list[AttentionCall]:
    """The attention calls of a plain forward over the main input, recorded once.

    Raises:
        CannotInject: the model runs no attention that can be recorded.
    """
    subject.can.watch.require(CannotInject)
    tokens = subject.inputs.tokens
    return subject.passes.once("calls", lambda: subject.record_calls(tokens, AttentionCall.copy))


def decoder_layers(subject: Subject) -> list[nn.Module]:
    """The longest numbered list of layers that run over all T tokens of the main input at once, be
    their hidden states (B, T, W), (T, B, W), (B, W, T), or several streams of T tokens in a row.

    Raises:
        CannotInject: there is none.
    """
    longest: list[nn.Module] = subject.passes.once("layers", lambda: _decoder_layers(subject))
    if not longest:
        raise CannotInject("no numbered list of layers was found")
    return longest


def _decoder_layers(subject: Subject) -> list[nn.Module]:
    lists, ran, length = layer_lists(subject.model), dict[int, int](), subject.inputs.length
    # a layer that is a list itself never runs: the last of its parts does
    bare = [layers for layers in lists if all(isinstance(each, nn.ModuleList) for each in layers)]
    lists += [[each[-1] for each in layers if isinstance(each, nn.ModuleList)] for layers in bare]

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        # layers of a text or picture encoder beside the decoder return another length
        hidden = hidden_in(output)
        if hidden is not None and (length in hidden.shape or hidden.shape[1] % length == 0):
            ran[id(module)] = len(ran)

    every = (layer for layers in lists for layer in layers)
    with hooked(each.register_forward_hook(hook) for each in every), torch.no_grad():
        subject.passes.call(subject.inputs.tokens, use_cache=False)
    groups = [[layer for layer in layers if id(layer) in ran] for layers in lists]
    # of an encoder and a decoder of the same depth, the decoder runs last
    return max(groups, key=lambda group: (len(group), group and ran[id(group[-1])]), default=[])


@contextlib.contextmanager
def at_hidden(subject: Subject, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the hidden states that leave the first layer, (B, T, W); where no numbered list of
    layers was found, those that leave the first attention module, or the token embedding.
    """
    change = dosed_hidden(change)
    try:
        module = decoder_layers(subject)[0]
    except CannotInject:
        attending = attention_modules(subject.model).values()
        # a dictionary of modules is never called itself
        called = (each for each in attending if type(each).forward is not nn.Module.forward)
        module = next(called, None) or _embedding(subject)

    shape: list[tuple[int, ...]] = [()]

    def note(call: dict[str, Any]) -> dict[str, Any]:
        shape[0] = tuple(getattr(call.get(subject.forward_adapter.ids_name), "shape", ()))
        return call

    def in_order(hidden: Tensor) -> Tensor:
        """The change, also of hidden states that some models keep as (T, B, W) or (B, W, T)."""
        for one, other in ((0, 0), (0, 1), (1, 2)):
            if tuple(hidden.transpose(one, other).shape[:2]) == shape[0]:
                return change(hidden.transpose(one, other)).transpose(one, other)
        return change(hidden)

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return with_first(output, in_order)

    with at_arguments(subject, note), module.register_forward_hook(hook):
        yield


def _embedding(subject: Subject) -> nn.Module:
    """The table that the decoder's own tokens are looked up in, behind those that the model puts
    in front of them.
    """
    row = subject.passes.ids(subject.inputs.tokens).flatten()
    modules = subject.model.modules()
    tables: set[nn.Module] = {each for each in modules if isinstance(each, nn.Embedding)}
    named = token_table(subject.model)
    looked_up: list[nn.Module] = []

    def before(module: nn.Module, args: Any) -> None:
        ids = args[0].flatten()[-len(row) :] if args and isinstance(args[0], Tensor) else None
        if ids is not None and torch.equal(ids.to(row), row):
            looked_up.append(module)

    tables |= {named} if isinstance(named, nn.Module) else set()
    with hooked(each.register_forward_pre_hook(before) for each in tables), torch.no_grad():
        subject.passes.call(subject.inputs.tokens, use_cache=False)
    if not looked_up:
        raise CannotInject("neither a list of layers nor a token embedding was found")
    return looked_up[0]


@contextlib.contextmanager
def at_attention_inputs(subject: Subject, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the hidden states that enter each attention module, (B, T, W), where the attention in
    it is out of reach.

    Raises:
        CannotInject: no module with a query projection was found.
    """
    modules = attention_modules(subject.model).values()
    if not modules:
        raise CannotInject("no module with a query projection was found")

    def hook(module: nn.Module, args: Any, named: Any) -> Any:
        if args:
            return with_first(args, change), named
        key = next((key for key, value in named.items() if isinstance(value, Tensor)), None)
        return args, named if key is None else {**named, key: change(named[key])}

    with hooked(each.register_forward_pre_hook(hook, with_kwargs=True) for each in modules):
        yield


def repeats(call: AttentionCall) -> int:
    """Query heads per key/value head."""
    return int(call.query_BHTD.shape[1] // call.key_BGSD.shape[1])
