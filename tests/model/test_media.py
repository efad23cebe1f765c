"""The shape in which a forward takes pictures is found by trying."""

from __future__ import annotations

import json

import pytest
import torch
from media_models import codebooks, multimodal
from probing import loaded

from attncheck.diagnosis.replay import spec_dict, spec_from_dict
from attncheck.model.forward_spec import ForwardSpec, Media
from attncheck.model.media import Medium


@pytest.mark.parametrize(
    ("name", "count", "shape", "stacked"),
    [
        ("llava", 4, (1, 3, 28, 28), False),
        ("qwen2_vl", 6, (24, 1176), False),
        ("idefics3", 1, (1, 3, 28, 28), True),
        ("mllama", 1, (1, 4, 3, 28, 28), True),
        ("git", 0, (1, 3, 28, 28), False),
    ],
)
def test_a_picture_is_passed_as_the_model_takes_it(
    name: str, count: int, shape: tuple[int, ...], stacked: bool
) -> None:
    (medium,) = multimodal(name).media
    assert medium.matters
    assert medium.count == count
    recipe = medium.require()
    assert (recipe.shapes[0], recipe.stacked) == (shape, stacked)


def test_a_prefix_is_told_from_marked_placeholders_by_effect() -> None:
    assert multimodal("paligemma").media[0].prefix
    assert not multimodal("gemma3").media[0].prefix
    assert multimodal("paligemma").forward_adapter.marks_suffix


def test_looking_for_pictures_leaves_nothing_on_the_model() -> None:
    subject = multimodal("qwen2_vl")
    assert subject.media[0].matters
    assert subject.model.model.rope_deltas is None


def test_items_alternate_in_shape_and_are_the_same_for_a_seed() -> None:
    recipe = multimodal("qwen2_vl").media[0].require()
    wide, high = (recipe.item(seed)["image_grid_thw"].tolist() for seed in (1, 2))
    assert (wide, high) == ([[1, 6, 4]], [[1, 4, 6]])
    one, again, other = (recipe.item(seed)["pixel_values"] for seed in (1, 1, 3))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_a_row_of_text_beside_a_picture_gets_an_empty_item() -> None:
    medium = multimodal("mllama").media[0]
    ids_BT = torch.tensor([[5, 6, medium.placeholder, 7], [5, 6, 7, 8]])
    found = medium.arguments(ids_BT, Media("picture", ((1,), ())), torch.float32)
    assert found["pixel_values"].shape[:2] == (2, 1)
    assert not found["pixel_values"][1].any()
    assert found["aspect_ratio_ids"].tolist() == [[1], [0]]
    assert found["cross_attention_mask"][:, :, 0, 0].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]


def test_an_item_goes_with_the_chunk_in_which_it_begins() -> None:
    medium = multimodal("llava").media[0]
    row = (5, *medium.span, 6, *medium.span, 7)
    ids_BT, media = torch.tensor([row]), Media("picture", ((1, 2),))
    first, second, none = (
        medium.arguments(ids_BT, media, torch.float32, *part)
        for part in ((0, 6), (6, 10), (10, 11))
    )
    item = medium.require().item
    assert torch.equal(first["pixel_values"], item(1)["pixel_values"].float())
    assert torch.equal(second["pixel_values"], item(2)["pixel_values"].float())
    assert none == {}


def test_a_model_of_text_takes_none() -> None:
    subject = loaded("builtin:gqa")
    assert subject.media == ()
    assert subject.passes.medium("picture").recipe is None


def test_a_chosen_row_takes_its_items_along() -> None:
    spec = ForwardSpec(((1, 2), (3, 4)), media=Media("picture", ((1,), (2,))))
    assert spec.of_rows((1, 1)) == ForwardSpec(
        ((3, 4), (3, 4)), media=Media("picture", ((2,), (2,)))
    )


def test_an_item_that_could_not_be_passed_says_why() -> None:
    medium = Medium("picture", unusable="no way to pass a picture was found: it raises")
    with pytest.raises(Exception, match="no way to pass a picture"):
        medium.require()


def test_codes_differ_by_token_and_codebook() -> None:
    found = codebooks().forward_adapter.codebooks
    assert found is not None
    columns_BTC = found.arguments("input_ids", torch.tensor([[4, 5]]))["input_ids"]
    assert columns_BTC.shape == (1, 2, 4)
    assert columns_BTC[0, :, 0].tolist() == [4, 5]
    assert len({tuple(column) for column in columns_BTC[0].T.tolist()}) == 4


def test_a_saved_forward_keeps_its_items() -> None:
    media = Media("picture", ((1,), (2, 3)), prompt=4, without=("token_type_ids",))
    spec = ForwardSpec(((1, 2), (3, 4)), media=media)
    assert spec_from_dict(json.loads(json.dumps(spec_dict(spec)))) == spec
