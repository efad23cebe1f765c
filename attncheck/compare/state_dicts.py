"""Two state dicts compared before anything runs: what is missing, renamed, transposed, permuted,
split or fused, cast, scaled, of the other sign, or tied on one side only. One line each.

Axes: R rows, C columns.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from attncheck.attention.layers import layer_number
from attncheck.compare.weights import difference
from attncheck.core.errors import TargetError, first_line

State = Mapping[str, Tensor]
TORCH = (".pt", ".pth", ".bin", ".ckpt")
LOWER = (torch.bfloat16, torch.float16, torch.float32)
CLOSE = 1e-6
ALIKE = 0.01


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file: safetensors, .gguf (dequantized), or torch's own without code in it.

    Raises:
        TargetError: no such file, or none of these.
    """
    if not path.is_file():
        raise TargetError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            with safe_open(str(path), framework="pt") as file:
                names = file.keys()  # a file, not a dictionary: it cannot be iterated
                return {name: file.get_tensor(name) for name in names}
        if path.suffix == ".gguf":
            return _gguf(path)
        if path.suffix in TORCH:
            return _tensors(torch.load(path, map_location="cpu", weights_only=True))
    except (SafetensorError, OSError, ValueError, RuntimeError, EOFError) as error:
        raise TargetError(f"{path}: no weights in it: {first_line(error)}") from error
    except pickle.UnpicklingError as error:
        reason = "it holds more than tensors, and code in it is not run"
        raise TargetError(f"{path}: {reason}") from error
    raise TargetError(f"{path}: expected .safetensors, .gguf or one of {', '.join(TORCH)}")


def _gguf(path: Path) -> dict[str, Tensor]:
    try:
        from gguf import GGUFReader
        from gguf.quants import dequantize
    except ImportError as error:
        raise TargetError(f"{path}: reading it needs the package gguf") from error
    found = {}
    for each in GGUFReader(path).tensors:
        shape = tuple(int(size) for size in reversed(each.shape.tolist()))
        values = torch.from_numpy(dequantize(each.data, each.tensor_type).copy())
        found[str(each.name)] = values.reshape(shape)
    return found


def _tensors(value: Any) -> dict[str, Tensor]:
    inner: Any = {}
    if isinstance(value, dict):
        inner = value.get("state_dict", value.get("model", value))
    return {str(name): each for name, each in inner.items() if isinstance(each, Tensor)}


def put_in(model: nn.Module, state: State, source: Path) -> None:
    """Give a model the weights of a file, as far as names and shapes are its own.

    Raises:
        TargetError: none of them is.
    """
    own = model.state_dict()
    fitting = {
        name: value
        for name, value in state.items()
        if name in own and own[name].shape == value.shape
    }
    if not fitting:
        example = next(iter(own), "none")
        raise TargetError(f"{source}: no weight has a name and shape of the model ({example}, …)")
    model.load_state_dict(fitting, strict=False)


def weights_first(
    models: tuple[nn.Module, nn.Module], files: tuple[Path | None, Path | None]
) -> list[str]:
    """What differs between the weights of two sides, each of a file where one is given; that side's
    model then gets them.

    Raises:
        TargetError: a file that cannot be read, or whose weights do not fit.
    """
    states = [
        model.state_dict() if file is None else read(file)
        for model, file in zip(models, files, strict=True)
    ]
    found = differences(states[0], states[1])
    for model, state, file in zip(models, states, files, strict=True):
        if file is not None:
            put_in(model, state, file)
    return found


def differences(left: State, right: State) -> list[str]:
    """What differs between two state dicts, a line each."""
    found: list[str] = []
    free_left = [name for name in left if name not in right]
    free_right = [name for name in right if name not in left]
    for name in left:
        if name in right:
            found += _same_name(name, left[name], right[name])
    found += _renamed(left, right, free_left, free_right)
    found += _fused(left, right, free_left, free_right, "left", "right")
    found += _fused(right, left, free_right, free_left, "right", "left")
    found += [f"{name} is on the left only{_tie(name, left)}" for name in free_left]
    found += [f"{name} is on the right only{_tie(name, right)}" for name in free_right]
    return found


