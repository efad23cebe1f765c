"""States of a hand-written model, handed from call to call, that one way to a token leaves otherwise
than another.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attncheck.faults.engine import Trusted
from attncheck.model.caches import mapped, tensors_of
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.observation.observe import observed_between


class Own:
    """A cache of its own: a sum and the last token."""

    def __init__(self, total: Tensor, last: Tensor) -> None:
        self.parts = [{"sum": total, "last": last}]


class Shifts(nn.Module):
    """Reads the decayed sum of all tokens before, and the token before."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fault = fault
        self.embed, self.head = nn.Embedding(64, 8), nn.Linear(8, 64)

    def forward(
        self, input_ids: Tensor, past_key_values: Any = None, use_cache: bool = False
    ) -> tuple[Any, ...]:
        """(logits, cache)."""
        x = self.embed(input_ids)
        kept = past_key_values.parts[0] if past_key_values else {}
        total, last = kept.get("sum", 0 * x[:, 0]), kept.get("last", 0 * x[:, 0])
        out = []
        for at in range(x.shape[1]):
            out.append(x[:, at] + 2 * last + total)
            total, last = 0.5 * total + x[:, at], x[:, at]
        several = x.shape[1] > 1
        if self.fault == "first token" and several:
            last = x[:, 0]
        if self.fault == "step" and not several:
            total = 2 * total
        return self.head(torch.stack(out, 1)), Own(total, last)


def told(fault: str, chunks: tuple[int, ...]) -> str:
    """What is measured of calls of these sizes, where it is proven."""
    subject = Subject.of(Shifts(fault).double(), "own", dtype="float64")
    tokens = (tuple(range(4, 4 + sum(chunks))),)
    right_BTV = subject.logits(ForwardSpec(tokens))
    found = observed_between(Trusted(subject), ForwardSpec(tokens, chunks=chunks), right_BTV, 1e-12)
    assert found is None or found[1] <= 1e-12
    return found[0].sentence if found else ""


@pytest.mark.parametrize(
    ("fault", "chunks", "sentence"),
    [
        ("", (3, 4), ""),
        (
            "first token",
            (3, 4),
            "states (parts.0.last) that a layer leaves hold token 0, not token 2",
        ),
        (
            "step",
            (3, 1, 2),
            "states (parts.0.sum) that a layer finds are no vectors of the trusted path",
        ),
    ],
)
def test_what_calls_leave_is_held_against_another_way(
    fault: str, chunks: tuple[int, ...], sentence: str
) -> None:
    assert told(fault, chunks).startswith(sentence)
    assert bool(told(fault, chunks)) is bool(fault)


def test_a_cache_of_any_kind_is_copied_with_its_tensors_changed() -> None:
    cache = {"a": [Own(torch.ones(1, 2), torch.zeros(1, 2))], "n": 3, "t": (torch.ones(2),)}
    doubled = mapped(cache, lambda tensor: 2 * tensor)
    sums = [float(each.tensor.sum()) for each in tensors_of(doubled)]
    assert (sums, doubled["n"]) == ([4.0, 0.0, 4.0], 3)
    assert [float(each.tensor.sum()) for each in tensors_of(cache)] == [2.0, 0.0, 2.0]
