"""Predictions are those of the planted fault, and of no other."""

from __future__ import annotations

import pytest
from probing import loaded

from attncheck.diagnosis.failure import max_diff_at
from attncheck.faults import registry as faults
from attncheck.faults.engine.expected import expected_keys, segments_of
from attncheck.faults.engine.trusted import Trusted
from attncheck.judge.config_spec import AttentionSpan
from attncheck.model.forward_spec import ForwardSpec, Mask2D, blocks

ON_SCHEDULE = (
    "position-restart",
    "position-offset",
    "position-frozen",
    "mask-top-left",
    "mask-off-by-one",
    "causal-mask-missing",
    "cache-drops-token",
    "cache-stale",
    "cache-wrong-slot",
    "cache-layer-mixup",
    "cache-low-precision",
    "key-rotated-twice",
    "kv-groups-tiled",
)


@pytest.mark.parametrize("fault", ON_SCHEDULE)
def test_the_prediction_equals_the_injected_fault(fault: str) -> None:
    subject = loaded("builtin:gqa")
    trusted, spec = Trusted(subject), ForwardSpec(subject.inputs.tokens, chunks=(8, 1, 2, 13))
    healthy = subject.logits(spec)
    with faults.fault(fault).injected(subject):
        observed = subject.logits(spec)
    assert max_diff_at(healthy, observed) > 1e-3
    fitting = [guess for guess in faults.hypotheses(trusted, spec) if guess.fault == fault]
    residuals = [max_diff_at(guess.logits(trusted, spec), observed) for guess in fitting]
    assert min(residuals) <= subject.budget.value
    others = [guess for guess in faults.hypotheses(trusted, spec) if guess.fault != fault]
    assert len(others) > 20
    assert (
        min(max_diff_at(each.logits(trusted, spec), observed) for each in others)
        > 10 * subject.budget.value
    )


def test_every_hypothesis_is_a_fault_of_the_catalogue() -> None:
    subject = loaded("builtin:window")
    trusted, half = Trusted(subject), subject.inputs.length // 2
    rows = ((0,) * 3 + (1,) * (subject.inputs.length - 3),)
    padded = ForwardSpec(
        subject.inputs.tokens, chunks=(half, subject.inputs.length - half), mask=Mask2D(rows)
    )
    found = {guess.fault for guess in faults.hypotheses(trusted, padded)}
    assert found <= set(faults.names())
    assert {
        "window-off-by-one",
        "window-ignored",
        "padding-visible",
        "position-restart",
        "cache-stale",
    } <= found


def test_documents_are_separated_by_mask_or_by_positions() -> None:
    row = ((5, 6, 7, 8),)
    assert segments_of(ForwardSpec(row, mask=blocks((2, 2)))) == ((0, 0, 1, 1),)
    assert segments_of(ForwardSpec(row, positions=((0, 1, 0, 1),))) == ((0, 0, 1, 1),)
    assert segments_of(ForwardSpec(row, positions=((0, 1, 0, 1),), use_cache=None)) is None


def test_expected_keys_are_causal_windowed_and_without_padding() -> None:
    spec = ForwardSpec(((5, 6, 7, 8),), mask=Mask2D(((0, 1, 1, 1),)))
    allowed = expected_keys(spec, AttentionSpan("sliding", 2), loaded("builtin:gqa").device)[0, 0]
    assert allowed.tolist() == [
        [False, False, False, False],
        [False, True, False, False],
        [False, True, True, False],
        [False, False, True, True],
    ]
