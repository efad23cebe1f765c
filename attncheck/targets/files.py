"""What can be told of a checkpoint's files before the library reads them: damaged, cut off or
missing.

The library says of such files that a key is missing or a header too large; here each is named, with
what was expected in its place.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attncheck.core.errors import TargetError, first_line, nearest
from attncheck.core.visible import shortened

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
POINTER = b"version https://git-lfs"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
OTHERS = (".h5", ".msgpack", ".onnx", ".npz", ".mlmodel")
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "d_model", "n_embd", "n_layer")
HEADS = ("num_attention_heads", "num_key_value_heads", "n_head", "num_heads", "head_dim")
"""Fields of a config that count something of which every model needs one, or one with attention."""
LARGEST_HEADER = 100 << 20


def check_folder(folder: Path, weights: bool = True) -> None:
    """Look at the files of a checkpoint; without `weights` at its config only.

    Raises:
        TargetError: one of them is damaged or missing, and what was expected.
    """
    read_config(folder / CONFIG, known=False)
    if weights:
        for file in _weight_files(folder):
            _check_safetensors(file)
    for name in TOKENIZER:
        if (folder / name).is_file():
            read_json(folder / name)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds files of a tokenizer."""
    names = ("tokenizer*", "vocab*", "spiece*", "sentencepiece*", "merges.txt")
    return any(True for name in names for _ in folder.glob(name))


