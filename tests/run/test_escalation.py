"""The highest precision decides what a model means; a lower one adds what is wrong because of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import transformers
from conftest import SMALL, tiny_llama
from probing import finding
from torch import Tensor

from attncheck.core.capability import Capability
from attncheck.core.divergence import Divergence
from attncheck.core.errors import Unsupported
from attncheck.core.finding import Finding
from attncheck.core.measurement import (
    AtMost,
    BrokenCall,
    Comparison,
    Figure,
    Measurement,
    skipped,
    verdict_of,
)
from attncheck.core.verdict import Verdict
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.probing import Probe, attempt
from attncheck.run.escalation import decided
from attncheck.run.measuring import settled
from attncheck.targets.amplify import amplify

LOW, HIGH = "bfloat16", "float64"


def differing(max_abs: float, budget: float, **rest: Any) -> Comparison:
    """A comparison of logits of about 10."""
    of_case = {key: rest.pop(key) for key in ("expect", "broken") if key in rest}
    divergence = Divergence(**{"max_abs": max_abs, "positions": 4, "scale": 10.0, **rest})
    return Comparison("case", divergence, budget, **of_case)


@dataclass(frozen=True, kw_only=True)
class TwoLevels(Probe):
    """Has one case in bfloat16 and another in float64."""

    name = "two-levels"
    title = "two levels"
    by_dtype: dict[str, Measurement | Unsupported | None] = field(default_factory=dict)

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The case of this dtype, if there is one."""
        case = self.by_dtype[subject.dtype_name]
        if isinstance(case, Unsupported):
            raise case
        if case is not None:
            yield case


@pytest.fixture(scope="module")
def half() -> Subject:
    return Subject.of(tiny_llama(), dtype=LOW)


WRONG, WITHIN = differing(4.0, 1.0), differing(0.5, 1.0)
RIGHT, LEAK = differing(1e-14, 1e-13), differing(1e-8, 1e-13)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (WITHIN, RIGHT, Verdict.PASS),
        (WITHIN, LEAK, Verdict.FAIL),
        (differing(0.0, 1.0), LEAK, Verdict.FAIL),
        (replace(WITHIN, broken=Verdict.WARN), replace(LEAK, broken=Verdict.WARN), Verdict.WARN),
        (WRONG, skipped("case", "no such case"), Verdict.SKIP),
        (WRONG, Figure("case", 3.0), Verdict.PASS),
        (WRONG, Unsupported("not asked"), Verdict.SKIP),
        (Unsupported("not asked"), RIGHT, Verdict.PASS),
        (Unsupported("not asked"), LEAK, Verdict.FAIL),
        (skipped("case", "cannot tell"), LEAK, Verdict.FAIL),
        (differing(0.0, 1.0, positions=0), RIGHT, Verdict.PASS),
        (differing(1.9, 1.0), RIGHT, Verdict.NOISE),
        (WRONG, RIGHT, Verdict.FAIL),
        (differing(0.0, 1.0, nonfinite=1), RIGHT, Verdict.FAIL),
        (
            differing(0.5, 1.0, expect="differ"),
            differing(2.0, 1e-13, expect="differ"),
            Verdict.PASS,
        ),
        (
            differing(2.0, 1.0, expect="differ"),
            differing(0.0, 1e-13, expect="differ"),
            Verdict.FAIL,
        ),
        (BrokenCall("case", note="raises"), RIGHT, Verdict.FAIL),
        (WITHIN, BrokenCall("case", note="raises"), Verdict.NOISE),
        (AtMost("case", 3.0, "pairs"), AtMost("case", 0.0, "pairs"), Verdict.PASS),
        (AtMost("case", 0.0, "pairs"), AtMost("case", 3.0, "pairs"), Verdict.FAIL),
    ],
)
def test_the_higher_precision_decides(half: Subject, low: Any, high: Any, verdict: Verdict) -> None:
    decision = decided(half, TwoLevels(by_dtype={LOW: low, HIGH: high}))
    assert decision.dtype == HIGH
    assert verdict_of(decision.cases[0]) is verdict
    assert len(decision.cases) == 1


