"""A failure names its fault, its place and its runner-up; what is unknown is not guessed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from diagnosing import explained, rotary
from probing import loaded

from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.core.measurement import AtMost, Cause
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import Diagnoser, diagnose
from attncheck.faults import registry as faults
from attncheck.model.forward import edited
from attncheck.model.subject import Subject
from attncheck.run.runner import finding_of


def test_broken_positions_restart() -> None:
    found = explained(loaded("builtin:broken-positions"), "decode-paths")
    told = found.diagnosis
    assert told is not None
    assert (told.fault, told.how) == ("position-restart", "reproduced")
    assert told.residual is not None
    assert told.residual < 1e-12
    assert told.runner_up is not None
    assert told.runner_up["residual"] > 0.1
    assert "length of the cache" in told.advice
    assert told.sentence.startswith(
        "Queries and keys of tokens 8..23 are rotated as if positions restarted at 0 in each call, "
        "in calls on a cache. "
    )
    assert found.location is not None
    assert (found.location.module, found.location.layer) == ("model.layers.0.self_attn", 0)


def test_broken_mask_is_off_by_one() -> None:
    found = explained(loaded("builtin:broken-mask"), "future-token")
    assert found.diagnosis is not None
    assert (found.diagnosis.fault, found.diagnosis.how) == ("mask-off-by-one", "reproduced")
    assert found.location is not None
    assert found.location.layer == 0


def test_replay_holds_both_passes() -> None:
    found = explained(loaded("builtin:broken-positions"), "decode-paths")
    assert found.replay["got"]["chunks"] == [8, 1, 2, 13]
    assert "chunks" not in found.replay["want"]
    assert found.replay["case"] in [case.name for case in found.cases]


@pytest.mark.parametrize("offset", [2, -3])
def test_the_offset_is_searched(offset: int) -> None:
    subject = loaded("builtin:gqa")

    def moved(call: dict[str, Any]) -> dict[str, Any]:
        cache = call.get("cache") if "cache" in call else call.get("past_key_values")
        before = cache.get_seq_length() if cache is not None else 0
        ids = call["input_ids"]
        return (
            {**call, "position_ids": torch.arange(before, before + ids.shape[1])[None] + offset}
            if before
            else call
        )

    with edited(subject.model, moved):
        found = explained(subject, "decode-paths")
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "position-offset"
    assert f"{offset:+d}" in found.diagnosis.advice


def test_a_case_that_names_its_fault_is_believed() -> None:
    cause = Cause("softmax-scale", module="model.layers.3.attn")
    case = AtMost("scale", 2.0, limit=1.0, cause=cause)
    found = diagnose(
        loaded("builtin:gqa"), Finding(probe="reference", verdict=Verdict.FAIL, cases=(case,))
    )
    assert found.diagnosis is not None
    assert (found.diagnosis.fault, found.diagnosis.how) == ("softmax-scale", "reproduced")
    assert found.location is not None
    assert found.location.layer == 3


def test_a_window_is_reproduced_with_what_the_cache_keeps() -> None:
    window = loaded("builtin:window")
    found = finding_of(window, registry.load("decode-paths"))
    assert found.verdict is Verdict.PASS
    with (
        faults.fault("window-off-by-one").injected(window),
    ):
        told = explained(window, "decode-paths").diagnosis
    assert told is not None
    assert told.fault == "window-off-by-one"


def test_what_was_found_is_tried_first() -> None:
    subject = loaded("builtin:broken-positions")
    diagnoser = Diagnoser()
    diagnoser(subject, finding_of(subject, registry.load("decode-paths")))
    assert diagnoser.known[id(subject)] == ("position-restart",)


@pytest.mark.parametrize("scheme", ["longrope", "dynamic"])
def test_a_scheme_that_looks_at_the_length_is_no_leak(scheme: str) -> None:
    subject = Subject.of(rotary(scheme), scheme, dtype="float64")
    told = explained(subject, "decode-paths").diagnosis
    assert told is not None
    assert (told.fault, told.how) == ("rope-scale-switch", "reproduced")
    assert "scheme" in told.advice or "length" in told.advice


def test_a_failure_of_flex_attention_is_searched_without_its_compiler() -> None:
    """A compiler on a CPU takes no float64: the search ended there without an answer."""
    subject = loaded("builtin:gqa")
    with faults.fault("dropout-active").injected(subject):
        finding = finding_of(subject, registry.load("implementations"))
        cases = tuple(case for case in finding.cases if case.name.startswith("flex_attention"))
        found = diagnose(subject, replace(finding, cases=cases))
    assert [case.name for case in cases] == [
        "flex_attention vs sdpa, plain row",
        "flex_attention vs sdpa, left-padded batch",
    ]
    assert found.diagnosis is not None
    assert (found.diagnosis.how, found.diagnosis.fault) == ("reproduced", "dropout-active")


def test_dropout_within_a_kernel_is_named_although_the_trusted_path_has_none() -> None:
    subject = loaded("builtin:gqa")
    attention = subject.model.model.layers[1].self_attn
    usual = attention.forward

    def dropping(*args: Any, **named: Any) -> Any:
        attention.training, attention.attention_dropout = True, 0.3
        try:
            return usual(*args, **named)
        finally:
            attention.training = False

    attention.forward = dropping
    found = diagnose(subject, finding_of(subject, registry.load("batch-rows")))
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "dropout-active"
    assert "one seed the same twice" in found.diagnosis.advice
    assert found.location is not None
    assert found.location.module == "model.layers.1.self_attn"


def test_a_call_whose_positions_change_nothing_keeps_its_name_beside_what_was_measured() -> None:
    """A table of positions returns the rows of other tokens, and the reason has a name."""
    subject = loaded("builtin:mha")
    without = {"position_ids": None}
    with edited(subject.model, lambda call: {**call, **without}):
        found = explained(subject, "padding").diagnosis
    assert found is not None
    assert found.fault == "position-ids-ignored"
    assert found.sentence.startswith("Outputs of transformer.wpe are those of the token")
