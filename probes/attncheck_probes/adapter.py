"""An adapter changes the model, and only as long as it is on.

What it checks
    With the adapter (LoRA and its kin) merged into the weights, the logits are those of the adapted
    model. With the adapter switched off, they are those of the base model. With it on, they are
    not.

Why it matters
    Adapters are trained unmerged and served merged. A scale that only one of the two paths applies,
    or an adapter that stays on, changes every answer by a little.

How it measures
    One forward each: adapted, merged, switched off, and with every adapted layer replaced by the
    layer that it wraps. After merging, the weights are restored bit for bit. The probe runs on
    every target and is in the report only where the model has an adapter.

False alarms
    An adapter that was never trained changes nothing: a `warn`.

References
    Hu et al. 2021 (LoRA). Hugging Face PEFT, `merge_and_unload`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.probing import (
    REFUSALS,
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    Verdict,
    adapted_layers,
    first_line,
    skipped,
)

# Axes: B batch, T positions, V vocabulary.


@dataclass(frozen=True, kw_only=True)
class Adapter(Probe):
    """Merges the adapter, switches it off, and takes it out."""

    name = "adapter"
    title = "merged, an adapter gives the same logits; switched off, it gives none"

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Adapted against base, switched off against base, merged against adapted."""
        layers = adapted_layers(subject.model)
        if not layers:
            return
        adapted_BTV = subject.logits(ForwardSpec(subject.inputs.tokens))
        base_BTV, reason = _under(subject, partial(_base_alone, subject.model, layers))
        if base_BTV is None:
            yield skipped("the base", reason)
            return
        note = f"{len(layers)} layers carry the adapter"
        name, pair = "adapter vs base", (adapted_BTV, base_BTV)
        yield subject.compare(name, *pair, expect="differ", broken=Verdict.WARN, note=note)
        for name, want_BTV, context in (
            ("adapter switched off vs base", base_BTV, _switched_off),
            ("merged vs adapter", adapted_BTV, _merged),
        ):
            got_BTV, reason = _under(subject, partial(context, layers))
            yield (
                skipped(name, reason)
                if got_BTV is None
                else subject.compare(name, got_BTV, want_BTV, note=note)
            )


def _under(
    subject: Subject, context: Callable[[], AbstractContextManager[None]]
) -> tuple[Tensor | None, str]:
    """The logits of the main input while the context is active, or why there are none."""
    spec = ForwardSpec(subject.inputs.tokens)
    subject.passes.drop(spec)
    try:
        with context():
            return subject.logits(spec), ""
    except (*REFUSALS, Unsupported) as error:
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
