"""Single steps: a fault that only long sequences show."""

from __future__ import annotations

from typing import Any

import torch
from triaging import investigation

from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.forward import edited
from attncheck.triage.answer import TriageAnswer


def test_a_fault_that_only_long_rows_show_is_found() -> None:
    """Positions that stop counting after 180 tokens: no row of the probes is as long."""
    found = investigation("config:llama", symptom="long")
    frozen = edited(found.subject.model, lambda call: {**call, "position_ids": _frozen(call)})
    with frozen:
        triage = found.run()
    assert triage.answer is TriageAnswer.CONFIRMED
    assert triage.steps[-1].name == "lengths"
    assert "tokens in two pieces" in triage.headline


def _frozen(call: dict[str, Any]) -> torch.Tensor:
    """Right positions up to 180, and those of the call's own tokens from there on."""
    before = max(cached_length(call.get(name)) for name in CACHE_NAMES)
    length = call["input_ids"].shape[1]
    given = call.get("position_ids")
    if given is not None and before + length <= 180:
        return given
    start = 0 if before + length > 180 else before
    return torch.arange(start, start + length)[None]