def test_a_case_that_only_the_lower_precision_has_is_no_finding(half: Subject) -> None:
    decision = decided(half, TwoLevels(by_dtype={LOW: WRONG, HIGH: None}))
    assert [verdict_of(case) for case in decision.cases] == [Verdict.SKIP]
    assert decision.cases[0].note == (
        "no case in float64, which decides (bfloat16, which does not decide: logits differ by 4, "
        "rounding explains 1)"
    )
    assert decided(half, TwoLevels(by_dtype={LOW: WITHIN, HIGH: None})).cases == ()


def test_both_numbers_are_shown(half: Subject) -> None:
    (case,) = decided(half, TwoLevels(by_dtype={LOW: WITHIN, HIGH: RIGHT})).cases
    assert isinstance(case, Comparison)
    assert [(each.dtype, each.max_abs) for each in case.ladder] == [(LOW, 0.5), (HIGH, 1e-14)]
    assert case.max_abs == 1e-14


def test_what_raises_in_the_lower_precision_alone_says_so(half: Subject) -> None:
    low = BrokenCall("case", note="the call raises")
    (case,) = decided(half, TwoLevels(by_dtype={LOW: low, HIGH: RIGHT})).cases
    assert case.note == "the call raises; float64 runs"


@pytest.mark.parametrize("low", [differing(1.0, 1e-5), differing(2e-5, 1e-5)])
def test_float32_asks_float64_however_large_its_difference_is(low: Comparison) -> None:
    subject = Subject.of(tiny_llama(), dtype="float32")
    decision = decided(subject, TwoLevels(by_dtype={"float32": low, HIGH: LEAK}))
    assert (decision.dtype, verdict_of(decision.cases[0])) == (HIGH, Verdict.FAIL)
    fine = TwoLevels(by_dtype={"float32": differing(1e-6, 1e-5)})
    assert decided(subject, fine).dtype is None


# Real models, in bfloat16 unless they say otherwise.


def rotating(change: Callable[[Tensor], Tensor]) -> Any:
    """A Llama whose frequencies are not those of its config."""
    model = tiny_llama()
    rotary = model.model.rotary_emb
    rotary.inv_freq = change(rotary.inv_freq)
    return model


def to_base(base: float) -> Callable[[Tensor], Tensor]:
    return lambda inv_freq_P: base ** -(torch.arange(len(inv_freq_P)) / len(inv_freq_P))


def scaled(by: float) -> Any:
    model = tiny_llama()
    for layer in model.model.layers:
        layer.self_attn.scaling *= by
    return model


PROMISES: dict[str, tuple[Callable[[], Any], Verdict]] = {
    "base 50000": (lambda: rotating(to_base(50000.0)), Verdict.FAIL),
    "base 12000": (lambda: rotating(to_base(12000.0)), Verdict.FAIL),
    "half of the frequencies zero": (
        lambda: rotating(lambda each: each * (torch.arange(len(each)) < len(each) / 2)),
        Verdict.FAIL,
    ),
    "scale 1 % off": (lambda: scaled(1.01), Verdict.WARN),
    "scale 5 % off": (lambda: scaled(1.05), Verdict.WARN),
    "healthy": (tiny_llama, Verdict.PASS),
}


@pytest.mark.parametrize("name", PROMISES)
@pytest.mark.parametrize("dtype", [LOW, HIGH])
def test_what_a_config_states_is_judged_where_rounding_hides_nothing(name: str, dtype: str) -> None:
    make, verdict = PROMISES[name]
    assert finding(Subject.of(make(), dtype=dtype), "reference").verdict is verdict


def test_controls_run_where_the_verdict_is_decided() -> None:
    found = finding(Subject.of(tiny_llama(), dtype=LOW), "batch-rows")
    assert found.verdict is Verdict.PASS
    assert found.replay["decided_in"] == HIGH
    assert [control.detected for control in found.controls] == [True, True]


def unmasked_in(dtype: torch.dtype) -> Any:
    """A Llama that loses its masks in one dtype."""
    model = tiny_llama()
    for layer in model.model.layers:
        usual = layer.self_attn.forward

        def forward(*args: Any, usual: Any = usual, **named: Any) -> Any:
            if named["hidden_states"].dtype is dtype:
                named["attention_mask"] = torch.zeros(1, 1, 1, 1, dtype=dtype)
            return usual(*args, **named)

        layer.self_attn.forward = forward
    return model


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_fault_of_one_dtype_alone_is_a_failure(dtype: str) -> None:
    subject = Subject.of(unmasked_in(getattr(torch, dtype)), dtype=dtype)
    assert finding(subject, "future-token").verdict is Verdict.FAIL
    assert finding(subject, "decode-paths").verdict is Verdict.FAIL


