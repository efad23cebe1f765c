"""padding: masks that mean less than they say, in one layout, with a hole, in one dtype, or where
none is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from probing import case, finding, loaded
from torch import Tensor

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject

Change = Callable[[Tensor], Tensor | None]
NEW = (
    "a hole in the mask",
    "left, 2D mask as bool",
    "left, 2D mask as int32",
    "left, 2D mask as float32",
    "the padding id as text",
)


def with_masks(subject: Subject, change: Change) -> Subject:
    """The subject with every 2D mask changed on its way into the decoder."""

    def changed(module: Any, args: Any, call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = call.get("attention_mask")
        return args, {
            **call,
            "attention_mask": change(mask) if mask is not None and mask.ndim == 2 else mask,
        }

    subject.model.model.register_forward_pre_hook(changed, with_kwargs=True)  # type: ignore[union-attr, operator]
    return subject


def dropped_where_the_last_row_is_full(mask_BT: Tensor) -> Tensor | None:
    return None if bool(mask_BT[-1].all()) else mask_BT


def dropped_where_the_first_row_is_full(mask_BT: Tensor) -> Tensor | None:
    return None if bool(mask_BT[0].all()) else mask_BT


def holes_filled(mask_BT: Tensor) -> Tensor:
    behind, before = mask_BT.cumsum(-1) > 0, mask_BT.flip(-1).cumsum(-1).flip(-1) > 0
    return (behind & before).to(mask_BT.dtype)


def booleans_as_ones(mask_BT: Tensor) -> Tensor:
    return torch.ones_like(mask_BT) if mask_BT.dtype == torch.bool else mask_BT


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (dropped_where_the_last_row_is_full, "left, rows reversed, decoded on a padded cache"),
        (dropped_where_the_first_row_is_full, "left, decoded on a padded cache, sdpa"),
        (holes_filled, "a hole in the mask"),
        (booleans_as_ones, "left, 2D mask as bool"),
    ],
)
def test_masks_that_mean_less_in_one_form_are_caught_there(
    subject: Subject, change: Change, where: str
) -> None:
    healthy = finding(subject, "padding")
    assert verdict_of(case(healthy, where)) is Verdict.PASS
    found = finding(with_masks(loaded("builtin:gqa"), change), "padding")
    broken = case(found, where)
    assert found.verdict is Verdict.FAIL
    assert broken.max_abs is not None
    assert broken.max_abs > 1e9 * (broken.budget or 0.0)
    assert broken.positions > subject.inputs.length // 3


def test_a_padding_id_that_is_hidden_where_no_mask_is_given_is_a_trap(subject: Subject) -> None:
    pad = subject.inputs.pool[0]
    subject.config.pad_token_id = pad

    def hiding(module: Any, args: Any, call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        ids = call.get("input_ids")
        return args, {**call, "attention_mask": (ids != pad).long()} if call.get(
            "attention_mask"
        ) is None else call

    healthy = case(finding(subject, "padding"), "the padding id as text")
    assert verdict_of(healthy) is Verdict.PASS
    subject.model.model.register_forward_pre_hook(hiding, with_kwargs=True)  # type: ignore[union-attr, operator]
    subject.passes.forget()
    found = case(finding(subject, "padding"), "the padding id as text")
    assert verdict_of(found) is Verdict.WARN
    assert f"makes one from token {pad}" in found.note
    assert (found.divergence.first_position or 0) >= subject.inputs.length // 3


@pytest.mark.parametrize("target", ["config:bloom", "config:roberta", "config:jamba"])
def test_positions_from_ids_biases_and_states_read_every_form_of_a_mask(target: str) -> None:
    found = finding(loaded(target), "padding")
    verdicts = {name: verdict_of(case(found, name)) for name in NEW}
    assert set(verdicts.values()) <= {Verdict.PASS, Verdict.SKIP}
    assert [verdicts[name] for name in NEW[:-1]] == [Verdict.PASS] * 4


def test_without_a_padding_id_there_is_nothing_to_ask(subject: Subject) -> None:
    subject.config.pad_token_id = None
    found = case(finding(subject, "padding"), "the padding id as text")
    assert (found.expect, found.note) == ("skip", "the config names no padding id")
