"""For each kind of skip, whether its reason holds: found by calling the model as a user does, or by
reading its class, config and source. Nothing here asks attncheck what a model can do.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import cache_utils
from transformers.generation import utils as generation_utils

from attncheck.core.settings import Settings
from attncheck.targets.load import load

LENGTH = 16


@dataclass(frozen=True)
class Case:
    """One skipped question: the target, what the report says of its model, and the reason."""

    target: str
    model: dict[str, Any]
    reason: str


@functools.lru_cache(maxsize=4)
def built(target: str) -> Any:
    """The small model of a target, in float64 as the sweep has it."""
    return load(target, Settings()).model.eval()


def ids(model: Any, rows: int = 1) -> torch.Tensor:
    """Token ids that every vocabulary holds."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(5, 60, (rows, LENGTH), generator=generator)


def call(model: Any, tokens: torch.Tensor, **more: Any) -> Any:
    """One forward; an encoder-decoder gets the same tokens on both sides."""
    decoder = model.config.is_encoder_decoder
    both = {"decoder_input_ids": tokens} if decoder else {}
    with torch.no_grad():
        return model(input_ids=tokens, **both, **more)


def raises(function: Callable[[], Any]) -> bool:
    """Whether a call raises."""
    try:
        function()
    except Exception:
        return True
    return False


def source(model: Any) -> str:
    """The text of the file that defines the model's class."""
    return inspect.getsource(sys.modules[type(model).__module__])


def text(model: Any) -> Any:
    """The config of the text decoder."""
    config = model.config
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def reads_ahead(model: Any, case: Case) -> bool:
    """the class is a masked language model or cannot generate, or the config says so"""
    config = text(model)
    said = getattr(config, "attn_type", "") == "bi" or getattr(config, "prompt_types", None)
    hashing = "lsh" in (getattr(config, "attn_layers", None) or ())
    causal = getattr(config, "causal", True) and getattr(config, "is_causal", True)
    encoder = type(model).__name__.endswith("ForMaskedLM") or not model.can_generate()
    decoder = getattr(config, "is_decoder", True)
    return bool(said or hashing or encoder) or not causal or not decoder


def no_such_argument(model: Any, case: Case) -> bool:
    """the signature of `forward` has no such name"""
    named = re.search(r"takes no `?(\w+)", case.reason)
    names = {"picture": "pixel_values"}
    wanted = names.get(named.group(1), named.group(1)) if named else ""
    aliases = {"cache": ("cache", "past_key_values", "state", "mems", "cache_params")}
    parameters = inspect.signature(model.forward).parameters
    if wanted == "num_items_in_batch":
        return not getattr(model, "accepts_loss_kwargs", False)
    return not any(name in parameters for name in aliases.get(wanted, (wanted,)))


def no_generate(model: Any, case: Case) -> bool:
    """`can_generate()` is false, or there is no `generate`"""
    return not hasattr(model, "generate") or not model.can_generate()


def host_only(model: Any, case: Case) -> bool:
    """the parameters are on the CPU"""
    return all(parameter.device.type == "cpu" for parameter in model.parameters())


def implementation_refused(model: Any, case: Case) -> bool:
    """`set_attn_implementation` raises, or another implementation stands in the config afterwards"""
    wanted = re.findall(r"`(eager|sdpa|flex_attention)`", case.reason)[-1:]
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(wanted[0])
        return bool(model.config._attn_implementation != wanted[0])
    except Exception:
        return True
    finally:
        model.config._attn_implementation = before


def flex_on_cpu(model: Any, case: Case) -> bool:
    """the parameters are on the CPU, and the class takes a bias or a mask of its own"""
    return host_only(model, case) and bool(re.search(r"bias|mask", source(model)))


def no_encoder(model: Any, case: Case) -> bool:
    """`is_encoder_decoder` is false, or the encoder reads something else than ids"""
    sound = "input_features" in inspect.signature(model.forward).parameters
    return (
        not model.config.is_encoder_decoder
        or sound
        or "input_values" in str(inspect.signature(model.forward))
    )


def no_4d_mask(model: Any, case: Case) -> bool:
    """a forward under a 4D mask raises, or moves with tokens that the mask hides"""
    tokens, half = ids(model), LENGTH // 2
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    allowed[half:, :half] = False
    mask = torch.zeros(1, 1, LENGTH, LENGTH, dtype=model.dtype)
    mask = mask.masked_fill(~allowed, torch.finfo(torch.float32).min)
    name = "decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"
    changed = tokens.clone()
    changed[:, :half] = tokens[:, :half].flip(1)
    try:
        left, right = (call(model, each, **{name: mask}) for each in (tokens, changed))
    except Exception:
        return True
    return bool((left.logits[:, half:] - right.logits[:, half:]).abs().max() > 1e-9)


