"""generate-repeats-token is injected, caught by generate and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_and_named() -> None:
    method = "LlamaForCausalLM.prepare_inputs_for_generation"
    assert_found("generate-repeats-token", "builtin:gqa", "generate", method)
