"""A target -> a Subject: the real `from_pretrained` paths, what loading noticed, and the dtype that
semantics are checked in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from attncheck.core.errors import AttncheckError, TargetError, first_line
from attncheck.core.finding import Measurement
from attncheck.core.registry import import_file
from attncheck.core.settings import Settings
from attncheck.model import compat
from attncheck.model.placement import (
    device_map_arguments,
    device_named,
    drop_with,
    move,
    offloaded,
    quantised,
    why_not_cast,
)
from attncheck.model.precision import DTYPES, NAMES, cast_back, own_dtypes, widens
from attncheck.model.subject import Subject
from attncheck.targets import builtin, random_init, sharded
from attncheck.targets.adapters import adapted, base_of, without_wrapper
from attncheck.targets.cut import beyond, cut_layers
from attncheck.targets.hub import reachable
from attncheck.targets.target import Target, parse

Loaded = tuple[Any, Any, dict[str, Any]]
NOTICED = {
    "missing_keys": "weights missing from the checkpoint and newly initialised",
    "unexpected_keys": "weights in the checkpoint that the model has no place for",
    "mismatched_keys": "weights of another shape than the config promises",
}
SHOWN = 3
CHECKPOINTS = ("hub", "folder", "gguf")
OUT_OF_REACH = (
    "local_files_only",
    "offline",
    "couldn't connect",
    "connection error",
    "cannot find the requested files in the local cache",
)


def load(text: str, settings: Settings) -> Subject:
    """Load one target.

    Raises:
        TargetError: it cannot be found or loaded, in one line.
    """
    compat.quiet()
    target = parse(text)
    try:
        model, tokenizer, info = _read(target, settings)
    except AttncheckError as error:
        raise TargetError(str(error)) from error
    except Exception as error:
        raise TargetError(f"{text}: {explain_load(error)}") from error
    if not isinstance(model, nn.Module):
        raise TargetError(f"{text}: expected a torch model, got {type(model).__name__}")
    if not any(True for _ in model.parameters()):
        raise TargetError(f"{text}: {type(model).__name__} has no parameters")
    return _prepared(target, settings, model, tokenizer, info)


def _read(target: Target, settings: Settings) -> Loaded:
    """The model in this process, or this process's part of it."""
    if settings.device_map and target.kind not in CHECKPOINTS:
        raise TargetError(
            f"{target.text}: --device-map places checkpoints as they are read; this one is made in memory"
        )
    if not sharded.wanted(settings):
        return LOADERS[target.kind](target, settings)
    with sharded.together(target, settings):
        if target.kind in CHECKPOINTS and not settings.random_init:
            found = LOADERS[target.kind](target, settings)
            sharded.remember_whole(
                found[0], lambda: LOADERS[target.kind](target, replace(settings, tp=None))[0]
            )
            return found
        made, tokenizer, _ = LOADERS[target.kind](target, replace(settings, tp=None))
        with sharded.saved(made) as folder:
            model = type(made).from_pretrained(folder, use_safetensors=True, **_arguments(settings))
        sharded.remember_whole(model, lambda: made)
        return model, tokenizer, {}


def explain_load(error: Exception) -> str:
    """One line for what the library raised while it loaded."""
    text = str(error).lower()
    if any(sign in text for sign in OUT_OF_REACH):
        return "not in the local cache, and the hub cannot be reached (a folder or a .gguf file works without it)"
    if type(error).__name__ == "SafetensorError":
        return f"a .safetensors file is truncated or damaged ({first_line(error)})"
    return first_line(error)


def _prepared(
    target: Target, settings: Settings, model: nn.Module, tokenizer: Any, info: dict[str, Any]
) -> Subject:
    model = without_wrapper(model)
    device = device_named(settings.device)
    if settings.device_map is None and not sharded.wanted(settings):
        move(model, device)
    subject = Subject(
        name=target.text,
        model=model,
        tokenizer=tokenizer,
        settings=settings,
        load_notes=notices(info),
    )
    settle_dtype(subject, settings.dtype)
    return subject


