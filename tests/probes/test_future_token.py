"""future-token: healthy models pass, planted faults are caught, and a block that a short row cannot
show is seen in a long one.
"""

from __future__ import annotations

import pytest
from conftest import tiny_llama
from probing import ACCUSING, HEALTHY, assert_caught, case, finding, loaded, without_mask

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject

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
