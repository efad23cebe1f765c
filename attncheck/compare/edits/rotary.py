"""Rotation: base, width, pairing, scaling, direction, offset, and where it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attncheck.attention.frequency_law import power_speeds
from attncheck.attention.rope import Pairing
from attncheck.compare.decoder.fit_rotation import base_of
from attncheck.compare.decoder.schemes import both_roundings, rounded_otherwise
from attncheck.compare.decoder.spec import LayerSpec, RotarySpec
from attncheck.compare.edits.edit import ROUNDING_ONLY, Edit, Fields

BASES = (1e3, 1e4, 2.5e4, 5e4, 1e5, 1.5e5, 2.5e5, 5e5, 1e6, 1.5e6, 2e6, 5e6, 8e6, 1e7, 1e8)
SHARES = (0.25, 0.4, 0.5, 0.75, 1.0)
FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0, 0.5, 0.25, 0.125)
PAIRS: dict[Pairing, str] = {"half": "of halves", "pairs": "of neighbours"}
OTHER: dict[Pairing, Pairing] = {"half": "pairs", "pairs": "half"}
OFFSETS = (1, -1, 2, -2)
FORMS: tuple[tuple[str, str, str, Fields], ...] = (
    ("rotary-missing", "keys that are not rotated", "rotating the keys", {"on_key": False}),
    ("rotary-missing", "queries that are not rotated", "rotating them", {"on_query": False}),
    ("rotary-on-values", "values that are rotated as well", "leaving them", {"on_value": True}),
    ("key-rotated-twice", "queries and keys rotated twice", "rotating them once", {"times": 2}),
)


def rotary_edits(layer: LayerSpec, others: list[RotarySpec]) -> Iterator[Edit]:
    """Every edit of a layer's rotation; `others` are the rotations of all layers."""
    rotary = layer.attention.rotary
    if rotary is None:
        yield from _unexpected(layer, others)
        return
    for each in rounded_otherwise(rotary):
        yield edit(layer, each, ROUNDING_ONLY, "the rounding of the rotary speeds", cost=0)
    yield from _bases(layer, rotary, others)
    yield from _schemes(layer, rotary)
    yield from _widths(layer, rotary)
    yield from _forms(layer, rotary)


def _unexpected(layer: LayerSpec, others: list[RotarySpec]) -> Iterator[Edit]:
    """The rotations of other layers in one that has none."""
    distinct = {tuple(each.inv_freq_P.tolist()): each for each in others}
    for own in distinct.values():
        for each in (own, *rounded_otherwise(own)):
            got, fix = "queries and keys that are rotated", "leaving them as they are"
            yield edit(layer, each, "rotary-unexpected", got, "no rotation", fix=fix)


def edit(
    layer: LayerSpec, rotary: RotarySpec | None, name: str, got: str, want: str = "", **more: Any
) -> Edit:
    """An edit that replaces a layer's rotation; another layer keeps its own module and width."""

    def apply(each: LayerSpec) -> LayerSpec:
        return replace(each, attention=replace(each.attention, rotary=rotary))

    module = layer.attention.module
    return Edit(
        name=name, part="attention", got=got, want=want, module=module, on_layer=apply, **more
    )


def stated_base(rotary: RotarySpec) -> float | None:
    """The base in the config, else that of the speeds."""
    return float(rotary.scheme["rope_theta"]) if rotary.scheme else base_of(rotary)


def _bases(layer: LayerSpec, rotary: RotarySpec, others: list[RotarySpec]) -> Iterator[Edit]:
    own = stated_base(rotary)
    if own is None:
        return
    known = [base for each in others if (base := stated_base(each)) is not None]
    for base in dict.fromkeys((*known, *BASES)):
        if abs(base / own - 1) < 1e-4:
            continue
        scheme = {**(rotary.scheme or {"rope_type": "default"}), "rope_theta": base}
        for speeds_P in both_roundings(scheme, rotary.width):
            changed = replace(rotary, inv_freq_P=speeds_P, scheme=scheme)
            yield edit(layer, changed, "rotary-base", f"rotary base {base:g}", f"{own:g}")


def base_edits(
    layer: LayerSpec, own: RotarySpec, measured: RotarySpec, base: float, stated: float
) -> Iterator[Edit]:
    """Edits to a base that was measured: its exact speeds where it is a round number, and those
    that were measured.
    """
    got, want = f"rotary base {base:.5g}", f"{stated:g}"
    scheme = {**(own.scheme or {"rope_type": "default"}), "rope_theta": float(f"{base:.6g}")}
    for speeds_P in both_roundings(scheme, own.width):
        exact = replace(own, inv_freq_P=speeds_P, scheme=scheme)
        yield edit(layer, exact, "rotary-base", got, want)
    yield edit(layer, measured, "rotary-base", got, want)


