"""What a call allocates: every new storage that an operator makes, counted on any device.

Axes: B batch, H query heads, G key/value heads, S key positions, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from attncheck.probing import (
    AttentionCall,
    ForwardSpec,
    Subject,
    Unsupported,
    capture,
    config_fields,
)


@final
class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of new storages while active, and the largest ones by shape."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {_storage(each) for each in _stored((args, dict(kwargs or {})))}
        for each in _stored(out):
            if _storage(each) not in known:
                self.bytes += each.nbytes
                self.shapes.append(tuple(each.shape))
        return out


def _stored(tree: Any) -> Iterator[Tensor]:
    """The tensors with a storage of their own; of a wrapper (sharded, quantized, still on its way),
    those inside.
    """
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and is_traceable_wrapper_subclass(leaf):
            yield from _stored([getattr(leaf, name) for name in leaf.__tensor_flatten__()[0]])
        elif isinstance(leaf, Tensor):
            yield leaf


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@final
@dataclass
class DecodeStep:
    """What one decode step did: bytes allocated, keys and values copied inside kernels (as
    multiples of the keys' size), and what the last kernel received.
    """

    total: int = 0
    copied: float = 0.0
    received: str = ""


def decode_step(subject: Subject, context: int, attn: str | None) -> DecodeStep:
    """One token on a cache of `context` tokens under one attention implementation, every allocation
    counted.
    """
    row, step = subject.inputs.row, DecodeStep()

    def handler(call: AttentionCall) -> Any:
        before, output = len(memory.shapes), call.run()
        size, width = call.key_BGSD.numel(), call.key_BGSD.shape[-1]
        new = [torch.Size(shape) for shape in memory.shapes[before:]]
        copies = [each.numel() for each in new if each[-1:] == (width,) and each.numel() > size]
        step.copied += sum(copies) / size
        step.received = _described(call)
        return output

    with subject.using(attn), torch.no_grad():
        cache: Any = subject.passes.cache(ForwardSpec((row[:context],), use_cache=True))
        with capture(subject.model, handler), Allocations() as memory:
            subject.passes.call((row[context : context + 1],), cache=cache, use_cache=True)
    step.total = memory.bytes
    return step


def _described(call: AttentionCall) -> str:
    heads, kv_heads = call.query_BHTD.shape[1], call.key_BGSD.shape[1]
    stride = call.key_BGSD.stride()
    shared = "stored heads" if kv_heads < heads else "one key head per query head"
    form = "an expanded view" if 0 in stride else shared
    return f"the kernel receives keys {tuple(call.key_BGSD.shape)}, stride {stride}: {form}"


def expected_heads(subject: Subject) -> tuple[int, int]:
    """(query heads, KV heads) of the config, or of the layers' own groups; the largest where layers
    differ.
    """
    heads, kv_heads = subject.facts.heads, subject.facts.kv_heads
    named = [
        value
        for name, value in config_fields(subject.text_config).items()
        if name.endswith(("key_value_heads", "kv_heads")) and isinstance(value, int)
    ]
    if heads is None or not (named or kv_heads):
        raise Unsupported("the config names no number of heads")
    found = [getattr(module, "num_key_value_groups", None) for module in subject.model.modules()]
    own = [heads // groups for groups in found if isinstance(groups, int) and groups]
    return heads, max([*named, *own, kv_heads or 0])
