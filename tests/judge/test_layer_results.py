"""The calls on a cache in which layers are judged."""

from __future__ import annotations

from probing import loaded

from attncheck.judge.layer_results import schedule
from attncheck.model.subject import Subject


def test_a_prefill_a_chunk_and_a_step_are_the_whole_row(subject: Subject) -> None:
    first, chunk, step = schedule(subject)
    assert (first + chunk + step, step) == (subject.inputs.length, 1)
    assert first != chunk


def test_without_a_cache_there_is_no_chunk() -> None:
    plain = loaded("config:openai-gpt")
    assert schedule(plain) == (plain.inputs.length - 1, 1)
