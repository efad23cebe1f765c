"""future-token: healthy models pass, planted faults are caught, and a block that a short row cannot
show is seen in a long one.
"""

from __future__ import annotations

import pytest
from conftest import tiny_llama
from probing import ACCUSING, HEALTHY, assert_caught, case, finding, loaded, without_mask

from attncheck.core import registry
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.model.token_sweep import AS_PROVEN

PROBE = "future-token"


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_are_not_accused(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), PROBE)
    assert found.verdict not in ACCUSING
    assert found.verdict is Verdict.PASS


def test_controls_are_two_and_caught(subject: Subject) -> None:
    controls = finding(subject, PROBE).controls
    assert len(controls) == 2
    assert all(control.detected for control in controls)


@pytest.mark.parametrize(
    "fault",
    [
        "causal-mask-missing",
        "mask-off-by-one",
        "leak-outside-attention",
    ],
)
def test_planted_faults_are_caught_and_leave_nothing_behind(subject: Subject, fault: str) -> None:
    assert_caught(subject, PROBE, fault)


def test_a_model_with_a_wrong_mask_fails() -> None:
    assert finding(loaded("builtin:broken-mask"), PROBE).verdict is Verdict.FAIL
    assert finding(loaded("builtin:broken-positions"), PROBE).verdict is Verdict.PASS


def test_a_block_of_32_that_is_not_masked_shows_in_the_prefixes_alone(double: Subject) -> None:
    without_mask(double, lambda queries, before: queries % 32 == 0)
    found = finding(double, "future-token")
    assert [each.name for each in found.cases if verdict_of(each) is Verdict.FAIL] == [
        "prefixes of a long row"
    ]
    broken = case(found, "prefixes of a long row")
    assert broken.divergence.first_position == 0
    assert broken.note == "the first 128 tokens alone"


def test_a_context_with_little_room_has_a_prefix_too() -> None:
    subject = Subject.of(tiny_llama(max_position_embeddings=32), "short")
    found = case(finding(subject, "future-token"), "prefixes of a long row")
    assert (verdict_of(found), found.note) == (Verdict.PASS, "the first 31 tokens alone")


def test_a_model_that_chooses_keys_by_content_is_not_accused_of_how_it_settles_ties() -> None:
    found = case(finding(loaded("config:doge"), "future-token"), "prefixes of a long row")
    assert found.expect == "skip"
    assert "layers choose keys by content" in found.note


def test_a_way_to_call_that_gives_what_a_proven_one_gives_needs_two_rows() -> None:
    subject, rows = loaded("builtin:gqa"), list[int]()
    subject.model.register_forward_pre_hook(
        lambda model, args, named: rows.append(len(named["input_ids"])), with_kwargs=True
    )
    cases = {each.name: each for each in registry.load(PROBE).measure(subject)}
    static = cases["only the next token, static cache"]
    assert static.note == AS_PROVEN
    assert static.positions == 2 * subject.inputs.length
    assert cases["only the next token, no mask, cache off"].positions == sum(range(1, 24))
    assert sorted(each for each in rows if each > 1) == [2] * 6 + [8, 26]
    larger = cases["only the next token, no mask, cache on"]
    assert larger.positions == 8 * subject.inputs.length


def test_a_leak_on_a_filled_cache_alone_is_named_there(double: Subject) -> None:
    without_mask(double, lambda queries, before: before > 0)
    found = finding(double, PROBE)
    broken = [each for each in found.cases if verdict_of(each) is Verdict.FAIL]
    assert [each.name for each in broken] == ["only the next token, chunks on a cache"]
    assert broken[0].note.startswith("the token at position ")
    assert broken[0].divergence.first_position in range(12, 23)
