"""Faults planted by hand where a picture is, and only there, are caught and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from media_models import multimodal, named
from probing import case, finding

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.compat import cached_length
from attncheck.model.forward import edited
from attncheck.model.subject import Subject
from attncheck.probing import media_answers

PIXELS = "pixel_values"
Edit = Callable[[dict[str, Any]], dict[str, Any]]


def restarted() -> Edit:
    """Steps behind a picture count their positions from 0."""
    seen = [False]

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        if not cached_length(call.get("cache")):
            seen[0] = PIXELS in call
            return call
        if not seen[0]:
            return call
        ids_BT = call["input_ids"]
        return {**call, "position_ids": torch.arange(ids_BT.shape[1]).expand(ids_BT.shape)}

    return edit


def with_mask(allowed: Callable[[int], torch.Tensor]) -> Callable[[], Edit]:
    """Calls with a picture, without a cache and a mask, get this one."""

    def made() -> Edit:
        def edit(call: dict[str, Any]) -> dict[str, Any]:
            rows, length = call["input_ids"].shape
            if PIXELS not in call or call.get("attention_mask") is not None:
                return call
            mask = torch.full((length, length), torch.finfo(torch.float32).min, dtype=torch.float64)
            mask = mask.masked_fill(allowed(length), 0.0)
            return {**call, "attention_mask": mask.expand(rows, 1, length, length)}

        return edit

    return made


def unpadded() -> Edit:
    """Calls with a picture read their padding."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        mask_BT = call.get("attention_mask")
        if PIXELS not in call or mask_BT is None:
            return call
        return {**call, "attention_mask": torch.ones_like(mask_BT)}

    return edit


def everything(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool)


def one_ahead(length: int) -> torch.Tensor:
    return everything(length).tril(1)


@pytest.mark.parametrize(
    ("plant", "probe", "fault"),
    [
        (restarted, "decode-paths", "position-restart"),
        (with_mask(everything), "future-token", "causal-mask-missing"),
        (with_mask(one_ahead), "future-token", "mask-off-by-one"),
        (unpadded, "padding", "padding-visible"),
    ],
)
def test_a_call_with_a_picture_is_wrong(plant: Callable[[], Edit], probe: str, fault: str) -> None:
    subject = multimodal("llava")
    _ = subject.media, subject.can.steps_agree
    with edited(subject.model, plant()), subject.passes.under(fault, False):
        assert named(subject, probe) == fault


def test_rows_with_pictures_are_mixed() -> None:
    subject = multimodal("llava")
    _ = subject.media  # found on the healthy model, as in a run
    shown = [False]

    def note(call: dict[str, Any]) -> dict[str, Any]:
        shown[0] = PIXELS in call
        return call

    def mix(module: Any, args: Any, output: Any) -> Any:
        return 0.9 * output + 0.1 * output.roll(1, 0) if shown[0] else output

    layer = subject.model.model.language_model.layers[0]
    with (
        edited(subject.model, note),
        subject.passes.under("rows-mixed", False),
        layer.register_forward_hook(mix),
    ):
        assert named(subject, "batch-rows") == "rows-mixed"


def moved_by(subject: Subject, steps: int) -> Edit:
    """Positions behind a picture lie some steps too far, on a cache."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        inner = subject.model.model
        if cached_length(call.get("cache")) and inner.rope_deltas is not None:
            inner.rope_deltas = torch.full_like(inner.rope_deltas, steps - 3)
        return call

    return edit


def test_positions_behind_a_picture_lie_too_far() -> None:
    subject = multimodal("qwen3_vl")
    _ = subject.media, subject.can.steps_agree
    with edited(subject.model, moved_by(subject, 2)), subject.passes.under("moved", True):
        found = named(subject, "decode-paths")
    assert found == "position-offset"


def test_positions_that_a_picture_leaves_behind_are_named() -> None:
    assert named(multimodal("qwen2_vl"), "repeatability") == "position-offset"


def test_features_that_are_kept_by_the_shape_of_a_picture_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = multimodal("llava")
    inner = subject.model.model
    usual = type(inner).get_image_features

    def features(self: Any, pixel_values: Any, **named: Any) -> Any:
        seen = self.__dict__.setdefault("_seen", {})
        if pixel_values.shape not in seen:
            seen[pixel_values.shape] = usual(self, pixel_values=pixel_values, **named)
        return seen[pixel_values.shape]

    monkeypatch.setattr(type(inner), "get_image_features", features)
    broken = Subject.of(subject.model, "llava", dtype="float64")
    name = "the same picture before and after another"
    found = finding(broken, "repeatability")
    assert verdict_of(case(found, name)) is Verdict.FAIL
    diagnosis = diagnose(broken, found).diagnosis
    assert diagnosis is not None
    assert diagnosis.sentence.startswith("`model._seen` is kept between calls: it held nothing")


def test_pictures_that_beams_lose_are_named_with_the_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject, name = multimodal("qwen2_vl"), "beam search behind a picture"
    usual = type(subject.model)._expand_inputs_for_generation

    def expand(self: Any, expand_size: int = 1, **named: Any) -> Any:
        if expand_size > 1:
            named = {**named, "mm_encoder_outputs": None, "pixel_values": None}
        return usual(self, expand_size=expand_size, **named)

    found = next(each for each in media_answers.answers(subject, 2) if each.name == name)
    assert verdict_of(found) is Verdict.PASS
    monkeypatch.setattr(type(subject.model), "_expand_inputs_for_generation", expand)
    found = next(each for each in media_answers.answers(subject, 2) if each.name == name)
    assert verdict_of(found) is Verdict.FAIL
    assert found.note == "generate() does not pass `pixel_values` on to forward"
