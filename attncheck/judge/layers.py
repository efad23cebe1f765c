"""What each attention layer did in a forward: what its kernel was handed, what came out, and what
its projections gave.

Layers are handed to a reader one at a time while the forward runs, so that nothing of them has to
be kept.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width, R
rotary width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

from torch import Tensor, nn

from attncheck.attention.call import AttentionCall, Handler
from attncheck.attention.inline import Refusals
from attncheck.attention.layers import layer_index
from attncheck.attention.rope import cos_sin_in
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.hooks import hooked


@final
@dataclass(frozen=True, kw_only=True)
class Attended:
    """One kernel call of one layer. `stages` are outputs of the layer's own sub-modules before the
    kernel, by name.
    """

    name: str
    index: int | None
    call: AttentionCall
    context_BTHD: Tensor
    stages: dict[str, Tensor]
    tables: tuple[Tensor, Tensor] | None

    def over(self, length: int) -> bool:
        """Whether these are `length` tokens that attend to themselves: no attention to an encoder
        or over the depth.
        """
        return bool(self.call.query_BHTD.shape[2] == self.call.key_BGSD.shape[2] == length)


Reader = Callable[[Attended], None]


@contextlib.contextmanager
def _noting(
    model: nn.Module, names: dict[int, str]
) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
    """Outputs of every module by name since the reader last cleared them, and rotary tables handed
    to each.
    """
    outputs: dict[str, Tensor] = {}
    tables: dict[str, Any] = {}

    def before(module: nn.Module, args: Any, named: Any) -> None:
        pairs = (cos_sin_in(value) for value in (*args, *named.values()))
        found = next((pair for pair in pairs if pair is not None), None)
        if found is not None:
            tables[names[id(module)]] = found

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            outputs[names[id(module)]] = output

    handles = [each.register_forward_pre_hook(before, with_kwargs=True) for each in model.modules()]
    handles += [each.register_forward_hook(after) for each in model.modules()]
    with hooked(handles):
        yield outputs, tables


def _of_encoder(model: nn.Module) -> frozenset[int]:
    """The modules of an encoder beside the decoder: they read both ways by design."""
    getter = getattr(model, "get_encoder", None)
    if getter is None or not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return frozenset()
    encoder = getter()
    return (
        frozenset(map(id, encoder.modules()))
        if isinstance(encoder, nn.Module) and encoder is not model
        else frozenset()
    )


@contextlib.contextmanager
def watching(subject: Subject, handler: Handler) -> Iterator[None]:
    """`Subject.handle_calls` under its former name."""
    with subject.handle_calls(handler):
        yield


@contextlib.contextmanager
def reading_layers(subject: Subject, reader: Reader) -> Iterator[Refusals]:
    """While active, every attention call of the decoder is shown to `reader` when it has run;
    refusals are yielded.

    Raises:
        Unsupported: no attention can be watched, neither at the interface nor in the model's own
        arithmetic.
    """
    encoder = _of_encoder(subject.model)
    names = {id(module): name for name, module in subject.model.named_modules()}
    with _noting(subject.model, names) as (outputs, tables):

        def handler(call: AttentionCall) -> Any:
            if id(call.module) in encoder:
                return call.run()
            given = replace(call)
            result = call.run()
            reader(_attended(given, result[0], names[id(given.module)], outputs, tables))
            outputs.clear()
            return result

        with subject.handle_calls(handler) as refusals:
            yield refusals


def _attended(
    call: AttentionCall,
    context_BTHD: Tensor,
    name: str,
    outputs: dict[str, Tensor],
    tables: dict[str, Any],
) -> Attended:
    inside = {
        key[len(name) + 1 :]: value for key, value in outputs.items() if key.startswith(f"{name}.")
    }
    return Attended(
        name=name,
        index=layer_index(call.module, name),
        call=call,
        context_BTHD=context_BTHD,
        stages=inside,
        tables=tables.get(name),
    )


def read_layers(subject: Subject, spec: ForwardSpec, reader: Reader) -> dict[str, str]:
    """Run a pass and show every kernel call to `reader`; the pass is not remembered.

    Returned are the modules whose arithmetic looks like attention and is not understood, each with
    the reason.

    Raises:
        Unsupported: the kernel is out of reach, or the model cannot be asked this way.
    """
    with reading_layers(subject, reader) as refusals:
        subject.passes.replay(spec)
    return {
        name: refusals[id(module)]
        for name, module in subject.model.named_modules()
        if id(module) in refusals
    }
