"""Adapters (LoRA and its kin): read from a folder, and held to what they promise: merged they say
the same, off they are gone.

An adapted layer is known by what it can do (`merge`, `unmerge`, `get_base_layer`), so that none of
this imports PEFT unless an adapter is to be read.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.core.errors import TargetError, first_line
from attncheck.core.finding import Measurement, Verdict, skipped
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject

FILE = "adapter_config.json"
MARKS = ("merge", "unmerge", "get_base_layer", "enable_adapters")


def base_of(folder: Path) -> str:
    """The target that an adapter was made for.

    Raises:
        TargetError: its config cannot be read or names none.
    """
    try:
        base = json.loads((folder / FILE).read_text(encoding="utf-8")).get(
            "base_model_name_or_path"
        )
    except (OSError, ValueError, AttributeError) as error:
        raise TargetError(f"{folder / FILE}: {first_line(error)}") from error
    if not base:
        raise TargetError(
            f"{folder / FILE} does not say which model the adapter is for (`base_model_name_or_path`)"
        )
    return str(base)


def adapted(model: nn.Module, folder: Path) -> nn.Module:
    """A model with an adapter put into its layers.

    Raises:
        TargetError: PEFT is not installed.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise TargetError("an adapter needs PEFT: pip install 'attncheck[adapters]'") from error
    return without_wrapper(PeftModel.from_pretrained(model, str(folder)))


def without_wrapper(model: nn.Module) -> nn.Module:
    """The model inside PEFT's own class, whose forward names fewer arguments; where layers carry
    the adapter it is the same.
    """
    inner = getattr(model, "get_base_model", None)
    return inner() if callable(inner) and adapted_layers(model) else model


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers that carry an adapter, by name."""
    return {
        name: each
        for name, each in model.named_modules()
        if all(callable(getattr(each, mark, None)) for mark in MARKS)
    }


def adapter_cases(subject: Subject) -> Iterator[Measurement]:
    """Merged against adapted, switched off against the base layers alone, and whether the adapter
    changes anything.
    """
    layers = adapted_layers(subject.model)
    if not layers:
        return
    usual = ForwardSpec(subject.inputs.tokens)
    adapted_BTV = subject.logits(usual)
    base_BTV, reason = _under(subject, usual, lambda: _base_alone(subject.model, layers))
    if base_BTV is None:
        yield skipped("the base", reason)
        return
    note = f"{len(layers)} layers carry the adapter"
    yield subject.compare(
        "adapter vs base", adapted_BTV, base_BTV, expect="differ", broken=Verdict.WARN, note=note
    )
    for name, want_BTV, context in (
        ("adapter switched off vs base", base_BTV, _switched_off),
        ("merged vs adapter", adapted_BTV, _merged),
    ):
        got_BTV, reason = _under(subject, usual, lambda: context(layers))  # noqa: B023
        yield (
            skipped(name, reason)
            if got_BTV is None
            else subject.compare(name, got_BTV, want_BTV, note=note)
        )


def _under(
    subject: Subject, spec: ForwardSpec, context: Callable[[], AbstractContextManager[None]]
) -> tuple[Tensor | None, str]:
    subject.passes.drop(spec)
    try:
        with context():
            return subject.logits(spec), ""
    except REFUSALS as error:
        return None, first_line(error)
    finally:
        subject.passes.drop(spec)


@contextlib.contextmanager
def _base_alone(model: nn.Module, layers: dict[str, Any]) -> Iterator[None]:
    """The adapted layers taken out, and the ones that they wrap put in their place."""
    try:
        for name, layer in layers.items():
            _put(model, name, layer.get_base_layer())
        yield
    finally:
        for name, layer in layers.items():
            _put(model, name, layer)


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    home, _, last = name.rpartition(".")
    setattr(model.get_submodule(home), last, module)


@contextlib.contextmanager
def _switched_off(layers: dict[str, Any]) -> Iterator[None]:
    try:
        for layer in layers.values():
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers.values():
            layer.enable_adapters(True)


@contextlib.contextmanager
def _merged(layers: dict[str, Any]) -> Iterator[None]:
    """Adapters added to the weights; afterwards the weights are what they were, bit for bit."""
    saved = {name: layer.get_base_layer().weight.data.clone() for name, layer in layers.items()}
    try:
        with torch.no_grad():
            for layer in layers.values():
                layer.merge()
        yield
    finally:
        for name, layer in layers.items():
            layer.unmerge()
            layer.get_base_layer().weight.data.copy_(saved[name])
