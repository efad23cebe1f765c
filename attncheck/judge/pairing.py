"""Whether the channels that a layer rotates are paired as its config says: halves or neighbours."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.attention.rope import Pairing
from attncheck.core.measurement import AtMost, Cause, Measurement
from attncheck.core.verdict import Verdict
from attncheck.judge.rotated_states import RotatedStates


def pairing_case(judged: list[RotatedStates]) -> Iterator[Measurement]:
    """One case over all layers whose config says which channels are a pair."""
    stated = [each for each in judged if each.pairing is not None and each.observed.layout]
    if not stated:
        return
    wrong = [each for each in stated if each.wrongly_paired]
    note = f"{wrong[0].name}: {_pairs_text(wrong[0])}" if wrong else ""
    layers = len(dict.fromkeys(each.name for each in stated))
    yield AtMost(
        f"pairs of rotated channels in {layers} layers",
        float(len(dict.fromkeys(each.name for each in wrong))),
        "layers rotate other pairs of channels than the config states",
        broken=Verdict.FAIL,
        positions=layers,
        note=note,
        cause=Cause(module=wrong[0].name if wrong else ""),
    )


def _pairs_text(states: RotatedStates) -> str:
    words = {"half": f"the one {states.pairs} further on", "pairs": "its neighbour"}
    other: Pairing = "half" if states.pairing == "pairs" else "pairs"
    return (
        f"{states.what}: each channel is rotated with {words[other]}, where the config pairs it "
        f"with {words[states.pairing or other]} (interleaved: {states.pairing == 'pairs'})"
    )
