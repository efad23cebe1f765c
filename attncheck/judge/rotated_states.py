"""How each layer of a forward rotates its queries and keys, beside how its config allows it to.

Axes: B batch, T positions, D head width, P pairs of channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, final

from attncheck.attention.layers import layer_type
from attncheck.attention.rope import Pairing
from attncheck.attention.rope_spec import RopeSpec, rope_specs, stated_pairing
from attncheck.judge.config_spec import factor_check
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
    kind: tuple[str | None, int]
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
    nothing else of a layer is kept.
    """

    subject: Subject
    length: int
    found: list[RotatedStates] = field(default_factory=list)
    unread: dict[str, list[str]] = field(default_factory=dict)
    hint: Layout | None = None

    def __call__(self, layer: LayerCall) -> None:
        """Note how one layer rotates its queries and keys."""
        query, key = layer.call.query_BHTD, layer.call.key_BGSD
        if resolution(query.dtype) > COARSE:
            self.set_aside(layer.name, f"angles cannot be told in {self.subject.dtype_name}")
            return
        width = query.shape[-1]
        specs = rope_specs(self._config(layer), layer.index, width, self.length)
        rotary = 2 * len(specs[0].inv_freq_P) if isinstance(specs, list) else width
        of_queries = observed_rotation(query, layer.stages, rotary, self.hint)
        of_keys = observed_rotation(key, layer.stages, rotary, self.hint)
        if of_queries is not None and of_queries.layout:
            self.hint = of_queries.layout
            of_keys = of_keys or shared_part(key, layer.stages, of_queries.layout)
        self._note(layer, "queries", of_queries, specs)
        self._note(layer, "keys", of_keys, specs)

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
                kind=(layer_type(config, layer.index), layer.call.query_BHTD.shape[-1]),
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
