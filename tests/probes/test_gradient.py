"""gradient: leaks that only a gradient shows, keys that are detached, checkpointing that computes
something else.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import tiny_llama
from probing import case, caught_by, finding, loaded
from torch import Tensor, nn

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.directional_derivatives import directional_derivative, projections
from attncheck.model.gradients import input_gradient
from attncheck.model.subject import Subject
from attncheck.model.training import training
from attncheck_probes.gradient.checkpoints import checkpointed, reentrant
from attncheck_probes.gradient.cuts import last_cut
from attncheck_probes.gradient.redrawn import REDRAWN


@pytest.fixture
def double() -> Subject:
    return Subject.of(tiny_llama(), "llama", dtype="float64")


@pytest.mark.parametrize("target", ["builtin:gqa", "builtin:mha", "builtin:window"])
def test_healthy_models_pass_with_two_controls(target: str) -> None:
    found = finding(loaded(target), "gradient")
    assert found.verdict is Verdict.PASS
    assert [control.detected for control in found.controls] == [True, True]
    assert case(found, "no gradient to later embeddings").max_abs == 0.0


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("gradient-detached", "derivative along projections"),
        ("causal-mask-missing", "no gradient to later embeddings"),
        ("leak-outside-attention", "no gradient to later embeddings"),
    ],
)
def test_planted_faults_are_caught(double: Subject, fault: str, name: str) -> None:
    broken = caught_by(double, "gradient", fault)
    assert broken is not None
    assert broken.name == name


def test_a_leak_far_below_rounding_shows_in_the_gradient(double: Subject) -> None:
    def leak(module: Any, args: Any, output: Any) -> Any:
        hidden: Tensor = output[0] if isinstance(output, tuple) else output
        leaked = hidden + 1e-18 * hidden.roll(-1, 1)
        return (leaked, *output[1:]) if isinstance(output, tuple) else leaked

    double.model.model.layers[0].register_forward_hook(leak)
    found = case(finding(double, "gradient"), "no gradient to later embeddings")
    assert verdict_of(found) is Verdict.FAIL
    assert found.max_abs is not None
    assert 0 < found.max_abs < 1e-15


def test_slopes_agree_with_the_central_difference(double: Subject) -> None:
    assert set(projections(double.model)) == {"query", "key", "value"}
    for kind in projections(double.model):
        slope = directional_derivative(double, kind)
        assert abs(slope.analytic - slope.numeric) <= slope.trust
        assert slope.trust < 1e-3 * abs(slope.numeric)


def test_keys_that_are_all_detached_have_no_slope(double: Subject) -> None:
    for layer in double.model.model.layers:
        layer.self_attn.k_proj.register_forward_hook(lambda module, args, output: output.detach())
    slope = directional_derivative(double, "key")
    assert slope.analytic == 0.0
    assert abs(slope.numeric) > 100 * slope.trust


@pytest.mark.parametrize(
    ("module", "upto", "text", "place"),
    [
        ("1.self_attn.k_proj", None, "model.layers.1.self_attn.k_proj", "1.self_attn.k_proj"),
        (
            "0.self_attn.v_proj",
            8,
            "rows 0..7 (of 16) of model.layers.0.self_attn.v_proj; from model.layers.1 on, "
            "gradients are right",
            "0.self_attn.v_proj",
        ),
        (
            "1.mlp",
            None,
            "model.layers.1.mlp.gate_proj, model.layers.1.mlp.up_proj, "
            "model.layers.1.mlp.down_proj",
            "1.mlp",
        ),
        ("1", None, "any matrix of model.layers.1", "1"),
    ],
)
def test_what_is_detached_is_named_by_layer_and_projection(
    double: Subject, module: str, upto: int | None, text: str, place: str
) -> None:
    def cut(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        kept = output[..., :0] if upto is None else output[..., upto:]
        return torch.cat([output[..., :upto].detach(), kept], -1)

    layer = double.model.get_submodule(f"model.layers.{module}")
    layer.register_forward_hook(cut)
    found = last_cut(double)
    assert verdict_of(found) is Verdict.FAIL
    assert found.note == f"no gradient reaches {text}"
    assert found.cause.module == f"model.layers.{place}"


def test_a_detached_part_of_a_fused_projection_is_named_by_its_columns() -> None:
    subject = loaded("config:gpt2")

    def cut(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        query, key, value = output.chunk(3, -1)
        return torch.cat([query, key.detach(), value], -1)

    subject.model.transformer.h[1].attn.c_attn.register_forward_hook(cut)
    found = diagnose(subject, finding(subject, "gradient"))
    assert found.verdict is Verdict.FAIL
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "gradient-detached"
    assert found.diagnosis.sentence == (
        "No gradient reaches columns 64..127 (of 192) of transformer.h.1.attn.c_attn; from "
        "transformer.h.2 on, gradients are right."
    )
    assert found.location is not None
    assert found.location.module == "transformer.h.1.attn.c_attn"


def test_a_gradient_that_is_there_but_off_is_a_warning(double: Subject) -> None:
    def damped(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output.detach() + 0.5 * (output - output.detach())

    double.model.model.layers[0].self_attn.k_proj.register_forward_hook(damped)
    found = last_cut(double)
    assert verdict_of(found) is Verdict.WARN
    assert found.note == (
        "the gradient of model.layers.0.self_attn.k_proj is not the derivative; from "
        "model.layers.1 on, gradients are right"
    )


def test_derivatives_of_a_float32_model_are_taken_in_float64_without_casting_it() -> None:
    subject = Subject.of(tiny_llama(), "llama")
    slope = directional_derivative(subject, "value")
    assert {weight.dtype for weight in subject.model.parameters()} == {torch.float32}
    assert abs(slope.analytic - slope.numeric) <= slope.trust < 1e-6 * abs(slope.numeric)


def test_an_encoder_decoder_has_a_gradient_to_the_tokens_of_its_decoder() -> None:
    subject = loaded("config:seq2seq/t5gemma")
    assert input_gradient(subject).shape[1] == subject.inputs.length


def test_weights_come_back_bit_for_bit(double: Subject) -> None:
    before = {name: value.clone() for name, value in double.model.named_parameters()}
    directional_derivative(double, "key")
    assert all(torch.equal(value, before[name]) for name, value in double.model.named_parameters())


def test_training_mode_has_no_dropout_and_is_left_again() -> None:
    subject = Subject.of(tiny_llama(attention_dropout=0.5), "dropout")
    with training(subject, checkpointing=False):
        assert subject.model.training
        first, second = input_gradient(subject), input_gradient(subject)
    assert torch.equal(first, second)
    assert not subject.model.training
    assert subject.model.model.layers[0].self_attn.attention_dropout == 0.5


def test_checkpointing_leaves_no_hook_behind(double: Subject) -> None:
    with training(double, checkpointing=True):
        input_gradient(double)
    assert not any(module._forward_hooks for module in double.model.modules())


def test_a_padding_mask_that_checkpointed_layers_do_not_get_is_caught(double: Subject) -> None:
    layer = double.model.model.layers[1]

    def unmasked(module: Any, args: Any, named: Any) -> Any:
        lost = module.training and module.gradient_checkpointing
        return args, {**named, "attention_mask": None} if lost else named

    plain = layer.__class__.__call__

    class Unmasked(layer.__class__):  # type: ignore[misc, name-defined]
        def __call__(self, *args: Any, **named: Any) -> Any:
            return plain(self, *unmasked(self, args, named)[0], **unmasked(self, args, named)[1])

    kind = layer.__class__
    layer.__class__ = Unmasked
    try:
        found = case(finding(double, "gradient"), "gradient checkpointing")
    finally:
        layer.__class__ = kind
    assert verdict_of(found) is Verdict.FAIL
    assert not found.cause.fault  # one layer alone
    assert found.note == "model.layers.1 gets fewer tensors under checkpointing"


def test_checkpointing_that_loses_the_mask_is_caught(double: Subject) -> None:
    layer = double.model.model.layers[0]
    usual, calls = layer.self_attn.forward, [0]

    def forward(*args: Any, **named: Any) -> Any:
        calls[0] += 1
        if double.model.training and layer.gradient_checkpointing and calls[0] % 2 == 0:
            named["hidden_states"] = named["hidden_states"] * 1.5
        return usual(*args, **named)

    layer.self_attn.forward = forward
    found = case(finding(double, "gradient"), "gradient checkpointing")
    assert verdict_of(found) is Verdict.FAIL


def test_a_checkpointed_layer_without_its_mask_is_named(double: Subject) -> None:
    layer = type(double.model.model.layers[0])

    class Deprived(layer):  # type: ignore[misc, valid-type]
        def __call__(self, *args: Any, **named: Any) -> Any:
            if self.gradient_checkpointing and self.training:
                named["attention_mask"] = None
            return super().__call__(*args, **named)

    for each in double.model.model.layers:
        each.__class__ = Deprived
    found = checkpointed(double)
    assert found.note.endswith("the layers do not get it")
    assert (found.cause.fault, found.cause.module) == ("padding-visible", "model.layers.0")


def test_a_bias_that_checkpoints_do_not_follow_is_named_with_its_weight() -> None:
    subject = loaded("config:seq2seq/t5")
    assert verdict_of(checkpointed(subject)) is Verdict.PASS
    block = type(subject.model.decoder.block[0])

    class Detached(block):  # type: ignore[misc, valid-type]
        def __call__(self, states: Tensor, mask: Any, bias: Any, *rest: Any, **named: Any) -> Any:
            lost = bias is not None and self.gradient_checkpointing and self.training
            return super().__call__(states, mask, bias.detach() if lost else bias, *rest, **named)

    for each in subject.model.decoder.block:
        each.__class__ = Detached
    found = checkpointed(subject)
    name = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"
    assert verdict_of(found) is Verdict.FAIL
    assert found.note.startswith(f"the gradient of `{name}.weight`")
    assert (found.cause.fault, found.cause.module) == ("gradient-detached", name)


@pytest.mark.parametrize("kept", [True, False])
def test_dropout_that_no_module_states_is_drawn_again_by_checkpoints(
    double: Subject, kept: bool
) -> None:
    model = double.model
    usual = model.gradient_checkpointing_enable

    def enable(gradient_checkpointing_kwargs: dict[str, Any], **rest: Any) -> None:
        usual({**gradient_checkpointing_kwargs, "preserve_rng_state": kept}, **rest)

    model.gradient_checkpointing_enable = enable

    def dropped(module: Any, args: Any, output: Tensor) -> Tensor:
        return nn.functional.dropout(output, 0.2, module.training)

    model.model.layers[1].mlp.register_forward_hook(dropped)
    for found in (checkpointed(double), reentrant(double)):
        assert verdict_of(found) is (Verdict.PASS if kept else Verdict.FAIL)
        if not kept:
            assert found.note == REDRAWN
            assert found.cause.module == "model.layers.1.mlp"