def check_tokenizer(folder: Path) -> None:
    """Look at a tokenizer that the library could not load.

    Raises:
        TargetError: its file is damaged.
    """
    path = folder / TOKENIZER[0]
    if not path.is_file():
        return
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(path))
    except Exception as error:
        reason = first_line(error).removeprefix("Exception: ")
        raise TargetError(
            f"{path}: not a tokenizer: {reason} (without the file, seeded ids are used)"
        ) from error


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        TargetError: it cannot be read, is empty, a pointer of git-lfs, or no JSON.
    """
    data = _bytes_of(path)
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TargetError(f"{path}: byte {error.start} is not UTF-8, expected JSON") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise TargetError(f"{path}: not valid JSON at {place}: {error.msg}") from error
    except RecursionError as error:
        raise TargetError(f"{path}: not valid JSON: nested too deeply") from error


def read_config(path: Path, known: bool = True) -> dict[str, Any]:
    """The fields of a config.json; its `model_type` is one that this release knows, if `known`.

    Raises:
        TargetError: it is damaged, states no type, or counts fewer than one of what it needs.
    """
    if not path.is_file():
        raise TargetError(f"{path}: cannot be read as a config.json: no such file")
    fields = read_json(path)
    if not isinstance(fields, dict):
        found = type(fields).__name__
        raise TargetError(f"{path}: expected an object with `model_type`, got {found}")
    kind = fields.get("model_type")
    remote = "auto_map" in fields and not known
    if kind is None and not remote:
        raise TargetError(f"{path}: states no `model_type`, expected one such as `llama`")
    if kind is not None and not isinstance(kind, str):
        raise TargetError(f"{path}: `model_type` is {shortened(repr(kind))}, expected a text")
    if kind not in CONFIG_MAPPING and not remote:
        near = nearest(str(kind), CONFIG_MAPPING) or "a newer release may know it"
        raise TargetError(f"{path}: unknown `model_type` `{shortened(str(kind))}`: {near}")
    small = too_small(fields, SIZES)
    if small:
        raise TargetError(f"{path}: {small}")
    return fields


def too_small(fields: dict[str, Any], names: Iterable[str]) -> str:
    """Which of these fields, of a config or its text part, is no number of at least 1."""
    text = fields.get("text_config")
    for part in (fields, text if isinstance(text, dict) else {}):
        for name in names:
            value = part.get(name)
            if value is None or isinstance(value, (list, dict)):  # one for each layer
                continue
            if isinstance(value, (str, bool)) or value < 1:
                shown = shortened(json.dumps(value))
                return f"`{name}` is {shown}, expected a number of at least 1"
    return ""


def _bytes_of(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror}") from error
    _check_pointer(path, data[: len(POINTER)])
    if not data.strip():
        raise TargetError(f"{path}: is empty, expected JSON")
    return data


def _check_pointer(path: Path, beginning: bytes) -> None:
    if beginning.startswith(POINTER):
        raise TargetError(
            f"{path}: a pointer of git-lfs, not the file itself: run `git lfs pull` in its folder"
        )


def _weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights.

    Raises:
        TargetError: the folder has none, or the index names others.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return _indexed(folder)
    names = sorted(each.name for each in folder.iterdir() if each.is_file())
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        raise TargetError(
            f"{folder}: has only {_listed(pickles)}, which can run any code while it is read: "
            f"pickles are refused, expected {WEIGHTS} (convert it: "
            "https://huggingface.co/spaces/safetensors/convert)"
        )
    if any(name.endswith(".safetensors") for name in names):
        found = _listed(name for name in names if name.endswith(".safetensors"))
        raise TargetError(f"{folder}: has {found}, expected {WEIGHTS} or {INDEX}")
    found = _listed(name for name in names if name.endswith(OTHERS))
    has = f"has only {found}" if found else "has no weights"
    raise TargetError(
        f"{folder}: {has}, expected {WEIGHTS} (--random-init checks the config with drawn weights)"
    )


def _indexed(folder: Path) -> list[Path]:
    index = folder / INDEX
    fields = read_json(index)
    places = fields.get("weight_map") if isinstance(fields, dict) else None
    if not isinstance(places, dict) or not places:
        raise TargetError(f"{index}: expected `weight_map`, an object of weights and files")
    for weight, name in places.items():
        if not isinstance(name, str) or os.path.basename(name) != name or not name:
            shown = shortened(repr(name))
            raise TargetError(
                f"{index}: `{shortened(weight)}` is in {shown}, expected a file beside the index"
            )
    files = sorted(set(places.values()))
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise TargetError(
            f"{index}: names {_listed(missing)}, not in the folder: {len(missing)} of "
            f"{len(files)} files are missing"
        )
    if not isinstance(fields.get("metadata", {}), dict):
        raise TargetError(f"{index}: `metadata` is no object")
    return [folder / name for name in files]


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(f"`{shortened(name)}`" for name in found[:3]) + more


def _check_safetensors(path: Path) -> None:
    """Compare a file's size with what its header says.

    Raises:
        TargetError: it is empty, cut off, a pointer, or no .safetensors file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        beginning = file.read(64)
        _check_pointer(path, beginning)
        if size < 8:
            raise TargetError(f"{path}: has {size} bytes, expected a .safetensors file")
        (length,) = struct.unpack("<Q", beginning[:8])
        if length > LARGEST_HEADER or beginning[8:9] not in (b"{", b""):
            raise TargetError(f"{path}: not a .safetensors file: it begins with no header")
        file.seek(8)
        header = file.read(length)
    if len(header) < length:
        raise TargetError(f"{path}: cut off in its header: {size} bytes, expected {length + 8:,}+")
    needed = 8 + length + _end_of(path, header)
    if size < needed:
        raise TargetError(f"{path}: cut off: it has {size:,} bytes, its header names {needed:,}")


def _end_of(path: Path, header: bytes) -> int:
    """Where the last tensor ends."""
    try:
        tensors = json.loads(header)
        ends = [each["data_offsets"][1] for name, each in tensors.items() if name != "__metadata__"]
        last = max(map(int, ends), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise TargetError(f"{path}: damaged: its header is no list of tensors") from error
    if not ends:
        raise TargetError(f"{path}: holds no weights")
    return last


def check_gguf(path: Path) -> None:
    """Look at the first bytes of a .gguf file.

    Raises:
        TargetError: it is empty, a pointer, or no .gguf file.
    """
    with path.open("rb") as file:
        beginning = file.read(64)
    _check_pointer(path, beginning)
    if not beginning.startswith(b"GGUF"):
        what = "is empty" if not beginning else f"begins with {shortened(repr(beginning[:4]))}"
        raise TargetError(f"{path}: {what}, expected a .gguf file, which begins with `GGUF`")