def settle_dtype(subject: Subject, spec: str) -> None:
    """Bring the weights to the dtype that is asked for; `auto` takes the highest that fits and
    runs.

    Weights that are too many or cannot be cast stay, and are widened to float64 operator by
    operator.

    Raises:
        TargetError: the weights cannot be cast to what is asked for.
    """
    if spec == "auto":
        _settle_highest(subject)
    else:
        _take(subject, spec)
    subject.remarks = (*subject.remarks, *_remarks(subject))


def _take(subject: Subject, spec: str) -> None:
    reason = why_not_cast(subject.model)
    if reason is not None and spec not in ("float64", subject.dtype_name):
        raise TargetError(f"{subject.name}: the weights stay in {subject.dtype_name}: {reason}")
    subject.take(DTYPES[spec])


def _settle_highest(subject: Subject) -> None:
    before, own = subject.stored_dtype, own_dtypes(subject.model)
    names = [
        name
        for name in ("float64", "float32")
        if DTYPES[name].itemsize >= before.itemsize and subject.casts(DTYPES[name])
    ]
    widest = (
        ["float64"]
        if widens(before) and "float64" not in names and not quantised(subject.model)
        else []
    )
    for name in (*names, *widest):
        if _runs(subject, name):
            return
        if subject.stored_dtype != before:
            cast_back(subject.model, own, before)
    subject.take(before)


def _remarks(subject: Subject) -> list[str]:
    """What a reader has to know about where and how this model computes."""
    stored, count = (
        NAMES.get(subject.stored_dtype, str(subject.stored_dtype)),
        offloaded(subject.model),
    )
    away = f"{count} of {subject.facts.parameters} parameters are offloaded: they come in when their layer runs"
    found = [away] if count else []
    kind = quantised(subject.model)
    if kind:
        found.append(
            f"quantised weights ({kind}) are checked as they are; where rounding leaves doubt, dequantised in float64"
        )
    if subject.widened:
        why = why_not_cast(subject.model) or "the whole model does not fit in float64"
        found.append(f"float64 from {stored} weights, widened operator by operator: {why}")
    return found


def _runs(subject: Subject, dtype: str) -> bool:
    """Whether one short forward works in this dtype: fused expert kernels, for instance, may refuse
    float64.
    """
    try:
        subject.take(DTYPES[dtype])
        with torch.no_grad(), subject.numerics():
            ids = torch.tensor([[0, 1, 2, 3]], device=subject.device).clamp(
                max=max(0, subject.facts.vocab - 1)
            )
            subject.forward_adapter.call(ids, use_cache=False)
    except Exception:
        return False
    return True


def notices(info: dict[str, Any]) -> tuple[Measurement, ...]:
    """What loading noticed, one case each: any such weight breaks the load, since it would be a
    silent random layer.
    """
    return tuple(
        _notice(key, what, sorted(map(_named, info.get(key) or ())))
        for key, what in NOTICED.items()
        if info
    )


def _named(entry: Any) -> str:
    if isinstance(entry, (tuple, list)):
        name, *shapes = entry
        return f"{name} ({' instead of '.join(str(tuple(shape)) for shape in shapes)})"
    return str(entry)


def _notice(key: str, what: str, names: list[str]) -> Measurement:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return Measurement(
        name=key.replace("_", " "),
        expect="at-most",
        value=float(len(names)) * 2,
        limit=1.0,
        unit="weights",
        positions=1,
        note=f"{what}: {', '.join(names[:SHOWN])}{more}" if names else "",
    )


