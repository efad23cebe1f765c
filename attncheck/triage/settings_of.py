"""A pass read back as a setting: which axes it moves away from one plain forward."""

from __future__ import annotations

from attncheck.model.forward_spec import ForwardSpec, Mask, Mask2D, Mask4D
from attncheck.triage.setting import Setting


def setting_of(spec: ForwardSpec) -> Setting:
    """The axes of a pass."""
    return Setting(
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
