"""Loading from folders and factories, and what it notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attncheck.core.errors import TargetError
from attncheck.core.measurement import verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.targets import checkpoints
from attncheck.targets.load import load

Save = Callable[..., Path]


def test_a_folder_is_loaded_with_nothing_noticed(saved: Save) -> None:
    subject = load(str(saved()), Settings())
    assert (subject.dtype_name, subject.facts.kv_heads, subject.facts.layers) == ("float64", 2, 2)
    assert [verdict_of(note) for note in subject.loaded.load_notes] == [Verdict.PASS] * 3


def test_a_truncated_file_is_one_line(saved: Save) -> None:
    weights = saved() / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(
        TargetError,
        match=r"model\.safetensors: cut off: it has 40,280 bytes, its header names 80,560",
    ):
        load(str(weights.parent), Settings())


def test_a_hub_that_is_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for proxy in checkpoints.PROXIES:
        monkeypatch.delenv(proxy, raising=False)
    checkpoints.reachable.cache_clear()
    with pytest.raises(TargetError) as error:
        load("org/name", Settings())
    checkpoints.reachable.cache_clear()
    assert str(error.value) == (
        "org/name: not in the local cache, and the hub cannot be reached (a folder or a .gguf file works without it)"
    )


FACTORIES = """
import torch
def raises(): raise RuntimeError("no weights here\\nsecond line")
def other(): return 42
def plain(): return torch.nn.Linear(2, 2), None
value = 3
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "the factory raised RuntimeError: no weights here"),
        ("other", "expected the factory to return a model or (model, tokenizer), got int"),
        ("value", "defines no function `value`"),
        ("absent", "defines no function `absent`"),
    ],
)
def test_a_factory_that_fails_is_one_line(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "make.py").write_text(FACTORIES)
    with pytest.raises(TargetError) as error:
        load(f"{tmp_path}/make.py:{name}", Settings())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_factory_with_a_syntax_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text("def f(:")
    with pytest.raises(TargetError, match="raises while it is imported: SyntaxError"):
        load(f"{tmp_path}/make.py:f", Settings())


def test_weights_come_back_bit_for_bit_from_another_dtype() -> None:
    subject = load("builtin:gqa", Settings(dtype="bfloat16"))
    before = {name: tensor.clone() for name, tensor in subject.model.state_dict().items()}
    tables = {name: tensor.clone() for name, tensor in subject.model.named_buffers()}
    with subject.at("float64") as wide:
        assert wide.dtype_name == "float64"
        assert wide.precision.promoted
    assert subject.dtype_name == "bfloat16"
    assert all(
        torch.equal(before[name], tensor) for name, tensor in subject.model.state_dict().items()
    )
    assert all(torch.equal(tables[name], tensor) for name, tensor in subject.model.named_buffers())
    assert subject.loaded.precision == subject.precision != wide.precision


def test_an_unknown_device_is_one_line() -> None:
    with pytest.raises(TargetError, match="device `quantum` cannot be used"):
        load("builtin:gqa", Settings(device="quantum"))
