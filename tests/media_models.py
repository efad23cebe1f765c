"""Small models that read pictures, sound or codebooks, each loaded once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import transformers
from probing import loaded

from attncheck.core import registry
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import diagnose
from attncheck.faults import registry as faults
from attncheck.model.kept_state import model_untouched
from attncheck.model.subject import Subject
from attncheck.run.runner import finding_of
from attncheck.targets.amplify import amplify
from attncheck.targets.shrink.rules import Wanted
from attncheck.targets.shrink.shrink import shrink


@lru_cache(maxsize=12)
def multimodal(name: str) -> Subject:
    return loaded(f"config:multimodal/{name}")


@lru_cache(maxsize=1)
def codebooks() -> Subject:
    """Tokens with codes of three codebooks beside each, without the window that the cache alone
    has.
    """
    config = shrink(transformers.KyutaiSpeechToTextConfig(), Wanted())
    config.sliding_window = config.max_position_embeddings
    torch.manual_seed(0)
    model = transformers.KyutaiSpeechToTextForConditionalGeneration(config)
    amplify(model, 0)
    return Subject.of(model, "codebooks", dtype="float64")


@lru_cache(maxsize=1)
def masking_multimodal() -> Subject:
    """Mllama whose cross attention gives nothing to a token that may read no picture, as published."""
    subject = loaded("config:multimodal/mllama")
    for layer in subject.model.model.language_model.layers:
        if hasattr(layer, "cross_attn"):
            _switch_masked_states_off(layer)
    return subject


def _switch_masked_states_off(layer: Any) -> None:
    usual, inner = layer.forward, layer.cross_attn.forward

    def forward(*args: Any, **named: Any) -> Any:
        visible = named.get("full_text_row_masked_out_mask")

        def attention(*given: Any, **options: Any) -> Any:
            out, weights = inner(*given, **options)
            return (out if visible is None else out * visible[:, 0]), weights

        layer.cross_attn.forward = attention
        return usual(*args, **named)

    layer.forward = forward


def named(subject: Subject, probe: str) -> str:
    """The fault that the diagnosis of a failing probe names."""
    found = finding_of(subject, registry.load(probe))
    assert found.verdict is Verdict.FAIL, found.summary
    with model_untouched(subject.model):
        found = diagnose(subject, found)
    assert found.diagnosis is not None
    return found.diagnosis.fault


def assert_named(fault: str, target: str | Subject, probe: str) -> None:
    """The healthy model passes the probe, and with the fault it fails and the fault is named."""
    subject = multimodal(target) if isinstance(target, str) else target
    healthy = finding_of(subject, registry.load(probe))
    assert healthy.verdict in (Verdict.PASS, Verdict.WARN), healthy.summary
    with faults.fault(fault).injected(subject):
        assert named(subject, probe) == fault
