"""What generate() passes on to the forwards of a model, against what it was given.

Axes: B batch, T positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from attncheck.core.measurement import Cause, Comparison
from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.inputs import Row
from attncheck.model.signature import KEYWORDS, parameters_of
from attncheck.model.subject import Subject


@final
@dataclass
class Passed:
    """What generate() passed to the forwards of a model: the names of what the first one got, the
    positions of each, and the name of a cache that `forward`, which is named here, does not read,
    if there is one. `given` and `rows` are what generate() itself was given; `how` says which
    of it reached a forward with other values, and `home` the method that changed it.
    """

    forward: str = ""
    first: frozenset[str] = frozenset()
    positions: list[Row | None] = field(default_factory=list)
    unread_cache: str = ""
    given: dict[str, Any] = field(default_factory=dict)
    rows: int = 1
    home: str = ""
    how: str = ""

    def explained(self, case: Comparison) -> Comparison:
        """A failing case with what generate() changed on the way to forward, if it did: forward is
        right then, and nothing in it needs a search.
        """
        if not case.beyond or not self.how:
            return case
        note = "; ".join(
            filter(None, (case.note.removesuffix(self.how).removesuffix("; "), self.how))
        )
        return replace(case, note=note, cause=Cause(module=self.home), rerun=None)

    @property
    def note(self) -> str:
        """The same in words."""
        lost = f"the cache that generate() passes as `{self.unread_cache}` is not read: forward "
        lost += "takes no such argument, save among its keywords"
        return f"{lost}; {self._positions}" if self.unread_cache else self._positions

    @property
    def cause(self) -> Cause:
        """The fault of a cache that is not read."""
        if not self.unread_cache:
            return Cause()
        return Cause(fault="cache-drops-token", module=self.forward)

    @property
    def _positions(self) -> str:
        given = [row for row in self.positions if row is not None]
        if not given:
            return "generate() passes no positions"
        first = given[0]
        shown = f"{first[0]}..{first[-1]}" if len(first) > 1 else f"{first[0]}"
        later = "".join(f", {row[-1]}" for row in given[1:])
        return f"generate() passes positions {shown}{later}"


def noted(subject: Subject, call: dict[str, Any], passed: Passed) -> dict[str, Any]:
    """Write down what a call, which stays unchanged, is given."""
    _compare(subject, call, passed)
    passed.first = passed.first or frozenset(name for name in call if call[name] is not None)
    positions = call.get(subject.forward_adapter.positions_name or "")
    ids = call.get(subject.forward_adapter.ids_name)
    subject.loaded.count(int(ids.shape[1]) if isinstance(ids, Tensor) else 0)
    row = tuple(map(int, positions.flatten())) if isinstance(positions, Tensor) else None
    passed.positions.append(row)
    passed.forward = f"{type(subject.model).__name__}.forward"
    passed.unread_cache = _unread_cache(subject.model, call) or passed.unread_cache
    return call


def _unread_cache(model: Any, call: dict[str, Any]) -> str:
    """The name under which a cache is passed that forward, which takes any keywords, does not read;
    empty where it reads it.
    """
    known = parameters_of(model)
    if KEYWORDS not in known or not set(CACHE_NAMES) & set(known):
        return ""
    given = (name for name in CACHE_NAMES if call.get(name) is not None)
    return next((name for name in given if name not in known), "")


def _compare(subject: Subject, call: dict[str, Any], passed: Passed) -> None:
    """Write down which argument of generate() reaches this forward with other values, the first
    time that one does: each in the first forward, the mask in every one.
    """
    ids, mask = call.get(subject.forward_adapter.ids_name), subject.forward_adapter.mask_name
    if passed.how or not isinstance(ids, Tensor) or not passed.given:
        return
    names = [mask or ""] if passed.positions else [*passed.given]
    read = cached_length(call.get(subject.forward_adapter.cache_name or "")) + ids.shape[1]
    beams = max(ids.shape[0] // passed.rows, 1)
    for name in names:
        given, got = passed.given.get(name), call.get(name)
        if isinstance(given, Tensor) and isinstance(got, Tensor):
            want = _expected(given, passed, beams, read if name == mask else 0)
            passed.how = passed.how or _otherwise(name, got, want, name == mask)
    if beams > 1 and not passed.positions:
        passed.how = passed.how or _lost(call, passed)
    home = "_expand_inputs_for_generation" if beams > 1 else "prepare_inputs_for_generation"
    passed.home = f"{type(subject.model).__name__}.{home}"


def _lost(call: dict[str, Any], passed: Passed) -> str:
    """The arguments that do not reach the first forward, where nothing else stands for them."""
    stands = any(isinstance(call[name], dict) for name in call if name not in passed.given)
    given = (pair for pair in passed.given.items() if isinstance(pair[1], Tensor))
    states = (name for name, each in given if each.is_floating_point())
    names = [name for name in states if call.get(name) is None and not stands]
    return f"generate() does not pass `{names[0]}` on to forward" if names else ""


def _expected(given: Tensor, passed: Passed, beams: int, width: int) -> Tensor | None:
    """What a forward must get: each row as often as there are beams, a mask as wide as what is
    read (`width`). A list of parts that is not in rows can be told for one row only.
    """
    if given.shape[0] != passed.rows:
        return given.repeat(beams, *(1,) * (given.ndim - 1)) if passed.rows == 1 else None
    rows = given.repeat_interleave(beams, 0)
    if not width or rows.ndim != 2:
        return rows
    return torch.nn.functional.pad(rows, (0, max(width - rows.shape[1], 0)), value=1)[:, :width]


def _otherwise(name: str, got: Tensor, want: Tensor | None, is_mask: bool) -> str:
    """How an argument differs from what it must be, in words; "" where it does not."""
    if want is None or got.ndim != want.ndim or got.shape[0] != want.shape[0]:
        return ""
    if is_mask and got.ndim == 2 and got.shape[1] < want.shape[1]:
        columns = f"{got.shape[1]} columns where {want.shape[1]} tokens are read"
        return f"generate() passes on `{name}` of {columns}"
    if got.shape != want.shape or torch.equal(got, want.to(got)):
        return ""
    place = tuple(map(int, (got != want.to(got)).nonzero()[0]))
    where = f"entry {place[0]} of {got.shape[0]} is another one"
    if got.ndim == 2 and not got.is_floating_point():
        values = f"{int(got[place])} at position {place[1]} of row {place[0]}"
        where = f"{values} instead of {int(want[place])}"
    return f"generate() passes on another `{name}`: {where}"
