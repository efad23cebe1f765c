"""Where no fault reproduces a failure, the change of the call that fixes it is named."""

from __future__ import annotations

from typing import Any

import torch
from diagnosing import explained
from probing import loaded

from attncheck.model.forward import edited


def test_what_nothing_reproduces_is_not_named() -> None:
    subject = loaded("builtin:gqa")

    def odd(call: dict[str, Any]) -> dict[str, Any]:
        ids = call["input_ids"]
        started = call.get("cache") is not None or call.get("past_key_values") is not None
        return {**call, "input_ids": (ids * 7 + 3) % 100} if started else call

    with edited(subject.model, odd):
        told = explained(subject, "decode-paths").diagnosis
    assert told is not None
    assert (told.how, told.fault) == ("measured", "")
    assert told.sentence.startswith("In model `self.embed_tokens(input_ids)` (modeling_llama.py:")
    assert "what goes in was made by `(ids * 7 + 3) % 100`" in told.sentence
    assert "position-restart" in told.ruled_out


def test_positions_that_no_known_fault_has_are_measured() -> None:
    subject = loaded("builtin:gqa")

    def lost(call: dict[str, Any]) -> dict[str, Any]:
        cache = call.get("cache") if "cache" in call else call.get("past_key_values")
        if cache is None or not cache.get_seq_length() or call.get("position_ids") is not None:
            return call
        ids = call["input_ids"]
        return {**call, "position_ids": torch.arange(ids.shape[1])[None] * 5 + 11}

    with edited(subject.model, lost):
        told = explained(subject, "decode-paths").diagnosis
    assert told is not None
    assert (told.fault, told.family, told.how) == ("", "position-offset", "measured")
    assert "are rotated as if at positions 11, 16, 21, 26" in told.sentence
