"""Healthy models of odd kinds: no probe accuses them, and a fault planted in them is caught.

`make test` runs those that are marked fast; `make healthy` all of them, with the packages that are
installed.
"""

from __future__ import annotations

import os

import pytest
from probing import caught_by

import attncheck
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.targets.load import in_memory, settle_dtype
from healthy import answering, by_hand, edges, quantised, trained, wrapped
from healthy.kinds import KINDS, Kind

FILES = (answering, by_hand, edges, quantised, trained, wrapped)
ALL = os.environ.get("ATTNCHECK_KINDS") == "all"
WRONG = (Verdict.FAIL, Verdict.ERROR, Verdict.VACUOUS, Verdict.WARN)
CHOSEN = [each for each in KINDS.values() if ALL or each.fast]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CHOSEN, ids=lambda each: each.name)
def test_no_probe_accuses_it(kind: Kind) -> None:
    model, tokenizer = kind.made()
    report = attncheck.check(model, tokenizer, dtype=kind.dtype, **kind.settings)
    (target,) = report.targets
    assert not target.error
    assert target.verdict is not Verdict.SKIP, "nothing was checked"
    found = {result.probe: result for result in target.results if result.verdict in WRONG}
    assert {name: (str(found[name].verdict), found[name].summary) for name in found} == {
        name: (str(found[name].verdict), found[name].summary) for name in kind.known
    }


PLANTED = {
    "head-of-zero-values": ("kv-groups", "kv-groups-tiled"),
    "mha-made-from-gqa": ("kv-repeat", "kv-stored-repeated"),
    "context-of-12": ("generate", "generate-positions"),
    "context-of-8": ("generate", "generate-repeats-token"),
    "layer-of-zero-values": ("reference", "softmax-scale"),
    "chunk-of-half-the-row": ("position-reset", "position-restart"),
    "module-of-keywords": ("decode-paths", "position-restart"),
    "inference-mode-parameters": ("gradient", "gradient-detached"),
    "tokenizer-that-knows-nothing": ("position-reset", "position-ids-ignored"),
    "one-float64-module": ("future-token", "causal-mask-missing"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_in_it_is_caught(name: str) -> None:
    probe, fault = PLANTED[name]
    model, tokenizer = KINDS[name].made()
    settings = Settings(**KINDS[name].settings)
    subject = settle_dtype(in_memory(model, name, settings, tokenizer), KINDS[name].dtype)
    assert caught_by(subject, probe, fault) is not None


def test_there_are_enough_of_them() -> None:
    assert len(KINDS) >= 60
    assert {"float32", "bfloat16", "float16", "auto"} == {each.dtype for each in KINDS.values()}
