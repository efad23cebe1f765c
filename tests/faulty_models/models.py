"""Tiny models of many architectures, each with exactly one fault, and the layer where it sits.

`FROM_THE_CATALOGUE` injects the known faults. `BY_HAND` holds faults that are written here, in one
layer or in another form than the catalogue's, so that diagnosis cannot succeed by recognising its
own handwriting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.layers import layer_index
from attncheck.attention.masks import allowed_BHTS, with_allowed
from attncheck.attention.recorder import capture
from attncheck.core.settings import Settings
from attncheck.faults import registry as faults
from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.forward import edited
from attncheck.model.subject import Subject
from attncheck.targets.load import load

Inject = Callable[[Subject], AbstractContextManager[None]]


@dataclass(frozen=True)
class FaultyModel:
    """One model with one fault. `probes` should notice it; `layer` is None where it has none."""

    kind: str
    fault: str
    probes: tuple[str, ...]
    layer: int | None = 0
    inject: Inject | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.kind, self.fault, self.note)))

    def injected(self, subject: Subject) -> AbstractContextManager[None]:
        return self.inject(subject) if self.inject else faults.fault(self.fault).inject(subject)


def healthy(kind: str) -> Subject:
    return load(f"config:{kind}", Settings())


def at_layer(number: int, change: Callable[[AttentionCall], AttentionCall]) -> Inject:
    """A fault in the attention of one layer only."""

    @contextlib.contextmanager
    def inject(subject: Subject) -> Iterator[None]:
        names = {id(module): name for name, module in subject.model.named_modules()}

        def handle(call: AttentionCall) -> Any:
            here = layer_index(call.module, names.get(id(call.module), "")) == number
            return (change(call) if here else call).run()

        with capture(subject.model, handle):
            yield

    return inject


def next_key(call: AttentionCall) -> AttentionCall:
    allowed = allowed_BHTS(call)
    return with_allowed(call, allowed | torch.cat([allowed[:, :, 1:], allowed[:, :, -1:]], 2))


def whole_block(call: AttentionCall) -> AttentionCall:
    allowed = allowed_BHTS(call)
    return with_allowed(call, allowed.any(2, keepdim=True).expand(allowed.shape))


def square_mask(call: AttentionCall) -> AttentionCall:
    allowed = allowed_BHTS(call)
    return (
        with_allowed(call, torch.ones_like(allowed).tril())
        if allowed.shape[2] < allowed.shape[3]
        else call
    )


def doubled_scale(call: AttentionCall) -> AttentionCall:
    call.query_BHTD = call.query_BHTD * call.query_BHTD.shape[-1] ** -0.5
    return call


def counted(rule: Callable[[int, int], Tensor]) -> Inject:
    """Positions of cached calls by a rule of (cached, new)."""

    def inject(subject: Subject) -> AbstractContextManager[None]:
        name = str(subject.forward_adapter.positions_name)

        def edit(call: dict[str, Any]) -> dict[str, Any]:
            before = max(cached_length(call.get(each)) for each in CACHE_NAMES)
            ids_BT = call.get("input_ids")
            if not before or ids_BT is None:
                return call
            return {**call, name: rule(before, ids_BT.shape[1]).expand(ids_BT.shape).contiguous()}

        return edited(subject.model, edit)

    return inject


def packing_forgotten(subject: Subject) -> AbstractContextManager[None]:
    """Positions that restart no longer separate documents: a plain causal mask is passed on."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        positions_BT = call.get("position_ids")
        if (
            positions_BT is None
            or call.get("attention_mask") is not None
            or not bool((positions_BT.diff(dim=-1) < 0).any())
        ):
            return call
        length = positions_BT.shape[-1]
        hidden_TS = ~torch.ones(length, length, dtype=torch.bool).tril()
        mask = torch.zeros(length, length, dtype=subject.dtype).masked_fill(
            hidden_TS, torch.finfo(torch.float32).min
        )
        return {**call, "attention_mask": mask[None, None]}

    return edited(subject.model, edit)


def hooked(path: str, change: Callable[[Tensor], Tensor]) -> Inject:
    """A fault in what one module puts out, whatever that module is."""

    @contextlib.contextmanager
    def inject(subject: Subject) -> Iterator[None]:
        module = subject.model.get_submodule(path)

        def hook(module: Any, args: Any, output: Any) -> Any:
            return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

        handle = module.register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    return inject


def looks_ahead(hidden_BTW: Tensor) -> Tensor:
    return hidden_BTW + 0.2 * hidden_BTW.roll(-1, 1)


def over_time(hidden_BTW: Tensor) -> Tensor:
    return hidden_BTW - 0.3 * hidden_BTW.mean(1, keepdim=True)


