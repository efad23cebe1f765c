"""A pass as JSON data and back, so that a report can run again exactly what failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attncheck.model.forward_spec import ForwardSpec, Mask, Mask2D, Mask4D

PLAIN = ("use_cache", "attn", "cache_kind", "attentions", "unpromoted")


def spec_dict(spec: ForwardSpec) -> dict[str, Any]:
    """Everything that can change the outcome of a pass, as JSON data; defaults are left out."""
    usual = ForwardSpec(())
    data: dict[str, Any] = {"tokens": [list(row) for row in spec.tokens]}
    if spec.chunks:
        data["chunks"] = list(spec.chunks)
    if spec.positions is not None:
        data["positions"] = [list(row) for row in spec.positions]
    if spec.mask is not None:
        data["mask"] = _mask_dict(spec.mask)
    data.update(
        {name: getattr(spec, name) for name in PLAIN if getattr(spec, name) != getattr(usual, name)}
    )
    return data


def _mask_dict(mask: Mask2D | Mask4D) -> dict[str, Any]:
    if isinstance(mask, Mask2D):
        return {
            "rows": [list(row) for row in mask.rows],
            **({} if mask == Mask2D(mask.rows) else {"dtype": mask.dtype}),
        }
    return {"segments": [list(row) for row in mask.segments], "boolean": mask.boolean}


def spec_from_dict(data: Mapping[str, Any]) -> ForwardSpec:
    """The pass that `spec_dict` wrote down.

    Raises:
        KeyError: it holds no tokens.
    """
    positions = data.get("positions")
    return ForwardSpec(
        _rows(data["tokens"]),
        chunks=tuple(data.get("chunks", ())),
        positions=_rows(positions) if positions is not None else None,
        mask=_mask_of(data.get("mask")),
        **{name: data[name] for name in PLAIN if name in data},
    )


def _mask_of(data: Mapping[str, Any] | None) -> Mask:
    if data is None:
        return None
    if "rows" in data:
        return Mask2D(_rows(data["rows"]), dtype=str(data.get("dtype", "int64")))
    return Mask4D(_rows(data["segments"]), boolean=bool(data.get("boolean", False)))


def _rows(rows: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(value) for value in row) for row in rows)
