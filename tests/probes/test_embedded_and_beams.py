"""generate: embeddings in place of ids, and beams of a left-padded batch."""

from __future__ import annotations

from typing import Any

import pytest
from probing import case, finding, loaded

from attncheck.core import registry
from attncheck.core.finding import Measurement, Verdict, verdict_of
from attncheck.model.subject import Subject
from attncheck.probe import attempt
from attncheck_probes.generate.beams import NAME as BEAMS
from attncheck_probes.generate.beams import beam_scores
from attncheck_probes.generate.embeddings import embedded


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


def test_where_a_padded_forward_errs_already_one_row_is_asked() -> None:
    found = beams(loaded("config:bart"))
    assert verdict_of(found) is Verdict.PASS
    assert (found.positions, found.note) == (4, "row 0")


def test_embeddings_that_are_scaled_once_more_are_caught(subject: Subject) -> None:
    healthy = finding(subject, "generate")
    names = ("inputs_embeds", "answer to inputs_embeds", BEAMS)
    assert {verdict_of(case(healthy, name)) for name in names} == {Verdict.PASS}

    def doubled(module: Any, args: Any, call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given = call.get("inputs_embeds")
        return args, {**call, "inputs_embeds": given if given is None else 2 * given}

    injected = loaded("builtin:gqa")
    injected.model.model.register_forward_pre_hook(doubled, with_kwargs=True)  # type: ignore[union-attr, operator]
    found = finding(injected, "generate")
    assert {each.name for each in found.cases if verdict_of(each) is Verdict.FAIL} == set(names[:2])


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (
            "config:gemma3n_text",
            "Gemma3nForCausalLM looks ids up in a second table, which embeddings cannot replace",
        ),
        ("config:t5", "embeddings handed to a model with an encoder go to the encoder"),
        ("config:cpmant", "CpmAntForCausalLM.forward takes no `inputs_embeds`"),
    ],
)
def test_models_that_need_ids_are_skipped_with_a_sentence(target: str, reason: str) -> None:
    found = attempt("inputs_embeds", lambda: embedded(loaded(target), "inputs_embeds"))
    assert (found.expect, found.note) == ("skip", reason)


def test_a_model_that_scales_its_embeddings_itself_does_so_for_both() -> None:
    assert verdict_of(embedded(loaded("config:gemma2"), "inputs_embeds")) is Verdict.PASS


def test_models_whose_generate_takes_no_embeddings_are_skipped() -> None:
    probe, subject = registry.load("generate"), loaded("config:bamba")
    found = next(each for each in probe.measure(subject) if each.name == "answer to inputs_embeds")
    assert found.expect == "skip"
    assert "You passed `inputs_embeds`" in found.note
