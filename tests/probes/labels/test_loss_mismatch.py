"""Wrong losses on many architectures: each fails, and is named where the catalogue of weighings has
it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_llama
from probing import case, finding, loaded
from torch import Tensor

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.numerics.losses import IGNORED


def _wrapped(model: Any, call: Callable[..., Any]) -> Subject:
    """A model whose forward goes through `call`, which gets the forward itself first."""
    kind, forward = type(model), type(model).forward

    @functools.wraps(forward)
    def wrapper(self: Any, *args: Any, **named: Any) -> Any:
        return call(functools.partial(forward, self), self, *args, **named)

    model.__class__ = type(
        kind.__name__, (kind,), {"forward": wrapper, "__module__": kind.__module__}
    )
    return Subject.of(model, "wrapped", dtype="float64")


def _relabelled(target: str, edit: Callable[[Tensor], Tensor]) -> Subject:
    """A model that changes the labels before its loss."""
    return _edited(loaded(target).model, edit)


def _edited(model: Any, edit: Callable[[Tensor], Tensor]) -> Subject:
    def call(
        forward: Any, model: Any, *args: Any, labels: Tensor | None = None, **named: Any
    ) -> Any:
        return forward(*args, labels=None if labels is None else edit(labels), **named)

    return _wrapped(model, call)


def _reweighed(target: str, edit: Callable[[Any, Any, Tensor, Any], Tensor]) -> Subject:
    """A model that makes its loss anew from (model, output, labels, keyword arguments)."""

    def call(
        forward: Any, model: Any, *args: Any, labels: Tensor | None = None, **named: Any
    ) -> Any:
        output = forward(*args, labels=labels, **named)
        if labels is not None:
            output.loss = edit(model, output, labels, named)
        return output

    return _wrapped(loaded(target).model, call)


def _once_more(labels_BT: Tensor) -> Tensor:
    return F.pad(labels_BT[:, 1:], (0, 1), value=IGNORED)


def _sum(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    return F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), reduction="sum")


def _tell(named: Any, usual: Tensor, wrong: Tensor) -> Tensor:
    """The wrong loss where no number of items is told, as in a loss that is right in accumulation
    alone.
    """
    return usual if named.get("num_items_in_batch") is not None else wrong


WRONG: dict[str, tuple[Callable[[], Subject], str, str]] = {
    "BART, shifted behind a shifted decoder input": (
        lambda: _relabelled("config:seq2seq/bart", _once_more),
        "labels of one row",
        "it is the loss of labels that are shifted once",
    ),
    "T5, shifted back": (
        lambda: _relabelled("config:t5", lambda x: F.pad(x[:, :-1], (1, 0), value=IGNORED)),
        "labels of one row",
        "it is the loss of labels that are shifted the wrong way",
    ),
    "T5, labels smoothed": (
        lambda: _reweighed(
            "config:t5",
            lambda m, o, x, n: F.cross_entropy(
                o.logits.flatten(0, 1), x.flatten(), label_smoothing=0.1
            ),
        ),
        "labels of one row",
        "labels that are smoothed by 0.1",
    ),
    "BERT, an encoder that shifts": (
        lambda: _relabelled("config:masked/bert", _once_more),
        "labels of one row",
        "it is the loss of labels that are shifted once",
    ),
    "RoBERTa, -100 taken for padding and counted": (
        lambda: _relabelled("config:masked/roberta", lambda x: x.masked_fill(x == IGNORED, 1)),
        "labels of -100",
        "labels of -100 that count as token 1",
    ),
    "Gemma 3, shifted across rows": (
        lambda: _reweighed(
            "config:gemma3_text",
            lambda m, o, x, n: _tell(
                n, o.loss, F.cross_entropy(o.logits.flatten(0, 1)[:-1], x.flatten()[1:])
            ),
        ),
        "padded batch",
        "shifted across the rows of the batch",
    ),
    "Mamba, divided by rows": (
        lambda: _reweighed(
            "config:mamba",
            lambda m, o, x, n: _tell(n, o.loss, _sum(o.logits[:, :-1], x[:, 1:]) / x.shape[0]),
        ),
        "padded batch",
        "the sum divided by the number of rows",
    ),
    "Llama, divided by what the mask shows": (
        lambda: _reweighed(
            "builtin:gqa",
            lambda m, o, x, n: (
                _tell(n, o.loss, _sum(o.logits[:, :-1], x[:, 1:]) / n["attention_mask"].sum())
                if n.get("attention_mask") is not None
                else o.loss
            ),
        ),
        "padded batch",
        "the sum divided by the tokens that the mask shows",
    ),
    "Qwen2, doubled in training": (
        lambda: _reweighed("config:qwen2", lambda m, o, x, n: o.loss * 2 if m.training else o.loss),
        "training mode",
        "it is 2 times the right one",
    ),
    "OLMo, the first label never trained": (
        lambda: _relabelled("config:olmo", lambda x: x.index_fill(1, torch.tensor([1]), IGNORED)),
        "labels of one row",
        "the loss of all labels but the first of each row",
    ),
    "Qwen3, divided by all positions": (
        lambda: _reweighed(
            "config:qwen3",
            lambda m, o, x, n: _tell(n, o.loss, _sum(o.logits[:, :-1], x[:, 1:]) / x.numel()),
        ),
        "labels of one row",
        "the sum divided by all positions",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_losses_fail_and_are_named(name: str) -> None:
    make, where, words = WRONG[name]
    found = finding(make(), "labels")
    assert found.verdict is Verdict.FAIL
    assert verdict_of(case(found, where)) is Verdict.FAIL
    assert words in case(found, where).note
    expected = (
        "label-shift"
        if words.startswith("it is the loss of labels that are shifted")
        else "loss-weights"
    )
    assert case(found, where).cause.fault == expected


def test_easy_tokens_that_weigh_less_are_a_wrong_loss_without_a_name() -> None:
    def focal(model: Any, output: Any, labels: Tensor, named: Any) -> Tensor:
        targets = _once_more(labels)
        each = F.cross_entropy(output.logits.flatten(0, 1), targets.flatten(), reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).sum() / (targets != IGNORED).sum()

    found = finding(_reweighed("builtin:gqa", focal), "labels")
    assert found.verdict is Verdict.FAIL
    assert found.cases[0].unit == "derivatives of the loss by the logits"
    assert found.cases[0].note.endswith(
        "it is the cross entropy in no usual weighting of the labels"
    )


def test_a_loss_of_logits_before_their_cap_names_the_module_and_the_function() -> None:
    model, cap = loaded("config:gemma2").model, 500.0
    model.config.final_logit_softcapping = cap

    def call(
        forward: Any, model: Any, *args: Any, labels: Tensor | None = None, **named: Any
    ) -> Any:
        output = forward(*args, **named)
        if labels is not None:
            raw = (output.logits / cap).atanh() * cap
            output.loss = F.cross_entropy(raw[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return output

    found = finding(_wrapped(model, call), "labels")
    assert found.verdict is Verdict.FAIL
    assert found.cases[0].note.endswith(
        "it is that of what `lm_head` returns, before the model makes its logits of it"
    )
    assert [part.what for part in found.cases[0].cause.parts] == ["logits"]


def _routed(shift: bool) -> Subject:
    """A mixture of experts whose loss also counts how evenly its router spreads the tokens."""
    model = loaded("config:mixtral").model
    model.config.output_router_logits, model.router_aux_loss_coef = True, 0.3
    return _edited(model, _once_more if shift else lambda labels: labels)


def test_the_balance_of_experts_is_left_out() -> None:
    found = finding(_routed(shift=False), "labels")
    assert found.verdict is Verdict.PASS
    assert "that no label moves" in found.cases[0].note
    assert [control.detected for control in found.controls] == [True, True]


def test_a_fault_beside_the_balance_of_experts_is_named() -> None:
    first = finding(_routed(shift=True), "labels").cases[0]
    assert verdict_of(first) is Verdict.FAIL
    assert first.cause.fault == "label-shift"
    assert first.note.endswith("labels that are shifted twice beside a term of the model's own")


def _two_ahead(shift: Callable[[Tensor], Tensor]) -> Subject:
    """A model with a second head that is trained on the token after the next."""
    model = loaded("config:deepseek_v3").model
    seen: list[Tensor] = []
    model.get_output_embeddings().register_forward_pre_hook(
        lambda module, args: seen.append(args[0])
    )

    def call(forward: Any, m: Any, *args: Any, labels: Tensor | None = None, **named: Any) -> Any:
        output = forward(*args, **named)
        if labels is not None:
            later, targets = _once_more(_once_more(labels)), shift(labels)
            other = F.linear(seen[-1].roll(1, -1), m.get_output_embeddings().weight)
            told = named.get("num_items_in_batch")
            parts = [
                _sum(x, y) / ((y != IGNORED).sum() if told is None else told)
                for x, y in ((output.logits, targets), (other, later))
            ]
            output.loss = parts[0] + 0.3 * parts[1]
        return output

    return _wrapped(model, call)


def test_a_head_for_the_token_after_the_next_is_left_out() -> None:
    found = finding(_two_ahead(_once_more), "labels")
    assert found.verdict is Verdict.PASS
    assert "which depend on the labels, make up the difference" in found.cases[0].note
    assert [control.detected for control in found.controls] == [True, True]


def test_a_fault_beside_a_head_for_the_token_after_the_next_is_named() -> None:
    first = finding(_two_ahead(lambda labels: _once_more(_once_more(labels))), "labels").cases[0]
    assert verdict_of(first) is Verdict.FAIL
    assert first.note.endswith("labels that are shifted twice beside terms of the model's own")


@pytest.mark.parametrize(("by", "broken"), [(0, "not read before"), (2, "read right after")])
def test_a_decoder_input_made_from_labels_with_another_shift_is_caught(
    by: int, broken: str
) -> None:
    def call(
        forward: Any,
        model: Any,
        *args: Any,
        labels: Any = None,
        decoder_input_ids: Any = None,
        **named: Any,
    ) -> Any:
        if labels is not None and decoder_input_ids is None:
            decoder_input_ids = F.pad(
                labels[:, : labels.shape[1] - by].clamp_min(0), (by, 0), value=2
            )
        return forward(*args, labels=labels, decoder_input_ids=decoder_input_ids, **named)

    found = finding(_wrapped(loaded("config:seq2seq/bart").model, call), "labels")
    assert [each.name for each in found.cases if verdict_of(each) is Verdict.FAIL] == [
        next(each.name for each in found.cases if broken in each.name)
    ]


def test_logits_that_labels_change_are_caught() -> None:
    def call(forward: Any, model: Any, *args: Any, labels: Any = None, **named: Any) -> Any:
        output = forward(*args, labels=labels, **named)
        output.logits = output.logits if labels is None else output.logits * 1.1
        return output

    found = finding(_wrapped(tiny_llama(), call), "labels")
    assert found.verdict is Verdict.FAIL
    assert verdict_of(case(found, "logits beside labels")) is Verdict.FAIL
