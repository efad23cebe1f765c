"""Gradients of one model: with respect to its input embeddings, and along directions of its attention projections.

Axes: B batch, T positions, W hidden width, V vocabulary.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.errors import Unsupported, first_line
from attncheck.subject.passes import REFUSALS
from attncheck.subject.placement import why_not_nudged
from attncheck.subject.reach import attention_modules
from attncheck.subject.subject import Subject

KINDS = {
    "query": re.compile(r"^(q|wq|q_proj|query|q_lin|query_proj|q_attn|q_a_proj|q_b_proj)$", re.I),
    "key": re.compile(r"^(k|wk|k_proj|key|k_lin|key_proj|kv_a_proj_with_mqa|kv_b_proj)$", re.I),
    "value": re.compile(r"^(v|wv|v_proj|value|v_lin|value_proj)$", re.I),
    "query, key and value": re.compile(r"^(c_attn|query_key_value|qkv|qkv_proj|Wqkv|in_proj)$", re.I),
}
DROPOUTS = re.compile(r"drop")


def weighting(subject: Subject, like_BTV: Tensor) -> Tensor:
    """Fixed random weights that turn logits into one number of about unit size."""
    generator = torch.Generator().manual_seed(subject.settings.seed + 5)
    drawn = torch.randn(like_BTV.shape[1:], generator=generator, dtype=torch.float64)
    weights_BTV: Tensor = (drawn / drawn.numel() ** 0.5).to(like_BTV)
    return weights_BTV


@contextlib.contextmanager
def _embeddings(model: nn.Module) -> Iterator[list[Tensor]]:
    """While active, the output of the input embedding is a leaf that collects a gradient."""
    getter = getattr(model, "get_input_embeddings", None)
    table = getter() if getter is not None else None
    if not isinstance(table, nn.Module):
        raise Unsupported(f"{type(model).__name__} has no input embedding")
    leaves: list[Tensor] = []

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1].clone()  # some models write into their embeddings, which a leaf forbids

    tables = list(table) if isinstance(table, nn.ModuleList) else _sharing(model, table)
    handles = [each.register_forward_hook(hook) for each in tables]
    try:
        yield leaves
    finally:
        for handle in handles:
            handle.remove()


def _sharing(model: nn.Module, table: nn.Module) -> list[nn.Module]:
    """Every embedding that looks up the same weights: an encoder-decoder has one on each side."""
    weight = getattr(table, "weight", None)
    twins: list[nn.Module] = [each for each in model.modules() if isinstance(each, nn.Embedding) and each.weight is weight]
    return twins or [table]


def input_gradient(subject: Subject, upto: int | None = None, attn: str | None = None) -> Tensor:
    """gradient_BTW of a fixed mixture of the logits before position `upto` with respect to the embeddings.

    Raises:
        Unsupported: no gradient reaches the embeddings, or a kernel has none.
    """
    with subject.using(attn), _embeddings(subject.model) as leaves, torch.enable_grad(), subject.numerics():
        try:
            logits_BTV = subject.passes.call(subject.inputs.tokens, use_cache=False).logits_BTV
            mixture = (logits_BTV * weighting(subject, logits_BTV))[:, :upto].sum()
            gradients = torch.autograd.grad(mixture, leaves, allow_unused=True)
        except REFUSALS as error:
            raise Unsupported(f"a gradient raises {first_line(error)}") from error
    length = subject.inputs.length
    found = [each for each in gradients if each is not None and each.ndim == 3 and each.shape[1] == length]
    if not found:
        raise Unsupported("no gradient reaches the input embeddings")
    return found[0].detach()


def projections(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The weights of the query, key and value projections of every attention module, by kind."""
    found: dict[str, list[nn.Parameter]] = {}
    for module in attention_modules(model).values():
        for kind, pattern in KINDS.items():
            children = [child for name, child in module.named_children() if pattern.match(name)]
            weights = [weight for child in children for weight in child.parameters() if weight.ndim == 2]
            known = {id(each) for each in found.get(kind, [])}
            new = [weight for weight in weights if weight.is_floating_point() and id(weight) not in known]
            if new:
                found.setdefault(kind, []).extend(new)
    return found


@final
@dataclass(frozen=True, kw_only=True)
class Slope:
    """A derivative along one direction: by autograd, by central difference, and how far the difference can be trusted."""

    analytic: float
    numeric: float
    trust: float


AGREED = 1e-6
"""Neighbouring steps that agree to this part need no smaller one."""
STEPS = (1e-3, 1e-4, 2.5e-5, 6e-6, 1.5e-6)


