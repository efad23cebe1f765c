"""Draw random faults from what a model has room for. One seed, target and number give one sequence
of faults, in which the first that shows is taken.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from attncheck.run.random_faults.parts import EVERY, RandomFault
from attncheck.run.random_faults.sites import AttentionSite, Sites

ATTENTION_WHENS = ("always", "first", "uncached", "cached", "step", "chunk", "batch", "padded")
CACHED_WHENS = ("cached", "cached", "step", "chunk", "static")
MODULE_WHENS = ("uncached", "cached", "step", "chunk", "batch", "padded")
POSITION_WHENS = ("cached", "step", "chunk", "padded")
WEIGHTS = {
    "queries": 2,
    "keys": 3,
    "values": 3,
    "keys+values": 2,
    "cells": 6,
    "output": 2,
    "stored-keys": 2,
    "stored-values": 2,
    "stored-keys+values": 3,
    "states": 5,
    "hidden": 2,
    "logits": 1,
    "positions": 2,
}
STORED = ("stored-keys", "stored-values", "stored-keys+values")


def drawn(sites: Sites, seed: int, number: int) -> Iterator[RandomFault]:
    """Faults without end; not each of them shows in this model.

    Raises:
        IndexError: this model has room for none.
    """
    draw = _Draw(sites, random.Random(f"{seed}/{sites.subject.name}/{number}"))
    while True:
        yield draw.fault()


@final
@dataclass(frozen=True)
class _Draw:
    sites: Sites
    rng: random.Random

    def fault(self) -> RandomFault:
        """One fault of any kind that the model has room for."""
        whats = list(self._possible())
        what = self.rng.choices(whats, [WEIGHTS[each] for each in whats])[0]
        if what == "positions":
            return self._positions()
        if what in ("hidden", "logits"):
            return self._module(what)
        if what == "states" or what in STORED:
            return self._stored(what)
        return self._attention(what)

    def _possible(self) -> Iterator[str]:
        sites = self.sites
        if any(not site.caveat for site in sites.attention):
            yield from ("queries", "keys", "values", "keys+values", "cells", "output")
        if sites.stored:
            yield from STORED
        if sites.states:
            yield "states"
        if sites.hidden and sites.steps:
            yield from ("hidden", "logits")
        if sites.positions and sites.steps:
            yield "positions"

    def _pick(self, choices: Sequence[str]) -> str:
        return self.rng.choice(choices)

    def _positions(self) -> RandomFault:
        how = self._pick(("offset:1", "offset:-1", f"offset:{self.rng.randint(2, 6)}", "restart"))
        return RandomFault(
            what="positions",
            how=self._pick((how, "frozen")),
            tokens=self._tokens(),
            when=self._pick(POSITION_WHENS),
        )

    def _module(self, what: str) -> RandomFault:
        how = self._pick(("slot:1", "row:1", "scale:1.25", "zero", "round:8"))
        return RandomFault(
            what=what,
            how=how,
            at=EVERY if what == "logits" else self._pick(self.sites.hidden),
            tokens=self._tokens(),
            when="batch" if how == "row:1" else self._pick(MODULE_WHENS),
        )

    def _stored(self, what: str) -> RandomFault:
        how = self._states_how(rotates="value" not in what and what != "states", site=None)
        while what == "states" and how.partition(":")[0] in ("slot", "head"):
            how = self._states_how(rotates=False, site=None)
        layers = self.sites.states if what == "states" else self.sites.stored
        modules = [site.module for site in self.sites.attention] + list(self.sites.hidden)
        return RandomFault(
            what=what,
            how=how,
            at=self._layer_of(layers, modules),
            heads=EVERY if what == "states" else self._heads(how, None),
            tokens=EVERY if what == "states" else self._tokens(),
            when="cached" if how == "row:1" else self._pick(CACHED_WHENS),
        )

    def _layer_of(self, layers: tuple[int, ...], modules: list[str]) -> str:
        from attncheck.run.random_faults.stored import layer_of

        fitting = [name for name in modules if layer_of(self.sites, name) in layers]
        return self._pick(fitting) if fitting and self.rng.random() < 0.7 else EVERY

    def _attention(self, what: str) -> RandomFault:
        site = self.rng.choice([each for each in self.sites.attention if not each.caveat])
        at = site.module if site.cross or self.rng.random() < 0.7 else EVERY
        how = (
            self._cells_how()
            if what == "cells"
            else self._states_how(rotates=what in ("queries", "keys"), site=site)
        )
        return RandomFault(
            what=what,
            how=how,
            at=at,
            heads=self._heads(how, site),
            rows="1" if self.rng.random() < 0.1 else EVERY,
            tokens=self._tokens(),
            when="batch" if how == "row:1" else self._pick(ATTENTION_WHENS),
        )

    def _cells_how(self) -> str:
        number = self.rng.randint(1, 3)
        key = self.rng.randrange(max(1, self.sites.length // 2))
        window = self.rng.randint(2, max(3, self.sites.length // 2))
        return self._pick(
            (
                f"ahead:{number}",
                f"short:{number}",
                f"window:{window}",
                f"hide:{key}",
                "top-left",
                "past",
                "not-self",
            )
        )

    def _states_how(self, rotates: bool, site: AttentionSite | None) -> str:
        choices = ["slot:1", f"slot:{self.rng.choice((-1, 2, 3))}", "row:1", "layer", "zero"]
        choices += ["round:8", "round:11", f"scale:{self.rng.choice((0.5, 0.9, 1.25, 2))}"]
        if site is None or site.kv_heads > 1:
            choices.append("head:1")
        rotary = self.sites.rotary
        if rotates and (rotary if site is None else site.module in rotary):
            choices += [f"angle:{self.rng.choice((-1, 1, 2, 5))}", "angle:1", "base:10", "base:100"]
        return self._pick(choices)

    def _heads(self, how: str, site: AttentionSite | None) -> str:
        count = site.kv_heads if site is not None else self._kv_heads()
        return str(self.rng.randrange(count)) if count > 1 and self.rng.random() < 0.4 else EVERY

    def _kv_heads(self) -> int:
        return min((site.kv_heads for site in self.sites.attention), default=1)

    def _tokens(self) -> str:
        kind, length = self.rng.random(), self.sites.length
        first = self.rng.randrange(1, max(2, length - 2))
        if kind < 0.5:
            return EVERY
        return f"{first}-" if kind < 0.75 else f"{first}-{first + self.rng.randrange(3)}"
