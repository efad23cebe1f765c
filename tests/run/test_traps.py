"""What the library does to every model of a kind is no finding about one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from attncheck.core.measurement import AtMost, Measurement, verdict_of
from attncheck.core.registry import installed
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.report.failures import failure_causes
from attncheck.report.model import Report, TargetReport, exit_code
from attncheck.report.record import from_json, to_json
from attncheck.run import traps
from attncheck.run.runner import NONE, ProbeFinished, run_probes
from attncheck.run.traps import Traps, trap_name
from attncheck.targets.load import in_memory, load, settle_dtype
from attncheck_probes.labels import Labels
from tests.conftest import tiny_llama

EAGER = "boolean 4D mask, eager"


@dataclass(frozen=True, kw_only=True)
class Odd(Probe):
    """Warns of models by their number of layers, and fails where it is told to."""

    name = "odd"
    title = "counts layers"
    layers: int = 4
    fails: bool = False

    def measure(self, subject: Subject) -> Any:
        """One case that warns of `layers` layers, and one more."""
        wrong = float(subject.facts.layers == self.layers)
        yield AtMost("layers", wrong, "odd", broken=Verdict.WARN, note="take fewer")
        yield AtMost("always", float(self.fails), "odd")


def finding_of(subject: Subject, probe: Probe) -> Any:
    events = run_probes(subject, [probe], backing=NONE, traps=Traps())
    return next(event.finding for event in events if isinstance(event, ProbeFinished))


def names(cases: tuple[Measurement, ...]) -> list[str]:
    return [case.name for case in cases]


def test_a_case_that_the_reference_shares_is_a_trap(subject: Subject) -> None:
    found = finding_of(subject, Odd())  # builtin:gqa has four layers as well
    assert (found.verdict, names(found.cases)) == (Verdict.PASS, ["always"])
    (trap,) = found.traps
    assert (trap.trap, trap.call, trap.reference) == ("odd-layers", "layers", "builtin:gqa")
    assert (trap.max_abs, trap.advice) == (1.0, "take fewer")


def test_a_warning_of_this_model_alone_stays() -> None:
    two_layers = Subject.of(tiny_llama(), "llama", dtype="float64")
    found = finding_of(two_layers, Odd(layers=2))
    assert (found.verdict, found.traps) == (Verdict.WARN, ())
    assert names(found.cases) == ["layers", "always"]


def test_a_failure_beside_a_trap_still_fails(subject: Subject) -> None:
    found = finding_of(subject, Odd(fails=True))
    assert (found.verdict, len(found.traps)) == (Verdict.FAIL, 1)
    assert found.summary.startswith("always: 1 odd")


@dataclass(frozen=True, kw_only=True)
class Deep(Probe):
    """Fails on models of some number of layers; of any where a second case is asked."""

    name = "deep"
    title = "counts layers"
    layers: int = 4
    own: bool = False

    def measure(self, subject: Subject) -> Any:
        """One case that fails for `layers` layers, and one that fails for two."""
        yield AtMost("layers", float(subject.facts.layers == self.layers), "deep")
        if self.own:
            yield AtMost("two", float(subject.facts.layers == 2), "deep")


def test_a_failure_that_the_reference_shares_still_fails_and_says_so(subject: Subject) -> None:
    found = finding_of(subject, Deep())
    assert (found.verdict, found.shared_by) == (Verdict.FAIL, "builtin:gqa")
    (cause,) = failure_causes(TargetReport(target="a", results=(found,)))
    assert cause.shared == "not this model alone: builtin:gqa of the library does the same"


def test_a_failure_of_this_model_alone_has_no_reference() -> None:
    two_layers = Subject.of(tiny_llama(), "llama", dtype="float64")
    assert finding_of(two_layers, Deep(layers=2)).shared_by == ""
    assert finding_of(two_layers, Deep(layers=2, own=True)).shared_by == ""


def test_a_reference_that_lacks_the_feature_is_not_asked() -> None:
    window = load("builtin:window", Settings())
    asked = [name for name, belongs in traps.REFERENCES if belongs(window)]
    assert asked == ["builtin:gqa", "builtin:window", "config:mistral"]
    gpt2 = load("builtin:mha", Settings())
    assert [name for name, belongs in traps.REFERENCES if belongs(gpt2)] == [
        "builtin:gqa",
        "builtin:mha",
    ]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("config:mamba2", ["builtin:gqa", "config:mamba2", "config:qwen3_next"]),
        ("config:seq2seq/t5", ["builtin:gqa", "config:seq2seq/bart", "config:seq2seq/t5"]),
        ("config:masked/bert", ["config:masked/bert"]),
    ],
)
def test_other_kinds_have_references_of_their_own(target: str, expected: list[str]) -> None:
    subject = load(target, Settings())
    assert [name for name, belongs in traps.REFERENCES if belongs(subject)] == expected


@pytest.mark.parametrize("attn", [None, "eager"])
def test_a_healthy_model_passes_whatever_the_library_does(attn: str | None) -> None:
    from attncheck import check

    report = check("builtin:gqa", probes=["implementations"], attn=attn)
    (finding,) = [each for _, each in report.findings if each.probe == "implementations"]
    assert finding.verdict is Verdict.PASS
    assert [trap.call for trap in finding.traps] == [EAGER]


def test_traps_are_listed_once_and_count_only_where_asked(subject: Subject) -> None:
    finding = finding_of(subject, Odd())
    targets = tuple(TargetReport(target=name, results=(finding,)) for name in ("a", "b"))
    report = Report(attncheck="1", command="", started="2026-11-30T00:00:00Z", targets=targets)
    (trap,) = report.traps
    assert (trap.trap, trap.targets) == ("odd-layers", ("a", "b"))
    assert exit_code(report) == 0
    assert exit_code(report, frozenset({Verdict.WARN})) == 0
    assert exit_code(report, frozenset({"trap"})) == 1
    again = from_json(to_json(report))
    assert again.traps == report.traps
    assert [verdict_of(case) for case in again.targets[0].results[0].cases] == [Verdict.PASS]


def test_names_of_traps_are_words_with_dashes() -> None:
    assert trap_name("padding", "left, implicit positions") == "padding-left-implicit-positions"


@dataclass(frozen=True, kw_only=True)
class Trapped(Odd):
    """Has no other case than the one that the reference shares."""

    def measure(self, subject: Subject) -> Any:
        yield AtMost("layers", 1.0, "odd", broken=Verdict.WARN)


def test_a_probe_with_nothing_but_traps_does_not_pass(subject: Subject) -> None:
    found = finding_of(subject, Trapped())
    assert (found.verdict, len(found.traps)) == (Verdict.SKIP, 1)
    assert found.summary == "every case that could be judged is a trap of the library"


def test_a_reference_that_this_library_lacks_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    references = (("config:no_such_type", traps.REFERENCES[0][1]), traps.REFERENCES[0])
    monkeypatch.setattr(traps, "REFERENCES", references)
    assert list(traps.shown_traps(Odd())) == ["odd-layers"]


@pytest.mark.parametrize("probe", [entry.load()() for entry in installed().values()], ids=repr)
def test_a_case_asked_alone_comes_to_the_verdict_that_it_has_among_all(probe: Probe) -> None:
    subject = load("config:seq2seq/bart", Settings())
    among_all = traps.broken_cases(subject, probe)
    alone = {name: traps.broken_cases(subject, probe, name).get(name) for name in among_all}
    assert {name: case and verdict_of(case) for name, case in alone.items()} == {
        name: verdict_of(case) for name, case in among_all.items()
    }


def test_a_loss_that_the_library_weights_for_every_encoder_decoder_is_a_trap() -> None:
    found = finding_of(load("config:seq2seq/t5", Settings()), Labels())
    assert found.verdict is Verdict.PASS
    assert [(trap.call, trap.reference) for trap in found.traps] == [
        ("num_items_in_batch", "config:seq2seq/bart"),
        ("two steps", "config:seq2seq/bart"),
    ]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_slight_use_of_absolute_positions_is_known_in_any_precision(dtype: str) -> None:
    model = tiny_llama()
    rotary = model.model.rotary_emb
    usual = rotary.forward

    def louder(hidden: Any, position_ids: Any) -> Any:
        gain = 1 + 1e-4 * position_ids[..., None]
        return tuple((table * gain).to(table.dtype) for table in usual(hidden, position_ids))

    assert not traps._absolute(settled(model, dtype))
    rotary.forward = louder
    assert traps._absolute(settled(model, dtype))


def settled(model: Any, dtype: str) -> Subject:
    return settle_dtype(in_memory(model, "louder", Settings()), dtype)
