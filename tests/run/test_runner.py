"""Every installed probe on encoder-decoders and encoders: it runs or says why not, and accuses
nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from probing import ACCUSING

from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.runner import NONE, ProbeFinished, run_probes
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
