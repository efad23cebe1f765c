"""Which exceptions are refusals at the door, and which are findings."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

import pytest
import torch
from probing import case, finding, loaded

from attncheck.core import registry
from attncheck.core.errors import CallFailed, Unsupported
from attncheck.core.measurement import BrokenCall
from attncheck.core.verdict import Verdict
from attncheck.model.compat import CACHE_NAMES
from attncheck.model.forward_spec import ForwardSpec, Mask4D, blocks
from attncheck.model.refusal import classified, of_the_model, refuses, where
from attncheck.model.subject import Subject
from attncheck.run.runner import finding_of


def rejects(**unknown: Any) -> None:
    raise NotImplementedError("later")


def checks(words: str) -> None:
    raise ValueError(words)


def breaks() -> Any:
    return torch.zeros(2) + torch.zeros(3)


def raised(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    return caught.value


@pytest.mark.parametrize(
    ("call", "refused"),
    [
        (rejects, True),
        (lambda: checks("static caches are not supported"), True),
        (lambda: checks("attention mask should be of size (1, 1, 8, 16)"), False),
        (lambda: checks(words="", more=1), True),  # type: ignore[call-arg]
        (breaks, False),
        (lambda: {}["absent"], False),
    ],
)
def test_only_what_says_so_is_a_refusal(call: Callable[[], Any], refused: bool) -> None:
    error = raised(call)
    assert refuses(error) is refused
    assert isinstance(classified(error, "it raises"), CallFailed) is not refused


def test_what_works_at_a_small_size_is_not_refused() -> None:
    error = raised(rejects)
    assert isinstance(classified(error, "it raises", works=lambda: True), CallFailed)


def test_the_line_that_raised_is_named() -> None:
    error = raised(breaks)
    assert of_the_model(error)
    assert where(error).endswith("`return torch.zeros(2) + torch.zeros(3)`")
    assert where(error).startswith("test_refusal.py:")


def test_what_raises_in_our_reader_of_a_forward_is_no_fault_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The probe is an `error` then: the model did nothing wrong."""
    # a function without a frame of its own, which takes one argument
    monkeypatch.setattr("attncheck.judge.layer_spec.expected_slopes", methodcaller("any"))
    found = finding(loaded("builtin:gqa"), "reference")
    assert found.verdict is Verdict.ERROR
    assert found.summary == ("the probe raised TypeError: methodcaller expected 1 argument, got 3")


def test_a_config_may_hold_a_tensor() -> None:
    subject = loaded("builtin:gqa")
    subject.model.config.allowed = torch.ones(2, 2)
    assert finding_of(subject, registry.load("reference")).verdict is Verdict.PASS


def broken_where(when: Callable[[int, int], bool]) -> Subject:
    """A model whose second layer raises for some (queries, cached tokens)."""
    subject = loaded("builtin:gqa")
    layer = subject.model.model.layers[1]
    usual = layer.forward

    def forward(hidden: Any, *args: Any, **named: Any) -> Any:
        cache = next((named[name] for name in CACHE_NAMES if named.get(name) is not None), None)
        before = int(cache.get_seq_length(1)) if cache is not None else 0
        if when(hidden.shape[1], before):
            raise RuntimeError("shapes do not match")
        return usual(hidden, *args, **named)

    layer.forward = forward
    return subject


@pytest.mark.parametrize(
    ("when", "name"),
    [
        (lambda queries, cached: queries > 1 and cached > 0, "chunks 12+12, implicit positions"),
        (lambda queries, cached: cached >= 16, "one token at a time, implicit positions"),
    ],
    ids=["every chunk of several tokens", "from 16 cached tokens on"],
)
def test_a_call_that_works_at_another_length_or_schedule_fails(
    when: Callable[[int, int], bool], name: str
) -> None:
    found = finding(broken_where(when), "decode-paths")
    assert found.verdict is Verdict.FAIL
    broken = case(found, name)
    assert isinstance(broken, BrokenCall)
    assert "LlamaForCausalLM raises RuntimeError: shapes do not match" in broken.note
    assert '`raise RuntimeError("shapes do not match")`' in broken.note


@pytest.mark.parametrize("length", [2, 12, 23])
def test_one_length_that_raises_is_no_crash_of_the_probe(length: int) -> None:
    found = finding(broken_where(lambda queries, cached: queries == length), "decode-paths")
    assert found.verdict is Verdict.FAIL
    assert found.error is None


def test_a_refusal_that_only_long_rows_meet_is_a_finding() -> None:
    subject = loaded("builtin:gqa")
    usual = subject.model.forward

    def forward(input_ids: Any, **named: Any) -> Any:
        if input_ids.shape[1] > 16:
            raise NotImplementedError("long rows")
        return usual(input_ids, **named)

    subject.model.forward = forward
    with pytest.raises(CallFailed, match="NotImplementedError: long rows"):
        subject.logits(ForwardSpec(subject.inputs.tokens))


def test_a_4d_mask_is_promised_by_no_signature() -> None:
    subject = loaded("builtin:gqa")
    usual = subject.model.forward

    def forward(input_ids: Any, attention_mask: Any = None, **named: Any) -> Any:
        if attention_mask is not None:
            _rows, _columns = attention_mask.shape
        return usual(input_ids, attention_mask=attention_mask, **named)

    subject.model.forward = forward
    tokens = subject.inputs.tokens
    mask = blocks((12, 12))
    assert isinstance(mask, Mask4D)
    with pytest.raises(Unsupported) as caught:
        subject.logits(ForwardSpec(tokens, mask=mask))
    assert not isinstance(caught.value, CallFailed)


def test_a_reply_of_the_wrong_shape_is_a_finding() -> None:
    subject = loaded("builtin:gqa")
    usual = subject.model.forward

    def forward(*args: Any, **named: Any) -> Any:
        output = usual(*args, **named)
        if output.logits.shape[0] > 1 and output.logits.shape[1] == 1:
            output.logits = output.logits.expand(-1, output.logits.shape[0], -1)
        return output

    subject.model.forward = forward
    found = finding(subject, "batch-rows")
    assert found.verdict is Verdict.FAIL
    assert found.summary == (
        "alone, decoded on one cache: LlamaForCausalLM returns logits of shape (3, 3, 128) "
        "for ids of shape (3, 1)"
    )
