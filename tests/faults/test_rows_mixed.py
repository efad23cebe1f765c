"""rows-mixed is injected, caught by batch-rows and named."""

from __future__ import annotations

from injecting import assert_found, healthy, healthy_finding

from attncheck.core.verdict import Verdict
from attncheck.faults import registry as faults
from attncheck.faults.engine.injection import decoder_layers
from attncheck.model.forward_spec import ForwardSpec
from attncheck.numerics.divergence import max_abs_diff


def test_it_is_caught_named_and_located() -> None:
    assert_found("rows-mixed", "builtin:gqa", "batch-rows", "model.layers.0")


def test_it_is_caught_where_hidden_states_have_their_tokens_first() -> None:
    assert healthy_finding("config:seq2seq/fsmt", "batch-rows").verdict is Verdict.PASS
    assert len(decoder_layers(healthy("config:seq2seq/fsmt"))) == 4


def test_it_is_injected_where_a_model_puts_tokens_of_its_own_in_front() -> None:
    subject = healthy("config:cpmant")
    assert healthy_finding("config:cpmant", "batch-rows").verdict is Verdict.PASS
    spec = ForwardSpec((subject.inputs.row, subject.inputs.other(subject.inputs.row)))
    right_BTV = subject.logits(spec)
    with faults.fault("rows-mixed").injected(subject):
        wrong_BTV = subject.logits(spec)
    assert max_abs_diff(right_BTV, wrong_BTV) > 1e-3
