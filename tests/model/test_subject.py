"""A subject at a precision: what is its own, what comes back, and what must not be mixed up."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama

from attncheck.core.settings import Settings
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject, WrongPrecision


@pytest.fixture
def single() -> Subject:
    return Subject.of(tiny_llama(), "llama", settings=Settings(length=12))


def test_each_precision_has_a_budget_and_capabilities_of_its_own(single: Subject) -> None:
    low = single.budget
    with single.at("float64") as wide:
        assert wide.budget.value < 1e-6 * low.value
        assert wide.can.mask_2d
        assert not single.can.knows("mask_2d")
    assert single.budget is low
    with single.at("float64") as again:
        assert again is wide


def test_logits_of_another_precision_are_put_aside_when_it_is_left(single: Subject) -> None:
    spec = ForwardSpec(single.inputs.tokens)
    with single.at("float64") as wide:
        usual_BTV = wide.logits(spec).clone()
        assert wide.passes.memory.kept
    assert not wide.passes.memory.kept
    forwards = single.loaded.forwards
    with single.at("float64") as again:
        assert torch.equal(again.logits(spec), usual_BTV)
    assert single.loaded.forwards == forwards


def test_a_forward_in_a_precision_that_the_weights_are_not_in_is_refused(single: Subject) -> None:
    with single.at("float64"), pytest.raises(WrongPrecision, match="in float64 at the moment"):
        single.logits(ForwardSpec(single.inputs.tokens))
    with single.at("float64") as wide:
        pass
    with pytest.raises(WrongPrecision, match="in float32 at the moment"):
        wide.logits(ForwardSpec(wide.inputs.tokens))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_weights_come_back_bit_for_bit(single: Subject, dtype: str) -> None:
    before = {name: tensor.clone() for name, tensor in single.model.state_dict().items()}
    with single.at(dtype) as other:
        assert other.loaded.stored_dtype == other.dtype
    assert all(torch.equal(before[name], each) for name, each in single.model.state_dict().items())


def test_weights_are_cast_once_while_that_is_kept(single: Subject) -> None:
    before = {name: tensor.clone() for name, tensor in single.model.state_dict().items()}
    weight = next(single.model.parameters())
    with single.loaded.casting_once():
        with single.at("float64"):
            cast = weight.data_ptr()
        with single.at("float64") as again:
            assert weight.data_ptr() == cast
            logits_BTV = again.passes.run(ForwardSpec(again.inputs.tokens))
        own, weight.data = weight.data, weight.data + 1
        with single.at("float64"):
            assert weight.data_ptr() != cast  # another storage is another weight
        weight.data = own
    assert single.loaded.spare is None
    assert all(torch.equal(before[name], each) for name, each in single.model.state_dict().items())
    with single.at("float64") as fresh:
        assert torch.equal(fresh.passes.run(ForwardSpec(fresh.inputs.tokens)), logits_BTV)


def test_float64_inherits_what_calls_are_taken_and_not_what_agrees(single: Subject) -> None:
    assert single.can.reads_positions
    assert single.can.steps_agree
    with single.at("bfloat16") as low:
        assert not low.can.knows("steps")
    with single.at("float64") as wide:
        assert wide.can.knows("reads_positions")
        assert wide.can.knows("steps")
        assert not wide.can.knows("steps_agree")


def test_a_budget_that_was_measured_under_a_fault_is_not_remembered(single: Subject) -> None:
    with single.passes.under("a fault", on_cache_only=False), single.at("float64") as faulty:
        pass
    with single.at("float64") as healthy:
        assert healthy is not faulty


def test_other_inputs_share_what_was_measured(single: Subject) -> None:
    budget = single.budget
    short = single.with_inputs(Subject.of(single.model, settings=Settings(length=6)).inputs)
    assert (short.inputs.length, single.inputs.length) == (6, 12)
    assert short.budget is budget
    assert short.passes is single.passes
