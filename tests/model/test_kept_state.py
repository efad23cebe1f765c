"""A model and the process come back byte for byte from a check, also from one that raises."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from conftest import tiny_llama
from torch import nn

import attncheck
from attncheck.attention.interface import attention_table
from attncheck.core.settings import Settings
from attncheck.model import compat
from attncheck.model.loaded import LoadedModel
from attncheck.targets import random_init

CONFIGS = (
    "llama",
    "gpt2",
    "gpt_oss",
    "mixtral",
    "qwen2_moe",
    "deepseek_v3",
    "gemma2",
    "bloom",
    "opt",
    "gpt_neo",
    "gptj",
    "falcon",
    "mamba",
    "recurrent_gemma",
    "t5",
    "bart",
    "roberta",
    "phi3",
)

EXPLODES = """
from __future__ import annotations
from collections.abc import Iterator
from dataclasses import dataclass
import random
import numpy, torch
from attncheck.probing import Measurement, Probe, Subject, training

@dataclass(frozen=True, kw_only=True)
class Explodes(Probe):
    name = "explodes"
    title = "raises in the middle of everything"

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        random.random(), numpy.random.rand(), torch.rand(3)
        with subject.at("bfloat16") as low, training(low, False):
            subject.model.register_forward_hook(lambda *given: None)
            subject.model.own_counter = 3
            loss = low.passes.call(subject.inputs.tokens).logits_BTV.float().sum()
            loss.backward()
            raise ZeroDivisionError("in the middle")
        yield
"""


class Shared(nn.Module):
    """A hand-written model: one buffer in two modules, a list and a tensor that forwards change."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_llama(attention_bias=True)
        self.config = self.inner.config
        table = torch.linspace(0, 1, 7)
        self.register_buffer("table", table)
        self.inner.register_buffer("table", table)
        self.seen: list[int] = []
        self.total = torch.zeros(1)

    def forward(self, input_ids: Any, **rest: Any) -> Any:
        self.seen.append(input_ids.shape[1])
        self.total += 1
        self.table += 1
        return self.inner(input_ids, **rest)


def dynamic() -> Any:
    """A model whose rotary table follows the longest input so far."""
    return tiny_llama(
        max_position_embeddings=16,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    )


def built(name: str) -> Any:
    if name == "shared":
        return Shared()
    if name == "dynamic":
        return dynamic()
    return random_init.build(name, Settings())


def used(model: Any) -> Any:
    """The model as somebody in the middle of training holds it."""
    model.train()
    for index, module in enumerate(model.modules()):
        module.training = index % 3 > 0
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index % 4 != 1)
        if index % 2:
            parameter.grad = torch.full_like(parameter, 1 / 3)
    model.register_forward_pre_hook(lambda module, given: None)
    return model


def raw(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    flat = tensor.detach().contiguous().flatten()
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def inside(model: Any) -> dict[str, Any]:
    """Every state of a model that anybody could see."""
    found: dict[str, Any] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        found[f"{name}: weight"] = (id(each), raw(each), each.requires_grad)
        found[f"{name}: grad"] = (id(each.grad), raw(each.grad))
    for path, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            found[f"{path}.{name}: buffer"] = (id(buffer), raw(buffer))
        found[f"{path}: mode"] = module.training
        for name, value in vars(module).items():
            if name.endswith("hooks"):
                found[f"{path}.{name}"] = list(value)
            elif isinstance(value, (int, float, str, list)):
                found[f"{path}.{name}"] = repr(value)
            elif isinstance(value, torch.Tensor):
                found[f"{path}.{name}"] = (id(value), raw(value))
            else:
                found[f"{path}.{name}"] = id(value)
        config = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            found[f"{path}: config"] = repr(sorted(vars(config).items(), key=lambda item: item[0]))
    return found


def outside() -> dict[str, Any]:
    """What a check could change in the process."""
    library = transformers.utils.logging
    arrays: Any = numpy.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (arrays[1].tobytes(), arrays[2]),
        "python": random.getstate(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "level": library.get_verbosity(),
        "bars": library.is_progress_bar_enabled(),
        "hub": logging.getLogger("huggingface_hub").level,
        "tqdm": os.environ.get("TQDM_DISABLE"),
        "folder": Path.cwd(),
        "kernels": dict(attention_table()),
    }


def different(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library as users have it: with warnings and progress bars."""
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    compat.set_loudness(logging.WARNING, True)
    logging.getLogger("huggingface_hub").setLevel(logging.INFO)
    yield
    compat.quiet()


@pytest.fixture(scope="module")
def explodes(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("probe") / "explodes.py"
    path.write_text(EXPLODES)
    return f"{path}:Explodes"


@pytest.mark.parametrize("name", [*CONFIGS, "shared", "dynamic"])
def test_a_model_and_the_process_come_back_byte_for_byte(
    name: str, talkative: None, explodes: str
) -> None:
    model = used(built(name))
    before, around = inside(model), outside()
    probes = [*(["gradient", "kv-repeat"] if name in ("mixtral", "shared") else []), explodes]
    report = attncheck.check(model, probes=probes, length=12)
    assert different(around, outside()) == []
    assert different(before, inside(model)) == []
    (target,) = report.targets
    exploded = target.results[-1]
    assert "ZeroDivisionError: in the middle" in (exploded.error or exploded.skip_reason or "")


def test_a_half_precision_model_with_gradients_takes_its_next_step() -> None:
    model = tiny_llama().to(torch.bfloat16)
    model(torch.tensor([[1, 2, 3, 4]]), labels=torch.tensor([[1, 2, 3, 4]])).loss.backward()
    optimizer = torch.optim.AdamW(model.parameters())
    attncheck.check(model, probes=["kv-repeat"])
    optimizer.step()
    assert {each.grad.dtype for each in model.parameters()} == {torch.bfloat16}


def test_a_buffer_that_two_modules_share_stays_one_in_another_precision() -> None:
    model = Shared()
    loaded = LoadedModel("shared", model)
    with loaded.at(torch.float64):
        assert model.table.dtype is torch.float64
    assert model.table is model.inner.table
    assert model.table.dtype is torch.float32


def test_expert_kernels_come_back_from_another_precision() -> None:
    model = random_init.build("mixtral", Settings())
    model.set_experts_implementation("grouped_mm")
    loaded = LoadedModel("mixtral", model)
    with loaded.at(torch.float64):
        assert model.config._experts_implementation == "eager"
    assert model.config._experts_implementation == "grouped_mm"


def test_checks_in_two_threads_wait_for_each_other() -> None:
    reports: dict[int, Any] = {}

    def checked(number: int) -> None:
        model = tiny_llama()
        reports[number] = attncheck.check(model, probes=["decode-paths"], name=str(number))

    threads = [threading.Thread(target=checked, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.get_default_dtype() is torch.float32
    assert [reports[number].exit_code for number in range(3)] == [0, 0, 0]
    cases = [report.targets[0].results[0].cases for _, report in sorted(reports.items())]
    assert cases[0] == cases[1] == cases[2]


def test_a_check_that_is_interrupted_gives_everything_back(
    monkeypatch: pytest.MonkeyPatch, talkative: None
) -> None:
    model = used(tiny_llama())
    before, around = inside(model), outside()

    def interrupted(*given: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("attncheck.run.session.implicit_findings", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attncheck.check(model, probes=["kv-repeat"])
    assert different(around, outside()) == []
    assert different(before, inside(model)) == []
