"""generate: positions, repeated tokens, kept logits, padded encoders, and models whose positions
start behind the padding id.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from probing import HEALTHY, case, caught_by, finding, loaded

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.generation import greedy, kept_logits
from attncheck_probes.generate.turns import hole


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_pass_with_two_controls(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), "generate")
    assert found.verdict is Verdict.PASS
    assert [control.detected for control in found.controls] == [True, True]


@pytest.mark.parametrize(
    "fault", ["generate-positions", "generate-repeats-token", "logits-to-keep"]
)
def test_planted_faults_are_caught(fault: str) -> None:
    assert caught_by(loaded("builtin:gqa"), "generate", fault) is not None


def test_roberta_generates_at_other_positions_than_forward() -> None:
    found = finding(loaded("config:roberta"), "generate")
    assert found.verdict is Verdict.FAIL
    broken = case(found, "cache off")
    assert verdict_of(broken) is Verdict.FAIL
    assert broken.note.startswith("generate() passes positions 0..")


def test_a_static_cache_that_gpt_neo_reads_wrongly_is_found() -> None:
    found = finding(loaded("config:gpt_neo"), "generate")
    assert verdict_of(case(found, "static cache")) is Verdict.FAIL
    assert verdict_of(case(found, "cache on")) is Verdict.PASS


def test_the_padding_of_an_encoder_is_masked_and_a_lost_mask_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = loaded("config:t5")
    assert verdict_of(case(finding(subject, "generate"), "padded encoder")) is Verdict.PASS
    usual = subject.model.forward

    def forward(*args: Any, attention_mask: Any = None, **named: Any) -> Any:
        return usual(*args, **named)

    monkeypatch.setattr(subject.model, "forward", forward)
    subject.passes.forget()
    assert verdict_of(case(finding(subject, "generate"), "padded encoder")) is Verdict.FAIL


def test_models_that_read_ahead_by_design_are_skipped() -> None:
    assert finding(loaded("config:xlnet"), "generate").verdict is Verdict.SKIP


def test_what_the_models_defaults_force_is_no_argmax() -> None:
    subject = loaded("config:bart")
    subject.model.generation_config.forced_eos_token_id = 2
    assert verdict_of(case(finding(subject, "generate"), "tokens are the argmax")) is Verdict.PASS
    assert subject.model.generation_config.forced_eos_token_id == 2


def test_greedy_gives_as_many_tokens_and_logits_as_asked() -> None:
    subject = loaded("builtin:gqa")
    made = greedy(subject, subject.inputs.row[:8], 3)
    assert len(made.tokens) == 3
    assert made.logits_BNV.shape == (1, 3, subject.facts.vocab)
    assert made.logits_BNV.argmax(-1)[0].tolist() == list(made.tokens)


def test_kept_logits_are_the_last_ones() -> None:
    subject = loaded("builtin:gqa")
    kept = kept_logits(subject, subject.inputs.tokens, 2)
    assert kept.shape == (1, 2, subject.facts.vocab)
    whole = subject.passes.call(subject.inputs.tokens, use_cache=False).logits_BTV[:, -2:]
    torch.testing.assert_close(kept, whole.detach())


@pytest.mark.parametrize("probe", ["generate", "implementations", "cache-kinds", "future-token"])
def test_logits_that_are_not_finite_fail_instead_of_excusing_cases(probe: str) -> None:
    subject = loaded("builtin:gqa")
    head = subject.model.get_output_embeddings()

    def lose_one(module: torch.nn.Module, args: Any, logits_BTV: torch.Tensor) -> torch.Tensor:
        return logits_BTV.index_fill(-1, torch.tensor([5]), float("nan"))

    with head.register_forward_hook(lose_one):
        found = finding(subject, probe)
    assert found.verdict is Verdict.FAIL
    skipped = [each.note for each in found.cases if verdict_of(each) is Verdict.SKIP]
    assert not [note for note in skipped if "earlier logits" in note or "padding" in note]


def test_positions_that_count_a_hole_in_the_mask_are_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = loaded("config:gpt2")
    model: Any = subject.model
    usual = model.prepare_inputs_for_generation

    @functools.wraps(usual)
    def by_slot(ids_BT: torch.Tensor, **given: Any) -> dict[str, Any]:
        """Subtracts what is hidden in front, and nothing in the middle."""
        inputs: dict[str, Any] = usual(ids_BT, **given)
        mask_BT, count = given["attention_mask"], inputs["position_ids"].shape[1]
        front_B1 = (mask_BT.cumsum(-1) == 0).sum(-1, keepdim=True)
        slots_BT = (torch.arange(mask_BT.shape[1])[None] - front_B1).clamp_min(0)
        return {**inputs, "position_ids": slots_BT[:, -count:]}

    prompt = subject.inputs.row[:12]
    assert verdict_of(hole(subject, prompt, 3)) is Verdict.PASS
    monkeypatch.setattr(model, "prepare_inputs_for_generation", by_slot)
    found = hole(subject, prompt, 3)
    assert verdict_of(found) is Verdict.WARN
    assert found.note == "the mask hides positions 6..7; positions count them"
    assert found.cause.fault == "position-ignores-padding"
    assert found.cause.module == "GPT2LMHeadModel.prepare_inputs_for_generation"
