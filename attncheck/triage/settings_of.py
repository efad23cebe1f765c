"""A pass read back as a setting: which axes it moves away from one plain forward."""

from __future__ import annotations

from attncheck.model.forward_spec import Mask, Mask2D, Mask4D, Pass
from attncheck.triage.setting import Setting


def setting_of(asked: Pass) -> Setting:
    """The axes of a pass."""
    return Setting(
        attn=asked.attn or "",
        schedule=_schedule(asked.chunks),
        cache=asked.cache_kind or ("on" if asked.use_cache is True else ""),
        padding=_padding(asked.mask),
        batch=len(asked.tokens),
        mask=_mask(asked.mask),
        positions="explicit" if asked.positions is not None and not _padding(asked.mask) else "",
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
