"""What each attention layer did in a forward: the inputs and the output of its kernel, and what its
projections returned before.

A reader gets one layer at a time while the forward runs, so that nothing has to be kept.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.layers import layer_index
from attncheck.attention.rope import CosSin, cos_sin_in
from attncheck.judge.token_order import TokenOrder
from attncheck.model.compat import config_of
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.hooks import hooked


@final
@dataclass(frozen=True, kw_only=True)
class LayerCall:
    """One kernel call of one layer. `stages` are outputs of the layer's own sub-modules before the
    kernel, by name; `tables` are the rotary tables that the layer was given.
    """

    name: str
    index: int | None
    call: AttentionCall
    context_BTHD: Tensor
    stages: dict[str, Tensor]
    tables: CosSin | None

    def over(self, length: int) -> bool:
        """Whether `length` tokens attend to themselves here: no attention to an encoder, or over
        the depth.
        """
        return bool(self.call.query_BHTD.shape[2] == self.call.key_BGSD.shape[2] == length)


Reader = Callable[[LayerCall], None]
Entering = Callable[[LayerCall, str, Tensor], None]
"""Gets what enters each sub-module of a layer, by its name, after the layer's kernel has run."""


@contextlib.contextmanager
def _recorded_stages(
    model: nn.Module, names: dict[int, str], entered: Callable[[str, Tensor], None]
) -> Iterator[tuple[dict[str, Tensor], dict[str, CosSin]]]:
    """Collect the output of every module by name until the reader clears them, and the rotary
    tables among the arguments of each. `entered` gets the first argument of each.
    """
    outputs: dict[str, Tensor] = {}
    tables: dict[str, CosSin] = {}

    def before(module: nn.Module, args: Any, named: Any) -> None:
        pairs = (cos_sin_in(value) for value in (*args, *named.values()))
        found = next((pair for pair in pairs if pair is not None), None)
        if found is not None:
            tables[names[id(module)]] = found
        if args and isinstance(args[0], Tensor):
            entered(names[id(module)], args[0])

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            outputs[names[id(module)]] = output

    handles = [each.register_forward_pre_hook(before, with_kwargs=True) for each in model.modules()]
    handles += [each.register_forward_hook(after) for each in model.modules()]
    with hooked(handles):
        yield outputs, tables


def _encoder_modules(model: nn.Module) -> frozenset[int]:
    """The modules of an encoder beside the decoder, which read both ways by design."""
    getter = getattr(model, "get_encoder", None)
    if getter is None or not getattr(config_of(model), "is_encoder_decoder", False):
        return frozenset()
    encoder = getter()
    beside = isinstance(encoder, nn.Module) and encoder is not model
    return frozenset(map(id, encoder.modules())) if beside else frozenset()


def read_layers(
    subject: Subject, spec: ForwardSpec, reader: Reader, entering: Entering | None = None
) -> dict[str, str]:
    """Run a pass, which is not remembered; `reader` gets every kernel call of the decoder after it
    has run, its slots in the order of their tokens, `entering` what enters each sub-module of its
    layer then.

    Returns the modules whose arithmetic looks like attention and is not understood, with reasons.

    Raises:
        Unsupported: the model runs no attention that can be recorded, or cannot take this pass.
    """
    encoder = _encoder_modules(subject.model)
    names = {id(module): name for name, module in subject.model.named_modules()}
    latest: list[LayerCall] = []
    order = TokenOrder() if spec.chunks else None

    def entered(name: str, states: Tensor) -> None:
        if entering is None:
            return
        for layer in latest:
            if name.startswith(f"{layer.name}."):
                entering(layer, name.removeprefix(f"{layer.name}."), states)

    with _recorded_stages(subject.model, names, entered) as (outputs, tables):

        def handler(call: AttentionCall) -> Any:
            result = call.run()
            if id(call.module) not in encoder:
                name = names[id(call.module)]
                ordered = call if order is None else order.applied(name, call)
                layer = _layer_call(ordered, result[0], name, outputs, tables)
                latest[:] = [layer]
                reader(layer)
                # what later layers compute must not be traced to this layer
                outputs.clear()
            return result

        with subject.handle_calls(handler) as refusals:
            subject.passes.replay(spec)
    return {names[module]: reason for module, reason in refusals.items() if module in names}


def _layer_call(
    call: AttentionCall,
    context_BTHD: Tensor,
    name: str,
    outputs: dict[str, Tensor],
    tables: dict[str, CosSin],
) -> LayerCall:
    inside = f"{name}."
    stages = {
        key.removeprefix(inside): value for key, value in outputs.items() if key.startswith(inside)
    }
    return LayerCall(
        name=name,
        index=layer_index(call.module, name),
        call=call.copy(),
        context_BTHD=context_BTHD,
        stages=stages,
        tables=tables.get(name),
    )