def _schemes(layer: LayerSpec, rotary: RotarySpec) -> Iterator[Edit]:
    scheme = rotary.scheme or {"rope_type": "default", "rope_theta": base_of(rotary) or 1e4}
    kind = str(scheme["rope_type"])
    factor = scheme.get("factor")
    named = f"`{kind}`" + (f" by {factor:g}" if factor else "")
    if kind != "default":
        plain = {**scheme, "rope_type": "default"}
        for speeds_P in both_roundings(plain, rotary.width):
            changed = replace(rotary, inv_freq_P=speeds_P, scheme=plain, gain=1.0)
            yield edit(layer, changed, "rotary-scaling", "no rotary scaling", f"{named}")
    for other in FACTORS:
        if factor and abs(other - factor) > 1e-9:
            for speeds_P in both_roundings({**scheme, "factor": other}, rotary.width):
                changed = replace(rotary, inv_freq_P=speeds_P)
                got = f"rotary scaling `{kind}` by {other:g}"
                yield edit(layer, changed, "rotary-scaling", got, f"{factor:g}")
        changed = replace(rotary, inv_freq_P=rotary.inv_freq_P / other)
        exact = [changed]
        exact += [
            replace(changed, inv_freq_P=each.inv_freq_P / other)
            for each in rounded_otherwise(rotary)[:2]
        ]
        for each in exact:
            got = f"positions divided by {other:g} before the rotation"
            yield edit(layer, each, "rotary-scaling", got, fix="taking the division out", cost=2)
    if rotary.gain != 1.0:
        changed = replace(rotary, gain=1.0)
        yield edit(
            layer, changed, "rotary-scaling", "no gain on the rotary tables", f"{rotary.gain:.6g}"
        )


def _widths(layer: LayerSpec, rotary: RotarySpec) -> Iterator[Edit]:
    total = layer.attention.width
    widths = {int(share * total) // 2 * 2 for share in SHARES} - {rotary.width, 0}
    base = stated_base(rotary)
    for width in sorted(widths) if base else ():
        scheme = {**(rotary.scheme or {"rope_type": "default"}), "rope_theta": base}
        for speeds_P in both_roundings(scheme, width):
            changed = replace(rotary, inv_freq_P=speeds_P)
            yield edit(
                layer, changed, "rotary-width", f"{width} rotated channels", f"{rotary.width}"
            )
        if width < rotary.width:
            changed = replace(rotary, inv_freq_P=rotary.inv_freq_P[: width // 2])
        else:
            assert base is not None
            changed = replace(rotary, inv_freq_P=power_speeds(base, width, rotary.width))
        got = f"{width} rotated channels at the speeds of {rotary.width}"
        yield edit(layer, changed, "rotary-width", got, f"{rotary.width}", cost=2)


def _forms(layer: LayerSpec, rotary: RotarySpec) -> Iterator[Edit]:
    for each in (rotary, *rounded_otherwise(rotary)[:2]):
        own, other = PAIRS[each.pairing], PAIRS[OTHER[each.pairing]]
        yield edit(
            layer,
            replace(each, pairing=OTHER[each.pairing]),
            "rotary-pairing",
            f"rotation {other}",
            own,
            fix=f"rotating {own.removeprefix('of ')}",
        )
        for name, got, fix, fields in FORMS:
            yield edit(layer, replace(each, **fields), name, got, fix=fix)
        turned = replace(each, direction=-each.direction)
        got = "rotation in the other direction"
        yield edit(layer, turned, "rotary-direction", got, fix="turning the sign of the sines")
        for offset in OFFSETS:
            got = f"keys rotated {offset:+d} positions from their queries"
            moved = replace(each, key_offset=each.key_offset + offset)
            fix = "giving queries and keys the same positions"
            yield edit(layer, moved, "position-offset", got, fix=fix)
        if layer.attention.query_norm is not None:
            late = replace(each, after_norm=not each.after_norm)
            got, want = "query and key norms after the rotation", "them before it"
            yield edit(layer, late, "qk-norm", got, want, fix="norming before the rotation")
    got = "no rotation of queries and keys"
    yield edit(layer, None, "rotary-missing", got, fix="rotating them")
