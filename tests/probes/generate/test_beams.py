"""generate: beams of a left-padded batch."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import tiny_llama
from probing import loaded

from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.faults import registry
from attncheck.model.subject import Subject
from attncheck.targets.load import in_memory, settle_dtype
from attncheck_probes.generate.beams import beam_scores, beside_another_encoder


def beams(subject: Subject) -> Measurement:
    return beam_scores(subject, subject.inputs.row[:16], 3, 4)


def test_beams_of_both_rows_are_scored(subject: Subject) -> None:
    found = beams(subject)
    assert verdict_of(found) is Verdict.PASS
    assert found.positions == 2 * 4


def test_a_mask_tiled_beside_interleaved_ids_shows_in_a_padded_batch(subject: Subject) -> None:
    model: Any = subject.model
    expand = model._expand_inputs_for_generation

    def tiled(*args: Any, expand_size: int = 1, **given: Any) -> Any:
        mask = given.get("attention_mask")
        ids, made = expand(*args, expand_size=expand_size, **given)
        return ids, {**made, "attention_mask": mask.repeat(expand_size, 1)}

    model._expand_inputs_for_generation = tiled
    found = beams(subject)
    assert verdict_of(found) is Verdict.FAIL
    assert found.max_abs is not None
    assert found.max_abs > 1e3 * (found.budget or 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_a_cache_that_stays_behind_its_beams_shows_whatever_the_seed(seed: int) -> None:
    subject = settle_dtype(in_memory(tiny_llama(), "llama", Settings(seed=seed)), "float64")
    assert verdict_of(beams(subject)) is Verdict.PASS
    with registry.fault("cache-reorder").injected(subject):
        assert verdict_of(beams(subject)) is Verdict.FAIL


def test_where_a_padded_forward_errs_already_one_row_is_asked() -> None:
    found = beams(loaded("config:bart"))
    assert verdict_of(found) is Verdict.PASS
    assert (found.positions, found.note) == (4, "row 0")


def test_encoder_states_tiled_beside_interleaved_beams_are_found() -> None:
    subject = loaded("config:seq2seq/t5")
    model: Any = subject.model
    expand = model._expand_inputs_for_generation

    def tiled(*args: Any, expand_size: int = 1, **given: Any) -> Any:
        ids, made = expand(*args, expand_size=expand_size, **given)
        states = made["encoder_outputs"]["last_hidden_state"]
        made["encoder_outputs"]["last_hidden_state"] = states[::expand_size].repeat(
            expand_size, 1, 1
        )
        return ids, made

    def measured() -> Measurement:
        return beside_another_encoder(subject, subject.inputs.row[:4], 3, "encoders")

    assert verdict_of(measured()) is Verdict.PASS
    model._expand_inputs_for_generation = tiled
    found = measured()
    assert verdict_of(found) is Verdict.FAIL
    assert found.note == "row 1: beside a row with another encoder input it has other scores"
    assert found.cause.fault == "rows-mixed"
    assert found.cause.module == f"{type(model).__name__}._expand_inputs_for_generation"
