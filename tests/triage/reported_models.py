"""Models that act out what people report: healthy ones with one fault of a real bug, or with a
setting that misleads.

Each function is a target: `attncheck triage tests/triage/reported_models.py:NAME`.
"""

from __future__ import annotations

import atexit
import copy
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall, Handler
from attncheck.attention.recorder import capture
from attncheck.model.forward import wrap_forward
from attncheck.targets import builtin
from attncheck.targets.amplify import amplify

# Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width,
# R rows, C columns.

TEXT = "the a cat dog sat ran on mat and saw moon over hill one two three four five six seven end"
WORDS = TEXT.split()
EOS = len(WORDS) - 1


def _injected(model: Any, handler: Handler) -> Any:
    """The model with its attention kernel changed for the rest of the process.

    `atexit` keeps both alive. This file is imported anew for every target: if the interception were
    collected with an earlier import, it would restore that import's kernels in the middle of a
    later test; if the model were, another model's modules could get the ids of its own.
    """
    interception = capture(model, handler)
    interception.__enter__()
    atexit.register(lambda: (interception, model))
    return model


def _tokenizer(**said: Any) -> Any:
    words = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="the")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **said)


def healthy() -> Any:
    """A Llama without any fault."""
    return builtin.build("gqa", None)


def scaled_twice() -> Any:
    """Accuracy gone after an upgrade: the scale is applied to the queries, and by the kernel again,
    in every implementation.
    """

    def handler(call: AttentionCall) -> Any:
        call.query_BHTD = call.query_BHTD * call.query_BHTD.shape[-1] ** -0.5
        return call.run()

    return _injected(healthy(), handler)


def cap_dropped_with_padding() -> Any:
    """Wrong answers in a batch: the default implementation drops the soft-cap of the scores as soon
    as there is a mask.
    """
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=64,
        attn_logit_softcapping=1.0,
        query_pre_attn_scalar=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    amplify(model, 0)

    def handler(call: AttentionCall) -> Any:
        padded = isinstance(call.mask, Tensor) and call.query_BHTD.shape[0] > 1
        if padded:
            call.options = {
                name: value for name, value in call.options.items() if name != "softcap"
            }
            call.options["softcap"] = None
        return call.run()

    return _injected(model, handler)


def sampling() -> Any:
    """Another engine answers differently at temperature 0: this one samples unless it is told not
    to.
    """
    model = healthy()
    model.generation_config.do_sample = True
    model.generation_config.temperature = 0.7
    return model


def original() -> Any:
    """The checkpoint that a conversion started from."""
    return healthy()


def converted() -> Any:
    """Gibberish after a conversion: queries and keys were re-ordered for pairs of one number of
    heads, and back for another.
    """
    model = original()
    for layer in model.model.layers:
        for projection, heads in ((layer.self_attn.q_proj, 4), (layer.self_attn.k_proj, 2)):
            weight_RC = projection.weight.data
            pairs_RC = (
                weight_RC.view(heads, 2, -1, weight_RC.shape[1])
                .transpose(1, 2)
                .reshape(weight_RC.shape)
            )
            wrong = 2 * heads
            back_RC = (
                pairs_RC.view(wrong, -1, 2, weight_RC.shape[1])
                .transpose(1, 2)
                .reshape(weight_RC.shape)
            )
            projection.weight.data = back_RC.clone()
    return model


def shared_keys_need_a_cache() -> Any:
    """Loss of 10 with `use_cache=False`: the upper layers take keys and values from the cache, and
    find none.
    """
    model = healthy()
    cached = {"now": False}

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        cached["now"] = call.get("use_cache") is not False
        return call

    def handler(call: AttentionCall) -> Any:
        if not cached["now"] and call.module.layer_idx >= 2:
            call.key_BGSD = torch.zeros_like(call.key_BGSD)
            call.value_BGSD = torch.zeros_like(call.value_BGSD)
        return call.run()

    wrap_forward(model, edit)
    return _injected(model, handler)


def mask_made_with_the_cache() -> Any:
    """Garbage without a cache, fine with one: the causal mask is only built where the cache is set
    up.
    """
    model = healthy()
    cached = {"now": False}

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        cached["now"] = call.get("use_cache") is not False
        return call

    def handler(call: AttentionCall) -> Any:
        if not cached["now"]:
            new, total = call.query_BHTD.shape[2], call.key_BGSD.shape[2]
            call.mask = torch.zeros(1, 1, new, total, dtype=call.query_BHTD.dtype)
        return call.run()

    wrap_forward(model, edit)
    return _injected(model, handler)


