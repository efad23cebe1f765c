"""Quantized weights are checked as stored, with the noise that they have; doubt is settled in
float64, dequantized.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import tiny_llama
from healthy.quantised import one_scale_for_the_batch
from torch import Tensor, nn

from attncheck.core import registry
from attncheck.core.errors import TargetError
from attncheck.core.finding import Finding
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.forward import wrap_forward
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.quantized import dequantized, quantized_kind, why_no_gradient
from attncheck.model.subject import Subject
from attncheck.numerics.promote import Promote
from attncheck.run.runner import ProbeFinished, run_probes
from attncheck.targets.load import in_memory, settle_dtype

WRONG = (Verdict.ERROR, Verdict.FAIL, Verdict.VACUOUS)


def small(dtype: torch.dtype, spec: str = "auto") -> Subject:
    quanto = pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed")
    model = tiny_llama().to(dtype)
    quanto.quantize(model, weights=quanto.qint8, exclude="lm_head")
    quanto.freeze(model)
    loaded = in_memory(model, "small", Settings(length=12, dtype=spec))
    return settle_dtype(loaded, spec)


def findings(subject: Subject, *names: str) -> dict[str, Finding]:
    events = run_probes(
        subject, [registry.load(name) for name in registry.select(names)], Diagnoser()
    )
    return {
        event.finding.probe: event.finding for event in events if isinstance(event, ProbeFinished)
    }


def test_quantised_weights_stay_as_they_are() -> None:
    subject = small(torch.float32)
    assert quantized_kind(subject.model) == "WeightQBytesTensor"
    assert subject.dtype_name == "float32"
    assert not subject.precision.widened
    assert 1e-7 < subject.budget.value < 1e-3
    assert any("checked as stored" in remark for remark in subject.loaded.remarks)


def test_every_probe_works_on_quantised_weights_or_says_why_not() -> None:
    found = findings(small(torch.float32))
    assert set(found) == set(registry.installed())
    assert not [
        (name, finding.summary) for name, finding in found.items() if finding.verdict in WRONG
    ]
    skipped = [case.note for case in found["gradient"].cases if case.expect == "skip"]
    assert any("no step along them" in note or "float64" in note for note in skipped)


def test_half_precision_is_decided_by_the_ladder() -> None:
    found = findings(small(torch.bfloat16), "padding", "reference", "decode-paths")
    assert {finding.verdict for finding in found.values()} <= {Verdict.PASS, Verdict.NOISE}
    raised = [
        case.ladder[-1] for finding in found.values() for case in finding.cases if case.ladder
    ]
    assert raised
    assert all(rung.dtype == "float64" and rung.budget < 1e-10 for rung in raised)


def test_float64_computes_with_the_numbers_that_quantised_weights_stand_for() -> None:
    subject = small(torch.float32, "float64")
    assert subject.precision.widened
    plain = tiny_llama()
    for name, value in subject.model.named_parameters():
        stands_for: Any = value.dequantize() if type(value.data) is not torch.Tensor else value
        plain.get_parameter(name).data = stands_for.detach().clone()
    plain.double()
    with torch.no_grad(), Promote():
        want_BTV = plain(
            input_ids=subject.passes.ids(subject.inputs.tokens), use_cache=False
        ).logits
    got_BTV = subject.logits(ForwardSpec(subject.inputs.tokens))
    assert got_BTV.dtype == torch.float64
    assert float((got_BTV - want_BTV).abs().max()) < 1e-12


def test_another_dtype_cannot_be_asked_for() -> None:
    with pytest.raises(TargetError, match="the weights are quantized"):
        small(torch.float32, "bfloat16")


def bitsandbytes(**options: Any) -> Any:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    return transformers.BitsAndBytesConfig(**options)


def torchao(name: str, **options: Any) -> Any:
    kinds = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    return transformers.TorchAoConfig(getattr(kinds, name)(**options))


FORMATS: dict[str, tuple[torch.dtype, Callable[[], Any]]] = {
    "bitsandbytes int8": (torch.float16, lambda: bitsandbytes(load_in_8bit=True)),
    "bitsandbytes nf4": (
        torch.bfloat16,
        lambda: bitsandbytes(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        ),
    ),
    "torchao int8": (torch.float32, lambda: torchao("Int8WeightOnlyConfig")),
    "torchao int8, activations too": (
        torch.bfloat16,
        lambda: torchao("Int8DynamicActivationInt8WeightConfig"),
    ),
    "torchao int4": (
        torch.bfloat16,
        lambda: torchao("IntxWeightOnlyConfig", weight_dtype=torch.int4),
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_right_when_healthy_and_wrong_with_a_fault(
    name: str, tmp_path: Path
) -> None:
    dtype, config = FORMATS[name]
    chosen = config()
    tiny_llama(
        hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2
    ).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=chosen, dtype=dtype, device_map="cpu"
    )
    loaded = in_memory(model, name, Settings(length=12))
    subject = settle_dtype(loaded, "auto")
    assert quantized_kind(model) is not None
    assert subject.loaded.stored_dtype == dtype
    assert subject.higher_dtype() == "float64"
    found = findings(subject, "decode-paths", "padding")
    assert not [
        (probe, finding.summary) for probe, finding in found.items() if finding.verdict in WRONG
    ]
    assert all(control.detected for finding in found.values() for control in finding.controls)
    raised = [
        case.ladder[-1] for finding in found.values() for case in finding.cases if case.ladder
    ]
    assert raised or dtype == torch.float32
    assert all(rung.dtype == "float64" and rung.max_abs <= rung.budget < 1e-12 for rung in raised)

    wrap_forward(model, _restart)
    faulty = Subject.of(model, name, settings=Settings(length=12))
    assert findings(faulty, "decode-paths")["decode-paths"].verdict is Verdict.FAIL


def _restart(call: dict[str, Any]) -> dict[str, Any]:
    if not max(cached_length(call.get(name)) for name in CACHE_NAMES):
        return call
    return {**call, "position_ids": torch.arange(call["input_ids"].shape[1])[None]}


class Coded(nn.Module):
    """A layer that keeps bytes and a scale for each row, and refuses float64."""

    def __init__(self, weight_ON: Tensor, bias_O: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight_ON.shape
        self.register_buffer("scale_O", weight_ON.abs().amax(1) / 127)
        self.register_buffer(
            "codes_ON", (weight_ON / self.get_buffer("scale_O")[:, None]).round().to(torch.int8)
        )
        self.bias = nn.Parameter(bias_O)

    def forward(self, given: Tensor) -> Tensor:
        if given.dtype == torch.float64:
            raise RuntimeError("no kernel for float64")
        weight_ON = (
            self.get_buffer("codes_ON").to(given.dtype) * self.get_buffer("scale_O")[:, None]
        )
        return torch.nn.functional.linear(given, weight_ON, self.bias)


def test_a_layer_in_codes_of_its_own_is_asked_what_they_stand_for() -> None:
    model = tiny_llama()
    torch.manual_seed(3)
    for layer in model.model.layers:
        weight_ON = layer.mlp.down_proj.weight.detach().clone()
        layer.mlp.down_proj = Coded(weight_ON, torch.randn(len(weight_ON)) / 10)
    layer = model.model.layers[0].mlp.down_proj
    stands_for_ON = layer.codes_ON.float() * layer.scale_O[:, None]
    weight_ON, bias_O = dequantized(layer, layer.forward, torch.device("cpu"))
    assert torch.allclose(weight_ON, stands_for_ON, atol=1e-6)
    assert bias_O is not None
    assert torch.equal(bias_O, layer.bias)

    loaded = in_memory(model, "coded", Settings(length=12))
    subject = settle_dtype(loaded, "auto")
    assert quantized_kind(model) == "Coded"
    assert (subject.dtype_name, subject.higher_dtype()) == ("float32", "float64")
    low_BTV = subject.logits(ForwardSpec(subject.inputs.tokens))
    with subject.at("float64") as wide:
        high_BTV = wide.logits(ForwardSpec(subject.inputs.tokens))
    assert high_BTV.dtype == torch.float64
    assert 0 < float((high_BTV - low_BTV).abs().max()) < 1e-3
    assert findings(subject, "gradient")["gradient"].verdict not in WRONG


def test_one_scale_for_a_whole_call_is_rounding_of_the_quantized_layers() -> None:
    subject = settle_dtype(in_memory(one_scale_for_the_batch(), "scaled", Settings()), "auto")
    assert subject.budget.source.startswith("float32 rounding of quantized layers")
    row = subject.inputs.row
    alone = subject.logits(ForwardSpec((row,)))
    beside = subject.logits(ForwardSpec((row, subject.inputs.other(row))))[:1]
    moved = float((alone - beside).abs().max())
    assert 1e-3 < moved < subject.budget.value
    assert why_no_gradient(subject.model) == (
        "its quantized layers have one scale for all tokens of a call"
    )
    with subject.at("float64") as exact:
        assert exact.budget.value < 1e-12
