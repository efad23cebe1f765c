"""The gradient under gradient checkpointing, against the one without.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from attncheck.probing import (
    CallFailed,
    Cause,
    Comparison,
    Divergence,
    ForwardSpec,
    Measurement,
    Subject,
    Unsupported,
    beyond,
    compare_gradients,
    input_gradient,
    loop_gradient,
    max_abs,
    max_abs_diff,
    training,
)
from attncheck_probes.gradient.redrawn import REDRAWN, drawing_module, drawn, draws, seeded

ALWAYS = "use_reentrant=True"
"""What torch says of reentrant checkpoints whose gradient is asked for without `backward()`."""
MEMORY = 2**22
"""How many entries of weights are compared at most."""
USUAL, LOOP = "gradient checkpointing", "a training loop, reentrant checkpoints"


def checkpointed(subject: Subject) -> Measurement:
    """Checkpoints that compute again under their own context, without a cache; the last tokens are
    padding where the model takes a 2D mask, so that a layer without it reads other keys.
    """
    mask_BT = _end_hidden(subject)
    with training(subject, checkpointing=False):
        plain_BTW, again_BTW = (drawn(input_gradient, subject, mask_BT) for _ in range(2))
    if not torch.equal(plain_BTW, again_BTW):
        raise Unsupported("two training steps with the same random numbers differ")
    with training(subject, checkpointing=True):
        try:
            saved_BTW = drawn(input_gradient, subject, mask_BT)
        except CallFailed as failure:
            if ALWAYS not in str(failure):
                raise
            raise Unsupported(f"its checkpoints are reentrant in any case: see {LOOP}") from failure
    case = compare_gradients(subject, USUAL, saved_BTW, plain_BTW)
    if not case.beyond:
        return _of_weights(subject, case)
    if (changed := _changed_logits(subject)).beyond:
        return changed
    if draws(subject):
        return replace(case, note=REDRAWN, cause=Cause(module=drawing_module(subject)))
    if mask_BT is None:
        return case
    with training(subject, checkpointing=False):
        unmasked = compare_gradients(subject, USUAL, saved_BTW, input_gradient(subject))
    module = _deprived(subject, mask_BT)
    if unmasked.beyond:
        note = f"{module} gets fewer tensors under checkpointing" if module else case.note
        return replace(case, note=note, cause=Cause(module=module))
    note = "the gradient is that without the 2D mask: the layers do not get it"
    return replace(case, note=note, cause=Cause("padding-visible", module=module))


def _of_weights(subject: Subject, case: Comparison) -> Comparison:
    """The case of the small weights, where one gets another gradient although the input embeddings
    get the same: what it makes reaches the layers by a way that checkpoints do not follow.
    """
    plain, saved = (_weight_gradients(subject, checkpointing) for checkpointing in (False, True))
    relative = case.budget / (case.divergence.scale or 1.0)
    for name, want in plain.items():
        got, size = saved.get(name, torch.zeros_like(want)), max_abs(want)
        if beyond(got, want, relative * size):
            divergence = Divergence(max_abs=max_abs_diff(got, want), scale=size, positions=1)
            note = f"the gradient of `{name}`, while the input embeddings get the same"
            home = Cause("gradient-detached", module=name.rpartition(".")[0])
            budget = relative * size
            return replace(case, divergence=divergence, budget=budget, note=note, cause=home)
    return case


def _weight_gradients(subject: Subject, checkpointing: bool) -> dict[str, Tensor]:
    """The gradient of each weight, the smallest first, as many as need little memory."""
    weights = sorted(subject.model.named_parameters(), key=lambda pair: pair[1].numel())
    sizes = accumulate(weight.numel() for _, weight in weights)
    kept = [pair for pair, size in zip(weights, sizes, strict=True) if size <= MEMORY]
    chosen = {name: weight for name, weight in kept if weight.requires_grad}
    with (
        training(subject, checkpointing=checkpointing),
        torch.enable_grad(),
        subject.numerics(),
        seeded(),
    ):
        logits_BTV = subject.passes.call(subject.inputs.tokens, use_cache=False).logits_BTV
        mixed = logits_BTV.cos().sum()
        found = torch.autograd.grad(mixed, list(chosen.values()), allow_unused=True)
    return {name: each for name, each in zip(chosen, found, strict=True) if each is not None}


def _deprived(subject: Subject, mask_BT: Tensor) -> str:
    """The first module that gets fewer tensors by keyword under checkpointing than without; ""
    where none does.
    """
    usual, saved = (_given(subject, mask_BT, checkpointing) for checkpointing in (False, True))
    return next((name for name in usual if usual[name] - saved.get(name, usual[name])), "")


def _given(subject: Subject, mask_BT: Tensor, checkpointing: bool) -> dict[str, set[str]]:
    """The keywords under which each module gets tensors in its first call, in order."""
    found: dict[str, set[str]] = {}

    def before(name: str) -> Any:
        def hook(module: Any, args: Any, named: dict[str, Any]) -> None:
            found.setdefault(name, {key for key in named if isinstance(named[key], Tensor)})

        return hook

    with contextlib.ExitStack() as stack:
        stack.enter_context(training(subject, checkpointing=checkpointing))
        for name, module in subject.model.named_modules():
            hook = module.register_forward_pre_hook(before(name), with_kwargs=True)
            stack.enter_context(hook)
        input_gradient(subject, mask_BT=mask_BT)
    return found


def _end_hidden(subject: Subject) -> Tensor | None:
    """A 2D mask over the main input without its last third."""
    if not subject.can.mask_2d:
        return None
    mask_BT = torch.ones_like(subject.passes.ids(subject.inputs.tokens))
    mask_BT[:, -(mask_BT.shape[1] // 3) :] = 0
    return mask_BT


def reentrant(subject: Subject) -> Measurement:
    """Reentrant checkpoints, the cache left to the model, and `backward()`."""
    gradients = []
    for checkpointing in (False, True):
        with training(subject, checkpointing=checkpointing, reentrant=True):
            gradients.append(drawn(loop_gradient, subject))
    plain_BTW, saved_BTW = gradients
    case = compare_gradients(subject, LOOP, saved_BTW, plain_BTW)
    if not case.beyond or _changed_logits(subject).beyond:
        return case  # what is wrong without a cache as well does not come from it
    if draws(subject):
        return replace(case, note=REDRAWN, cause=Cause(module=drawing_module(subject)))
    return replace(case, cause=Cause("recomputed-on-cache"))


def _changed_logits(subject: Subject) -> Comparison:
    """The logits of a forward in training mode with checkpoints against those without."""
    found = []
    for checkpointing in (True, False):
        with training(subject, checkpointing=checkpointing), torch.no_grad(), seeded():
            tokens = subject.inputs.tokens
            found.append(subject.passes.call(tokens, use_cache=False).logits_BTV)
    spec = ForwardSpec(subject.inputs.tokens)
    note = "the forward itself computes something else with checkpointing in training mode"
    return subject.compare(USUAL, *found, spec=(spec, spec), note=note)
