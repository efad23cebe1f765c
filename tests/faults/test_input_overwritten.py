"""input-overwritten is injected, caught by repeatability alone and named."""

from __future__ import annotations

from injecting import assert_found_by_one, assert_refused


def test_it_is_caught_by_one_probe_and_named() -> None:
    assert_found_by_one("input-overwritten", "builtin:gqa", "repeatability")


def test_a_model_that_needs_the_ids_as_well_has_no_place_for_it() -> None:
    reason = "`inputs_embeds` alone: .*AttributeError"
    assert_refused("input-overwritten", "config:deepseek_v4", reason)