def overflows() -> Any:
    """Every answer is "!!!!": one layer's values outgrow float16."""
    model = healthy()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(300)
        model.model.layers[1].mlp.down_proj.weight.mul_(300)
    return model


class _Tailed(transformers.DynamicCache):
    """A cache whose copies hold the empty end of the buffer as well."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other = copy.copy(self)
        other.layers = [copy.copy(layer) for layer in self.layers]
        for layer in other.layers:
            layer.keys, layer.values = (
                nn.functional.pad(each, (0, 0, 0, 3)) for each in (layer.keys, layer.values)
            )
        return other


def empty_tail_saved() -> Any:
    """A saved prompt cache gives gibberish: what was saved is the whole buffer, its unused end
    included.
    """
    model = healthy()
    inner = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        cache = getattr(output, "past_key_values", None)
        if type(cache) is transformers.DynamicCache:
            cache.__class__ = _Tailed
        return output

    forward.__signature__ = __import__("inspect").signature(inner)  # type: ignore[attr-defined]
    model.forward = forward
    return model


def pad_is_eos() -> Any:
    """A tuned model never stops: padding and the end of text are one token, so the end is never a
    label.
    """
    return healthy(), _tokenizer(pad_token="end", eos_token="end")


def chat() -> Any:
    """A chat model asked with bare text."""
    tokenizer = _tokenizer(eos_token="end", pad_token="the", bos_token="seven")
    tokenizer.chat_template = (
        "{{ bos_token }} seven {% for m in messages %}{{ m.content }}{% endfor %} end"
    )
    return healthy(), tokenizer


def with_words() -> Any:
    """A healthy model with a tokenizer that pads on the right."""
    return healthy(), _tokenizer(eos_token="end", pad_token="the", padding_side="right")


def with_adapter() -> Any:
    """A base model with an adapter beside it, as it was trained."""
    model = healthy()
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for layer in model.model.layers:
            weight_RC = layer.self_attn.q_proj.weight
            up, down = (torch.randn(size, 2, generator=draw) * 0.2 for size in weight_RC.shape)
            weight_RC.add_((up @ down.T).to(weight_RC.dtype))
    return model


def merged_into_quantised() -> Any:
    """The adapter merged into a base of 4 bits: good beside the base, bad inside it."""
    base, adapted = healthy(), with_adapter()
    with torch.no_grad():
        for (name, plain), (_, tuned) in zip(
            base.named_parameters(), adapted.named_parameters(), strict=True
        ):
            if "proj" in name:
                step = plain.abs().amax(1, keepdim=True) / 7
                tuned.copy_((plain / step).round() * step + (tuned - plain))
    return adapted


def positions_lost_in_the_batch() -> Any:
    """Padded batches answer worse: the positions that are passed are dropped, and padding is
    counted.
    """
    model = builtin.build("mha", None)
    wrap_forward(
        model, lambda call: {name: value for name, value in call.items() if name != "position_ids"}
    )
    return model


def window_forgotten() -> Any:
    """Fine until it is long: one layer reads further back than its window."""
    model = builtin.build("window", None)

    def handler(call: AttentionCall) -> Any:
        if call.module.layer_idx == 0 and isinstance(call.mask, Tensor):
            new, total = call.query_BHTD.shape[2], call.key_BGSD.shape[2]
            allowed = torch.ones(new, total, dtype=torch.bool).tril(total - new)
            hidden = torch.finfo(call.query_BHTD.dtype).min
            call.mask = torch.zeros(1, 1, new, total, dtype=call.query_BHTD.dtype).masked_fill(
                ~allowed, hidden
            )
        return call.run()

    return _injected(model, handler)


def near_ties() -> Any:
    """Greedy text that turns: a healthy model whose best tokens are often nearly tied, as those of
    a real one are.
    """
    model = healthy()
    with torch.no_grad():
        model.lm_head.weight.mul_(0.05)
        model.lm_head.weight[1::2] = model.lm_head.weight[::2] * 1.001
    return model


def scaled_by_layer() -> Any:
    """A GPT-2 whose scores are divided by the number of the layer: some releases forget it in one
    implementation.
    """
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=128,
        n_embd=64,
        n_layer=4,
        n_head=4,
        n_positions=128,
        scale_attn_by_inverse_layer_idx=True,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    amplify(model, 0)
    return model


def loss_of_each_step() -> Any:
    """More accumulation steps, higher loss: the loss is averaged over each step, whatever number of
    labels it is told.
    """
    model = healthy()
    usual = model.loss_function
    model.loss_function = lambda *args, num_items_in_batch=None, **named: usual(*args, **named)
    return model
