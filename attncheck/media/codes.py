"""Whether each of several codebooks is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from attncheck.core.measurement import Cause, Measurement
from attncheck.model.attempts import attempt
from attncheck.model.codebooks import Codebooks
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject


def codebooks(subject: Subject) -> Iterator[Measurement]:
    """Other codes in one codebook move the logits, whichever it is; none where there are none."""
    found = subject.forward_adapter.codebooks
    if found is not None:
        for number in found.every:
            name = f"other codes in codebook {number} move the logits"
            yield attempt(name, _moved, subject, name, replace(found, other=number))


def _moved(subject: Subject, name: str, changed: Codebooks) -> Measurement:
    tokens, adapter = subject.inputs.tokens, subject.forward_adapter
    given = changed.arguments(adapter.ids_name, subject.passes.ids(tokens))
    with torch.no_grad():
        got_BTV = subject.passes.call(tokens, use_cache=False, extra=given).logits_BTV
    want_BTV = subject.logits(ForwardSpec(tokens))
    case = subject.compare(name, got_BTV, want_BTV, expect="differ")
    return case if case.beyond else replace(case, cause=Cause("codebook-ignored", case.max_abs))
