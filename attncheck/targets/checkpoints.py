"""Read checkpoints (hub ids, folders, .gguf files) through the library's own `from_pretrained`."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import transformers

from attncheck.attention.layers import layer_number
from attncheck.core.errors import TargetError, first_line
from attncheck.core.settings import Settings
from attncheck.model import compat
from attncheck.model.placement import device_map_arguments, drop_with
from attncheck.model.precision import DTYPES
from attncheck.targets import random_init, sharded
from attncheck.targets.files import check_folder, check_gguf, check_tokenizer, has_tokenizer
from attncheck.targets.shrink.shrink import DEPTHS, field_names, layers_of, per_layer_fields
from attncheck.targets.target import Target

Read = tuple[Any, Any, dict[str, Any]]
"""A model, its tokenizer or None, and what the library reported while it loaded."""
NO_TOKENIZER = "no tokenizer"
"""Where the report of loading says why the tokenizer could not be loaded."""
ENDPOINT = "https://huggingface.co"
PATIENCE = 3.0
PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def arguments_of(settings: Settings) -> dict[str, Any]:
    """Keyword arguments of every `from_pretrained`."""
    exact = settings.dtype == "float64" and not settings.device_map
    dtype = "auto" if settings.dtype == "auto" or exact else DTYPES[settings.dtype]
    arguments = {**_access(settings), **compat.dtype_argument(dtype)}
    if settings.attn:
        arguments["attn_implementation"] = settings.attn
    if settings.device_map:
        arguments.update(device_map_arguments(settings.device_map))
    if sharded.wanted(settings):
        arguments.update(compat.tensor_parallel_argument(settings.tp or 1))
    return arguments


def _access(settings: Settings) -> dict[str, Any]:
    return {"trust_remote_code": settings.trust_remote_code, "local_files_only": settings.offline}


def _from_pretrained(where: str, settings: Settings, **extra: Any) -> Read:
    safe = {} if "gguf_file" in extra else {"use_safetensors": True}
    arguments = {**safe, **arguments_of(settings), **extra}
    config = transformers.AutoConfig.from_pretrained(where, **_access(settings), **extra)
    if settings.random_init:
        return random_init.from_config(config, settings), None, {}
    if settings.layers:
        arguments["config"] = cut_layers(config, settings.layers)
    model, info = getattr(transformers, random_init.auto_class_name(config)).from_pretrained(
        where, output_loading_info=True, ignore_mismatched_sizes=True, **arguments
    )
    if settings.layers:
        left = info.get("unexpected_keys") or ()
        info["unexpected_keys"] = [name for name in left if not cut_off(str(name), settings.layers)]
    if "offload_folder" in arguments:
        drop_with(model, arguments["offload_folder"])
    tokenizer, info[NO_TOKENIZER] = _tokenizer(where, **_access(settings), **extra)
    return model, tokenizer, info


def _tokenizer(where: str, **arguments: Any) -> tuple[Any, str]:
    """The tokenizer, or None and the reason where there should be one: such a model is given seeded
    ids.
    """
    try:
        return transformers.AutoTokenizer.from_pretrained(where, **arguments), ""
    except Exception as error:
        folder = Path(where)
        if not folder.is_dir() or "gguf_file" in arguments:
            return None, first_line(error)
        check_tokenizer(folder)
        return None, first_line(error) if has_tokenizer(folder) else ""


def _hub(target: Target, settings: Settings) -> Read:
    revision = target.revision or settings.revision
    settings = settings if settings.offline or reachable() else replace(settings, offline=True)
    return _from_pretrained(target.where, settings, **({"revision": revision} if revision else {}))


def _folder(target: Target, settings: Settings) -> Read:
    check_folder(Path(target.where), weights=not settings.random_init)
    return _from_pretrained(target.where, settings)


def _gguf(target: Target, settings: Settings) -> Read:
    path = Path(target.where)
    check_gguf(path)
    return _from_pretrained(str(path.parent), settings, gguf_file=path.name)


KINDS: dict[str, Callable[[Target, Settings], Read]] = {
    "hub": _hub,
    "folder": _folder,
    "gguf": _gguf,
}


@cache
def reachable() -> bool:
    """Whether a connection to the hub opens within `PATIENCE` seconds: the client would retry for
    half a minute first. Behind a proxy only the client itself can find out.
    """
    if any(os.environ.get(name) for name in PROXIES):
        return True
    where = urlparse(os.environ.get("HF_ENDPOINT", ENDPOINT))
    try:
        port = where.port or (443 if where.scheme == "https" else 80)
        with socket.create_connection((where.hostname or "", port), timeout=PATIENCE):
            return True
    except OSError:
        return False


def cut_layers(config: Any, layers: int) -> Any:
    """The same config with its first `layers` layers, changed in place; lists with one entry per
    layer are cut with it.

    Raises:
        TargetError: the config names no number of layers, or has fewer.
    """
    text = compat.text_config(config)
    total = layers_of(text)
    if total is None or not 0 < layers <= total:
        count = "no number of" if total is None else total
        raise TargetError(f"`--layers {layers}`: the model has {count} layers")
    for name in per_layer_fields(text, field_names(type(text))):
        setattr(text, name, list(getattr(text, name))[:layers])
    for name in DEPTHS:
        if isinstance(getattr(text, name, None), int):
            setattr(text, name, layers)
    return config


def cut_off(name: str, layers: int) -> bool:
    """Whether a weight belongs to a layer that was cut off."""
    number = layer_number(name.rpartition(".")[0])
    return number is not None and number >= layers
