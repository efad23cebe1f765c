"""generate: embeddings in place of ids."""

from __future__ import annotations

from typing import Any

import pytest
from probing import case, finding, loaded

from attncheck.core import registry
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.probing import attempt
from attncheck_probes.generate.beams import NAME as BEAMS
from attncheck_probes.generate.embeddings import embedded


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
        ("config:t5", "embeddings passed to a model with an encoder go to the encoder"),
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
