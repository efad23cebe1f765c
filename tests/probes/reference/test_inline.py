"""reference on models that attend by themselves: faults in their own arithmetic, and healthy ones
of many forms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from probing import case, caught_by, finding, loaded
from torch import Tensor, nn

from attncheck.attention.alibi import paper_slopes
from attncheck.core.finding import Finding
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject

ONCE = "attention output of 4 layers, one forward"


@pytest.mark.parametrize(
    "name",
    ["mpt", "falcon", "roformer", "openai-gpt", "mvp", "gpt_neox_japanese", "xlnet", "gpt_neo"],
)
def test_healthy_ones_are_judged_and_pass(name: str) -> None:
    found = finding(loaded(f"config:{name}"), "reference")
    assert found.verdict is Verdict.PASS
    assert case(found, ONCE).positions > 0
    assert found.controls
    assert all(control.detected for control in found.controls)


def test_a_scale_that_nothing_states_is_said_to_be_unjudged() -> None:
    found = finding(loaded("config:gpt_neo"), "reference")
    unjudged = case(found, "scale of 4 layers not judged")
    assert unjudged.expect == "skip"
    assert unjudged.note.endswith("nothing states a scale, and the scores are not scaled")


def test_a_stream_of_another_form_is_left_alone() -> None:
    found = finding(loaded("config:prophetnet"), "reference")
    assert verdict_of(case(found, ONCE)) is Verdict.PASS


def test_a_step_that_reads_the_padding_is_found() -> None:
    """Its cached step is given no mask at all."""
    broken = case(
        finding(loaded("config:prophetnet"), "reference"),
        "attention output of 4 layers, left padding, a step on the cache",
    )
    assert verdict_of(broken) is Verdict.FAIL
    assert "it reads other keys than its config states" in broken.note


@pytest.mark.parametrize("name", ["bloom", "falcon", "mvp"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("softmax-scale", "the scores are scaled by 0.125 instead of 0.25"),
        ("mask-off-by-one", "it reads other keys than its config states"),
        ("causal-mask-missing", "it reads other keys than its config states"),
    ],
)
def test_planted_faults_are_caught_and_located(name: str, fault: str, words: str) -> None:
    subject = loaded(f"config:{name}")
    broken = caught_by(subject, "reference", fault)
    assert broken is not None
    assert words in broken.note
    assert broken.name == ONCE
    assert ".0." in broken.cause.module


def _with(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[..., Any]
) -> Finding:
    """The finding on a model one of whose own functions is wrapped: `change` gets the usual one and
    its arguments.
    """
    home: Any = sys.modules[type(subject.model).__module__]
    usual = getattr(home, name)
    monkeypatch.setattr(home, name, lambda *args, **named: change(usual, *args, **named))
    return finding(subject, "reference")


def test_scores_that_the_model_itself_scales_wrongly_are_found() -> None:
    subject = loaded("config:bloom")
    attention: Any = subject.model.transformer.h[1].self_attention  # type: ignore[union-attr, index]
    attention.inv_norm_factor = 0.5
    subject.text_config.attention_multiplier = 0.25
    found = finding(subject, "reference")
    assert found.verdict is Verdict.FAIL
    broken = case(found, ONCE)
    assert broken.cause.module == "transformer.h.1.self_attention"
    assert "the scores are scaled by 0.5 instead of 0.25" in broken.note


def test_scores_that_are_divided_by_something_else_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = loaded("config:megatron-bert")
    home: Any = sys.modules[type(subject.model).__module__]
    monkeypatch.setattr(home, "math", SimpleNamespace(sqrt=lambda value: 2.0))
    found = finding(subject, "reference")
    assert found.verdict is Verdict.FAIL
    assert "the scores are scaled by 0.5 instead of 0.25" in case(found, ONCE).note


def test_linear_biases_with_wrong_slopes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def steeper(usual: Callable[..., Tensor], *args: Any, **named: Any) -> Tensor:
        return 2 * usual(*args, **named)

    found = _with(loaded("config:bloom"), monkeypatch, "build_alibi_tensor", steeper)
    assert found.verdict is Verdict.FAIL
    assert (
        "its linear biases have other slopes than expected" in case(found, f"{ONCE}, 2D mask").note
    )


def test_slopes_of_an_odd_number_of_heads_are_those_of_the_paper() -> None:
    assert paper_slopes(8, 8.0).tolist() == [2.0**-power for power in range(1, 9)]
    assert paper_slopes(6, 8.0).tolist() == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]


def test_biases_that_count_anew_on_a_cache_are_found_in_the_step() -> None:
    broken = caught_by(loaded("config:bloom"), "reference", "alibi-local")
    assert broken is not None
    assert broken.name == "attention output of 4 layers, a chunk on the cache"
    assert "its linear biases have other slopes than expected" in broken.note


def test_weights_that_are_changed_after_the_softmax_are_set_aside_not_accused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = loaded("config:xglm")
    home: Any = sys.modules[type(subject.model).__module__]
    usual = home.nn.functional.dropout

    def halving(values: Tensor, **named: Any) -> Tensor:
        weights = values.ndim == 3 and values.shape[-1] == values.shape[-2]
        return usual(values, **named) * (0.5 if weights else 1.0)

    monkeypatch.setattr(home.nn.functional, "dropout", halving)
    found = finding(subject, "reference")
    assert found.verdict is Verdict.SKIP
    assert "its weights are changed after the softmax" in str(found.skip_reason)


class Bare(nn.Module):
    """One layer of attention and no config at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wte, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.wte(input_ids)
        q, k, v = (
            each(x).unflatten(-1, (2, 8)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / 8**0.5).masked_fill(hidden, float("-inf"))
        return self.head(x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_a_module_without_a_config_is_judged_by_its_width() -> None:
    found = finding(Subject.of(Bare(), dtype="float64"), "reference")
    (scale,) = [case for case in found.cases if case.name.startswith("scale of")]
    assert verdict_of(scale) is Verdict.PASS
