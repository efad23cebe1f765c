"""Models behind reports that strangers filed: each fault with a healthy twin.

Each function is a target: `attncheck triage tests/triage/strangers.py:NAME`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.forward import wrap_forward
from attncheck.targets import builtin
from attncheck.targets.amplify import amplify

# Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.

_FILE = Path(__file__).with_name("reported_models.py")
_SPEC = importlib.util.spec_from_file_location("reported_models", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
acted = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(acted)


def _hidden(call: AttentionCall, keys: slice | int, queries: slice | int = slice(None)) -> None:
    """Hide keys from queries, in whatever form the mask is."""
    new, total = call.query_BHTD.shape[2], call.key_BGSD.shape[2]
    lowest = torch.finfo(call.query_BHTD.dtype).min
    allowed_TS = torch.ones(new, total, dtype=torch.bool).tril(total - new)
    if isinstance(call.mask, Tensor) and call.mask.dtype == torch.bool:
        mask = call.mask.clone()
        mask[..., queries, keys] = False
    elif isinstance(call.mask, Tensor):
        mask = call.mask.clone()
        mask[..., queries, keys] = lowest
    else:
        mask = torch.zeros(1, 1, new, total, dtype=call.query_BHTD.dtype)
        mask = mask.masked_fill(~allowed_TS, lowest)
        mask[..., queries, keys] = lowest
    call.mask = mask


def _long(positions: int = 2048) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **builtin.SIZE,
        **builtin.SPECIAL,
        intermediate_size=96,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=positions,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    amplify(model, 0)
    return model


def roomy() -> Any:
    """Healthy, with a context of 2,048 tokens and a tokenizer."""
    return _long(), acted._tokenizer(eos_token="end", pad_token="the", padding_side="left")


def forgets_beyond_1066() -> Any:
    """Right up to 1,066 tokens; beyond, queries no longer read the first tokens."""
    model, tokenizer = roomy()

    def handler(call: AttentionCall) -> Any:
        if call.key_BGSD.shape[2] > 1066:
            _hidden(
                call, slice(0, 8), slice(8, None) if call.query_BHTD.shape[2] > 8 else slice(None)
            )
        return call.run()

    return acted._injected(model, handler), tokenizer


def wrong_every_32() -> Any:
    """A kernel with blocks of 32 that forgets the first key where one token is left over."""
    model = acted.healthy()

    def handler(call: AttentionCall) -> Any:
        new = call.query_BHTD.shape[2]
        if new == call.key_BGSD.shape[2] and new > 1 and new % 32 == 1:
            _hidden(call, 0, slice(1, None))
        return call.run()

    return acted._injected(model, handler)


def wrong_in_eights_when_padded() -> Any:
    """Right unless there is a mask and the padded length is a multiple of 8."""
    model = acted.healthy()

    def handler(call: AttentionCall) -> Any:
        new = call.query_BHTD.shape[2]
        square = new == call.key_BGSD.shape[2]
        if square and isinstance(call.mask, Tensor) and new % 8 == 0:
            call.query_BHTD = call.query_BHTD * 1.5
        return call.run()

    return acted._injected(model, handler)


def outlier_channels() -> Any:
    """Healthy, but two channels of the keys are far larger than the others."""
    model = acted.healthy()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.weight[3] *= 60
            layer.self_attn.q_proj.weight[3] /= 60
    return model


def restarts_on_a_cache() -> Any:
    """Positions start again in every call on a cache."""
    return builtin.build("broken-positions", None)


def wrong_flex() -> Any:
    """Right under sdpa and eager; under flex_attention the scores are not scaled."""
    model = acted.healthy()

    def handler(call: AttentionCall) -> Any:
        if model.config._attn_implementation == "flex_attention":
            call.query_BHTD = call.query_BHTD * call.query_BHTD.shape[-1] ** 0.5
        return call.run()

    return acted._injected(model, handler)


class _Unordered(transformers.DynamicCache):
    """A cache whose rows stay where they are when beams change places."""

    def reorder_cache(self, beam_idx: Any) -> None:
        return None


def beams_not_reordered() -> Any:
    """Greedy text is right, beam search is not: the cache keeps its rows in place."""
    model = acted.healthy()
    inner = model.forward

    def forward(*args: Any, **named: Any) -> Any:
        output = inner(*args, **named)
        cache = getattr(output, "past_key_values", None)
        if type(cache) is transformers.DynamicCache:
            cache.__class__ = _Unordered
        return output

    forward.__signature__ = __import__("inspect").signature(inner)  # type: ignore[attr-defined]
    model.forward = forward
    return model


def absolute() -> Any:
    """Healthy, with learned positions and a tokenizer that pads on the left."""
    return builtin.build("mha", None), acted._tokenizer(
        eos_token="end", pad_token="the", padding_side="left"
    )


def rotary() -> Any:
    """Healthy, with rotary positions and a tokenizer that pads on the left."""
    return acted.healthy(), acted._tokenizer(eos_token="end", pad_token="the", padding_side="left")


def without_pad_token() -> Any:
    """Healthy, with a tokenizer that has no padding token."""
    return acted.healthy(), acted._tokenizer(eos_token="end")


def mask_of_the_first_row() -> Any:
    """Every row of a batch gets the mask of the first one."""
    model, tokenizer = rotary()

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        mask = call.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[0] > 1:
            call = {**call, "attention_mask": mask[:1].expand_as(mask)}
        return call

    wrap_forward(model, edit)
    return model, tokenizer


def without_pad_token_and_padding_seen() -> Any:
    """The mask of a padded batch is dropped; the tokenizer has no padding token."""
    model, tokenizer = without_pad_token()

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        rows = call["input_ids"].shape[0] if isinstance(call.get("input_ids"), Tensor) else 1
        return {**call, "attention_mask": None} if rows > 1 else call

    wrap_forward(model, edit)
    return model, tokenizer


def two_faults() -> Any:
    """Scores are scaled by half, and positions restart on a cache."""
    model = builtin.build("broken-positions", None)

    def handler(call: AttentionCall) -> Any:
        call.query_BHTD = call.query_BHTD * 0.5
        return call.run()

    return acted._injected(model, handler)


def near_ties_with_words() -> Any:
    """Healthy, with best tokens that are nearly tied, and a tokenizer."""
    return acted.near_ties(), acted._tokenizer(
        eos_token="end", pad_token="the", padding_side="left"
    )


def half_cache() -> Any:
    """The keys of steps on a cache are kept in half precision, whatever the model's."""
    model = acted.healthy()

    def handler(call: AttentionCall) -> Any:
        if call.query_BHTD.shape[2] < call.key_BGSD.shape[2]:
            call.key_BGSD = call.key_BGSD.to(torch.bfloat16).to(call.key_BGSD.dtype)
        return call.run()

    return acted._injected(model, handler)


def chat_template() -> Any:
    """Healthy, with a chat template."""
    return acted.chat()


def step_off_by_one_in_long_answers() -> Any:
    """Steps past 40 tokens rotate with the position before."""
    model, tokenizer = rotary()

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        before = max(cached_length(call.get(name)) for name in CACHE_NAMES)
        given = call.get("position_ids")
        if before < 40:
            return call
        new = call["input_ids"].shape[1]
        usual = torch.arange(before, before + new)[None] if given is None else given
        return {**call, "position_ids": usual - 1}

    wrap_forward(model, edit)
    return model, tokenizer
