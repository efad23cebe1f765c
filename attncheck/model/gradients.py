"""The gradient of a model's logits with respect to its input embeddings.

Axes: B batch, T positions, W hidden width, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.core.allocator import returning_memory
from attncheck.core.errors import Unsupported, first_line
from attncheck.core.measurement import Comparison, Measurement
from attncheck.model.embeddings import token_table
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Tokens
from attncheck.model.quantized import why_no_gradient
from attncheck.model.refusal import REFUSALS, classified
from attncheck.model.subject import Subject
from attncheck.model.training import training
from attncheck.numerics.budget import Budget, measure_budget
from attncheck.numerics.divergence import compare_logits, max_abs
from attncheck.numerics.hooks import hooked

NO_GRADIENT = Budget(value=0.0, floor=0.0, source="a causal model has none, to the bit")


def mixture(subject: Subject, logits_BTV: Tensor, upto: int | None = None) -> Tensor:
    """Logits before position `upto` as one number of about unit size, mixed by fixed random
    weights: an outer product, so that autograd keeps nothing as large as the logits.
    """
    generator = torch.Generator().manual_seed(subject.settings.seed + 5)
    at_T, of_V = (
        torch.randn(n, generator=generator).div_(n**0.5).to(logits_BTV)
        for n in logits_BTV.shape[1:]
    )
    mixed: Tensor = (logits_BTV[:, :upto] @ of_V @ at_T[:upto]).sum()
    return mixed


@contextlib.contextmanager
def _embeddings(model: nn.Module, ids_BT: Tensor) -> Iterator[list[Tensor]]:
    """While active, the output of the tokens' embedding is a leaf that collects a gradient.

    An encoder-decoder has an embedding on each side, and may share it: the call with these tokens
    counts.
    """
    table = token_table(model)
    if not isinstance(table, nn.Module):
        raise Unsupported(f"{type(model).__name__} has no input embedding")
    own = set(table) if isinstance(table, nn.ModuleList) else {table}
    leaves: list[Tensor] = []

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):  # a quantised table returns its scale too
            return (hook(module, args, output[0]), *output[1:])
        if module not in own and not any(
            isinstance(each, Tensor) and torch.equal(each, ids_BT) for each in args
        ):
            return output
        leaves.append(output.detach().requires_grad_())
        return leaves[-1].clone()  # some models write into their embeddings, which a leaf forbids

    tables = own | {each for each in model.modules() if isinstance(each, nn.Embedding)}
    with hooked(each.register_forward_hook(hook) for each in tables):
        yield leaves


def input_gradient(
    subject: Subject,
    upto: int | None = None,
    attn: str | None = None,
    mask_BT: Tensor | None = None,
) -> Tensor:
    """gradient_BTW of a fixed mixture of the logits before position `upto` with respect to the
    embeddings; with `mask_BT` some tokens are padding.

    Raises:
        Unsupported: no gradient reaches the embeddings, or a kernel has none.
    """
    model, ids_BT = subject.model, subject.passes.ids(subject.inputs.tokens)
    refused = why_no_gradient(model) if subject.dtype != torch.float64 else None
    if refused:
        raise Unsupported(refused)
    with (
        room(subject),
        subject.using(attn),
        frozen(model),
        _embeddings(model, ids_BT) as leaves,
        torch.enable_grad(),
        subject.numerics(),
    ):
        try:
            given = {} if mask_BT is None else {"mask": mask_BT}
            output = subject.passes.call(subject.inputs.tokens, use_cache=False, **given)
            mixed = mixture(subject, output.logits_BTV, upto)
            gradients = torch.autograd.grad(mixed, leaves, allow_unused=True)
        except REFUSALS as error:
            raise classified(error, f"a gradient raises {first_line(error)}") from error
    for gradient in gradients:
        if gradient is not None and gradient.ndim == 3 and gradient.shape[1] == ids_BT.shape[1]:
            return gradient.detach()
    raise Unsupported("no gradient reaches the input embeddings")


def known_gradient(subject: Subject, upto: int | None = None, attn: str | None = None) -> Tensor:
    """`input_gradient` in evaluation mode, remembered.

    Raises:
        Unsupported: no gradient reaches the embeddings, or a kernel has none.
    """
    what = "gradient", upto, attn or subject.attn
    return subject.passes.once(what, lambda: input_gradient(subject, upto, attn))


def later_budget(subject: Subject, gradient_BTW: Tensor, cut: int) -> Budget:
    """No gradient at all is allowed to what lies behind the cut, except what changes with the order
    of summation: a softmax over all keys, masked afterwards, leaves that.
    """
    later_BTW = gradient_BTW[:, cut:]
    if not later_BTW.any():
        return NO_GRADIENT
    size = max_abs(subject.logits(ForwardSpec(subject.inputs.tokens)))
    rounding = subject.budget.value * max_abs(gradient_BTW) / size if size else 0.0
    if not 0.0 < max_abs(later_BTW) <= rounding:
        return NO_GRADIENT
    return measure_budget(
        lambda: input_gradient(subject, upto=cut)[:, cut:],
        later_BTW,
        subject.dtype_name,
        subject.numerics,
    )


def training_step(subject: Subject, tokens: Tokens) -> None:
    """One forward in training mode and its backward pass, without randomness; no weight changes,
    and nothing is kept of it.

    Raises:
        Unsupported: no gradient reaches the embeddings, or a kernel has none.
    """
    ids_BT = subject.passes.ids(tokens)
    with (
        training(subject, checkpointing=False),
        frozen(subject.model),
        _embeddings(subject.model, ids_BT) as leaves,
        torch.enable_grad(),
        subject.numerics(),
    ):
        try:
            mixed = mixture(subject, subject.passes.call(tokens).logits_BTV)
            torch.autograd.grad(mixed, leaves, allow_unused=True)
        except REFUSALS as error:
            raise Unsupported(f"a gradient raises {first_line(error)}") from error


def loop_gradient(subject: Subject) -> Tensor:
    """gradient_BTW of the same mixture as a training loop gets it: the cache left to the model,
    `backward()`, and the library's own numerics, since what a reentrant checkpoint computes again
    runs in no other.

    Raises:
        Unsupported: no gradient reaches the embeddings, or a kernel has none.
    """
    tokens, ids_BT = subject.inputs.tokens, subject.passes.ids(subject.inputs.tokens)
    subject.loaded.count(ids_BT.shape[1])
    with (
        room(subject),
        frozen(subject.model),
        _embeddings(subject.model, ids_BT) as leaves,
        torch.enable_grad(),
    ):
        try:
            logits_BTV = subject.forward_adapter.call(ids_BT).logits_BTV
            torch.autograd.backward(mixture(subject, logits_BTV))
        except REFUSALS as error:
            message = f"a gradient raises {first_line(error)}"
            raise classified(error, message, model=subject.model) from error
    for leaf in leaves:
        if leaf.grad is not None and leaf.ndim == len("BTW") and leaf.shape[1] == len(tokens[0]):
            return leaf.grad
    raise Unsupported("no gradient reaches the input embeddings")


def compare_gradients(subject: Subject, name: str, got_BTW: Tensor, want_BTW: Tensor) -> Comparison:
    """One case: a gradient against the one that it must equal; the budget is what other orders of
    summation do to the usual one.
    """
    known, key = subject.passes.budgets, ("gradient", subject.passes.injection.active)
    if key not in known:
        usual_BTW = known_gradient(subject)
        known[key] = measure_budget(
            lambda: input_gradient(subject), usual_BTW, subject.dtype_name, subject.numerics
        )
    budget = known[key]
    divergence = replace(compare_logits(got_BTW, want_BTW, budget.value), kl=0.0, top1_flips=0)
    source = budget.source.replace(subject.dtype_name, f"{subject.dtype_name} gradient", 1)
    return Comparison(name, divergence, budget.value, source, unit="gradients")


def switched_gradient(subject: Subject, name: str, attn: str) -> Measurement:
    """One case: the gradient under another attention implementation against the usual one."""
    return compare_gradients(
        subject, name, known_gradient(subject, attn=attn), known_gradient(subject)
    )


@contextlib.contextmanager
def room(subject: Subject) -> Iterator[None]:
    """Put remembered logits aside for what autograd keeps, and return its memory at the end."""
    subject.passes.memory.put_aside()
    with returning_memory():
        yield


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """While active, no weight requires a gradient, so that the graph keeps no input of a layer for
    it.
    """
    asking = [weight for weight in model.parameters() if weight.requires_grad]
    try:
        for weight in asking:
            weight.requires_grad_(False)
        yield
    finally:
        for weight in asking:
            weight.requires_grad_(True)
