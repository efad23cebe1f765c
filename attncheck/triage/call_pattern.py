"""A call pattern: on which axes a forward differs from one plain forward.

A `ForwardSpec` holds the exact arguments. A call pattern names the same arguments by axis, so that
they can be crossed, cut down and put into words: `attn` is `attn`, `schedule` is `chunks`, `cache`
is `use_cache` and `cache_kind`, `padding` and `mask` are `mask`, `positions` is `positions`, and
`batch` is the number of sequences in `tokens`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, final

from attncheck.model.forward_spec import ForwardSpec, Mask, Mask2D, Mask4D

CACHES = ("dynamic", "static", "offloaded", "static offloaded", "quantised")
WORDS = {
    ("schedule", "steps"): "decoded token by token on a cache",
    ("schedule", "chunks"): "fed in uneven chunks on a cache",
    ("cache", "on"): "with `use_cache=True`",
    ("cache", "static"): "on a static cache",
    ("cache", "quantised"): "on a quantised cache",
    ("padding", "left"): "left-padded",
    ("padding", "right"): "right-padded",
    ("mask", "2d"): "with a 2D mask of ones",
    ("mask", "4d"): "with a 4D mask",
    ("mask", "ones"): "with an `attention_mask` of ones",
    ("mask", "none"): "without an `attention_mask`",
    ("positions", "explicit"): "with `position_ids` passed",
    ("positions", "implicit"): "without `position_ids`",
}


@final
@dataclass(frozen=True, kw_only=True)
class CallPattern:
    """One value per axis. The defaults are one plain forward: one sequence, no cache, padding or
    mask, and the model's own implementation and positions.

    `mask` "none" leaves padding without one, "ones" hides none of it. `positions` is
    "explicit", "implicit" (none, not even under left padding) or empty (none save under left
    padding).
    """

    attn: str = ""
    schedule: str = ""
    cache: str = ""
    padding: str = ""
    batch: int = 1
    mask: str = ""
    positions: str = ""

    @property
    def axes(self) -> tuple[tuple[str, Any], ...]:
        """The axes on which it differs from one plain forward."""
        return tuple(
            (each.name, getattr(self, each.name))
            for each in fields(self)
            if getattr(self, each.name) != each.default
        )

    @staticmethod
    def of(axes: Iterable[tuple[str, Any]]) -> CallPattern:
        """One plain forward with these axes changed."""
        return CallPattern(**dict(axes))

    def __str__(self) -> str:
        return ", ".join(_words(*axis) for axis in self.axes) or "one plain forward"


def _words(name: str, value: Any) -> str:
    if name == "attn":
        return f"under `{value}` attention"
    if name == "batch":
        return f"in a batch of {value}"
    return WORDS.get((name, value), f"{name} {value}")


def pattern_of(spec: ForwardSpec) -> CallPattern:
    """The axes on which a forward differs from one plain forward."""
    padding = _padding(spec.mask)
    mask = "4d" if isinstance(spec.mask, Mask4D) else "2d" if spec.mask and not padding else ""
    return CallPattern(
        attn=spec.attn or "",
        schedule=_schedule(spec.chunks),
        cache=spec.cache_kind or ("on" if spec.use_cache is True else ""),
        padding=padding,
        batch=len(spec.tokens),
        mask=mask,
        positions="explicit" if spec.positions is not None and not padding else "",
    )


def _schedule(chunks: tuple[int, ...]) -> str:
    if len(chunks) < 2:
        return ""
    return "steps" if all(size == 1 for size in chunks[1:]) else "chunks"


def _padding(mask: Mask) -> str:
    if not isinstance(mask, Mask2D):
        return ""
    if any(not row[0] for row in mask.rows if row):
        return "left"
    return "right" if any(not row[-1] for row in mask.rows if row) else ""
