"""Record attention that a model computes by itself, from its arithmetic: the product of queries and
keys, the steps up to the softmax, the product with the values. Direct calls of torch's fused
attention are recorded as well.

The record is the same `AttentionCall` that the attention interface gives. Its kernel runs the
model's own operations again with other queries, keys and values; its mask is what those operations
add to the scores of zero queries; its scale is fitted to the scores.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attncheck.attention.call import (
    AttentionCall,
    Handler,
    recording_suspended,
    suspend_recording,
)
from attncheck.attention.product import Product, of_three, product_of
from attncheck.attention.scored import scored_call
from attncheck.attention.tape import MOST_STEPS, Tape
from attncheck.numerics.as_written import AsWritten
from attncheck.numerics.hooks import hooked

FUSED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
Refusals = dict[int, str]
"""For modules (by identity) that pass scores through a softmax: why that is not understood as
attention.
"""


def fused_call(
    module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]
) -> AttentionCall | None:
    """The call behind the arguments of `scaled_dot_product_attention`; None where heads have no
    axis of their own.
    """
    given = {**dict(zip(FUSED, args, strict=False)), **named}
    query, key, value = (given[name] for name in FUSED[:3])
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        return None
    rest = {name: given[name] for name in ("dropout_p", "enable_gqa") if name in given}
    stated = given.get("scale")

    def kernel(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        is_causal: bool,
        scaling: float,
    ) -> tuple[Tensor, None]:
        scale = None if stated is None else scaling
        with suspend_recording(False):
            # looked up at every call, so that a recorder around this one sees it as well
            context = F.scaled_dot_product_attention(
                query, key, value, mask, is_causal=is_causal, scale=scale, **rest
            )
        return context.transpose(1, 2), None

    mask = given.get("attn_mask")
    if isinstance(mask, Tensor) and mask.ndim < 4:
        mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    options = {
        "is_causal": bool(given.get("is_causal", False)),
        "scaling": float(stated) if stated is not None else query.shape[-1] ** -0.5,
    }
    return AttentionCall(module, query, key, value, mask, options, kernel, inline=True)


@final
class _Inline(AsWritten):
    """Follows every product of two computed tensors, within the module that computes it, to a
    softmax and a second product.
    """

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self.handler = handler
        self.running: list[nn.Module] = []
        self.rows, self.length = 1, 0
        self.tapes: list[Tape] = []
        self.refusals: Refusals = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs) if kwargs else {}
        if recording_suspended() or not self.running:
            return func(*args, **named)
        if func is F.scaled_dot_product_attention:
            call = fused_call(self.running[-1], args, named)
            return func(*args, **named) if call is None else self._handled(call).transpose(1, 2)
        if func is torch.einsum and (two := of_three(args)) is not None:
            first, rest, third = two
            inner = self.__torch_function__(func, types, first)
            return self.__torch_function__(func, types, (rest, inner, third))
        product = product_of(func, args, named)
        from_weights = [
            tape for tape in self.tapes if product and tape.follows_softmax(product.left)
        ]
        # weights meet the values in the first product that has the softmax on its left
        if product and from_weights:
            return self._second(from_weights, product)
        output = func(*args, **named)
        for tape in [tape for tape in self.tapes if tape.touches((args, named))]:
            tape.note(func, args, named, output)
            # gated products and the like never reach a softmax and would be recorded for ever
            if tape.weights is None and len(tape.steps) > MOST_STEPS:
                self.tapes.remove(tape)
        if product and isinstance(output, Tensor):
            scores = product.with_rows(2, self.length)
            self.tapes.append(Tape(self.running[-1], scores, output))
        return output

    def _handled(self, call: AttentionCall) -> Tensor:
        """context_BTHD from the handler."""
        with suspend_recording():
            context_BTHD: Tensor = self.handler(call)[0]
        return context_BTHD

    def _second(self, tapes: list[Tape], product: Product) -> Any:
        """The product with the values: where exactly one tape leads here from queries and keys,
        that is one attention call.
        """
        product = product.with_rows(0, self.length)
        calls = [scored_call(tape, product, self.rows) for tape in tapes]
        # of a sum of products, the one whose heads have keys of their own stands for the scores
        if sum(not tape.product.group for tape in tapes) == 1 < len(tapes):
            calls = [
                None if tape.product.group else call
                for tape, call in zip(tapes, calls, strict=True)
            ]
        found = [call for call in calls if call is not None]
        self.tapes = [tape for tape in self.tapes if tape not in tapes]
        if len(found) == 1:
            context_BTHD = self._handled(found[0])
            return product.laid_out(2, context_BTHD.transpose(1, 2), product.row + product.column)
        reasons = [tape.trouble for tape in tapes if tape.trouble]
        reason = (reasons or ["its heads are laid out in a way that is not understood"])[0]
        self.refusals[id(tapes[0].owner)] = (
            "its scores are a sum of several products" if found else reason
        )
        return product.run(product.left, product.right)

    def enter(self, module: nn.Module) -> None:
        """A module starts to run."""
        self.running.append(module)

    def leave(self, module: nn.Module) -> None:
        """A module has run: products that it started end with it."""
        while self.running and self.running.pop() is not module:
            pass
        for tape in [tape for tape in self.tapes if tape.owner is module]:
            self.tapes.remove(tape)
            if tape.weights is not None:
                reason = tape.trouble or "its weights are not multiplied with values"
                self.refusals[id(module)] = reason


@contextlib.contextmanager
def observe_inline(model: nn.Module, handler: Handler) -> Iterator[Refusals]:
    """While active, `handler` gets every attention call that modules of this model compute inline,
    and its (context_BTHD, ...) replaces what the model computed.
    """
    recorder = _Inline(handler)

    def first(module: nn.Module, args: Any, named: Any) -> None:
        given = [each for each in (*args, *named.values()) if isinstance(each, Tensor)]
        shapes = (each.shape[:2] for each in given if each.ndim > 1)
        recorder.rows, recorder.length = next(shapes, (1, 0))

    handles = [model.register_forward_pre_hook(first, with_kwargs=True)]
    for module in model.modules():
        handles += [
            module.register_forward_pre_hook(lambda module, args: recorder.enter(module)),
            module.register_forward_hook(
                # also after an error, or the stack of running modules would stay wrong
                lambda module, args, output: recorder.leave(module),
                always_call=True,
            ),
        ]
    with hooked(handles), recorder:
        yield recorder.refusals


@contextlib.contextmanager
def observe_inside(module: nn.Module, rows: int, handler: Handler) -> Iterator[None]:
    """While active, `handler` gets the attention that code running for this module computes, down
    to the product of queries and keys; `rows` is the size of the batch.
    """
    recorder = _Inline(handler)
    recorder.rows = rows
    recorder.enter(module)
    with suspend_recording(False), recorder:
        yield
