"""A leak that an attention module makes by itself is named by what it does, with its place, and
never as a leak outside attention.
"""

from __future__ import annotations

import re
from typing import Any

from ports.catalogue import PORTS
from probing import finding
from torch import Tensor, nn

from attncheck.core.finding import Finding
from attncheck.core.settings import Settings
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.subject import Subject
from attncheck.targets.load import load

HEADS = 4


def future_token(subject: Subject) -> Finding:
    return diagnose(subject, finding(subject, "future-token"))


def said(found: Finding) -> tuple[str, str, str]:
    assert found.diagnosis is not None
    assert found.location is not None
    assert "is right" not in found.diagnosis.advice
    return found.diagnosis.how, found.diagnosis.sentence, found.location.module


def test_heads_that_are_put_together_in_another_order() -> None:
    subject = load("builtin:gqa", Settings())

    def mixed(module: nn.Module, args: Any) -> tuple[Tensor]:
        states_BTW: Tensor = args[0]
        heads_BHTD = states_BTW.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return (heads_BHTD.reshape(states_BTW.shape),)

    place = "model.layers.1.self_attn"
    handle = subject.model.get_submodule(f"{place}.o_proj").register_forward_pre_hook(mixed)
    try:
        found = future_token(subject)
    finally:
        handle.remove()
    how, sentence, module = said(found)
    assert (how, module) == ("measured", place)
    assert sentence.startswith(
        f"The heads of {place} reach o_proj in another order: as channels of other positions and "
        "heads. With this mended no later token moves an earlier logit, to "
    )


def test_a_mask_that_goes_through_the_cap() -> None:
    port = next(each for each in PORTS if each.name == "Capped")
    how, sentence, module = said(future_token(Subject.of(port.build(True), "it", dtype="float64")))
    assert (how, module) == ("measured", "h.0.attn")
    assert sentence == (
        "Tokens that h.0.attn must not read keep weights of up to 2.4e-09. With this mended no later "
        "token moves an earlier logit, to 0."
    )


def test_what_queries_keys_and_weights_do_not_show_is_told_by_its_line() -> None:
    port = next(each for each in PORTS if each.name == "MaskedBehind")
    how, sentence, module = said(future_token(Subject.of(port.build(True), "it", dtype="float64")))
    assert (how, module) == ("measured", "h.0.attn")
    assert re.fullmatch(
        r"In h\.0\.attn `total\.sum\(-1, keepdim=True\)` \(language_models\.py:\d+\) gives other "
        r"values than in one forward at token 0, by up to [\d.]+, though what goes in for them is "
        r"the same: a later token takes part\. With the values of one forward there the logits are "
        r"right, to [\d.e-]+\.",
        sentence,
    )
