"""Plain calls that show a fault whose cases carry no forwards."""

from __future__ import annotations

from typing import Any

import torch

from attncheck.core import registry
from attncheck.core.settings import Settings
from attncheck.diagnosis.diagnose import diagnose
from attncheck.diagnosis.stand_ins import plain_calls
from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.forward import edited
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.subject import Subject
from attncheck.run.runner import finding_of
from attncheck.targets.load import load


def unmasked_in_steps(call: dict[str, Any]) -> dict[str, Any]:
    """One token on a cache reads padding."""
    mask = call.get("attention_mask")
    behind = any(cached_length(call.get(name)) for name in CACHE_NAMES)
    if mask is None or not behind or call["input_ids"].shape[1] > 1:
        return call
    return {**call, "attention_mask": torch.ones_like(mask)}


def test_padding_that_is_read_in_steps_alone_is_named() -> None:
    subject = load("builtin:gqa", Settings())
    with edited(subject.model, unmasked_in_steps):
        found = diagnose(subject, finding_of(subject, registry.load("reference"))).diagnosis
    assert found is not None
    assert found.fault == "padding-visible"
    assert found.sentence.startswith(
        "Padding can be read, in sequences 1..2, in calls of one token on a cache."
    )


def test_a_static_cache_that_the_class_does_not_declare_stands_for_nothing() -> None:
    subject = load("builtin:gqa", Settings())
    assert "static" in {spec.cache_kind for spec in plain_calls(subject)}
    subject.model._can_compile_fullgraph = False
    assert "static" not in {spec.cache_kind for spec in plain_calls(subject)}


def test_padding_in_front_stands_for_nothing_where_it_is_counted_by_design() -> None:
    def padded(subject: Subject) -> list[ForwardSpec]:
        masks = ((spec, spec.mask) for spec in plain_calls(subject))
        return [
            spec
            for spec, mask in masks
            if isinstance(mask, Mask2D) and any(row[0] == 0 for row in mask.rows)
        ]

    told, untold = (load("builtin:mha", Settings()) for _ in range(2))  # with a table of positions
    assert padded(told)
    assert all(spec.positions is not None for spec in padded(told))
    untold.forward_adapter.positions_name = None
    assert not padded(untold)
