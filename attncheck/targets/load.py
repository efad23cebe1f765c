"""Load a target: read the model, note what loading reported, choose the precision to check in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attncheck.core.errors import AttncheckError, TargetError, contained, first_line
from attncheck.core.measurement import AtMost, Measurement
from attncheck.core.registry import import_file
from attncheck.core.settings import Settings
from attncheck.distributed.ranks import agreed, keep_in_step
from attncheck.model import compat
from attncheck.model.loaded import LoadedModel
from attncheck.model.placement import device_named, move, offloaded, why_not_cast
from attncheck.model.precision import DTYPES, cast_back, name_of, own_dtypes, widens
from attncheck.model.quantized import quantized_kind
from attncheck.model.subject import Subject
from attncheck.model.switching import adopt
from attncheck.model.weights import SavedBuffers
from attncheck.targets import builtin, checkpoints, random_init, sharded
from attncheck.targets.adapters import adapted, base_of, unwrapped
from attncheck.targets.checkpoints import Read
from attncheck.targets.explain import explain
from attncheck.targets.functions import as_module
from attncheck.targets.target import Target, parse

REPORTED = {
    "missing_keys": "weights missing from the checkpoint and newly initialised",
    "unexpected_keys": "weights in the checkpoint that the model has no place for",
    "mismatched_keys": "weights whose shape differs from the config",
}
SHOWN = 3


def load(text: str, settings: Settings) -> Subject:
    """Load one target.

    Raises:
        TargetError: it cannot be found or loaded, in one line.
    """
    compat.quiet()
    target = parse(text)
    _refuse(target, settings)
    try:
        with contained():
            return _loaded(target, settings)
    except AttncheckError as error:
        raise TargetError(_about(target, str(error))) from error
    except Exception as error:
        raise TargetError(_about(target, explain(error, target))) from error


def _about(target: Target, words: str) -> str:
    """An error that names its target, or the file of it that it is about."""
    named = words.startswith((target.text, target.where)) if target.where else True
    return words if named else f"{target.text}: {words}"


def _refuse(target: Target, settings: Settings) -> None:
    """Refuse options that would change nothing for this kind of target.

    Raises:
        TargetError: which one, and what takes it.
    """
    if target.kind in ("server", "runtime"):
        raise TargetError(f"{target.text}: an engine: `run` and `serve-check` check it")
    if settings.revision and target.kind not in ("hub", "adapter"):
        raise TargetError(f"{target.text}: --revision needs a hub id: this target is local")
    if settings.revision and target.revision and settings.revision != target.revision:
        raise TargetError(
            f"{target.text}: --revision {settings.revision} and @{target.revision}: choose one"
        )
    made = target.kind in ("builtin", "factory")
    if made and (settings.layers or settings.random_init):
        option = f"--layers {settings.layers}" if settings.layers else "--random-init"
        raise TargetError(f"{target.text}: {option} needs a config: this model is made in memory")
    if settings.device_map and target.kind not in checkpoints.KINDS:
        raise TargetError(
            f"{target.text}: --device-map needs a checkpoint; this model is made in memory"
        )


def _loaded(target: Target, settings: Settings) -> Subject:
    device, text = device_named(settings.device), target.text
    model, tokenizer, info = _read(target, settings)
    if not isinstance(model, nn.Module):
        raise TargetError(f"{text}: expected a torch model, got {type(model).__name__}")
    if not any(True for _ in model.parameters()):
        raise TargetError(f"{text}: {type(model).__name__} has no parameters")
    if settings.prompt is not None and tokenizer is None:
        raise TargetError(f"{text}: --prompt needs a tokenizer, and this target has none")
    _try(tokenizer, text)
    model, remarks = unwrapped(model)
    if settings.device_map is None and not sharded.wanted(settings):
        move(model, device)
    loaded = in_memory(model, text, settings, tokenizer, notices(info))
    if info.get(checkpoints.NO_TOKENIZER):
        reason = info[checkpoints.NO_TOKENIZER]
        remarks = (*remarks, f"no tokenizer, seeded ids instead of text: {reason}")
    loaded.remarks = remarks
    subject = settle_dtype(loaded, settings.dtype)
    adopt(subject, settings.attn)
    return subject


def _try(tokenizer: Any, text: str) -> None:
    """Have a tokenizer encode a word.

    Raises:
        TargetError: it cannot.
    """
    if tokenizer is None:
        return
    try:
        ids = tokenizer("a word", add_special_tokens=False)["input_ids"]
        found = all(isinstance(each, int) for each in ids)
    except Exception as error:
        kind = type(tokenizer).__name__
        raise TargetError(f"{text}: its tokenizer ({kind}) raised {first_line(error)}") from error
    if not found:
        raise TargetError(f"{text}: its tokenizer gives no list of token ids")


def in_memory(
    model: nn.Module,
    name: str,
    settings: Settings,
    tokenizer: Any = None,
    load_notes: tuple[Measurement, ...] = (),
) -> LoadedModel:
    """A model that is in memory, whose forwards keep in step with those of other processes."""
    keep_in_step(model)
    return LoadedModel(name, model, tokenizer, settings, load_notes, agree=agreed)


def _read(target: Target, settings: Settings) -> Read:
    """The whole model, or this process's part of it."""
    read = READERS[target.kind]
    if not sharded.wanted(settings):
        return read(target, settings)

    def whole() -> Any:
        return read(target, replace(settings, tp=None))[0]

    with sharded.together(target, settings):
        if target.kind in checkpoints.KINDS and not settings.random_init:
            found = read(target, settings)
            sharded.remember_whole(found[0], whole)
            return found
        made, tokenizer, _ = read(target, replace(settings, tp=None))
        # the library shards while it reads weights, so a model made in memory goes through a folder
        with sharded.saved(made) as folder:
            arguments = checkpoints.arguments_of(settings)
            model = type(made).from_pretrained(folder, use_safetensors=True, **arguments)
        sharded.remember_whole(model, lambda: made)
        return model, tokenizer, {}


