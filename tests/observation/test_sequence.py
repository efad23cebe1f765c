"""Faults that the trusted path has as well, since they depend on the batch, the padding or the lack
of a cache: rows are compared with themselves alone, forwards with one that fills a cache.
"""

from __future__ import annotations

import pytest
from probing import finding, loaded

from attncheck.core.finding import Finding
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.observation.deviation import Deviation
from attncheck.observation.ledger import ledger_of
from attncheck.observation.sequence import Sequence
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.sites import sites_of

LAYER = "model.layers.1.self_attn"


def explained(text: str, probe: str) -> Finding:
    subject = loaded("builtin:gqa")
    with Injector(sites_of(subject), parse(text)).injected():
        return diagnose(subject, finding(subject, probe))


@pytest.mark.parametrize(
    ("text", "probe", "part", "words"),
    [
        (
            f"what=values,how=scale:0.5,at={LAYER},when=padded",
            "padding",
            ("values", "scaled", (1,)),
            "on each row alone and unpadded gives the observed logits",
        ),
        (
            f"what=queries,how=angle:3,at={LAYER},when=batch",
            "batch-rows",
            ("queries", "rotated", (1,)),
            "on each row alone and unpadded gives the observed logits",
        ),
        (
            f"what=keys,how=zero,at={LAYER},heads=0,when=uncached",
            "decode-paths",
            ("keys", "zero", (1,)),
            "on a forward that fills a cache gives the observed logits",
        ),
    ],
)
def test_a_fault_of_the_trusted_path_itself_is_measured(
    text: str, probe: str, part: tuple[str, str, tuple[int, ...]], words: str
) -> None:
    found = explained(text, probe)
    assert found.diagnosis is not None
    assert found.diagnosis.how in ("measured", "reproduced")
    assert [(each.what, each.how, each.layers) for each in found.diagnosis.parts] == [part]
    assert words in found.diagnosis.sentence
    assert found.location is not None
    assert found.location.module == LAYER


def test_a_batch_computed_in_another_way_does_not_mix_its_rows() -> None:
    found = explained("what=queries,how=base:10,when=batch", "batch-rows")
    assert found.diagnosis is not None
    assert found.diagnosis.fault != "rows-mixed"


def test_rows_come_without_their_padding() -> None:
    subject = loaded("builtin:gqa")
    rows = (subject.inputs.row[:6], (0, 0, *subject.inputs.row[:4]))
    spec = ForwardSpec(rows, chunks=(3, 1, 2), mask=Mask2D(((1,) * 6, (0, 0, 1, 1, 1, 1))))
    cut = Sequence.of(spec, 1)
    assert (cut.first, cut.last) == (2, 6)
    assert cut.alone(spec) == ForwardSpec((subject.inputs.row[:4],), chunks=(1, 1, 2))
    ledger = ledger_of(subject, lambda: subject.passes.replay(spec))
    entries = cut.calls(ledger.of(subject.model.get_submodule(LAYER), spec.length))
    sizes = [(each.call.query_BHTD.shape[2], each.call.key_BGSD.shape[2]) for each in entries]
    assert sizes == [(1, 1), (1, 2), (2, 4)]
    assert [(each.start, each.stop) for each in entries] == [(0, 1), (1, 2), (2, 4)]
    found = cut.in_batch(Deviation(what="keys", how="zero", layer=0, row=0, at=1, start=1))
    assert (found.row, found.at, found.start) == (1, 3, 3)