def _arguments(settings: Settings) -> dict[str, Any]:
    """Keyword arguments of every `from_pretrained`."""
    exact = settings.dtype == "float64" and not settings.device_map
    dtype = "auto" if settings.dtype == "auto" or exact else DTYPES[settings.dtype]
    arguments: dict[str, Any] = {
        "trust_remote_code": settings.trust_remote_code,
        "local_files_only": settings.offline,
        **compat.dtype_argument(dtype),
    }
    if settings.attn:
        arguments["attn_implementation"] = settings.attn
    if settings.device_map:
        arguments.update(device_map_arguments(settings.device_map))
    if sharded.wanted(settings):
        arguments.update(compat.tensor_parallel_argument(settings.tp or 1))
    return arguments


def _from_pretrained(where: str, settings: Settings, **extra: Any) -> Loaded:
    safe = {} if "gguf_file" in extra else {"use_safetensors": True}
    arguments = {**safe, **_arguments(settings), **extra}
    config = _read_config(where, settings, extra)
    if settings.random_init:
        return random_init.from_config(config, settings), None, {}
    if settings.layers:
        arguments["config"] = cut_layers(config, settings.layers)
    model, info = getattr(transformers, random_init.auto_class_name(config)).from_pretrained(
        where, output_loading_info=True, ignore_mismatched_sizes=True, **arguments
    )
    if settings.layers:
        left = info.get("unexpected_keys") or ()
        info["unexpected_keys"] = [name for name in left if not beyond(str(name), settings.layers)]
    if "offload_folder" in arguments:
        drop_with(model, arguments["offload_folder"])
    return model, _tokenizer(where, settings, **extra), info


def _read_config(where: str, settings: Settings, extra: dict[str, Any]) -> Any:
    return transformers.AutoConfig.from_pretrained(
        where,
        trust_remote_code=settings.trust_remote_code,
        local_files_only=settings.offline,
        **extra,
    )


def _tokenizer(where: str, settings: Settings, **extra: Any) -> Any:
    """The tokenizer, or None: a model without one is asked with seeded ids."""
    try:
        return transformers.AutoTokenizer.from_pretrained(
            where,
            trust_remote_code=settings.trust_remote_code,
            local_files_only=settings.offline,
            **extra,
        )
    except Exception:
        return None


def _hub(target: Target, settings: Settings) -> Loaded:
    revision = target.revision or settings.revision
    settings = settings if settings.offline or reachable() else replace(settings, offline=True)
    return _from_pretrained(target.where, settings, **({"revision": revision} if revision else {}))


def _folder(target: Target, settings: Settings) -> Loaded:
    return _from_pretrained(target.where, settings)


def _gguf(target: Target, settings: Settings) -> Loaded:
    path = Path(target.where)
    return _from_pretrained(str(path.parent), settings, gguf_file=path.name)


def _builtin(target: Target, settings: Settings) -> Loaded:
    return builtin.build(target.where, settings.attn), None, {}


def _factory(target: Target, settings: Settings) -> Loaded:
    module = import_file(Path(target.where))
    factory = getattr(module, target.attribute, None)
    if not callable(factory):
        raise TargetError(
            f"{target.text}: `{target.where}` defines no function `{target.attribute}`"
        )
    try:
        made = factory()
    except Exception as error:
        raise TargetError(f"{target.text}: the factory raised {first_line(error)}") from error
    model, tokenizer = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise TargetError(
            f"{target.text}: expected the factory to return a model or (model, tokenizer), got {type(made).__name__}"
        )
    return model, tokenizer, {}


def _config(target: Target, settings: Settings) -> Loaded:
    return random_init.build(target.where, settings), None, {}


def _adapter(target: Target, settings: Settings) -> Loaded:
    folder = Path(target.where)
    base = parse(base_of(folder))
    model, tokenizer, info = LOADERS[base.kind](base, settings)
    return adapted(model, folder), tokenizer, info


LOADERS: dict[str, Callable[[Target, Settings], Loaded]] = {
    "hub": _hub,
    "folder": _folder,
    "gguf": _gguf,
    "builtin": _builtin,
    "config": _config,
    "factory": _factory,
    "adapter": _adapter,
}
