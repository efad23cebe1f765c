"""Which layer loses the gradient, and which of its weights get none."""

from __future__ import annotations

from attncheck.probing import (
    AtMost,
    Cause,
    Measurement,
    Subject,
    Verdict,
    cut_gradient,
    skipped,
)

NAME = "gradient layer by layer"


def last_cut(subject: Subject) -> Measurement:
    """The last layer before the logits whose gradient is wrong: what comes before it may only
    suffer from that.
    """
    found = cut_gradient(subject)
    if found is None:
        return skipped(NAME, "each layer alone has the gradient that its derivative says")
    return AtMost(
        NAME,
        len(found.weights),
        "weights with a wrong gradient",
        broken=Verdict.FAIL if found.lost else Verdict.WARN,
        note=found.text,
        cause=Cause("gradient-detached" if found.lost else "", module=found.module),
    )
