"""Embeddings in the place of ids, called as a report calls the model."""

from __future__ import annotations

from typing import Any

from probing import loaded

from attncheck.model.subject import Subject
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.embedded_call import embedded
from attncheck.triage.material import Material

PADDED = CallPattern(batch=2, padding="left", positions="implicit")


def changed(subject: Subject, change: Any) -> None:
    """Change the arguments that the model behind the head gets."""
    subject.model.model.register_forward_pre_hook(
        lambda module, args, named: (args, change(dict(named))), with_kwargs=True
    )


def rows(subject: Subject) -> Material:
    row = subject.inputs.row
    return Material((row[:9], row[:6]), own=True, whole=True)


def test_a_healthy_model_reads_embeddings_as_ids() -> None:
    subject = loaded("builtin:gqa", dtype="float64")
    assert embedded(subject, rows(subject), PADDED) is None


def test_a_mask_that_is_dropped_with_embeddings() -> None:
    subject = loaded("builtin:gqa", dtype="float64")
    changed(
        subject,
        lambda given: (
            {**given, "attention_mask": None} if given.get("inputs_embeds") is not None else given
        ),
    )
    found = embedded(subject, rows(subject), PADDED)
    assert found is not None
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "attention-mask-ignored"
    assert found.summary.endswith(
        "with `inputs_embeds` the logits are those without an `attention_mask`"
    )


def test_embeddings_that_are_multiplied_on_their_way() -> None:
    subject = loaded("builtin:gqa", dtype="float64")

    def scaled(given: dict[str, Any]) -> dict[str, Any]:
        embeds = given.get("inputs_embeds")
        return given if embeds is None else {**given, "inputs_embeds": embeds * 0.5}

    changed(subject, scaled)
    found = embedded(subject, rows(subject), PADDED)
    assert found is not None
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "embedding-scale"
    assert found.diagnosis.sentence == (
        "embeddings that are passed in reach the first layer times 0.5"
    )
