from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from engine_servers import BASE, tiny, torch_engine

from attncheck.core.finding import Finding
from attncheck.core.verdict import Verdict
from attncheck.engines.against import AgainstWeights, on_grid
from attncheck.engines.twin import Twin
from attncheck.model.subject import Subject


def twin(model: Any) -> Twin:
    return Twin(Subject.of(copy.deepcopy(model), "tiny", dtype="float64"))


def with_config(**changes: Any) -> Any:
    """The tiny model read with another config: the same weights."""
    model = tiny(**changes)
    model.load_state_dict(tiny().state_dict())
    return model


def against(model: Any, dtype: torch.dtype = torch.float32) -> Finding:
    return AgainstWeights(torch_engine(model, dtype), twin(tiny())).examined()[0]


def test_a_healthy_engine_passes_with_its_control_seen() -> None:
    finding = against(tiny())
    assert finding.verdict is Verdict.PASS
    assert [(each.fault, each.detected) for each in finding.controls] == [("rope-base", True)]
    assert finding.cases[0].positions == 48


@pytest.mark.parametrize("base", [10_000.0, 777.0])
def test_a_wrong_base_is_named_with_its_value(base: float) -> None:
    finding = against(with_config(rope_parameters={"rope_type": "default", "rope_theta": base}))
    found = finding.diagnosis
    assert finding.verdict is Verdict.FAIL
    assert found is not None
    assert (found.fault, found.how) == ("rope-base", "reproduced")
    assert found.advice.startswith(f"Rope_theta {base:g} where the config says {BASE:g}. ")
    assert found.residual is not None
    assert found.residual < 1e-5
    assert found.runner_up is not None
    assert found.runner_up["residual"] > 0.05


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"hidden_act": "gelu"}, "activation"),
        ({"rms_norm_eps": 1e-5}, "norm-epsilon"),
        (
            {"hidden_act": "gelu", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            "activation and rope-base",
        ),
    ],
)
def test_fields_that_are_read_wrongly_are_named(changes: dict[str, Any], fault: str) -> None:
    found = against(with_config(**changes)).diagnosis
    assert found is not None
    assert (found.fault, found.how) == (fault, "reproduced")


def test_heads_dealt_out_in_turn_are_named() -> None:
    model = tiny()
    order = torch.tensor([0, 2, 1, 3])  # query heads on the key/value heads of each other
    for layer in model.model.layers:
        query, out = layer.self_attn.q_proj.weight, layer.self_attn.o_proj.weight
        query.data = query.data.view(4, 16, 64)[order].reshape(64, 64)
        out.data = out.data.view(64, 4, 16)[:, order].reshape(64, 64)
    found = against(model).diagnosis
    assert found is not None
    assert (found.fault, found.how) == ("kv-groups-tiled", "reproduced")


def test_the_embedding_table_as_head_is_named() -> None:
    model = tiny()
    model.lm_head.weight.data = model.model.embed_tokens.weight.data.clone()
    found = against(model).diagnosis
    assert found is not None
    assert (found.fault, found.how) == ("head-tied", "reproduced")


def test_an_unknown_fault_is_not_named() -> None:
    model = tiny()
    weight = model.model.layers[1].mlp.up_proj.weight.data
    weight.mul_(1 + 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    finding = against(model)
    assert finding.verdict is Verdict.FAIL
    assert finding.diagnosis is not None
    assert finding.diagnosis.how == "unexplained"
    assert finding.diagnosis.runner_up is not None


def test_half_precision_is_told_by_its_grid_and_passes() -> None:
    finding = against(tiny(), torch.bfloat16)
    assert finding.verdict is Verdict.PASS
    assert finding.cases[0].note.startswith("judged as bfloat16")
    assert all(each.detected for each in finding.controls)


def test_a_wrong_base_is_named_in_half_precision() -> None:
    model = with_config(rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    finding = against(model, torch.bfloat16)
    assert finding.verdict is Verdict.FAIL
    assert finding.diagnosis is not None
    assert finding.diagnosis.fault == "rope-base"


def test_a_grid_is_not_seen_in_float32() -> None:
    rows = [{0: -0.5, 1: -1.25, 2: -3.0}, {0: -0.25, 1: -0.75}]
    assert on_grid(rows, "bfloat16")
    assert not on_grid([{0: -0.5, 1: -1.2512345}], "bfloat16")
    assert not on_grid([{0: -0.5}], "bfloat16")  # one value lies on any grid
