"""The kinds of skips: counted, shown in one line, and accepted by name."""

from __future__ import annotations

import pytest

from attncheck.core.errors import CallFailed, Unsupported, UsageError
from attncheck.core.finding import Finding, skipped_finding
from attncheck.core.measurement import Figure, not_measured, skipped
from attncheck.core.skip_kinds import KINDS
from attncheck.core.skips import (
    OTHER,
    accepted_skips,
    is_accepted,
    kind_of,
    questions,
)
from attncheck.core.verdict import Verdict

NO_CACHE = skipped("a step", "LlamaForCausalLM.forward takes no cache")
ENCODER = "BertForMaskedLM is a masked language model: it reads in both directions by design"
FINDINGS = (
    Finding(probe="window", verdict=Verdict.PASS, cases=(Figure("reach", 1.0), NO_CACHE)),
    skipped_finding("generate", ENCODER),
)


def test_every_case_is_a_question_and_so_is_a_probe_that_is_skipped_whole() -> None:
    assert str(questions(FINDINGS)) == (
        "1 questions asked, 2 skipped: no-such-argument 1, reads-ahead 1"
    )
    assert str(questions(FINDINGS[:0])) == "0 questions asked, 0 skipped"


REFUSED_CACHE = "cache-kind-refused"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("GPT2LMHeadModel.forward takes no `position_ids`", "no-such-argument"),
        (ENCODER, "reads-ahead"),
        ("`sdpa` attention: XForCausalLM does not support it", "implementation-refused"),
        ("both rows generate the same tokens: none of them can end alone", "rows-alike"),
        ("a kink, or nothing to see: differences agree to 0.04 of 1", "no-smooth-step"),
        ("concerns float64 only: X raises when called with a 2D mask: no bool", "float64-only"),
        ("X raises RuntimeError: sizes differ when called with cache, use_cache", REFUSED_CACHE),
        ("X raises RuntimeError: sizes differ when called with cache, use_cache, at x.py:1", OTHER),
        ("X raises ValueError: sinks cannot be run on CPU with flex attention", "flex-on-cpu"),
        ("cached forwards with restarted positions ask the same", "asked-elsewhere"),
        ("a picture (5 tokens) is not longer than a window", "within-window"),
        ("a prompt of 6 tokens has no room for a hole", "short-context"),
        ("a sentence that nobody wrote", OTHER),
    ],
)
def test_a_reason_belongs_to_a_kind(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind


def test_kinds_are_named_once_and_explained() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert all(kind.means.endswith(".") for kind in KINDS)


def test_a_list_accepts_the_kinds_that_it_holds_and_no_other() -> None:
    assert accepted_skips(["warn"]) is None
    kinds = accepted_skips(["skip=no-such-argument, reads-*"])
    assert kinds == ("no-such-argument", "reads-*")
    assert all(is_accepted(finding, kinds) for finding in FINDINGS)
    assert not is_accepted(FINDINGS[1], ["no-such-argument"])
    assert accepted_skips(["skip="]) == ()


def test_an_unknown_kind_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="did you mean `no-encoder`"):
        accepted_skips(["skip=no-encodr"])


def test_a_call_that_broke_is_asked_and_not_skipped() -> None:
    broken = not_measured("a chunk", CallFailed("it raises", "model.py:3 `raise`"))
    refused = not_measured("a chunk", Unsupported("takes no cache"))
    finding = Finding(probe="window", verdict=Verdict.FAIL, cases=(broken, refused))
    assert broken.note == "it raises, at model.py:3 `raise`"
    assert (questions([finding]).asked, questions([finding]).skipped) == (1, 1)
