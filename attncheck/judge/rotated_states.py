"""How each layer of a forward rotates its queries and keys, beside how its config allows it to.

Axes: B batch, T positions, D head width, P pairs of channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, final

from attncheck.attention.layers import layer_type
from attncheck.attention.masks import bias_of
from attncheck.attention.rope import Pairing
from attncheck.attention.rope_spec import RopeSpec, rope_specs, stated_pairing
from attncheck.judge.config_spec import factor_check
from attncheck.judge.head_rotation import Kind, OddHeads, grouped_heads
from attncheck.judge.layer_calls import LayerCall
from attncheck.judge.projections import COARSE, resolution
from attncheck.judge.rotation_angles import (
    Layout,
    ObservedRotation,
    observed_rotation,
    shared_part,
)
from attncheck.model.subject import Subject


@final
@dataclass(frozen=True, kw_only=True)
class RotatedStates:
    """The queries or the keys of one layer: how they were rotated, and how the config allows them
    to be (a string says why that is not known).

    `pairing` says which channels the config pairs, where it does. `is_known_factor` says whether a
    factor on them is a multiplier that the layer or config states.
    """

    name: str
    what: Literal["queries", "keys"]
    kind: Kind
    observed: ObservedRotation
    specs: list[RopeSpec] | str
    is_known_factor: Callable[[float, bool], bool]
    pairing: Pairing | None = None

    @property
    def wrongly_paired(self) -> bool:
        """Whether other channels are pairs than the config says (two are one either way)."""
        layout = self.observed.layout
        if layout is None or self.pairing is None or self.pairs < 2:
            return False
        return layout[2] != self.pairing

    @property
    def pairs(self) -> int:
        """How many pairs of channels rotate."""
        return self.observed.pairs


@final
@dataclass
class RotationReader:
    """Reads off every layer of one forward of `length` tokens how it rotates its queries and keys;
    nothing else of a layer is kept but that some layer is `biased`: it adds a bias to its scores.
    """

    subject: Subject
    length: int
    found: list[RotatedStates] = field(default_factory=list)
    unread: dict[str, list[str]] = field(default_factory=dict)
    hint: Layout | None = None
    odd: list[OddHeads] = field(default_factory=list)
    layers: dict[Kind, set[str]] = field(default_factory=dict)
    biased: bool = False

    def __call__(self, layer: LayerCall) -> None:
        """Note how one layer rotates its queries and keys."""
        query = layer.call.query_BHTD
        self.biased = self.biased or bias_of(layer.call) is not None
        if resolution(query.dtype) > COARSE:
            self.set_aside(layer.name, f"angles cannot be told in {self.subject.dtype_name}")
            return
        specs = rope_specs(self._config(layer), layer.index, query.shape[-1], self.length)
        of_queries = self._observed(layer, "queries", specs, None)
        self.hint = (of_queries and of_queries.layout) or self.hint
        of_keys = self._observed(layer, "keys", specs, of_queries)
        self._note(layer, "queries", of_queries, specs)
        self._note(layer, "keys", of_keys, specs)

    def _observed(
        self,
        layer: LayerCall,
        what: Literal["queries", "keys"],
        specs: list[RopeSpec] | str,
        queries: ObservedRotation | None,
    ) -> ObservedRotation | None:
        """How all heads are rotated; otherwise how most are, with a note on the others."""
        states = layer.call.query_BHTD if what == "queries" else layer.call.key_BGSD
        stated = isinstance(specs, list)
        rotary = 2 * len(specs[0].inv_freq_P) if isinstance(specs, list) else states.shape[-1]
        found = observed_rotation(states, layer.stages, rotary, self.hint)
        if found is None and queries is not None and queries.layout:
            found = shared_part(states, layer.stages, queries.layout)
        kind = self._kind(layer)
        self.layers.setdefault(kind, set()).add(layer.name)
        if found is not None or states.shape[1] == 1:
            return found
        groups = grouped_heads(states, layer.stages, rotary, queries, self.hint)
        if groups is None:
            return None
        self.odd.extend(groups.described(layer.name, what, kind, stated))
        return groups.usual

    def _kind(self, layer: LayerCall) -> Kind:
        return layer_type(self._config(layer), layer.index), layer.call.query_BHTD.shape[-1]

    def _note(
        self,
        layer: LayerCall,
        what: Literal["queries", "keys"],
        observed: ObservedRotation | None,
        specs: list[RopeSpec] | str,
    ) -> None:
        if observed is None:
            self.set_aside(layer.name, f"its {what} were not traced to a projection")
            return
        config = self._config(layer)
        self.found.append(
            RotatedStates(
                name=layer.name,
                what=what,
                kind=self._kind(layer),
                observed=observed,
                specs=specs,
                is_known_factor=factor_check(config, self.subject.model, layer.call.module),
                pairing=stated_pairing(config),
            )
        )

    def _config(self, layer: LayerCall) -> Any:
        return getattr(layer.call.module, "config", None) or self.subject.text_config

    def set_aside(self, name: str, reason: str) -> None:
        """Note a layer that cannot be judged."""
        self.unread.setdefault(reason, []).append(name)
