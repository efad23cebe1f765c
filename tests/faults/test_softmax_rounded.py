"""softmax-rounded is injected and caught by reference; its repair leaves a healthy model alone."""

from __future__ import annotations

import torch
from injecting import healthy
from probing import assert_caught, loaded

from attncheck.faults import registry
from attncheck.model.forward_spec import ForwardSpec


def test_it_is_caught() -> None:
    assert_caught(healthy("builtin:gqa"), "reference", "softmax-rounded")


def test_its_repair_takes_softmax_in_float32_and_changes_no_other_model() -> None:
    fault = registry.fault("softmax-rounded")
    scores = (torch.arange(9.0) * 3).to(torch.bfloat16)
    subject = loaded("builtin:gqa", dtype="float32")
    usual_BTV = subject.logits(ForwardSpec(subject.inputs.tokens))
    with fault.repaired(subject):
        wide = scores.softmax(-1, dtype=torch.float32)
        assert torch.equal(scores.softmax(-1), wide.to(torch.bfloat16))
        assert torch.equal(subject.logits(ForwardSpec(subject.inputs.tokens)), usual_BTV)
