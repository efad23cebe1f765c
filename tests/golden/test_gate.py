"""The gate: reordered sums pass, one head of one layer fails wherever it is lost, and is placed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_llama
from torch import Tensor, nn

from attncheck.core.errors import TargetError
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.golden.answer import GateAnswer, finding, said
from attncheck.golden.file import Golden, load, save
from attncheck.golden.gate import hold
from attncheck.golden.recording import record
from attncheck.model.subject import Subject
from attncheck.targets.load import in_memory, settle_dtype


def subject_of(model: nn.Module) -> Subject:
    return settle_dtype(in_memory(model, "tiny", Settings()), "auto")


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    path = tmp_path_factory.mktemp("golden") / "golden.safetensors"
    save(record(subject_of(tiny_llama()), {}), path)
    return load(path)


@pytest.fixture(scope="module")
def few(golden: Golden) -> Golden:
    """The recording without most of its calls."""
    ways, dtypes = ("one forward", "left-padded batch"), ("float64", "bfloat16")
    kept = [
        entry
        for entry in golden.entries
        if entry.call.way in ways and entry.call.dtype in dtypes and entry.call.spec.attn is None
    ]
    return replace(golden, entries=tuple(kept))


def held_with(golden: Golden, change: Callable[[nn.Module], None]) -> GateAnswer:
    model = tiny_llama()
    change(model)
    return hold(golden, subject_of(model))


def without_a_head(where: Callable[[Tensor], bool]) -> Callable[[nn.Module], None]:
    """The second layer loses its first head in some calls."""

    def change(model: Any) -> None:
        def lost(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
            (context_BTW,) = args
            if where(context_BTW):
                context_BTW = context_BTW.clone()
                context_BTW[..., : context_BTW.shape[-1] // 4] = 0
            return (context_BTW,)

        model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lost)

    return change


def in_other_order(model: Any) -> None:
    """Every projection of attention in two halves, and norms that divide by a root."""

    def halves(module: nn.Linear) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            cut, weight = x.shape[-1] // 3, module.weight
            return F.linear(x[..., cut:], weight[:, cut:]) + F.linear(x[..., :cut], weight[:, :cut])

        return forward

    def norm(module: Any) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            size = (wide.square().sum(-1, keepdim=True) / wide.shape[-1]) + module.variance_epsilon
            return (wide / size.sqrt() * module.weight).to(x.dtype)

        return forward

    for name, module in model.named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj", "o_proj")):
            module.forward = halves(module)
        if name.endswith("norm"):
            module.forward = norm(module)


def test_the_same_model_is_identical(golden: Golden) -> None:
    answer = held_with(golden, lambda model: None)
    assert answer.word == "IDENTICAL"
    assert said(answer) == (
        f"every logit of {len(golden.entries)} calls is the same to the last bit"
    )
    assert all(each.detected for each in answer.controls)
    dtypes = {entry.call.dtype for entry in golden.entries}
    assert dtypes == {"float64", "float32", "bfloat16"}
    assert {each.case.rpartition(", ")[2] for each in answer.controls} >= {"eager", "bfloat16"}
    assert finding(answer).verdict is Verdict.PASS


def test_sums_in_another_order_are_rounding(golden: Golden) -> None:
    answer = held_with(golden, in_other_order)
    assert answer.word == "ROUNDING"
    assert "of what rounding explains" in said(answer)
    assert all(each.times <= 1.0 for each in answer.calls)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (lambda x: x.shape[0] > 1, "only in batches above one"),
        (lambda x: x.dtype == torch.bfloat16, "only in bfloat16"),
        (
            lambda x: x.dtype == torch.bfloat16 and x.shape[0] > 1 and x.shape[1] == 1,
            "only in bfloat16 and in `left-padded batch on a cache`",
        ),
        (lambda x: torch.compiler.is_compiling(), "only compiled"),
    ],
)
def test_a_head_that_is_lost_somewhere_is_placed(
    golden: Golden, where: Callable[[Tensor], bool], words: str
) -> None:
    answer = held_with(golden, without_a_head(where))
    assert answer.word == "DIFFERENT"
    assert f"({words})" in said(answer)
    found = finding(answer)
    assert found.verdict is Verdict.FAIL
    if words != "only compiled":
        assert found.location is not None
        assert (found.location.module, found.location.layer) == ("model.layers.1.self_attn", 1)


def test_a_head_that_is_lost_past_the_border_is_placed(few: Golden) -> None:
    def change(model: Any) -> None:
        def lost(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
            context_BTW = args[0].clone()
            context_BTW[:, 17:, :8] = 0
            return (context_BTW,)

        model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lost)

    answer = held_with(few, change)
    worst = answer.worst
    assert worst is not None
    assert worst.first is not None
    assert worst.call.name == "one forward, float64"
    assert (worst.first.module, worst.place) == ("model.layers.1.self_attn", (0, 18))
    assert worst.first.positions[0] <= 17 < worst.first.positions[1]


def test_scaling_that_moves_into_another_module_is_no_difference(few: Golden) -> None:
    """Values twice as large and an output projection that halves them again."""

    def change(model: Any) -> None:
        attention = model.model.layers[0].self_attn
        with torch.no_grad():
            attention.v_proj.weight.mul_(2)
            attention.o_proj.weight.div_(2)

    answer = held_with(few, change)
    assert answer.word == "IDENTICAL"
    assert len(answer.weights) == 2


def test_other_weights_are_named(few: Golden) -> None:
    def change(model: Any) -> None:
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight.mul_(1.001)

    answer = held_with(few, change)
    assert answer.word == "DIFFERENT"
    assert said(answer).endswith("weights that are not the same: model.layers.1.mlp.up_proj.weight")
    assert answer.worst is not None
    assert answer.worst.first is not None
    assert answer.worst.first.module == "model.layers.1.mlp.up_proj"


def test_a_call_that_raises_is_different(few: Golden) -> None:
    def change(model: Any) -> None:
        usual = model.forward

        def forward(input_ids: Tensor, attention_mask: Any = None, **named: Any) -> Any:
            if attention_mask is not None:
                raise RuntimeError("no masks any more")
            return usual(input_ids=input_ids, **named)

        model.forward = forward

    answer = held_with(few, change)
    assert answer.word == "DIFFERENT"
    assert "no masks any more" in said(answer)


def test_a_gate_that_sees_nothing_is_vacuous(few: Golden) -> None:
    deaf = [
        replace(
            entry,
            rounding=replace(
                entry.rounding, largest=1e9, norms_EG=torch.full_like(entry.rounding.norms_EG, 1e9)
            ),
        )
        for entry in few.entries
    ]
    answer = held_with(replace(few, entries=tuple(deaf)), lambda model: None)
    assert answer.word == "VACUOUS"
    assert "a lost head would not be seen in" in said(answer)
    assert finding(answer).verdict is Verdict.VACUOUS


def test_a_recording_of_another_model_is_refused(few: Golden) -> None:
    with pytest.raises(TargetError, match="not the model that was recorded.*layers 2.*layers 3"):
        hold(few, subject_of(tiny_llama(num_hidden_layers=3)))
