"""State dicts: each way in which weights differ is said by one line, with the names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import tiny_llama
from safetensors.torch import save_file
from torch import Tensor, nn

from attncheck.__main__ import main
from attncheck.compare.state_dicts import differences, put_in, read
from attncheck.core.errors import TargetError


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda w: w.T.contiguous(), "w: the right is the left transposed"),
        (lambda w: -w, "w: the right is the left with the other sign"),
        (lambda w: w.bfloat16(), "w: the right is the left rounded to bfloat16"),
        (lambda w: w.half(), "w: the right is the left rounded to float16"),
        (lambda w: w * 8, "w: the right is the left times 8"),
        (lambda w: w[torch.arange(7, -1, -1)], "w: the right is the left with the same rows"),
        (lambda w: w[:, [1, 0, 2, 3, 4, 5]], "w: the right is the left with the same columns"),
        (lambda w: w + 0.1, "w: differs by a matrix of rank 1"),
    ],
)
def test_one_tensor(change, line: str) -> None:  # type: ignore[no-untyped-def]
    weight = _drawn(8, 6)
    (said,) = differences({"w": weight}, {"w": change(weight)})
    assert said.startswith(line)


def test_names_fusion_and_ties() -> None:
    q, k, v, e = (_drawn(4, 6, seed=n) for n in range(4))
    left = {"q": q, "k": k, "v": v, "embed": e, "old": _drawn(3), "head": e, "lost": _drawn(2)}
    right = {"qkv": torch.cat([q, k, v]), "embed": e, "new": _drawn(3)}
    assert differences(left, right) == [
        "old on the left is new on the right",
        "qkv on the right is q, k, v on the left one after the other",
        "head is on the left only and the same as embed there: tied on one side",
        "lost is on the left only",
    ]
    turned = {"qkv": torch.cat([q, k, v]).T.contiguous()}
    assert differences({"q": q, "k": k, "v": v}, turned) == [
        "qkv on the right is q, k, v on the left, transposed, one after the other"
    ]
    assert differences(left, left) == []


def test_equal_tensors_keep_their_layer() -> None:
    ones = torch.ones(4)
    left = {f"h.{n}.ln": ones for n in range(3)}
    right = {f"layers.{n}.norm": ones for n in reversed(range(3))}
    assert differences(left, right) == [
        f"h.{n}.ln on the left is layers.{n}.norm on the right" for n in range(3)
    ]


def test_files_are_read_without_running_code(tmp_path: Path) -> None:
    state = {"w": _drawn(2, 2)}
    save_file(state, str(tmp_path / "a.safetensors"))
    torch.save({"state_dict": state}, tmp_path / "a.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "code.pt")
    (tmp_path / "a.txt").write_text("nothing")
    (tmp_path / "b.safetensors").write_text("nothing")
    for name in ("a.safetensors", "a.pt"):
        assert differences(read(tmp_path / name), state) == []
    for name, words in {
        "code.pt": "it holds more than tensors, and code in it is not run",
        "a.txt": "expected .safetensors, .gguf or one of .pt, .pth, .bin, .ckpt",
        "b.safetensors": "no weights in it",
        "c.pt": "no such file",
    }.items():
        with pytest.raises(TargetError, match=words):
            read(tmp_path / name)


def test_weights_are_put_into_a_model() -> None:
    model, other = tiny_llama(), tiny_llama()
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.add_(1.0)
    put_in(model, other.state_dict(), Path("w.pt"))
    assert differences(model.state_dict(), other.state_dict()) == []
    with pytest.raises(TargetError, match=r"w.pt: no weight has a name and shape of the model"):
        put_in(model, {"x": torch.zeros(1)}, Path("w.pt"))


def test_weights_of_a_file_are_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_llama()
    model.save_pretrained(tmp_path / "model")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    name = "model.layers.1.self_attn.o_proj.weight"
    state[name] = state[name].T.contiguous()
    torch.save(state, tmp_path / "other.pt")
    usual = [str(tmp_path / "model"), "--quick", "--no-progress"]
    assert main(["compare", *usual, "--right-weights", str(tmp_path / "other.pt")]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert f"{name}: the right is the left transposed." in said
    assert main(["compare", *usual, "--right-weights", str(tmp_path / "none.pt")]) == 2
    assert "none.pt: no such file" in capsys.readouterr().err