def mask_dtype(model: Any, case: Case) -> bool:
    """a forward under a boolean 2D mask raises"""
    tokens = ids(model)
    return raises(lambda: call(model, tokens, attention_mask=torch.ones_like(tokens).bool()))


def one_dtype(model: Any, case: Case) -> bool:
    """a forward of a copy that was cast to bfloat16 raises, or a weight cannot be cast"""
    cast = copy.deepcopy(model).to(torch.bfloat16)
    return raises(lambda: call(cast, ids(cast), use_cache=True))


def no_rotation(model: Any, case: Case) -> bool:
    """the class's file applies no rotary embedding, or the named layer is one without"""
    named = case.reason.split(":")[0]
    layer = dict(model.named_modules()).get(named)
    own = inspect.getsource(type(layer)) if layer is not None else source(model)
    plain = not re.search(r"apply_rotary|rotary_emb|_rotary\b", own)
    return plain or bool(re.search(r"use_rope|no_rope|is_nope|rope_layer|is_local|rope", own))


def no_padding_id(model: Any, case: Case) -> bool:
    """`pad_token_id` of the config is None, or lies outside of the vocabulary"""
    pad = getattr(model.config, "pad_token_id", None)
    return pad is None or not 0 <= pad < text(model).vocab_size


def other_states(model: Any, case: Case) -> bool:
    """the class's file reads an encoder, a memory, a prefix or compressed blocks"""
    return bool(
        re.search(r"encoder_hidden_states|memory|compress|cross|prompt|latent", source(model))
    )


def no_attention_to_watch(model: Any, case: Case) -> bool:
    """no call of the library's attention interface in the class's file"""
    return "ALL_ATTENTION_FUNCTIONS" not in source(model) or "compress" in source(model)


def not_traced(model: Any, case: Case) -> bool:
    """the layer's own source has more between projection and kernel than a reshape and a rotation"""
    layer = dict(model.named_modules()).get(case.reason.split(":")[0])
    own = inspect.getsource(type(layer)) if layer is not None else source(model)
    return bool(
        re.search(r"lambda|conv|_a_proj|_b_proj|norm|einsum|gate|index|topk|sinks|bias|buffer", own)
    )


def positions_unread(model: Any, case: Case) -> bool:
    """reversed `position_ids` give the same logits"""
    tokens = ids(model)
    forwards = torch.arange(LENGTH)[None]
    mask = torch.ones_like(tokens)
    both = (forwards, forwards.flip(1))
    left, right = (
        call(model, tokens, position_ids=each, attention_mask=mask).logits for each in both
    )
    return bool((left - right).abs().max() < 1e-9)


def no_packing(model: Any, case: Case) -> bool:
    """the second document moves with the first, although `position_ids` restart"""
    tokens, half = ids(model), LENGTH // 2
    restarted = torch.arange(LENGTH)[None] % half
    other = torch.cat([tokens[:, :half].flip(1), tokens[:, half:]], 1)
    left, right = (
        call(model, each, position_ids=restarted).logits[:, half:] for each in (tokens, other)
    )
    return bool((left - right).abs().max() > 1e-9)


def no_stated_span(model: Any, case: Case) -> bool:
    """the config names the type of the layer, and no length of it"""
    named = re.search(r"type `(\w+)`", case.reason)
    if named is None:
        return True  # no gradient of a query projection: recurrences and Fourier layers
    types = getattr(text(model), "layer_types", None) or getattr(text(model), "attn_layers", ())
    return named.group(1) in (types or ()) or named.group(1) not in ("full_attention",)


def short_context(model: Any, case: Case) -> bool:
    """the config states a context, or a length at which rotary scaling switches, below 130"""
    config = text(model)
    found = re.findall(r"\d+", str(getattr(config, "max_position_embeddings", "")))
    scaling = str(getattr(config, "rope_parameters", "") or getattr(config, "rope_scaling", ""))
    original = re.findall(r"original_max_position_embeddings'?: (\d+)", scaling)
    original.append(str(getattr(config, "original_max_position_embeddings", 1000)))
    return any(int(each) < 150 for each in (*found, *original))


def asked_elsewhere(model: Any, case: Case) -> bool:
    """the model takes positions and a cache, or the report is about a lower precision"""
    return "which decides" in case.reason or "position_ids" in str(inspect.signature(model.forward))


