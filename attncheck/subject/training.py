"""Training mode as it would be without randomness, and gradients that implementations must agree on.

Axes: B batch, T positions, V vocabulary, W hidden width.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.errors import Unsupported
from attncheck.finding import Measurement
from attncheck.numerics.budget import measure_budget
from attncheck.numerics.divergence import compare_logits
from attncheck.subject.inputs import Tokens
from attncheck.subject.subject import Subject

RANDOM = re.compile(r"drop|jitter|noise")
"""Names of the numbers by which modules make training random; `nn.Dropout` keeps its own under `p`."""


def _random_numbers(model: nn.Module) -> Iterator[tuple[nn.Module, str, float]]:
    for module in model.modules():
        names = ("p",) if isinstance(module, nn.modules.dropout._DropoutNd) else tuple(vars(module))
        for name in names:
            value = getattr(module, name, None)
            if isinstance(value, float) and (name == "p" or RANDOM.search(name)):
                yield module, name, value


@contextlib.contextmanager
def without_randomness(model: nn.Module, training: bool) -> Iterator[None]:
    """Every dropout, layer drop and router noise at zero, in training mode or not; everything is put back, buffers included."""
    held = list(_random_numbers(model))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    modes = {module: module.training for module in model.modules()}
    try:
        for module, name, _ in held:
            setattr(module, name, 0.0)
        model.train(training)
        yield
    finally:
        for module, name, value in held:
            setattr(module, name, value)
        for module, mode in modes.items():
            module.training = mode
        for name, buffer in model.named_buffers():
            if name in buffers and buffers[name].shape == buffer.shape:
                buffer.copy_(buffers[name])


def embedding_gradient(subject: Subject, tokens: Tokens, attn: str | None = None) -> Tensor:
    """gradient_BTW of a fixed weighted sum of all logits with respect to the input embeddings.

    Raises:
        Unsupported: the model has no input embedding, or its output does not depend on it.
    """
    embedding = getattr(subject.model, "get_input_embeddings", lambda: None)()
    if not isinstance(embedding, nn.Module):
        raise Unsupported(f"{type(subject.model).__name__} has no input embedding to take a gradient at")
    leaves: list[Tensor] = []

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if leaves:
            return output
        leaves.append(output.detach().requires_grad_(True))
        return leaves[0]

    handle = embedding.register_forward_hook(hook)
    try:
        with torch.enable_grad(), subject.using(attn), subject.numerics():
            logits_BTV = subject.passes.call(tokens, use_cache=False).logits_BTV
            return _gradient(logits_BTV, leaves)
    finally:
        handle.remove()


def _gradient(logits_BTV: Tensor, leaves: list[Tensor]) -> Tensor:
    # whole numbers as weights: an irrational direction would have a rounding of its own
    weight_BTV = (torch.arange(logits_BTV.numel(), device=logits_BTV.device) % 7 - 3).view(logits_BTV.shape)
    total = (logits_BTV * weight_BTV).sum()
    found = torch.autograd.grad(total, leaves, allow_unused=True) if leaves and total.requires_grad else (None,)
    if found[0] is None:
        raise Unsupported("the logits carry no gradient back to the input embedding")
    return found[0].detach()


def compare_gradients(subject: Subject, name: str, attn: str) -> Measurement:
    """One case: the gradient under another implementation against that of the one in force, with a budget of its own."""
    tokens = subject.inputs.tokens
    want_BTW, got_BTW = (embedding_gradient(subject, tokens, each) for each in (None, attn))
    budget = measure_budget(lambda: embedding_gradient(subject, tokens), want_BTW, subject.dtype_name, subject.numerics)
    apart = replace(compare_logits(got_BTW, want_BTW, budget.value), kl=0.0, top1_flips=0)
    note = "gradient of a weighted sum of all logits at the embeddings"
    return Measurement(name=name, budget=budget.value, budget_from=budget.source, note=note, **vars(apart))
