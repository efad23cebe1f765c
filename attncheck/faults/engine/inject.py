"""The tools that plants are made of: changed arguments, changed kernel calls, changed hidden
states.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width, W
hidden width.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.attention import masks
from attncheck.attention.call import AttentionCall, Handler
from attncheck.attention.masks import with_allowed as with_allowed
from attncheck.core.errors import CannotInject
from attncheck.judge.layers import watching
from attncheck.model.compat import cached_length
from attncheck.model.subject import Subject
from attncheck.model.wrapped_forward import Edit, edited
from attncheck.numerics.hooks import hooked

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)$")


@contextlib.contextmanager
def at_kernel(subject: Subject, handler: Handler) -> Iterator[None]:
    """Plant at the attention kernel, or in the arithmetic that a model attends with by itself.

    Raises:
        CannotPlant: the model runs no attention that could be changed.
    """
    subject.can.watch.require(CannotInject)
    with watching(subject, handler):
        yield


def at_own_kernel(subject: Subject, handler: Handler) -> AbstractContextManager[None]:
    """Plant at the kernel of the implementation in force now; the others stay right, as when one
    kernel drops an option.

    Raises:
        CannotPlant: the model runs no attention that could be changed.
    """
    own = subject.attn
    return at_kernel(subject, lambda call: handler(call) if subject.attn == own else call.run())


@contextlib.contextmanager
def at_arguments(subject: Subject, edit: Edit) -> Iterator[None]:
    """Plant in the arguments of the model's forward."""
    with edited(subject.model, edit):
        yield


def cache_argument(subject: Subject, call: dict[str, Any]) -> Any:
    """The cache that a call hands in, or None."""
    return (
        call.get(subject.forward_adapter.cache_name) if subject.forward_adapter.cache_name else None
    )


def tokens_before(subject: Subject, call: dict[str, Any]) -> int:
    """How many tokens the cache of this call holds."""
    return cached_length(cache_argument(subject, call))


def decoder_layers(subject: Subject) -> list[nn.Module]:
    """The longest numbered list of layers that a forward over the main input runs through, all T
    tokens at once.

    Raises:
        CannotPlant: there is none.
    """
    ran = _layers_run(subject)
    groups: dict[str, list[tuple[int, nn.Module]]] = {}
    for name, module in subject.model.named_modules():
        match = LAYER.search(name)
        if match and id(module) in ran:
            groups.setdefault(name[: match.start()], []).append((int(match.group(1)), module))
    if not groups:
        raise CannotInject("no numbered list of layers was found")
    longest = max(groups.values(), key=lambda group: len(group))
    return [module for _, module in sorted(longest, key=lambda item: item[0])]


def _layers_run(subject: Subject) -> set[int]:
    """Which modules return hidden states (B, T, W) of the main input: neither those of an encoder
    nor of a picture.
    """
    ran: set[int] = set()
    length = subject.inputs.length

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) and output else output
        if isinstance(hidden, Tensor) and hidden.ndim == 3 and hidden.shape[1] == length:
            ran.add(id(module))

    listed = (each for name, each in subject.model.named_modules() if LAYER.search(name))
    with hooked(each.register_forward_hook(hook) for each in listed), torch.no_grad():
        subject.passes.call(subject.inputs.tokens, use_cache=False)
    return ran


@contextlib.contextmanager
def at_hidden(subject: Subject, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Plant in the hidden states that leave the first layer, (B, T, W)."""
    layer = decoder_layers(subject)[0]

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output) if isinstance(output, Tensor) else output

    with layer.register_forward_hook(hook):
        yield


def allowed_BHTS(call: AttentionCall) -> Tensor:
    """Which keys each query may read; a mask of another kind leaves no place for a fault.

    Raises:
        CannotInject: the mask is not a 4D tensor.
    """
    return masks.allowed_BHTS(call, CannotInject)


def repeats(call: AttentionCall) -> int:
    """Query heads per key/value head."""
    return int(call.query_BHTD.shape[1] // call.key_BGSD.shape[1])
