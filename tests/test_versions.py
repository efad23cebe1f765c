"""A short part that every supported release of transformers must pass: loading, passes, plants,
generate(), verdicts.
"""

import pytest
import torch

from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.core.measurement import verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.forward_spec import ForwardSpec
from attncheck.run.runner import ProbeFinished, run_probes
from attncheck.targets.load import load

pytestmark = pytest.mark.smoke
FIVE = ("future-token", "decode-paths", "position-reset", "document-leakage", "kv-repeat")
STATIC_ALIBI = "only the next token, static cache: BloomForCausalLM raises"
"""True of several releases before 5.24.0: the bias is as wide as the row, a static buffer is not."""
BAD = {Verdict.FAIL, Verdict.ERROR, Verdict.VACUOUS, Verdict.NOISE}


def findings(target: str) -> dict[str, Finding]:
    subject = load(target, Settings(offline=True))
    events = run_probes(subject, [registry.load(name) for name in FIVE])
    return {
        event.finding.probe: event.finding for event in events if isinstance(event, ProbeFinished)
    }


@pytest.mark.parametrize(
    "target", ["builtin:gqa", "builtin:mha", "builtin:alibi", "builtin:moe", "config:llama"]
)
def test_healthy_models_are_not_accused(target: str) -> None:
    found = findings(target)
    if STATIC_ALIBI in found["future-token"].summary and target == "builtin:alibi":
        del found["future-token"]
    assert {
        name: finding.summary for name, finding in found.items() if finding.verdict in BAD
    } == {}
    assert found["decode-paths"].verdict is Verdict.PASS
    assert all(control.detected for finding in found.values() for control in finding.controls)
    assert len(found["decode-paths"].controls) == 2


@pytest.mark.parametrize(
    ("target", "failing"),
    [
        ("builtin:broken-mask", {"future-token", "decode-paths"}),
        ("builtin:broken-positions", {"decode-paths", "position-reset"}),
    ],
)
def test_broken_models_fail(target: str, failing: set[str]) -> None:
    found = findings(target)
    assert failing <= {name for name, finding in found.items() if finding.verdict is Verdict.FAIL}
    assert not any(finding.verdict is Verdict.ERROR for finding in found.values())


@pytest.mark.parametrize("target", ["builtin:gqa", "builtin:alibi", "config:gptj"])
def test_attention_is_judged_wherever_a_release_computes_it(target: str) -> None:
    measured = list(registry.load("reference").measure(load(target, Settings(offline=True))))
    assert {each.name: each.note for each in measured if verdict_of(each) in BAD} == {}
    compared = [each for each in measured if each.name.startswith("attention output")]
    assert len(compared) == 7, (
        "one forward, with a 2D mask, a prefill, a chunk, a step, a padded prefill, a padded step"
    )
    assert all(each.positions for each in compared)


@pytest.mark.parametrize(
    "target",
    ["config:gpt2", "config:mamba", "config:bert", "config:seq2seq/t5", "config:masked/bert"],
)
def test_kinds_of_models_load_in_float64(target: str) -> None:
    subject = load(target, Settings(offline=True))
    logits_BTV = subject.logits(ForwardSpec(subject.inputs.tokens))
    assert logits_BTV.dtype == torch.float64
    assert subject.budget.value < 1e-9


@pytest.mark.parametrize("target", ["config:mamba", "config:seq2seq/t5"])
def test_caches_of_every_form_continue(target: str) -> None:
    subject = load(target, Settings(offline=True))
    assert subject.can.steps
    one_by_one = ForwardSpec(
        subject.inputs.tokens, chunks=(8,) + (1,) * (subject.inputs.length - 8)
    )
    case = subject.compare(
        "steps", subject.logits(one_by_one), subject.logits(ForwardSpec(subject.inputs.tokens))
    )
    assert case.excess < 1
