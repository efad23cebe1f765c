"""What faults look up in a healthy model before they are injected."""

from __future__ import annotations

import pytest
from torch import Tensor

from attncheck.core.settings import Settings
from attncheck.faults.engine import injection
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs_diff
from attncheck.targets.load import load


def test_what_faults_look_up_runs_once(subject: Subject) -> None:
    assert subject.can.watch
    before = subject.loaded.forwards
    for _ in range(2):
        assert injection.plain_calls(subject)
        assert injection.filled_cache(subject).get_seq_length() == subject.inputs.length
        assert injection.decoder_layers(subject)
    assert subject.loaded.forwards == before + 3


def test_what_runs_under_a_fault_is_looked_up_again(subject: Subject) -> None:
    healthy = injection.filled_cache(subject)
    with subject.passes.under("a fault", on_cache_only=False):
        assert injection.filled_cache(subject) is not healthy
    assert injection.filled_cache(subject) is healthy


@pytest.mark.parametrize("target", ["config:masked/squeezebert", "config:seq2seq/prophetnet"])
def test_hidden_states_change_in_whatever_a_layer_returns_them(target: str) -> None:
    subject = load(target, Settings())  # a dictionary of (B, W, T); three streams in a row
    rows = ForwardSpec((subject.inputs.row, subject.inputs.fresh(subject.inputs.length, salt=3)))
    seen: list[tuple[int, ...]] = []

    def change(hidden_BTW: Tensor) -> Tensor:
        seen.append(tuple(hidden_BTW.shape))
        return hidden_BTW.roll(1, 0)

    healthy_BTV = subject.logits(rows)
    with injection.at_hidden(subject, change), subject.passes.under("rolled", on_cache_only=False):
        assert max_abs_diff(subject.logits(rows), healthy_BTV) > 0.1
    assert seen[0][0] == 2
    assert seen[0][1] % subject.inputs.length == 0
