"""Attention that a model computes by itself, seen from its arithmetic: the product of queries and
keys, what happens to the scores, the softmax, the product with the values.

Shown as the same `AttentionCall` that the attention interface gives. Its kernel runs the model's
own calls again with other queries, keys and values; its mask is what those calls add to scores of
blank queries; its scale is read off the scores.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attncheck.attention.call import AttentionCall, Handler, look, looking_away
from attncheck.attention.fused import fused_call
from attncheck.attention.product import Product, product_of
from attncheck.attention.scored import scored_call
from attncheck.attention.tape import MOST_STEPS, Tape
from attncheck.numerics.hooks import hooked

Refusals = dict[int, str]
"""For modules (by identity) that pass scores through a softmax: why that is not understood as
attention.
"""


@final
class _Inline(TorchFunctionMode):
    """Follows every product of two computed tensors, within the module that computes it, to a
    softmax and a second product.
    """

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self.handler = handler
        self.running: list[nn.Module] = []
        self.rows = 1
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
        if looking_away() or not self.running:
            return func(*args, **named)
        if func is F.scaled_dot_product_attention:
            call = fused_call(self.running[-1], args, named)
            return func(*args, **named) if call is None else self._handled(call).transpose(1, 2)
        product = product_of(func, args, named)
        from_weights = [
            tape for tape in self.tapes if product and tape.follows_softmax(product.left)
        ]
        if product and from_weights:
            return self._second(from_weights, product)
        output = func(*args, **named)
        for tape in [tape for tape in self.tapes if tape.touches((args, named))]:
            tape.note(func, args, named, output)
            if tape.weights is None and len(tape.steps) > MOST_STEPS:
                self.tapes.remove(tape)
        if product and isinstance(output, Tensor):
            self.tapes.append(Tape(self.running[-1], product, output))
        return output

    def _handled(self, call: AttentionCall) -> Tensor:
        """context_BTHD as the handler wants it."""
        with look(away=True):
            context_BTHD: Tensor = self.handler(call)[0]
        return context_BTHD

    def _second(self, tapes: list[Tape], product: Product) -> Any:
        """The product with the values: where one tape leads here from queries and keys, that is one
        attention call.
        """
        found = [
            call
            for tape in tapes
            if isinstance(call := scored_call(tape, product, self.rows), AttentionCall)
        ]
        reasons = [tape.trouble for tape in tapes if tape.trouble]
        self.tapes = [tape for tape in self.tapes if tape not in tapes]
        if len(found) == 1:
            context_BTHD = self._handled(found[0])
            return product.laid_out(2, context_BTHD.transpose(1, 2), product.row + product.column)
        reason = (
            "its scores are a sum of several products"
            if found
            else (reasons or ["its heads have a form of their own"])[0]
        )
        self.refusals[id(tapes[0].owner)] = reason
        return product.run(product.left, product.right)

    def enter(self, module: nn.Module) -> None:
        """A module starts to run."""
        self.running.append(module)

    def leave(self, module: nn.Module) -> None:
        """A module has run: what it began to compute has come to its end."""
        while self.running and self.running.pop() is not module:
            pass
        for tape in [tape for tape in self.tapes if tape.owner is module]:
            self.tapes.remove(tape)
            if tape.weights is not None:
                self.refusals[id(module)] = (
                    tape.trouble or "its weights are not multiplied with values"
                )


@contextlib.contextmanager
def observe_inline(model: nn.Module, handler: Handler) -> Iterator[Refusals]:
    """While active, attention that the modules of this model compute by themselves goes through
    `handler`.

    What `handler` returns, (context_BTHD, …), takes the place of what the model computed.
    """
    watching = _Inline(handler)

    def first(module: nn.Module, args: Any, named: Any) -> None:
        tensors = [
            each for each in (*args, *named.values()) if isinstance(each, Tensor) and each.ndim > 1
        ]
        watching.rows = tensors[0].shape[0] if tensors else 1

    handles = [model.register_forward_pre_hook(first, with_kwargs=True)]
    for module in model.modules():
        handles.append(
            module.register_forward_pre_hook(lambda module, args: watching.enter(module))
        )
        handles.append(
            module.register_forward_hook(
                lambda module, args, output: watching.leave(module), always_call=True
            )
        )
    with hooked(handles), watching:
        yield watching.refusals
