"""One way of asking a model, as axes: each field has the value of the trusted path as its default.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
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
    ("positions", "explicit"): "with `position_ids` passed",
}


@final
@dataclass(frozen=True, kw_only=True)
class CallPattern:
    """How logits are asked for. The defaults: one forward, one row, no cache, no padding, no mask,
    the model's own choices.
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
        """What differs from the trusted path."""
        return tuple(
            (each.name, getattr(self, each.name))
            for each in fields(self)
            if getattr(self, each.name) != each.default
        )

    def but(self, axes: Iterable[tuple[str, Any]]) -> CallPattern:
        """The trusted path with these axes only."""
        return replace(CallPattern(), **dict(axes))

    def __str__(self) -> str:
        said = [_words(name, value) for name, value in self.axes]
        return ", ".join(said) if said else "one plain forward"


def _words(name: str, value: Any) -> str:
    if name == "attn":
        return f"under `{value}` attention"
    if name == "batch":
        return f"in a batch of {value}"
    return WORDS.get((name, value), f"{name} {value}")


def pattern_of(spec: ForwardSpec) -> CallPattern:
    """The axes of a pass."""
    return CallPattern(
        attn=spec.attn or "",
        schedule=_schedule(spec.chunks),
        cache=spec.cache_kind or ("on" if spec.use_cache is True else ""),
        padding=_padding(spec.mask),
        batch=len(spec.tokens),
        mask=_mask(spec.mask),
        positions="explicit" if spec.positions is not None and not _padding(spec.mask) else "",
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


def _mask(mask: Mask) -> str:
    if isinstance(mask, Mask4D):
        return "4d"
    return "2d" if mask is not None and not _padding(mask) else ""
