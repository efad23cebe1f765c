"""Parts of hypotheses about the position of each token: rules for the chunks after the first.

The same rules serve to inject these faults (`injection.with_cached_positions`).
"""

from __future__ import annotations

from collections.abc import Callable

from attncheck.faults.engine.expected import chunk_bounds
from attncheck.faults.engine.hypothesis import Hypothesis, words
from attncheck.faults.engine.injection import Rule
from attncheck.faults.engine.trusted import Change, Trusted
from attncheck.model.forward_spec import ForwardSpec, Positions, counting
from attncheck.model.inputs import Row


def positioned(parameter: str, positions: Callable[[ForwardSpec], Positions]) -> Hypothesis:
    """A fault that changes nothing but the positions; it cannot be limited to some layers."""

    def change(spec: ForwardSpec) -> Change:
        return Change(positions=positions(spec))

    return Hypothesis(parameter, change, everywhere=True)


def by_rule(trusted: Trusted, parameter: str, rule: Rule, padding: bool = False) -> Hypothesis:
    """Positions of every chunk but the first by a rule; `padding` counts padding as text."""

    def positions(spec: ForwardSpec) -> Positions:
        usual = counting(len(spec.tokens), spec.length, trusted.origin)
        given = spec.positions or usual
        return tuple(
            _later(row, counted, spec, trusted.origin, rule)
            for row, counted in zip(given, usual if padding else given, strict=True)
        )

    return positioned(words(parameter, "counting the padding" if padding else ""), positions)


def _later(row: Row, usual: Row, spec: ForwardSpec, origin: int, rule: Rule) -> Row:
    counted = tuple(position - origin for position in usual)
    (_, first), *later = chunk_bounds(spec)
    rules = (rule(counted, start, stop - start) for start, stop in later)
    return (*row[:first], *(origin + position for positions in rules for position in positions))