def near_tied(seed: int) -> Any:
    """A Mixtral whose router cannot tell two experts apart in float32."""
    changes = {"num_local_experts": 4, "num_experts_per_tok": 1, "sliding_window": None}
    torch.manual_seed(seed)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**{**SMALL, **changes}))
    amplify(model, seed)
    with torch.no_grad():
        for layer in model.model.layers:
            weight = layer.mlp.gate.weight
            weight[1] = weight[0] * (1 + 1e-7 * torch.randn(len(weight[0])))
    return model


@pytest.mark.parametrize("seed", range(4))
def test_a_router_between_equal_experts_is_not_accused(seed: int) -> None:
    subject = Subject.of(near_tied(seed), dtype="float32")
    names = ("decode-paths", "batch-rows")
    assert {finding(subject, name).verdict for name in names} <= {Verdict.PASS, Verdict.NOISE}


def test_what_is_learned_under_a_fault_stays_there() -> None:
    subject = Subject.of(tiny_llama(), dtype="float32")
    head = subject.model.lm_head
    with subject.passes.under("loud", False):
        hook = head.register_forward_hook(lambda module, args, output: output * 1e6)
        loud, runs = subject.budget.value, subject.higher_dtype()
        assert subject.can.takes_positions
        hook.remove()
    assert (runs, subject.loaded.runs_at) == (HIGH, {})
    assert subject.budget.value < 1e-3 * loud
    assert not subject.can.knows("takes_positions")


def diagnosed(model: Any, probe: str, dtype: str) -> Finding:
    from attncheck.core import registry
    from attncheck.diagnosis.diagnose import diagnose
    from attncheck.run.runner import finding_of

    return finding_of(Subject.of(model, dtype=dtype), registry.load(probe), diagnose)


def half_positions() -> Any:
    """A Llama that multiplies positions in the dtype of its hidden states."""
    model = tiny_llama(max_position_embeddings=8192)
    rotary = model.model.rotary_emb

    def forward(hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids.to(hidden.dtype)[..., None] * rotary.inv_freq.to(hidden.dtype)
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(hidden.dtype), angles.sin().to(hidden.dtype)

    rotary.forward = forward
    return model


def test_positions_in_half_precision_are_named_by_their_repair() -> None:
    found = diagnosed(half_positions(), "position-reset", LOW)
    assert found.verdict is Verdict.FAIL
    assert found.diagnosis is not None
    assert (found.diagnosis.fault, found.diagnosis.how) == ("tables-rounded", "repaired")
    assert diagnosed(half_positions(), "position-reset", HIGH).verdict is Verdict.PASS


def overflowing(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any
) -> Any:
    """Attention whose mask is made of -1e9, which float16 does not hold."""
    from transformers.models.llama.modeling_llama import repeat_kv

    key, value = (repeat_kv(each, module.num_key_value_groups) for each in (key, value))
    scores = query @ key.transpose(2, 3) * named["scaling"]
    if mask is not None:
        scores = scores + torch.where(mask < 0, -1e9, 0.0).to(scores.dtype)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def test_a_minimum_that_overflows_is_named_by_its_repair() -> None:
    transformers.AttentionInterface.register("overflowing", overflowing)
    masks = transformers.AttentionMaskInterface
    masks.register("overflowing", masks()["eager"])
    found = diagnosed(tiny_llama(attn_implementation="overflowing"), "padding", "float16")
    assert found.verdict is Verdict.FAIL
    assert found.diagnosis is not None
    assert (found.diagnosis.fault, found.diagnosis.how) == ("nan-masked-row", "repaired")
    whole = diagnosed(tiny_llama(attn_implementation="overflowing"), "padding", LOW)
    assert whole.verdict is not Verdict.FAIL


def test_healthy_models_have_no_fault_of_their_dtype() -> None:
    for dtype in ("bfloat16", "float16", "float32"):
        subject = Subject.of(tiny_llama(), dtype=dtype)
        spec = ForwardSpec(subject.inputs.tokens)
        usual = subject.logits(spec)
        for name in ("nan-masked-row", "softmax-rounded", "tables-rounded"):
            from attncheck.faults import registry

            with registry.fault(name).repaired(subject):
                assert bool(torch.isfinite(subject.logits(spec)).all())
        assert torch.equal(subject.logits(spec), usual)


class StatedLevels(TwoLevels):
    """What a config states, measured inside a forward: no two forwards give the case."""

    promise = True


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (WRONG, RIGHT, Verdict.PASS),
        (WRONG, LEAK, Verdict.FAIL),
        (WITHIN, LEAK, Verdict.FAIL),
        (differing(0.0, 1.0, nonfinite=1), RIGHT, Verdict.FAIL),
    ],
)
def test_what_layers_give_in_half_is_decided_above(
    half: Subject, low: Comparison, high: Comparison, verdict: Verdict
) -> None:
    """Layers of trained weights pass on the rounding of those before: 34 budgets on a real model."""
    (case,) = decided(half, StatedLevels(by_dtype={LOW: low, HIGH: high})).cases
    assert verdict_of(case) is verdict
    assert isinstance(case, Comparison)
    assert [level.dtype for level in case.ladder] == [LOW, HIGH]
    assert case.ladder[0].max_abs == low.max_abs


