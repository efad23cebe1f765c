"""Layers that read the keys of an earlier layer."""

from __future__ import annotations

from attncheck.judge.heads import _Keys, _source

SLIDING, FULL = (_Keys(kind, kind, (1.0, 2.0)) for kind in ("sliding", "full"))


def test_keys_may_be_those_of_another_type_only_where_a_layer_of_the_own_type_came_before() -> None:
    later = _Keys("later", "sliding", FULL.sums)
    other = _Keys("other", "sliding", (5.0, 6.0))
    assert _source([FULL], later) is None
    assert _source([other, FULL], later) == FULL
    assert _source([SLIDING], later) == SLIDING
    assert _source([other], later) is None
