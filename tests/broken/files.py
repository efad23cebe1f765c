"""Checkpoints whose files are damaged, made on the spot in the folder `model`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Make = Callable[[Path], None]
"""Damages the healthy checkpoint in a folder."""
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
PART = "model-00001-of-00002.safetensors"
GONE = object()


def config(**changes: Any) -> Make:
    def make(folder: Path) -> None:
        fields = {**json.loads((folder / CONFIG).read_text()), **changes}
        kept = {name: value for name, value in fields.items() if value is not GONE}
        (folder / CONFIG).write_text(json.dumps(kept))

    return make


def written(name: str, data: str | bytes) -> Make:
    raw = data.encode() if isinstance(data, str) else data
    return lambda folder: (folder / name).write_bytes(raw) and None


def removed(name: str) -> Make:
    return lambda folder: (folder / name).unlink()


def renamed(name: str, other: str) -> Make:
    return lambda folder: (folder / name).rename(folder / other) and None


def folder_named(name: str) -> Make:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return make


def both(*makes: Make) -> Make:
    def make(folder: Path) -> None:
        for each in makes:
            each(folder)

    return make


def indexed(data: Any) -> Make:
    text = data if isinstance(data, str) else json.dumps(data)
    return both(removed(WEIGHTS), written(INDEX, text))


def cut(name: str, size: int) -> Make:
    def make(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:size])

    return make


def header(data: bytes, rest: bytes = b"") -> Make:
    return written(WEIGHTS, struct.pack("<Q", len(data)) + data + rest)


FOLDERS: dict[str, Make] = {
    # what the config counts
    "config: no heads": config(num_attention_heads=0),
    "config: no key heads": config(num_key_value_heads=0),
    "config: head width zero": config(head_dim=0),
    "config: heads below zero": config(num_attention_heads=-4),
    "config: key heads below zero": config(num_key_value_heads=-2),
    "config: no width": config(hidden_size=0),
    "config: width below zero": config(hidden_size=-4),
    "config: width a text": config(hidden_size="many"),
    "config: width true": config(hidden_size=True),
    "config: no layers": config(num_hidden_layers=0),
    "config: layers a text": config(num_hidden_layers="two"),
    "config: layers a fraction": config(num_hidden_layers=0.5),
    "config: no vocabulary": config(vocab_size=0),
    "config: vocabulary below zero": config(vocab_size=-64),
    "config: heads do not divide": config(num_attention_heads=3),
    "config: heads null": config(num_attention_heads=None),
    "config: heads a list": config(num_attention_heads=[4]),
    # what the config names
    "config: unknown activation": config(hidden_act="silo"),
    "config: unknown rope": config(rope_parameters={"rope_type": "yarm", "rope_theta": 1e4}),
    "config: rope a list": config(rope_parameters=[1]),
    "config: unknown dtype": config(dtype="float99"),
    "config: unknown attention": config(attn_implementation="spda"),
    "config: no type": config(model_type=GONE),
    "config: type null": config(model_type=None),
    "config: unknown type": config(model_type="lama"),
    "config: far unknown type": config(model_type="qqqq"),
    "config: empty type": config(model_type=""),
    "config: type a number": config(model_type=3),
    "config: type with an escape": config(model_type="\x1b[31mllama"),
    "config: a long type": config(model_type="x" * 5000),
    "config: a vision model": config(model_type="vit"),
    "config: code of its own": config(auto_map={"AutoConfig": "mine.Mine"}, model_type="mine"),
    # what the config is
    "config: empty": written(CONFIG, ""),
    "config: blanks": written(CONFIG, " \n "),
    "config: a list": written(CONFIG, "[]"),
    "config: null": written(CONFIG, "null"),
    "config: a number": written(CONFIG, "12"),
    "config: cut off": cut(CONFIG, 40),
    "config: a comma too many": written(CONFIG, '{"model_type": "llama",}'),
    "config: two values": written(CONFIG, "{} {}"),
    "config: a pointer": written(CONFIG, POINTER),
    "config: not UTF-8": written(CONFIG, b"\xff\xfe{}"),
    "config: binary": written(CONFIG, b"\x00\x01\x02"),
    "config: nested deeply": written(CONFIG, "[" * 100_000),
    "config: a web page": written(CONFIG, "<!DOCTYPE html><html>401</html>"),
    "config: missing": removed(CONFIG),
    "config: a folder": folder_named(CONFIG),
    # weights
    "weights: missing": removed(WEIGHTS),
    "weights: empty": written(WEIGHTS, b""),
    "weights: seven bytes": cut(WEIGHTS, 7),
    "weights: a length alone": cut(WEIGHTS, 8),
    "weights: cut in the header": cut(WEIGHTS, 500),
    "weights: cut in half": cut(WEIGHTS, 40_000),
    "weights: one byte short": cut(WEIGHTS, 80_559),
    "weights: a pointer": written(WEIGHTS, POINTER),
    "weights: no header": written(WEIGHTS, b"\xff" * 200),
    "weights: a web page": written(WEIGHTS, "<!DOCTYPE html><html>404</html>"),
    "weights: a header of nothing": header(b"{}"),
    "weights: a header cut off": header(b'{"a": {"dtype": "F32"'),
    "weights: a header without offsets": header(b'{"a": {"dtype": "F32", "shape": [1]}}'),
    "weights: a header of lists": header(b'{"a": [1, 2]}'),
    "weights: an unknown dtype": header(
        b'{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}', b"\0" * 4
    ),
    "weights: offsets that overlap": header(
        b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}', b"\0" * 4
    ),
    "weights: only a pickle": renamed(WEIGHTS, "pytorch_model.bin"),
    "weights: only pickles": both(
        renamed(WEIGHTS, "pytorch_model-00001-of-00002.bin"),
        written("pytorch_model-00002-of-00002.bin", b"x"),
    ),
    "weights: only a checkpoint": renamed(WEIGHTS, "model.ckpt"),
    "weights: only a .pth": renamed(WEIGHTS, "consolidated.00.pth"),
    "weights: of another library": renamed(WEIGHTS, "tf_model.h5"),
    "weights: of a third library": renamed(WEIGHTS, "flax_model.msgpack"),
    "weights: under another name": renamed(WEIGHTS, "weights.safetensors"),
    "weights: only an adapter": renamed(WEIGHTS, "adapter_model.safetensors"),
    # an index
    "index: without its file": indexed({"metadata": {}, "weight_map": {"a": PART}}),
    "index: without two files": indexed(
        {"metadata": {}, "weight_map": {"a": PART, "b": "model-00002-of-00002.safetensors"}}
    ),
    "index: cut off": indexed('{"weight_map": {"a"'),
    "index: empty": indexed(""),
    "index: a list": indexed([]),
    "index: no map": indexed({}),
    "index: an empty map": indexed({"metadata": {}, "weight_map": {}}),
    "index: a map of numbers": indexed({"metadata": {}, "weight_map": {"a": 3}}),
    "index: outside the folder": indexed({"weight_map": {"a": "../../etc/passwd"}}),
    "index: a pointer": both(removed(WEIGHTS), written(INDEX, POINTER)),
    "index: a file cut off": both(
        renamed(WEIGHTS, PART),
        cut(PART, 5000),
        written(INDEX, json.dumps({"metadata": {}, "weight_map": {"a": PART}})),
    ),
    "index: a pointer as file": both(
        removed(WEIGHTS),
        written(PART, POINTER),
        written(INDEX, json.dumps({"metadata": {}, "weight_map": {"a": PART}})),
    ),
    "index: a metadata of numbers": both(
        renamed(WEIGHTS, PART),
        written(INDEX, json.dumps({"metadata": 3, "weight_map": {"a": PART}})),
    ),
    # tokenizers
    "tokenizer: cut off": written("tokenizer.json", '{"version": "1.0", "model'),
    "tokenizer: empty": written("tokenizer.json", ""),
    "tokenizer: nothing inside": written("tokenizer.json", "{}"),
    "tokenizer: a list": written("tokenizer.json", "[]"),
    "tokenizer: a pointer": written("tokenizer.json", POINTER),
    "tokenizer: an unknown model": written(
        "tokenizer.json", '{"version": "1.0", "model": {"type": "Nonsense"}}'
    ),
    "tokenizer: settings cut off": written("tokenizer_config.json", "{"),
    "tokenizer: settings a pointer": written("tokenizer_config.json", POINTER),
}

GGUF: dict[str, bytes] = {
    "gguf: empty": b"",
    "gguf: a pointer": POINTER,
    "gguf: zeros": b"\0" * 100,
    "gguf: a web page": b"<!DOCTYPE html>",
    "gguf: weights of another kind": struct.pack("<Q", 2) + b"{}",
    "gguf: cut after its mark": b"GGUF",
    "gguf: cut in its header": b"GGUF" + struct.pack("<IQQ", 3, 1, 1),
    "gguf: an unknown version": b"GGUF" + struct.pack("<IQQ", 99, 0, 0) + b"\0" * 64,
    "gguf: no weights": b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + b"\0" * 64,
}
