"""What the usual forwards never show: a model's own reordering of beams, the slots of a buffer that
hold no token yet, what an earlier batch or encoder input leaves behind, and padding of the encoder
that is read in steps only.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import transformers
from probing import case, finding, loaded
from torch import nn

from attncheck.core.finding import Finding
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.encoder_padding import reader_of_padding
from attncheck.model.generation import padded_encoder
from attncheck.model.subject import Subject

# Axes: B batch, T positions, S source positions, W hidden width.


def _found(target: str, probe: str, change: Callable[[Any], None]) -> tuple[Subject, Finding]:
    subject = loaded(target, dtype="float64")
    change(subject.model)
    return subject, finding(subject, probe)


def _calls(module: nn.Module, edit: Callable[[dict[str, Any]], None]) -> None:
    """Let an edit change the named arguments of every call of a module; hidden states are named."""

    def before(_: nn.Module, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        names = ("hidden_states",) if len(args) == 1 else ()
        named = dict(zip(names, args, strict=False)) | named
        edit(named)
        return args[len(names) :], named

    module.register_forward_pre_hook(before, with_kwargs=True)


def test_a_models_own_reordering_is_what_beam_search_calls() -> None:
    def keys_only(self: Any, cache: Any, rows: torch.Tensor) -> Any:
        for layer in cache.layers:
            layer.keys = layer.keys.index_select(0, rows)
        return cache

    def change(model: Any) -> None:
        model._reorder_cache = types.MethodType(keys_only, model)

    subject, found = _found("builtin:gqa", "cache-kinds", change)
    assert verdict_of(case(found, "rows turned round")) is Verdict.FAIL
    explained = diagnose(subject, found).diagnosis
    assert explained is not None
    assert explained.fault == "cache-reorder"


def test_slots_that_hold_no_token_are_told_from_padding() -> None:
    def change(model: Any) -> None:
        def unmask(named: dict[str, Any]) -> None:
            static = isinstance(named.get("cache"), transformers.StaticCache)
            if static and named["hidden_states"].shape[1] == 1:
                named["attention_mask"] = None

        for layer in model.model.layers:
            _calls(layer.self_attn, unmask)

    subject, found = _found("builtin:gqa", "cache-kinds", change)
    explained = diagnose(subject, found).diagnosis
    assert explained is not None
    assert explained.how == "measured"
    assert explained.sentence.startswith(
        "Slots that hold no token yet can be read, in calls of one token on a cache."
    )


def test_what_a_padded_batch_leaves_behind_is_found_in_the_steps_of_the_next_text() -> None:
    def change(model: Any) -> None:
        def shift(named: dict[str, Any]) -> None:
            cache, mask = named.get("cache"), named.get("attention_mask")
            past = int(cache.get_seq_length()) if cache is not None else 0
            if not past and isinstance(mask, torch.Tensor) and mask.ndim == 2:
                model.offset = int((mask == 0).sum(1).max())
            if past and mask is None and named.get("position_ids") is None:
                new = torch.arange(named["input_ids"].shape[1])
                named["position_ids"] = (new + past - getattr(model, "offset", 0))[None]

        _calls(model, shift)

    subject, found = _found("builtin:gqa", "repeatability", change)
    assert verdict_of(case(found, "the same forward after a batch")) is Verdict.PASS
    assert verdict_of(case(found, "the same steps twice")) is Verdict.FAIL
    explained = diagnose(subject, found).diagnosis
    assert explained is not None
    assert (explained.fault, explained.how) == ("position-offset", "measured")
    assert explained.sentence.startswith("`LlamaForCausalLM.offset` is kept between calls:")


def test_keys_of_the_first_encoder_input_are_not_kept_for_the_next() -> None:
    def change(model: Any) -> None:
        for layer in model.model.decoder.layers:
            kept: dict[Any, torch.Tensor] = {}

            def reuse(named: dict[str, Any], kept: dict[Any, torch.Tensor] = kept) -> None:
                source_BSW = named["key_value_states"]
                named["key_value_states"] = kept.setdefault(source_BSW.shape, source_BSW)

            _calls(layer.encoder_attn, reuse)

    _, found = _found("config:seq2seq/bart", "repeatability", change)
    judged = case(found, "another encoder input")
    assert verdict_of(judged) is Verdict.FAIL
    assert judged.note == "after the first encoder input, other tokens in the encoder"


def test_padding_of_the_encoder_that_is_read_in_steps_is_named() -> None:
    def change(model: Any) -> None:
        def unmask(named: dict[str, Any]) -> None:
            if named["hidden_states"].shape[1] == 1:
                named["attention_mask"] = None

        for layer in model.model.decoder.layers:
            _calls(layer.encoder_attn, unmask)

    subject, found = _found("config:seq2seq/bart", "padding", change)
    told = diagnose(subject, found)
    assert told.diagnosis is not None
    assert (told.diagnosis.fault, told.diagnosis.how) == ("padding-visible", "reproduced")
    assert told.location is not None
    assert told.location.module == "model.decoder.layers.0.encoder_attn"


def test_one_layer_of_an_encoder_that_reads_padding_is_named() -> None:
    subject = loaded("config:seq2seq/bart", dtype="float64")
    padded = padded_encoder(subject, 6)
    assert reader_of_padding(subject, padded) == ""
    layer = subject.model.model.encoder.layers[1]
    _calls(layer.self_attn, lambda named: named.update(attention_mask=None))
    assert reader_of_padding(subject, padded) == "model.encoder.layers.1.self_attn"
