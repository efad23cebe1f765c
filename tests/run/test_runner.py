"""Every installed probe on encoder-decoders and encoders: it runs or says why not, and accuses
nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from probing import ACCUSING

from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.core.measurement import BrokenCall, Measurement, verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.runner import NONE, Backing, ProbeFinished, run_probes
from attncheck.targets.amplify import amplify
from attncheck.targets.load import load


def saved(model: Any, folder: Path) -> str:
    torch.manual_seed(0)
    amplify(model, 0)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def t5(tmp_path: Path) -> str:
    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        d_kv=8,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )
    return saved(transformers.T5ForConditionalGeneration(config), tmp_path / "t5")


@pytest.fixture
def bert(tmp_path: Path) -> str:
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    return saved(transformers.BertForMaskedLM(config), tmp_path / "bert")


def findings(target: str) -> dict[str, Finding]:
    probes = [registry.load(name) for name in registry.select()]
    events = run_probes(load(target, Settings()), probes)
    return {
        event.finding.probe: event.finding for event in events if isinstance(event, ProbeFinished)
    }


def test_an_encoder_decoder_is_not_accused(t5: str) -> None:
    found = findings(t5)
    assert {name: f.summary for name, f in found.items() if f.verdict in ACCUSING} == {}
    assert {"decode-paths", "cache-kinds", "gradient", "padding", "generate"} <= {
        name for name, f in found.items() if f.verdict in (Verdict.PASS, Verdict.WARN)
    }


def test_an_encoder_is_checked_for_padding_and_rows_and_not_accused(bert: str) -> None:
    found = findings(bert)
    assert {name: f.summary for name, f in found.items() if f.verdict in ACCUSING} == {}
    alone = next(each for each in found["batch-rows"].cases if each.name == "alone")
    assert verdict_of(alone) is Verdict.PASS
    assert found["padding"].verdict is Verdict.WARN
    assert found["padding"].summary.startswith("left, implicit positions")
    assert found["future-token"].verdict is Verdict.SKIP


class OnlyCached(Probe):
    """Compares two forwards, and names a control that needs a soft-cap."""

    name = "only-cached"
    title = "two forwards are equal"
    controls = ("softcap-missing",)

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One case that passes."""
        same = ForwardSpec(subject.inputs.tokens)
        yield subject.compare_forwards("twice", same, same)


def test_a_pass_that_no_fault_could_have_failed_is_vacuous(subject: Subject) -> None:
    (event,) = [e for e in run_probes(subject, [OnlyCached()]) if isinstance(e, ProbeFinished)]
    assert event.finding.verdict is Verdict.VACUOUS
    assert event.finding.summary == (
        "no fault could be injected that would have failed it: "
        "softcap-missing: no layer passes its kernel a soft-cap"
    )


class Breaking(Probe):
    """Makes one call that the model accepts and breaks on."""

    title = "a call works"
    controls = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One broken call."""
        yield BrokenCall("a step", note="raises IndexError: no slot")


def test_a_call_that_breaks_in_two_probes_is_said_by_the_first(subject: Subject) -> None:
    events = run_probes(subject, [Breaking("one"), Breaking("two")], backing=NONE)
    found = [e.finding for e in events if isinstance(e, ProbeFinished)]
    assert [each.verdict for each in found] == [Verdict.FAIL, Verdict.FAIL]
    assert [each.cases[0].note for each in found] == [
        "raises IndexError: no slot",
        "raises IndexError: no slot; follows from `one`",
    ]


class Recording(Probe):
    """Compares two forwards that a leak makes different, and keeps the precisions it ran in."""

    name = "recording"
    title = "later tokens change nothing"
    controls = ("causal-mask-missing",)

    def __init__(self) -> None:
        self.dtypes: list[torch.dtype] = []

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One case that passes where no token reads ahead."""
        self.dtypes.append(subject.dtype)
        row = subject.inputs.row
        one, other = (ForwardSpec(((*row[:-1], last),)) for last in (row[-1], row[-2]))
        yield subject.compare_forwards("before the last", one, other, at=slice(0, -1))


def test_a_control_runs_in_the_precision_of_its_probe_where_that_resolves() -> None:
    probe = Recording()
    events = run_probes(load("builtin:gqa", Settings(dtype="float32")), [probe])
    (found,) = [e.finding for e in events if isinstance(e, ProbeFinished)]
    assert (found.verdict, [each.detected for each in found.controls]) == (Verdict.PASS, [True])
    assert probe.dtypes == [torch.float32, torch.float32]


def test_three_known_questions_are_tried_before_whole_controls() -> None:
    first = {"window-ignored": "a", "rows-mixed": "b", "cache-stale": "c", "cache-crop": "d"}
    assert Backing(first).of(Recording()) == (
        ("window-ignored", "a"),
        ("rows-mixed", "b"),
        ("cache-stale", "c"),
        ("causal-mask-missing", None),
    )
    assert NONE.of(Recording()) == ()


class OnlyBelow(Probe):
    """Compares two forwards whose difference is large in float32, and in nothing better."""

    name = "only-below"
    title = "two forwards are equal"
    controls = ()

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One case that fails in float32."""
        same = ForwardSpec(subject.inputs.tokens)
        case = subject.compare_forwards("twice", same, same)
        low = subject.dtype == torch.float32
        yield replace(case, divergence=replace(case.divergence, max_abs=1.0 if low else 0.0))


def test_what_only_a_lower_precision_has_is_diagnosed_there() -> None:
    asked: list[torch.dtype] = []

    def diagnose(subject: Subject, finding: Finding) -> Finding:
        asked.append(subject.dtype)
        return finding

    subject = load("builtin:gqa", Settings(dtype="float32"))
    (event,) = [
        e
        for e in run_probes(subject, [OnlyBelow()], diagnose, NONE)
        if isinstance(e, ProbeFinished)
    ]
    assert event.finding.verdict is Verdict.FAIL
    assert asked == [torch.float32]


def test_what_a_longer_row_leaves_behind_is_for_repeatability_alone() -> None:
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    )
    model = transformers.LlamaForCausalLM(config)
    amplify(model, 0)
    subject = Subject.of(model, dtype="float64")
    probes = [registry.load(name) for name in ("future-token", "batch-rows", "repeatability")]
    events = run_probes(subject, probes, backing=NONE)
    found = {e.finding.probe: e.finding for e in events if isinstance(e, ProbeFinished)}
    assert found["future-token"].verdict is Verdict.PASS
    alone = next(each for each in found["batch-rows"].cases if each.name == "alone")
    assert verdict_of(alone) is Verdict.PASS
    assert found["repeatability"].verdict is Verdict.FAIL
