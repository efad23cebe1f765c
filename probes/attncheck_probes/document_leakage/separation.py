"""Whether anything in a model is meant to separate the documents of a packed row."""

from __future__ import annotations

from dataclasses import replace

import torch

from attncheck.probing import ForwardSpec, Subject, Unsupported, attention_span
from attncheck_probes.document_leakage.packed_rows import Packed


def require_separation(subject: Subject, packed: Packed) -> None:
    """Check that something in a model is meant to separate documents: its masks come from the
    library, or positions that restart change what a layer reads.

    Raises:
        Unsupported: each layer reads the same keys whatever the positions are.
    """
    if subject.can.packs:
        return
    watch = attention_span.observed_at_kernel
    observed = watch if subject.can.watch else attention_span.observed_in_gradient
    usual = ForwardSpec(packed.rows)
    try:
        plain, restarted = (
            observed(subject, spec) for spec in (usual, replace(usual, positions=packed.restarting))
        )
    except Unsupported:
        return  # nothing shows what its layers read
    pairs = list(zip(plain, restarted, strict=True))
    if pairs and all(torch.equal(one.reads_TS, other.reads_TS) for one, other in pairs):
        raise Unsupported(
            "nothing in this model separates documents: each layer reads the same keys whether "
            "positions restart or not"
        )