def within_window(model: Any, case: Case) -> bool:
    """the tokens of the picture or sound are no more than the config's window"""
    tokens = int(re.findall(r"\((\d+) tokens\)", case.reason)[0])
    return tokens <= (getattr(text(model), "sliding_window", None) or tokens)


def states_only(model: Any, case: Case) -> bool:
    """the returned cache has no layer with keys and values for every token"""
    cache = returned_cache(model)
    layers = getattr(cache, "layers", None)
    return (
        layers is None
        or all(getattr(layer, "keys", None) is None for layer in layers)
        or (getattr(text(model), "num_attention_heads", None) is None)
    )


def returned_cache(model: Any) -> Any:
    """The cache that a forward with `use_cache=True` returns."""
    output = call(model, ids(model), use_cache=True)
    names = ("cache", "past_key_values", "state", "mems", "cache_params")
    return next((found for n in names if (found := getattr(output, n, None)) is not None), None)


def own_cache(model: Any, case: Case) -> bool:
    """the returned cache is none of the library's, or its layers lack the operation"""
    cache = returned_cache(model)
    if not isinstance(cache, transformers.Cache):
        return True
    if "counts its tokens" in case.reason:
        return raises(cache.get_seq_length) or cache.get_seq_length() == 0
    named = re.search(r"has no `(\w+)`", case.reason)
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", [])
    return named is not None and any(not hasattr(layer, named.group(1)) for layer in layers)


def cache_kind_refused(model: Any, case: Case) -> bool:
    """the library's constructor or the model raises, or the class declares no static cache"""
    if "StaticCache" in case.reason:
        return not transformers.StaticCache(text(model), max_cache_len=130).is_croppable
    if "cannot be cropped" in case.reason:
        return not getattr(returned_cache(model), "is_croppable", False)
    if "quantised" in case.reason:
        return raises(lambda: transformers.QuantizedCache(backend="quanto", config=text(model)))
    return not model._can_compile_fullgraph or not isinstance(
        returned_cache(model), transformers.Cache
    )


def packing_unknown(model: Any, case: Case) -> bool:
    """the class's file does not use the library's mask builder"""
    return "create_causal_mask" not in source(model)


def content_chosen(model: Any, case: Case) -> bool:
    """the class's file chooses keys by their scores"""
    return bool(re.search(r"topk|top_k|argsort", source(model)))


def embeddings_refused(model: Any, case: Case) -> bool:
    """there is an encoder, a second table for ids, or the call with embeddings raises"""
    tables = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    if model.config.is_encoder_decoder or hasattr(text(model), "encoder") or len(tables) > 1:
        return True
    table = model.get_input_embeddings()
    return raises(lambda: model(inputs_embeds=table(ids(model)))) or raises(
        lambda: model.generate(inputs_embeds=table(ids(model)), max_new_tokens=2)
    )


def option_refused(model: Any, case: Case) -> bool:
    """the words of the reason stand in the source, or the class has a generate() of its own or
    declares no static cache
    """
    own = getattr(type(model), "generate", None) is not transformers.GenerationMixin.generate
    if own or not (model._can_compile_fullgraph or "Error: `" in case.reason):
        return True
    words = re.sub(r"^generate\(\) (raises \w+: )?", "", case.reason)
    parts = [part for part in re.split(r"[`'{}\"]|\b\w+(?:For|LM)\w+\b", words) if len(part) > 20]
    texts = [source(model)]
    texts += [inspect.getsource(cache_utils)]
    texts += [inspect.getsource(generation_utils)]
    flat = " ".join(re.sub(r'"\s+f?"', "", each) for each in texts)
    return any(part.strip()[:40] in flat for part in parts) or "sound" in words


def loss_of_its_own(model: Any, case: Case) -> bool:
    """a forward with `labels` raises or returns no loss, or the loss is computed in the class itself"""
    tokens = ids(model)
    try:
        loss = call(model, tokens, labels=tokens).loss
    except Exception:
        return True
    return loss is None or "self.loss_function" not in source(model) or "labels" in case.reason


