"""document-leak is injected, caught by document-leakage and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_named_and_located() -> None:
    assert_found("document-leak", "builtin:gqa", "document-leakage", "model.layers.0.self_attn")