def test_what_float32_does_not_have_cannot_answer_for_float64() -> None:
    broken = BrokenCall("case", note="raises in float64")
    absent = TwoLevels(by_dtype={"float32": skipped("case", "concerns float64 only")})
    present = TwoLevels(by_dtype={"float32": RIGHT})
    subject = Subject.of(tiny_llama(), dtype=HIGH)
    assert settled(subject, absent, (broken,)) == (broken,)
    assert settled(subject, present, (broken,)) == (RIGHT,)


@dataclass(frozen=True, kw_only=True)
class ThreeCases(Probe):
    """One case passes, one warns and one is in doubt; each notes the dtypes that it was asked in."""

    name = "three-cases"
    title = "three cases"
    asked_in: list[str] = field(default_factory=list)

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The one that passes first."""
        for name, case in (
            ("fine", differing(1e-6, 1e-5)),
            ("warns", differing(1.0, 1e-5, broken=Verdict.WARN)),
            ("doubtful", differing(3e-5, 2e-5)),
        ):
            yield attempt(name, self._case, subject, name, case)

    def _case(self, subject: Subject, name: str, case: Measurement) -> Measurement:
        self.asked_in.append(f"{name} in {subject.dtype_name}")
        return replace(case if subject.dtype_name != HIGH else RIGHT, name=name)


def test_only_the_cases_in_question_are_asked_in_the_highest_precision() -> None:
    single, probe = Subject.of(tiny_llama(), dtype="float32"), ThreeCases()
    single.can.learn("is_smooth", Capability("a router selects by value"))
    decision = decided(single, probe)
    assert [case.name for case in decision.cases] == ["fine", "warns", "doubtful"]
    assert [each for each in probe.asked_in if HIGH in each] == [
        "warns in float64",
        "doubtful in float64",
    ]
    fine, warns, doubtful = decision.cases
    assert (fine.max_abs, warns.max_abs) == (1e-6, 1.0)
    assert verdict_of(doubtful) is Verdict.NOISE, "float64 agrees, float32 differs by a little more"
    assert (decision.dtype, decision.controls) == (HIGH, HIGH)


def test_a_plain_warning_of_a_model_that_selects_nothing_is_not_asked_again() -> None:
    single, probe = Subject.of(tiny_llama(), dtype="float32"), ThreeCases()
    warns = decided(single, probe).cases[1]
    assert verdict_of(warns) is Verdict.WARN
    assert [each for each in probe.asked_in if HIGH in each] == ["doubtful in float64"]


def test_every_case_of_a_half_precision_is_asked_in_the_highest(half: Subject) -> None:
    probe = ThreeCases()
    decided(half, probe)
    assert [each for each in probe.asked_in if HIGH in each] == [
        f"{name} in float64" for name in ("fine", "warns", "doubtful")
    ]
