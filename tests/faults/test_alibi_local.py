"""alibi-local is injected, caught by decode-paths and named."""

from __future__ import annotations

from injecting import assert_found, assert_refused


def test_it_is_caught_named_and_located() -> None:
    assert_found("alibi-local", "builtin:alibi", "decode-paths", "transformer.h.0.self_attention")


def test_a_model_without_a_place_for_it_is_refused() -> None:
    assert_refused("alibi-local", "builtin:gqa", "builds no linear biases")
