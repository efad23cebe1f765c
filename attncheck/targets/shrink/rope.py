"""Rotary tables of small configs: whatever depends on the head width or on the trained length is
cut with it.
"""

from __future__ import annotations

from typing import Any

from attncheck.targets.shrink.rules import HEAD_DIM, ROTARY_DIM, SWITCH


def shrunk_rope(table: Any, *, latent: bool) -> Any:
    """A `rope_parameters` or `rope_scaling` dictionary for a small head; anything else as it is."""
    if not isinstance(table, dict):
        return table
    width = ROTARY_DIM if latent else HEAD_DIM
    pairs = int(width * table.get("partial_rotary_factor", 1.0)) // 2
    return {key: _entry(key, value, pairs, latent) for key, value in table.items()}


def has_length_switch(table: Any) -> bool:
    """Whether a rotary table changes where the trained length ends (dynamic NTK)."""
    return isinstance(table, dict) and "dynamic" in (table.get("rope_type"), table.get("type"))


def _entry(key: str, value: Any, pairs: int, latent: bool) -> Any:
    if isinstance(value, dict):
        return shrunk_rope(value, latent=latent)
    if key == "mrope_section" and value:
        share = [pairs // len(value)] * len(value)
        return [size + (number < pairs - sum(share)) for number, size in enumerate(share)]
    if key in ("short_factor", "long_factor") and value:
        return list(value)[:pairs]
    if key == "original_max_position_embeddings" and value:
        return min(value, SWITCH)
    return value
