"""label-shift is injected, caught by labels and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_and_named() -> None:
    assert_found("label-shift", "builtin:gqa", "labels", "LlamaForCausalLM.loss_function")
