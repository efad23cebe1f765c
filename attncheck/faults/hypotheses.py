"""Every fault that can be predicted for a failing pass, as one list."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.faults import (
    predict_cache,
    predict_generation,
    predict_masks,
    predict_positions,
    predict_rotary,
    predict_scores,
)
from attncheck.faults.engine.hypothesis import Hypothesis
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.provenance import Provenance


def hypotheses(
    trusted: Trusted, spec: ForwardSpec, made: Provenance | None = None
) -> Iterator[Hypothesis]:
    """All that fit the pass, the plainest first: of two that predict the same, the first is named."""
    if made is not None:
        yield from predict_generation.hypotheses(trusted, spec, made)
    yield from predict_positions.hypotheses(trusted, spec)
    yield from predict_rotary.hypotheses(trusted, spec, made)
    yield from predict_masks.hypotheses(trusted, spec)
    yield from predict_cache.hypotheses(trusted, spec)
    yield from predict_scores.hypotheses(trusted, spec)
