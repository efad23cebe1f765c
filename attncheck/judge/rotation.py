"""Whether positions rotate queries and keys as the config states, and alike in layers of one kind.

Angles are read off what the projections returned and what the kernel got, so that no table of the
model is trusted.

Axes: B batch, T positions, P pairs of channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attncheck.attention.layers import layer_number
from attncheck.attention.rope_spec import COMPUTED_IN, RopeSpec
from attncheck.attention.rotary_tables import made_in, stored_tables
from attncheck.core.divergence import Divergence
from attncheck.core.measurement import Cause, Comparison, Measurement, skipped
from attncheck.core.observed_part import ObservedPart
from attncheck.core.verdict import Verdict
from attncheck.judge.angle_difference import AngleDifference, between
from attncheck.judge.head_rotation import head_cases
from attncheck.judge.pairing import pairing_case
from attncheck.judge.projections import COARSE, resolution
from attncheck.judge.rotated_states import RotatedStates, RotationReader
from attncheck.judge.rotation_words import rotation_in_numbers
from attncheck.model.precision import NAMES
from attncheck.model.subject import Subject
from attncheck.numerics.budget import HEADROOM
from attncheck.numerics.divergence import beyond

NEARLY = 1e-5
LATE = 16
"""A rotation that is right at so many positions is not wrong from the start."""
UNSEEN = "no rotary embedding observed on queries or keys"


def rotation_cases(reader: RotationReader) -> Iterator[Measurement]:
    """One case over all layers that rotate their queries and keys, and one with the reason for
    those that cannot be judged.
    """
    own = reader.subject.loaded.own_dtype
    rounding = _table_rounding(reader.subject)
    judged = _rotated(reader)
    if judged and rounding <= COARSE:
        yield _RotationCheck(judged, rounding).case(own)
        yield from pairing_case(judged)
    elif judged:
        stored = f"its rotary tables are stored in {own}, which is too coarse"
        yield skipped("rotation of every layer", stored)
    yield from head_cases(reader.odd, reader.layers)
    for reason, names in reader.unread.items():
        yield skipped(f"rotation of {len(names)} layers not judged", f"{names[0]}: {reason}")


def _table_rounding(subject: Subject) -> float:
    """How far rounding moves an entry of a sine or cosine table that the model keeps."""
    tables = [each for each in stored_tables(subject.model) if beyond(each, each.round(), 0.0)]
    return max((torch.finfo(made_in(each)).eps for each in tables), default=0.0)


def _rotated(reader: RotationReader) -> list[RotatedStates]:
    """The states of layers of a kind that rotates. Where nothing of a kind does, the model may well
    have no rotation that its config does not deny.
    """
    rotating = {each.kind for each in reader.found if each.pairs}
    if not rotating and _frequencies_unused(reader):
        return reader.found
    for name in dict.fromkeys(each.name for each in reader.found if each.kind not in rotating):
        reader.set_aside(name, UNSEEN)
    return [each for each in reader.found if each.kind in rotating]


def _frequencies_unused(reader: RotationReader) -> bool:
    """Whether the config states a rotation for every layer and the model keeps a list of as many
    frequencies, yet nothing depends on positions.
    """
    counts = {
        len(spec.inv_freq_P) if isinstance(states.specs, list) else 0
        for states in reader.found
        for spec in states.specs
        if not isinstance(spec, str)
    }
    lists = (each for each in reader.subject.model.buffers() if each.is_floating_point())
    kept = any(each.ndim == 1 and each.numel() in counts for each in lists)
    stated = bool(counts) and 0 not in counts
    can = reader.subject.can
    unread = bool(can.takes_positions) and not can.reads_positions
    return stated and kept and unread and not reader.biased  # ALiBi takes a rotation's place


@final
@dataclass(frozen=True)
class _RotationCheck:
    """All rotated states of a forward against what is expected; `rounding` is that of tables."""

    found: list[RotatedStates]
    rounding: float

    def case(self, own: str) -> Measurement:
        """The first layer that differs, otherwise the one that comes nearest to its budget."""
        differences = [*map(self.difference, self.found), *between(self.found, self.rounding)]
        wrong = [each for each in differences if each.excess > 1]
        shown = wrong[0] if wrong else max(differences, key=lambda each: each.excess)
        layers = dict.fromkeys(each.name for each in self.found)
        others = len(dict.fromkeys(each.states.name for each in wrong)) - 1
        more = f" (and {others} more layers)" if others > 0 else ""
        exempt, reason = False, ""
        if wrong and all(each.states.pairs for each in wrong):
            exempt, reason = self._throughout(own)
        text = self._in_numbers(shown.states) if wrong else None
        place = f"{shown.states.name}: {shown.states.what}"
        positions = sum(each.observed.factor_BTP.shape[1] for each in self.found)
        return Comparison(
            f"rotation of {len(layers)} layers, one forward",
            Divergence(max_abs=shown.radians, positions=positions),
            shown.budget,
            "rounding of the frequencies in float32, times the position",
            broken=Verdict.WARN if exempt else Verdict.FAIL,
            unit="angles in radians",
            note=f"{place}: {text or shown.text}{more}{reason}" if wrong else "",
            cause=_cause(shown.states) if wrong else Cause(),
        )

    def _throughout(self, own: str) -> tuple[bool, str]:
        """Whether a model that is wrong throughout is exempt, and the one reason that fits every
        layer.

        No config states the direction of the rotation, and weights may be made for it; a cast of
        the whole model rounds the list of frequencies too.
        """
        rotating = [each for each in self.found if each.pairs]
        if all(self.difference(_reversed(each)).excess <= 1 for each in rotating):
            return True, "; so does every layer: weights may be made for it"
        for low in (torch.bfloat16, torch.float16):
            if all(self.difference(_rounded(each, low)).excess <= 1 for each in rotating):
                text = f"; every layer uses the expected frequencies rounded to {NAMES[low]}"
                return NAMES[low] == own, text
        return False, ""

    def _in_numbers(self, states: RotatedStates) -> str | None:
        """Base, width and factor of a wrong rotation, where these give every angle."""
        specs, source = self._specs(states)
        spec = min(specs, key=lambda each: self._against(states, each, source).excess)

        def gives(inv_freq_P: Tensor) -> bool:
            order = states.observed.inv_freq_P.abs().argsort(descending=True).argsort()
            expected_P = _padded(inv_freq_P, len(order))[order]
            return self._angles(states, spec, expected_P, source).excess <= 1

        return rotation_in_numbers(states.observed.inv_freq_P, spec, source, gives)

    def _specs(self, states: RotatedStates) -> tuple[list[RopeSpec], str]:
        """The rotations that are expected, and who says so."""
        if isinstance(states.specs, str):
            return [self._usual(states.kind)], "most layers of its kind"
        return states.specs, "config"

    def difference(self, states: RotatedStates) -> AngleDifference:
        """From the config, or from the layers of the same kind where it does not say."""
        specs, source = self._specs(states)
        return min(
            (self._against(states, spec, source) for spec in specs), key=lambda each: each.excess
        )

    def _usual(self, kind: tuple[str | None, int]) -> RopeSpec:
        """The rotation of most layers of a kind whose config states none."""
        peers = [each for each in self.found if each.kind == kind and isinstance(each.specs, str)]
        eps = torch.finfo(COMPUTED_IN).eps
        specs = [RopeSpec(inv_freq_P=each.observed.inv_freq_P, rounding=eps) for each in peers]

        def agreeing(spec: RopeSpec) -> int:
            return sum(self._against(each, spec, "").excess <= 1 for each in peers)

        return max(specs, key=agreeing)

    def _against(self, states: RotatedStates, spec: RopeSpec, source: str) -> AngleDifference:
        difference = self._angles(states, spec, spec.inv_freq_P, source)
        if difference.excess <= 1:
            return max(difference, self._gained(states, spec), key=lambda each: each.excess)
        observed_P, expected_P = states.observed.inv_freq_P, spec.inv_freq_P
        if len(observed_P) == len(expected_P):
            # the pairs may only be stored in another order
            order = expected_P.argsort()[observed_P.argsort().argsort()]
            permuted = self._angles(states, spec, expected_P[order], source)
            if permuted.excess <= 1:
                return permuted
        return difference

    def _angles(
        self, states: RotatedStates, spec: RopeSpec, expected_P: Tensor, source: str
    ) -> AngleDifference:
        observed = states.observed
        count = max(observed.pairs, len(expected_P), 1)
        noise_P, expected_P, observed_P = (
            _padded(each, count) for each in (observed.noise_P, expected_P, observed.inv_freq_P)
        )
        factor_BTP = observed.factor_BTP
        still_BTP = factor_BTP.new_ones(*factor_BTP.shape[:2], count - factor_BTP.shape[-1])
        factor_BTP = torch.cat([factor_BTP, still_BTP], -1)
        angle_TP = torch.arange(factor_BTP.shape[1], dtype=torch.float64)[:, None] * expected_P
        back_TP = torch.polar(torch.ones_like(angle_TP), -angle_TP)
        # relative to the first position, since a model may count from another one
        left_BTP = factor_BTP * factor_BTP[:, :1].conj() * back_TP
        radians_TP = left_BTP.angle().abs().amax(0)
        # an error of a frequency grows with the position, that of a table entry does not
        budget_TP = HEADROOM * (spec.rounding * angle_TP.abs() + self.rounding) + 2 * noise_P
        budget_TP += resolution(torch.float64)
        worst = int((radians_TP / budget_TP).argmax())
        pair = worst % count
        origin = f"{source}: {spec.origin}" if spec.origin else source
        got, wanted = float(observed_P[pair]), float(expected_P[pair])
        late = _late(left_BTP, angle_TP, radians_TP > budget_TP, budget_TP)
        return AngleDifference(
            states=states,
            radians=float(radians_TP.flatten()[worst]),
            budget=float(budget_TP.flatten()[worst]),
            text=late or _text(states.pairs, pair, got, wanted, origin),
        )

    def _gained(self, states: RotatedStates, spec: RopeSpec) -> AngleDifference:
        """The gain on the rotated channels, unless a multiplier of the layer explains it."""
        gain = states.observed.gain
        noise = float(states.observed.noise_P.max()) if states.pairs else 0.0
        budget = HEADROOM * (torch.finfo(COMPUTED_IN).eps + self.rounding) + noise
        if spec.gain == 1.0 or states.is_known_factor(gain / spec.gain, False):
            return AngleDifference(states=states, radians=0.0, budget=budget)
        return AngleDifference(
            states=states,
            radians=abs(gain / spec.gain - 1),
            budget=budget,
            text=f"rotated channels are multiplied by {gain:.6g} instead of {spec.gain:.6g} "
            f"(config: {spec.origin})",
        )


def _late(left_BTP: Tensor, angle_TP: Tensor, wrong_TP: Tensor, budget_TP: Tensor) -> str:
    """The first wrong position where many before it are right, and the precision to which positions
    are rounded if that explains every angle; "" where the rotation is wrong from the start.
    """
    first = int(wrong_TP.any(-1).long().argmax())
    if first < LATE:
        return ""
    position_T = torch.arange(len(angle_TP), dtype=torch.float64)
    speed_P = angle_TP[-1] / position_T[-1]
    for low in (torch.bfloat16, torch.float16):
        rounded_TP = (position_T.to(low).double() - position_T)[:, None] * speed_P
        back_TP = torch.polar(torch.ones_like(rounded_TP), -rounded_TP)
        if bool(((left_BTP * back_TP).angle().abs().amax(0) <= budget_TP).all()):
            return f"positions are rounded to {NAMES[low]}: wrong from position {first} on"
    return f"right up to position {first - 1} and wrong from position {first} on"


def _cause(states: RotatedStates) -> Cause:
    number = layer_number(states.name)
    layers = () if number is None else (number,)
    part = ObservedPart(what=states.what, how="rotated", layers=layers)
    return Cause(module=states.name, parts=(part,))


def _rounded(states: RotatedStates, low: torch.dtype) -> RotatedStates:
    """The same, with expected frequencies that were rounded to a dtype."""
    if isinstance(states.specs, str):
        return states
    specs = [
        replace(each, inv_freq_P=each.inv_freq_P.to(COMPUTED_IN).to(low).double())
        for each in states.specs
    ]
    return replace(states, specs=specs)


def _reversed(states: RotatedStates) -> RotatedStates:
    """The same, rotated in the other direction."""
    observed = states.observed
    return replace(states, observed=replace(observed, factor_BTP=observed.factor_BTP.conj()))


def _padded(values_P: Tensor, count: int) -> Tensor:
    return torch.cat([values_P, values_P.new_zeros(count - len(values_P))])


def _text(pairs: int, pair: int, got: float, wanted: float, origin: str) -> str:
    expected = f"{wanted:.4g} per token ({origin})"
    if not pairs:
        return f"positions do not rotate them; pair {pair} should rotate by {expected}"
    opposite = abs(got + wanted) < NEARLY * abs(wanted)
    direction = "in the opposite direction: by" if opposite else "by"
    return f"pair {pair} rotates {direction} {got:.4g} instead of {expected}"