DECODE = ("decode-paths",)
FUTURE = ("future-token",)
FROM_THE_CATALOGUE = (
    FaultyModel("llama", "causal-mask-missing", FUTURE),
    FaultyModel("qwen2", "causal-mask-missing", FUTURE),
    FaultyModel("phi", "mask-off-by-one", FUTURE),
    FaultyModel("mixtral", "mask-off-by-one", FUTURE),
    FaultyModel("gpt2", "mask-top-left", DECODE),
    FaultyModel("olmo2", "mask-top-left", DECODE),
    FaultyModel("bloom", "leak-outside-attention", FUTURE),
    FaultyModel("mamba2", "leak-outside-attention", FUTURE),
    FaultyModel("cohere", "attention-mask-ignored", ("padding",)),
    FaultyModel("stablelm", "position-restart", DECODE),
    FaultyModel("gpt2", "position-restart", DECODE, None),
    FaultyModel("gpt_neox", "position-offset", DECODE),
    FaultyModel("gpt2", "position-offset", DECODE, None),
    FaultyModel("llama", "position-frozen", DECODE),
    FaultyModel("gemma2", "position-frozen", DECODE),
    FaultyModel("granite", "cache-drops-token", DECODE),
    FaultyModel("mistral", "cache-drops-token", DECODE),
    FaultyModel("gpt2", "cache-stale", DECODE),
    FaultyModel("qwen3", "cache-stale", DECODE),
    FaultyModel("llama", "cache-layer-mixup", DECODE),
    FaultyModel("gpt_neox", "cache-wrong-slot", DECODE),
    FaultyModel("phi3", "cache-wrong-slot", DECODE),
    FaultyModel("olmo2", "cache-crop", ("cache-kinds",), None),
    FaultyModel("starcoder2", "cache-reorder", ("batch-rows",)),
    FaultyModel("qwen2", "cache-low-precision", DECODE),
    FaultyModel("stablelm", "key-rotated-twice", DECODE),
    FaultyModel("mamba2", "state-dropped", DECODE),
    FaultyModel("llama", "kv-stored-repeated", ("kv-repeat",), None),
    FaultyModel("qwen3", "kv-repeat-copied", ("kv-repeat",), None),
    FaultyModel("phi", "padding-visible", ("padding",)),
    FaultyModel("granite", "nan-masked-row", ("padding",)),
    FaultyModel("cohere", "rows-mixed", ("batch-rows",)),
    FaultyModel("gemma2", "window-off-by-one", ("window", "decode-paths")),
    FaultyModel("mistral", "window-ignored", ("window", "decode-paths")),
    FaultyModel("gemma3_text", "window-layers-swapped", ("window",)),
    FaultyModel("starcoder2", "softmax-scale", ("implementations",)),
    FaultyModel("gemma2", "softcap-missing", ("reference", "implementations")),
    FaultyModel("gpt_oss", "sink-missing", ("reference", "implementations")),
    FaultyModel("llama", "kv-groups-tiled", ("kv-groups",)),
    FaultyModel("phi3", "dropout-active", ("repeatability",)),
    FaultyModel("llama", "rope-scale-switch", ("repeatability",)),
    FaultyModel("gpt2", "position-ignores-padding", ("padding",), None),
    FaultyModel("olmo2", "logits-to-keep", ("generate",), None),
    FaultyModel("bloom", "alibi-local", DECODE),
    FaultyModel("mamba2", "cache-reorder", ("batch-rows",)),
)
BY_HAND = (
    FaultyModel("llama", "mask-off-by-one", FUTURE, 2, at_layer(2, next_key), "one layer"),
    FaultyModel(
        "gpt_neox", "causal-mask-missing", FUTURE, 1, at_layer(1, whole_block), "one layer"
    ),
    FaultyModel("qwen3", "mask-top-left", DECODE, 3, at_layer(3, square_mask), "one layer"),
    FaultyModel("phi", "softmax-scale", ("reference",), 2, at_layer(2, doubled_scale), "one layer"),
    FaultyModel("mixtral", "causal-mask-missing", DECODE, 3, at_layer(3, whole_block), "one layer"),
    FaultyModel(
        "granite",
        "position-restart",
        DECODE,
        0,
        counted(lambda before, new: torch.arange(new)),
        "by hand",
    ),
    FaultyModel(
        "gpt2",
        "position-offset",
        DECODE,
        None,
        counted(lambda p, n: torch.arange(p, p + n) + 2),
        "by two",
    ),
    FaultyModel(
        "olmo2",
        "position-offset",
        DECODE,
        0,
        counted(lambda p, n: torch.arange(p, p + n) - 1),
        "backwards",
    ),
    FaultyModel(
        "stablelm",
        "position-frozen",
        DECODE,
        0,
        counted(lambda p, n: torch.full((n,), p)),
        "at the first new one",
    ),
    FaultyModel(
        "granite", "document-leak", ("document-leakage",), 0, packing_forgotten, "positions unread"
    ),
    FaultyModel(
        "olmo2", "document-leak", ("document-leakage",), 0, packing_forgotten, "positions unread"
    ),
    FaultyModel(
        "qwen2",
        "leak-outside-attention",
        FUTURE,
        1,
        hooked("model.layers.1.mlp", looks_ahead),
        "mlp",
    ),
    FaultyModel(
        "llama",
        "leak-outside-attention",
        FUTURE,
        2,
        hooked("model.layers.2.input_layernorm", over_time),
        "norm over time",
    ),
)
FAULTY_MODELS = (*FROM_THE_CATALOGUE, *BY_HAND)
KINDS = tuple(dict.fromkeys(faulty.kind for faulty in FAULTY_MODELS))
