"""The forward of a generation is what it fed."""

from __future__ import annotations

from conftest import tiny_llama

from attncheck.model.forward_spec import Mask2D
from attncheck.model.generation import greedy
from attncheck.model.provenance import written
from attncheck.model.subject import Subject


def test_the_pass_of_a_generation_is_what_it_fed() -> None:
    subject = Subject.of(tiny_llama(pad_token_id=0), "llama", dtype="float64")
    prompt = subject.inputs.row[:10]
    made = greedy(subject, prompt, 3, padding=2)
    spec = written(subject, (prompt,), (made.tokens,), 2)
    assert spec.tokens == ((0, 0, *prompt, *made.tokens[:2]),)
    assert spec.chunks == (12, 1, 1)
    assert spec.positions == ((0, 0, *range(12)),)
    assert spec.mask == Mask2D(((0, 0, *(1,) * 12),))
    assert (
        float((subject.logits(spec)[:, -3:] - made.logits_BNV).abs().max()) <= subject.budget.value
    )
    pieces = written(subject, (prompt,), (made.tokens,), options={"prefill_chunk_size": 4})
    assert pieces.chunks == (4, 4, 2, 1, 1)
    assert written(subject, (prompt,), (made.tokens,), options={"use_cache": False}).chunks == ()
