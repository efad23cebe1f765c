"""Keys that a layer reads against those that a span allows, and why other keys need not be wrong."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from attncheck.judge.attention_span import (
    ObservedKeys,
    drawn,
    exemption,
    observed_in_gradient,
    reads_ahead,
    wrong_pairs,
)
from attncheck.judge.config_spec import FULL, AttentionSpan
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject

LENGTH, WINDOW = 24, 9


def observed(span: AttentionSpan, **changes: object) -> ObservedKeys:
    keys = ObservedKeys(
        name="layer",
        index=0,
        module=torch.nn.Identity(),
        reads_TS=span.allowed_TS(LENGTH, LENGTH),
        positions=tuple(range(LENGTH)),
        stop=LENGTH,
        masked=True,
    )
    return dataclasses.replace(keys, **changes)  # type: ignore[arg-type]


def test_a_window_that_the_kernel_cuts_short_by_one_is_counted() -> None:
    keys = observed(AttentionSpan("sliding", WINDOW - 1))
    assert wrong_pairs(keys, AttentionSpan("sliding", WINDOW)) == LENGTH - (WINDOW - 1)
    assert wrong_pairs(keys, AttentionSpan("sliding", WINDOW - 1)) == 0
    assert exemption(keys, [keys]) == ""


def test_keys_that_a_cache_has_dropped_count_as_not_read() -> None:
    step = observed(FULL, reads_TS=torch.ones(1, 3, dtype=torch.bool), positions=(LENGTH - 1,))
    assert step.cut == LENGTH - 3
    assert wrong_pairs(step, AttentionSpan("sliding", 3)) == 0
    assert wrong_pairs(step, AttentionSpan("sliding", 5)) == 2
    assert drawn(step, AttentionSpan("sliding", 5)) == ("." * (LENGTH - 5) + "--###",)


def test_layers_that_choose_keys_by_content_are_exempt_and_no_others() -> None:
    keys, other = observed(AttentionSpan("sliding", 4)), observed(AttentionSpan("sliding", 5))
    assert exemption(keys, [other]) == "layer chooses its keys by content"
    everything = observed(FULL, reads_TS=torch.ones(LENGTH, LENGTH, dtype=torch.bool), masked=False)
    assert reads_ahead(everything)
    everything.module.is_causal = False  # type: ignore[assignment]
    assert exemption(everything, [other]) == ""


@pytest.mark.parametrize("head", [0, 2])
@pytest.mark.parametrize("size", [WINDOW - 1, WINDOW + 1])
def test_one_head_that_reads_otherwise_is_counted_by_itself(head: int, size: int) -> None:
    stated = AttentionSpan("sliding", WINDOW)
    right, wrong = (
        AttentionSpan("sliding", each).allowed_TS(LENGTH, LENGTH) for each in (WINDOW, size)
    )
    reads_HTS = torch.stack([wrong if each == head else right for each in range(3)])
    keys = observed(stated, reads_TS=reads_HTS.any(0), reads_HTS=reads_HTS)
    shown, number = keys.worst_head(stated)
    assert number == head
    assert torch.equal(shown.reads_TS, wrong)
    assert wrong_pairs(keys, stated) == LENGTH - min(size, WINDOW)
    assert exemption(keys, [keys]) == ""


def test_the_gradient_shows_every_key_that_each_layer_reads(subject: Subject) -> None:
    found = observed_in_gradient(subject, ForwardSpec((subject.inputs.fresh(LENGTH, 1),)))
    assert [each.index for each in found] == [0, 1, 2, 3]
    for each in found:
        assert (each.positions[0], each.positions[-1], each.stop) == (0, LENGTH - 1, LENGTH)
        assert torch.equal(each.reads_TS, each.allowed_TS(FULL))
        assert each.unsure_TS is not None
        assert not each.unsure_TS.any()