def _renamed(left: State, right: State, mine: list[str], theirs: list[str]) -> Iterator[str]:
    """Tensors under another name, those of the same layer first where several are equal."""
    masses = {name: _mass(right[name]) for name in theirs}
    for name in list(mine):
        mass, layer = _mass(left[name]), layer_number(name)
        alike = [each for each in theirs if abs(masses[each] - mass) <= ALIKE * mass]
        near = [each for each in alike if right[each].numel() == left[name].numel()]
        near.sort(key=lambda each: layer_number(each) != layer)
        pairs = ((each, _relation(left[name], right[each])) for each in near)
        partner, words = next((pair for pair in pairs if pair[1]), ("", ""))
        if partner:
            how = "" if words == "the same" else f" {words}"
            yield f"{name} on the left is {partner} on the right{how}"
            mine.remove(name)
            theirs.remove(partner)


def _mass(value: Tensor) -> float:
    """The sum of sizes, which no order, sign or rounding moves far."""
    return float(value.detach().abs().sum(dtype=torch.float64))


def _same_name(name: str, left: Tensor, right: Tensor) -> list[str]:
    words = _relation(left, right)
    if words == "the same":
        return []
    if words:
        return [f"{name}: the right is the left {words}"]
    said = difference(name, left.detach().cpu(), right.detach().cpu()).words
    return [f"{name}: {said}"]


def _relation(left: Tensor, right: Tensor) -> str:
    """What makes the right tensor of the left one; empty where nothing does."""
    one, other = left.detach().double().cpu(), right.detach().double().cpu()
    if one.shape != other.shape:
        flat = one.ndim == 2 and one.T.shape == other.shape and torch.equal(one.T, other)
        return "transposed" if flat else ""
    if torch.equal(one, other):
        return "the same"
    if not one.numel() or not bool(one.any()) or not bool(other.any()):
        return ""
    if torch.equal(one, -other):
        return "with the other sign"
    for dtype in LOWER:
        if torch.equal(one.to(dtype).double(), other):
            return f"rounded to {str(dtype).removeprefix('torch.')}"
    return _ordered(one, other) or _scaled(one, other)


def _ordered(one: Tensor, other: Tensor) -> str:
    if one.ndim != 2:
        return ""
    if one.shape[0] == one.shape[1] and torch.equal(one.T, other):
        return "transposed"
    words = difference("", one, other)
    if words.kind == "order":
        return f"with {words.words}"
    columns = difference("", one.T.contiguous(), other.T.contiguous())
    return f"with {columns.words.replace('rows', 'columns')}" if columns.kind == "order" else ""


def _scaled(one: Tensor, other: Tensor) -> str:
    factor = float((one * other).sum() / one.square().sum())
    size = float(other.norm())
    exact = factor and float((other - factor * one).norm()) <= CLOSE * size
    return f"times {factor:.6g}" if exact else ""


def _fused(
    wholes: State, parts: State, names: list[str], pieces: list[str], here: str, there: str
) -> Iterator[str]:
    """Tensors that hold several of the other side one after the other, along rows or columns."""
    for name in list(names):
        for turned in (False, True):
            whole = wholes[name].detach().double().cpu()
            used = _pieces(whole.T if turned and whole.ndim == 2 else whole, parts, pieces)
            if used:
                listed = ", ".join(used)
                how = ", transposed," if turned else ""
                yield f"{name} on the {here} is {listed} on the {there}{how} one after the other"
                names.remove(name)
                for each in used:
                    pieces.remove(each)
                break


def _pieces(whole: Tensor, parts: State, names: list[str]) -> list[str]:
    """The tensors that make up the rows of another in order; none where they do not."""
    used: list[str] = []
    start = 0
    while start < whole.shape[0] if whole.ndim else False:
        for name in names:
            part = parts[name].detach().double().cpu()
            stop = start + (part.shape[0] if part.ndim else 0)
            fits = name not in used and part.shape[1:] == whole.shape[1:] and stop > start
            if fits and torch.equal(whole[start:stop], part):
                used.append(name)
                start = stop
                break
        else:
            return []
    return used if len(used) > 1 else []


def _tie(name: str, state: State) -> str:
    """Whether a weight is another one of the same side: tied there, or written twice."""
    mine = state[name]
    same = (
        other
        for other, value in state.items()
        if other != name and value.shape == mine.shape and torch.equal(value, mine)
    )
    other = next(same, None)
    return f" and the same as {other} there: tied on one side" if other else ""
