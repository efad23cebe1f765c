"""Passes: remembered on everything that can change them, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_llama

from attncheck.core.errors import Unsupported
from attncheck.model.forward_spec import (
    ForwardSpec,
    Mask2D,
    Mask4D,
    all_ones,
    blocks,
    causal,
    counting,
    float_mask,
)
from attncheck.model.subject import Subject


def test_one_pass_runs_once(subject: Subject) -> None:
    spec = ForwardSpec(subject.inputs.tokens)
    first = subject.logits(spec)
    forwards = subject.loaded.forwards
    assert subject.logits(ForwardSpec(subject.inputs.tokens)) is first
    assert subject.loaded.forwards == forwards


def test_chunks_are_fed_one_after_the_other(subject: Subject) -> None:
    seen: list[int] = []
    subject.loaded.on_forward = seen.append
    subject.logits(ForwardSpec(subject.inputs.tokens, chunks=(10, 1, 13)))
    assert seen == [10, 1, 13]


def test_memory_is_bounded(subject: Subject) -> None:
    subject.passes.memory_limit = 3 * 24 * 128 * 8
    for first in range(8, 14):
        subject.logits(ForwardSpec(((first, *subject.inputs.row[1:]),)))
    assert len(subject.passes.memory.kept) == 3


def test_what_does_not_fit_into_memory_is_read_back_bit_for_bit(subject: Subject) -> None:
    subject.passes.memory_limit = 0
    rows = [ForwardSpec(((first, *subject.inputs.row[1:]),)) for first in range(8, 12)]
    logits = [subject.logits(row).clone() for row in rows]
    forwards = subject.loaded.forwards
    assert all(map(torch.equal, map(subject.logits, rows), logits))
    assert subject.loaded.forwards == forwards
    subject.passes.drop(rows[0])
    subject.logits(rows[0])
    assert subject.loaded.forwards == forwards + 1


def test_planted_passes_are_kept_apart(subject: Subject) -> None:
    full, cached = (
        ForwardSpec(subject.inputs.tokens),
        ForwardSpec(subject.inputs.tokens, chunks=(12, 12)),
    )
    subject.logits(full), subject.logits(cached)
    before = subject.loaded.forwards
    with subject.passes.under("fault", on_cache_only=True):
        subject.logits(full)
        assert subject.loaded.forwards == before
        subject.logits(cached)
        assert subject.loaded.forwards == before + 2
    with subject.passes.under("fault", on_cache_only=False):
        subject.logits(full)
        assert subject.loaded.forwards == before + 3


def test_a_cached_block_may_read_everything_before_it() -> None:
    allowed_BTT = causal(((5, 6, 7, 8, 9),)).allowed_BTT()
    new_block = allowed_BTT[0, 3:5]
    assert new_block.tolist() == [[True, True, True, True, False], [True] * 5]


def test_blocks_keep_documents_apart() -> None:
    assert blocks((2, 1)) == Mask4D(((0, 0, 1),))
    assert blocks((2, 1)).allowed_BTT()[0].tolist() == [
        [True, False, False],
        [True, True, False],
        [False, False, True],
    ]


def test_a_float_mask_survives_a_softmax_in_float32() -> None:
    mask_BITT = float_mask(torch.tensor([[[True, False]]]), torch.float64, torch.device("cpu"))
    assert mask_BITT.shape == (1, 1, 1, 2)
    assert torch.isfinite(mask_BITT.float()).all()


def test_masks_and_positions_of_a_batch() -> None:
    assert all_ones(((1, 2), (3, 4))) == Mask2D(((1, 1), (1, 1)))
    assert counting(2, 3, start=4) == ((4, 5, 6), (4, 5, 6))


def test_a_model_without_position_ids_says_so(subject: Subject) -> None:
    subject.forward_adapter.positions_name = None
    with pytest.raises(Unsupported, match="LlamaForCausalLM.forward takes no `position_ids`"):
        subject.logits(
            ForwardSpec(subject.inputs.tokens, positions=counting(1, subject.inputs.length))
        )


def test_an_implementation_that_does_not_exist_is_unsupported(subject: Subject) -> None:
    with pytest.raises(Unsupported, match="`nonsense` attention"), subject.using("nonsense"):
        pass
    assert subject.attn == "sdpa"


def test_what_is_found_out_under_a_planted_fault_is_forgotten(subject: Subject) -> None:
    assert subject.can.decodes
    for fault in ("a fault", "the same fault"):
        with subject.passes.under("fault", on_cache_only=False):
            assert subject.can.knows("decodes"), fault
            assert not subject.can.knows("steps"), fault
            assert subject.can.steps
            assert subject.can.knows("steps")
        assert not subject.can.knows("steps")


def test_static_buffers_beside_an_encoders_are_declared_like_those_alone() -> None:
    model = tiny_llama()
    model._can_compile_fullgraph = False  # of this model alone
    passes = Subject.of(model).passes
    kinds = (type(name, (), {})() for name in ("StaticCache", "DynamicCache"))
    for alone, declared in zip(kinds, (False, True), strict=True):
        beside = SimpleNamespace(self_attention_cache=alone)
        assert [passes._promised(None, each) for each in (alone, beside)] == [declared] * 2
