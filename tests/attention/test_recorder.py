"""Attention calls are recorded in order, wherever the model computes them, and the model runs on."""

from __future__ import annotations

import pytest
import torch
from probing import loaded

from attncheck.attention.call import AttentionCall
from attncheck.attention.recorder import capture, record
from attncheck.core.errors import Unsupported
from attncheck.model.forward_spec import ForwardSpec


@pytest.mark.parametrize(("target", "inline"), [("builtin:gqa", False), ("config:bloom", True)])
def test_calls_are_recorded_at_the_interface_and_inline(target: str, inline: bool) -> None:
    subject = loaded(target)
    tokens = subject.inputs.tokens
    plain_BTV = subject.logits(ForwardSpec(tokens))
    with torch.no_grad(), record(subject.model, AttentionCall.copy, inline=inline) as calls:
        recorded_BTV = subject.passes.call(tokens, use_cache=False).logits_BTV
    assert len(calls) == subject.text_config.num_hidden_layers
    assert [call.inline for call in calls] == [inline] * len(calls)
    assert torch.equal(plain_BTV, recorded_BTV)
    assert len(subject.record_calls(tokens, lambda call: call.module)) == len(calls)


def test_a_handler_changes_what_the_model_computes() -> None:
    subject = loaded("builtin:gqa")
    tokens = subject.inputs.tokens

    def halve(call: AttentionCall) -> object:
        call.query_BHTD = call.query_BHTD / 2
        return call.run()

    with torch.no_grad(), capture(subject.model, halve):
        changed_BTV = subject.passes.call(tokens, use_cache=False).logits_BTV
    assert not torch.allclose(changed_BTV, subject.logits(ForwardSpec(tokens)))


def test_a_model_without_attention_is_unsupported() -> None:
    subject = loaded("config:mamba2")
    with pytest.raises(Unsupported, match="runs no attention"):
        subject.record_calls(subject.inputs.tokens, AttentionCall.copy)