def rows_alike(model: Any, case: Case) -> bool:
    """of two prompts, neither is answered by a token that is not in the answer to the other"""
    first = ids(model)
    second = first.clone()
    second[:, : LENGTH // 2] = second[:, : LENGTH // 2].flip(1)
    answers = [
        model.generate(each, max_new_tokens=4, do_sample=False, decoder_start_token_id=5)[:, -4:]
        for each in (first, second)
    ]
    one, other = (set(map(int, answer[0])) for answer in answers)
    return one == other


def no_smooth_step(model: Any, case: Case) -> bool:
    """central differences along a random direction of a projection change with the step"""
    weight = next(p for n, p in model.named_parameters() if re.search(r"(?i)q|query|k_proj", n))
    direction = torch.randn(weight.shape, dtype=weight.dtype) * weight.abs().mean()
    found = []
    with torch.no_grad():
        for step in (1e-4, 1e-6):
            sides = []
            for sign in (1, -1):
                weight += sign * step * direction
                sides.append(call(model, ids(model)).logits.log_softmax(-1)[..., 5].sum())
                weight -= sign * step * direction
            found.append(float(sides[0] - sides[1]) / (2 * step))
    return abs(found[0] - found[1]) > 1e-4 * max(map(abs, found))


def one_kv_head(model: Any, case: Case) -> bool:
    """the config names one head of keys and values"""
    return getattr(text(model), "num_key_value_heads", 1) == 1


def no_checkpointing(model: Any, case: Case) -> bool:
    """`supports_gradient_checkpointing` of the class is false"""
    return not type(model).supports_gradient_checkpointing


def limit_in_words(model: Any, case: Case) -> bool:
    """the words of the reason stand in the source of the class"""
    return option_refused(model, Case(case.target, case.model, case.reason.split(": ", 1)[-1]))


def positions_beyond(model: Any, case: Case) -> bool:
    """a forward with positions far from 0 raises"""
    far = torch.arange(LENGTH)[None] + 100
    return raises(lambda: call(model, ids(model), position_ids=far))


def no_exception(model: Any, case: Case) -> bool:
    """an exception of a hook behind the last module does not leave the forward"""

    def throw(*_: Any) -> None:
        raise RuntimeError("a hook")

    last = [module for module in model.modules() if not list(module.children())][-1]
    handle = last.register_forward_hook(throw)
    try:
        return not raises(lambda: call(model, ids(model)))
    finally:
        handle.remove()


def random_training(model: Any, case: Case) -> bool:
    """two forwards in training mode differ with every dropout at zero"""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    left, right = (call(model, ids(model)).logits for _ in range(2))
    model.eval()
    return not torch.equal(left, right)


def float64_only(model: Any, case: Case) -> bool:
    """a left-padded batch under eager attention raises in float64, or the model is in another dtype"""
    if model.dtype != torch.float64:
        return True
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    mask[:, :3] = 0
    name = "decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"
    model.set_attn_implementation("eager")
    return raises(lambda: call(model, ids(model), use_cache=False, **{name: mask}))


def no_compiler(model: Any, case: Case) -> bool:
    """a compiled forward raises"""
    compiled = torch.compile(model, fullgraph=True)
    return raises(lambda: call(compiled, ids(model)))


def no_item_passed(model: Any, case: Case) -> bool:
    """a forward with one random picture or spectrum of the config's size raises, or ignores it"""
    names = inspect.signature(model.forward).parameters
    side = getattr(getattr(model.config, "vision_config", None), "image_size", None) or 28
    shapes = {"pixel_values": (1, 3, side, side), "input_features": (1, 16, 64)}
    given = {name: size for name, size in shapes.items() if name in names}
    plain = call(model, ids(model)).logits

    def moved() -> bool:
        items = {name: torch.randn(size, dtype=torch.float64) for name, size in given.items()}
        return not torch.equal(call(model, ids(model), **items).logits, plain)

    return raises(moved) or not moved()


def items_of_their_own(model: Any, case: Case) -> bool:
    """the class has a rule for positions of pictures, or prepares a static cache itself"""
    inner = [module for module in model.modules() if hasattr(module, "get_rope_index")]
    return bool(inner) or "_prepare_static_cache" in vars(type(model))


def codes_beside(model: Any, case: Case) -> bool:
    """the config names codebooks"""
    return hasattr(model.config, "num_codebooks")


def left_out(model: Any, case: Case) -> bool:
    """the reason names the option of the run that left the question out"""
    return "--quick" in case.reason or "--budget" in case.reason


CHECKS: dict[str, Callable[[Any, Case], bool]] = {
    name.replace("_", "-"): check
    for name, check in list(globals().items())
    if inspect.isfunction(check) and list(inspect.signature(check).parameters) == ["model", "case"]
}


def confirmed(kind: str, case: Case) -> bool:
    """Whether the check of a kind agrees with the reason of a skip."""
    check = CHECKS.get(kind)
    try:
        return check is not None and check(built(case.target), case)
    except Exception as error:
        print(f"{kind}: {case.target}: the check raises {error!r}", file=sys.stderr)
        return False