def settle_dtype(loaded: LoadedModel, wanted: str) -> Subject:
    """The subject at the precision that is wanted; `auto` is the highest that fits and runs.

    Weights that are too large or cannot be cast stay, and operators widen them to float64.

    Raises:
        TargetError: the weights cannot be cast to this dtype.
    """
    if wanted == "auto":
        _settle_highest(loaded)
    else:
        reason, own = why_not_cast(loaded.model), loaded.precision.name
        if reason is not None and wanted not in ("float64", own):
            raise TargetError(f"{loaded.name}: the weights stay in {own}: {reason}")
        loaded.settle(DTYPES[wanted])
    loaded.remarks = (*loaded.remarks, *_remarks(loaded))
    return Subject(loaded, loaded.precision)


def _settle_highest(loaded: LoadedModel) -> None:
    before, own, buffers = loaded.stored_dtype, own_dtypes(loaded.model), SavedBuffers(loaded.model)
    wider = [each for each in ("float64", "float32") if DTYPES[each].itemsize >= before.itemsize]
    names = [each for each in wider if loaded.casts(DTYPES[each])]
    if widens(before) and "float64" not in names and not quantized_kind(loaded.model):
        names.append("float64")
    for name in names:
        if _runs(loaded, name):
            return
        cast_back(loaded.model, own, before)
        buffers.put_back()
    loaded.settle(before)


def _runs(loaded: LoadedModel, dtype: str) -> bool:
    """Whether one short forward works in this dtype: fused expert kernels may refuse float64."""
    try:
        precision = loaded.settle(DTYPES[dtype])
        ids_BT = torch.arange(4, device=loaded.device)[None].clamp_max(
            max(0, loaded.facts.vocab - 1)
        )
        with torch.no_grad(), precision.numerics():
            loaded.forward_adapter.call(ids_BT, use_cache=False)
    except Exception:
        return False
    return True


def _remarks(loaded: LoadedModel) -> list[str]:
    """What a reader has to know about where and how this model computes."""
    found, count, kind = [], offloaded(loaded.model), quantized_kind(loaded.model)
    if count:
        found.append(
            f"{count} of {loaded.facts.parameters} parameters are offloaded: "
            "they are loaded when their layer runs"
        )
    if kind:
        found.append(
            f"quantized weights ({kind}) are checked as stored; where rounding leaves a verdict "
            "open, they are dequantized to float64"
        )
    if loaded.precision.widened:
        why = why_not_cast(loaded.model) or "the whole model does not fit in float64"
        stored = name_of(loaded.stored_dtype)
        found.append(f"float64 from {stored} weights, widened operator by operator: {why}")
    return found


def notices(info: dict[str, Any]) -> tuple[Measurement, ...]:
    """What loading reported, one case each. Any such weight breaks the load, since it would be a
    silent random layer.
    """
    return tuple(
        _notice(key, what, sorted(map(_named, info.get(key) or ())))
        for key, what in REPORTED.items()
        if info
    )


def _named(entry: Any) -> str:
    if isinstance(entry, (tuple, list)):
        name, *shapes = entry
        return f"{name} ({' instead of '.join(str(tuple(shape)) for shape in shapes)})"
    return str(entry)


def _notice(key: str, what: str, names: list[str]) -> Measurement:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return AtMost(
        key.replace("_", " "),
        float(len(names)),
        "weights",
        note=f"{what}: {', '.join(names[:SHOWN])}{more}" if names else "",
    )


def _builtin(target: Target, settings: Settings) -> Read:
    return builtin.build(target.where, settings.attn), None, {}


def _config(target: Target, settings: Settings) -> Read:
    return random_init.build(target.where, settings), None, {}


def _factory(target: Target, settings: Settings) -> Read:
    factory = getattr(import_file(Path(target.where)), target.attribute, None)
    if not callable(factory):
        missing = f"`{target.where}` defines no function `{target.attribute}`"
        raise TargetError(f"{target.text}: {missing}")
    try:
        with contained():
            made = factory()
    except Exception as error:
        raise TargetError(f"{target.text}: the factory raised {first_line(error)}") from error
    model, tokenizer = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    model = as_module(model)
    if not isinstance(model, nn.Module):
        wanted, got = "a model or (model, tokenizer)", type(made).__name__
        raise TargetError(f"{target.text}: expected the factory to return {wanted}, got {got}")
    return model, tokenizer, {}


def _adapter(target: Target, settings: Settings) -> Read:
    folder = Path(target.where)
    base = parse(base_of(folder))
    model, tokenizer, info = READERS[base.kind](base, settings)
    return adapted(model, folder), tokenizer, info


READERS: dict[str, Callable[[Target, Settings], Read]] = {
    **checkpoints.KINDS,
    "builtin": _builtin,
    "config": _config,
    "factory": _factory,
    "adapter": _adapter,
}