def slope_of(subject: Subject, kind: str) -> Slope:
    """The derivative of a fixed mixture of the logits along one random direction of one kind of projection.

    The central difference is taken at several steps; the two neighbours that agree best give the value, and their
    distance (with the rounding of the mixture over the step) the trust. A kink keeps neighbours from agreeing.

    Raises:
        Unsupported: a kernel has no gradient, or no step can be taken along these weights.
    """
    reason = why_not_nudged(subject.model)
    if reason is not None:
        raise Unsupported(reason)
    return _slope(subject, projections(subject.model)[kind], list(KINDS).index(kind))


def _slope(subject: Subject, weights: list[nn.Parameter], number: int) -> Slope:
    generator = torch.Generator().manual_seed(subject.settings.seed * 31 + number)
    direction = [torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w) * _size(w) for w in weights]
    mixture = _mixture(subject)
    with torch.enable_grad(), subject.numerics(), _requiring(weights):
        try:
            gradients = torch.autograd.grad(mixture(), weights, allow_unused=True)
        except REFUSALS as error:
            raise Unsupported(f"a gradient raises {first_line(error)}") from error
    analytic = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True) if g is not None)
    values: list[float] = []
    size = 0.0
    for step in STEPS:
        with torch.no_grad(), subject.numerics():
            ahead, behind = (float(_moved(weights, direction, sign * step, mixture)) for sign in (1, -1))
        values.append((ahead - behind) / (2 * step))
        size = max(size, abs(ahead), abs(behind))
        if len(values) > 1 and abs(values[-1] - values[-2]) <= AGREED * abs(values[-1]):
            break
    near = min(range(len(values) - 1), key=lambda i: abs(values[i] - values[i + 1]))
    rounding = torch.finfo(subject.dtype).eps * max(size, 1.0) / STEPS[near + 1]
    return Slope(analytic=analytic, numeric=values[near + 1], trust=abs(values[near] - values[near + 1]) + 16 * rounding)


def _size(weight: Tensor) -> float:
    return float(weight.detach().double().pow(2).mean().sqrt())


def _mixture(subject: Subject) -> Callable[[], Tensor]:
    def mixture() -> Tensor:
        logits_BTV = subject.passes.call(subject.inputs.tokens, use_cache=False).logits_BTV
        return (logits_BTV * weighting(subject, logits_BTV)).sum()

    return mixture


@contextlib.contextmanager
def _requiring(weights: list[nn.Parameter]) -> Iterator[None]:
    before = [weight.requires_grad for weight in weights]
    try:
        for weight in weights:
            weight.requires_grad_(True)
        yield
    finally:
        for weight, required in zip(weights, before, strict=True):
            weight.requires_grad_(required)


def _moved(weights: list[nn.Parameter], direction: list[Tensor], step: float, mixture: Callable[[], Tensor]) -> Tensor:
    saved = [weight.detach().clone() for weight in weights]
    try:
        for weight, along in zip(weights, direction, strict=True):
            weight.add_(along, alpha=step)
        return mixture()
    finally:
        for weight, before in zip(weights, saved, strict=True):
            weight.copy_(before)


@contextlib.contextmanager
def training(subject: Subject, checkpointing: bool) -> Iterator[None]:
    """Training mode with every dropout at zero, with or without gradient checkpointing.

    Raises:
        Unsupported: the model takes no gradient checkpointing.
    """
    model = subject.model
    dropouts = [(m, k, v) for m in model.modules() for k, v in vars(m).items() if _is_dropout(k, v, m)]
    try:
        for module, name, _ in dropouts:
            setattr(module, name, 0.0)
        model.train()
        if checkpointing:
            _enable(subject)
        yield
    finally:
        if checkpointing:
            _switch(model, "disable")()
        model.eval()
        for module, name, value in dropouts:
            setattr(module, name, value)


def _is_dropout(name: str, value: object, module: nn.Module) -> bool:
    known = bool(DROPOUTS.search(name)) or (name == "p" and "Dropout" in type(module).__name__)
    return known and isinstance(value, float) and value > 0


def _switch(model: nn.Module, what: str) -> Callable[..., Any]:
    """The method that turns checkpointing on or off, under its name of today or that of releases before."""
    names = (f"activation_checkpointing_{what}", f"gradient_checkpointing_{what}")
    found = next((getattr(model, name) for name in names if hasattr(model, name)), None)
    if found is None or not getattr(model, "supports_gradient_checkpointing", False):
        raise Unsupported(f"{type(model).__name__} takes no gradient checkpointing")
    switch: Callable[..., Any] = found
    return switch


def _enable(subject: Subject) -> None:
    """Turn checkpointing on; what is computed again in the backward pass runs under the same numerics."""
    how = {"use_reentrant": False, "context_fn": lambda: (contextlib.nullcontext(), subject.numerics())}
    try:
        _switch(subject.model, "enable")(how)
    except REFUSALS as error:
        raise Unsupported(f"gradient checkpointing raises {first_line(error)}") from error
