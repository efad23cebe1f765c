"""Convolution states that hold other tokens than the newest are told, and proven by a repair."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from probing import loaded
from torch import Tensor

from attncheck.attention.layers import layer_lists
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.caches import states
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs_diff
from attncheck.observation.observe import Observation, observed_states

SIZES = (8, 1, 2)


@lru_cache(maxsize=1)
def subject() -> Subject:
    return loaded("config:mamba2")


def again(spec: ForwardSpec) -> Tensor:
    """logits_BTV of another run, not remembered."""
    subject().passes.drop(spec)
    logits_BTV = subject().logits(spec)
    subject().passes.drop(spec)
    return logits_BTV


def seen(change: Callable[[Tensor], Tensor]) -> tuple[Observation | None, float, float]:
    """The observation of layer 1 that leaves changed states, the difference that this makes, and
    the one that is left after the repair.
    """
    row = subject().inputs.row[: sum(SIZES)]
    spec, trusted = ForwardSpec((row,), chunks=SIZES), Trusted(subject())

    def hook(module: Any, args: Any, named: dict[str, Any], output: Any) -> None:
        cache = next((each for each in named.values() if hasattr(each, "layers")), None)
        for each in states(cache):
            if each.layer == 1 and each.name == "conv_states":
                with torch.no_grad():
                    each.tensor.copy_(change(each.tensor))

    (layers,) = layer_lists(subject().model)
    right_BTV = trusted.logits(spec)
    handle = layers[1].register_forward_hook(hook, with_kwargs=True)
    try:
        run = partial(again, spec)
        moved = max_abs_diff(run(), right_BTV)
        found = observed_states(trusted, spec, run)
    finally:
        handle.remove()
    return found, moved, 0.0 if found is None else max_abs_diff(found.predicted_BTV, right_BTV)


@pytest.mark.parametrize(
    ("change", "how", "words"),
    [
        (
            lambda state: state.roll(1, -1),
            "other token",
            "states (conv_states) that a layer leaves hold tokens 4..7, not in their order, in layer 1",
        ),
        (
            torch.zeros_like,
            "zero",
            "states (conv_states) that a layer leaves hold zeros, not tokens 4..7, in layer 1",
        ),
    ],
)
def test_wrong_tokens_are_told(change: Callable[[Tensor], Tensor], how: str, words: str) -> None:
    found, moved, residual = seen(change)
    assert found is not None
    assert [(part.what, part.how, part.layers) for part in found.parts] == [("state", how, (1,))]
    assert found.sentence == words
    assert not found.opaque
    assert residual <= subject().budget.value < 1e-3 < moved


def test_states_of_no_tokens_are_not_explained() -> None:
    found, _, _ = seen(torch.cos)
    assert found is not None
    assert found.opaque


def test_right_states_show_nothing() -> None:
    assert seen(lambda state: state)[0] is None
