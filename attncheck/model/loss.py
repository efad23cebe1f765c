"""Call a model with labels: what it is given, the loss that comes back, and which loss to expect.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.core.errors import Unsupported, first_line
from attncheck.core.measurement import Cause
from attncheck.core.observed_part import ObservedPart
from attncheck.model.direction import encoder
from attncheck.model.forward import ForwardOutput
from attncheck.model.inputs import Tokens
from attncheck.model.refusal import REFUSALS, classified
from attncheck.model.signature import KEYWORDS, LABELS, parameters_of
from attncheck.model.subject import Subject
from attncheck.model.training import training
from attncheck.numerics.hooks import hooked
from attncheck.numerics.losses import IGNORED

ITEMS = "num_items_in_batch"
STEPS = "two steps"
SHIFTED = "shift_labels"
LOSS_FUNCTION = "loss_function"
ACCUMULATING = (ITEMS, STEPS)
"""The cases that are about accumulation steps and nothing else."""
IGNORED_BY_HAND = (IGNORED, -1)
HALVES = ("encoder_ffn_dim", "decoder_ffn_dim")
"""Config fields of encoder-decoder models, which stay where only the decoder is loaded."""


def home_of_loss(model: nn.Module) -> str:
    """The function that computes a model's loss: the library's, where its forward calls it."""
    code = getattr(inspect.unwrap(type(model).forward), "__code__", None)
    named = code is not None and LOSS_FUNCTION in code.co_names
    return f"{type(model).__name__}.{LOSS_FUNCTION if named else 'forward'}"


@final
@dataclass(frozen=True, kw_only=True)
class LossCall:
    """One call with labels. `own` is how far the loss shifts them, `items` divides the sum, `more`
    holds further arguments of the forward. Beside `usual_BT` as its usual labels, the call passes
    `labels_BT` as labels that come shifted.
    """

    tokens: Tokens
    labels_BT: Tensor
    own: int
    items: int | None = None
    trained: bool = False
    usual_BT: Tensor | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def extra(self) -> dict[str, Any]:
        """The keyword arguments of the loss."""
        if self.usual_BT is not None:
            return {"labels": self.usual_BT, SHIFTED: self.labels_BT}
        if not self.items:
            return {"labels": self.labels_BT}
        items = torch.tensor(self.items, device=self.labels_BT.device)
        return {"labels": self.labels_BT, ITEMS: items}

    @staticmethod
    def of_other_logits(model: nn.Module) -> Cause:
        """The place of a loss that is not made of the logits that the model returns."""
        parts = (ObservedPart(what="logits", how="another function"),)
        return Cause(module=home_of_loss(model), parts=parts)

    def inner_logits(self, subject: Subject) -> Iterator[tuple[str, Tensor]]:
        """What modules return in the shape of the logits and the model does not return as it is,
        the last first: a module's name, and logits_BTV.
        """
        found: dict[str, Tensor] = {}

        def kept(name: str) -> Callable[[nn.Module, Any, Any], None]:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                if isinstance(output, Tensor):
                    found[name] = output

            return hook

        modules = subject.model.named_modules()
        with hooked([each.register_forward_hook(kept(name)) for name, each in modules if name]):
            logits_BTV, _ = logits_and_loss(subject, self)
        for name, inner_BTV in reversed(found.items()):
            if inner_BTV.shape == logits_BTV.shape and not torch.equal(inner_BTV, logits_BTV):
                yield name, inner_BTV


def own_shift(subject: Subject) -> int:
    """How far a correct loss shifts the labels of this model: by one where it predicts the next
    token, otherwise not at all.

    The decoder input of an encoder-decoder model is shifted already; an encoder predicts the tokens
    that it is given.

    Raises:
        Unsupported: the model is no encoder and reads ahead, so nothing says which label belongs to
            which position.
    """
    if subject.forward_adapter.fixed or subject.forward_adapter.labels_name == LABELS[1]:
        return 0  # `targets`, as training loops written by hand name them, come shifted
    if subject.can.decodes:
        return 1
    if encoder(subject.model):
        return 0
    raise Unsupported(subject.can.decodes)


def caller_shifts(subject: Subject) -> bool:
    """Whether this is the decoder of an encoder-decoder family: its labels come shifted, beside a
    decoder input that is not.
    """
    configs = (subject.config, subject.text_config)
    return any(name in vars(config) for config in configs if config is not None for name in HALVES)


def takes_items(subject: Subject) -> bool:
    """Whether the library's trainer passes the number of labels and leaves the division to the
    model.
    """
    said = getattr(subject.model, "accepts_loss_kwargs", None)
    if said is not None:
        return bool(said)
    return KEYWORDS in parameters_of(subject.model)


def logits_and_loss(subject: Subject, call: LossCall) -> tuple[Tensor, Tensor]:
    """(logits_BTV, loss) of one call, the loss in the dtype that it came in.

    Raises:
        Unsupported: the model computes no loss from `labels`, or cannot be called this way.
    """
    with torch.no_grad(), _mode(subject, call):
        output = _run(subject, call)
    return output.logits_BTV, output.output.loss


def loss_gradient(subject: Subject, call: LossCall) -> Tensor | None:
    """The gradient of the loss by the logits that come with it, (B, T, V); None where it is not
    computed from them.
    """
    with torch.enable_grad(), _mode(subject, call):
        output = _run(subject, call)
        loss, logits_BTV = output.output.loss, output.logits_BTV
        if not (loss.requires_grad and logits_BTV.requires_grad):
            return None
        try:
            (gradient_BTV,) = torch.autograd.grad(loss, logits_BTV, allow_unused=True)
        except REFUSALS as error:
            message = f"the loss has no derivative by the logits: {first_line(error)}"
            raise classified(error, message) from error
    return None if gradient_BTV is None else gradient_BTV.detach()


def require_one_code(subject: Subject) -> None:
    """Labels have one code for each token.

    Raises:
        Unsupported: those of this model have several.
    """
    if subject.facts.codebooks and subject.forward_adapter.codebooks is None:
        raise Unsupported("the model computes no loss from one code a token: it has codebooks")


def _mode(subject: Subject, call: LossCall) -> AbstractContextManager[None]:
    return training(subject, checkpointing=False) if call.trained else contextlib.nullcontext()


def _run(subject: Subject, call: LossCall) -> ForwardOutput:
    require_one_code(subject)
    extra, name = call.extra, subject.forward_adapter.labels_name or LABELS[0]
    labels_BT = extra.pop(LABELS[0])
    if bool((labels_BT == IGNORED).any()):
        labels_BT = torch.where(labels_BT == IGNORED, ignored_label(subject), labels_BT)
    extra[name] = labels_BT
    output = subject.passes.call(call.tokens, use_cache=False, extra=extra, **call.more)
    if getattr(output.output, "loss", None) is None:
        raise Unsupported("the model computes no loss from `labels`")
    return output


def ignored_label(subject: Subject) -> int:
    """The label that does not count: -100, or the model's own where it is trained on `targets`, as
    losses written by hand name them, which promise none.

    Raises:
        Unsupported: the loss takes neither of the usual ones.
    """
    if subject.forward_adapter.labels_name != LABELS[1]:
        return IGNORED
    return subject.passes.once("ignored label", lambda: _ignored_label(subject))


def _ignored_label(subject: Subject) -> int:
    tokens = subject.inputs.tokens
    for label in IGNORED_BY_HAND:
        targets_BT = subject.passes.ids(tokens).clone()
        targets_BT[:, -1] = label
        try:
            subject.passes.call(tokens, use_cache=False, extra={LABELS[1]: targets_BT})
        except (Unsupported, *REFUSALS):
            continue
        return label
    raise Unsupported("the loss takes no label that does not count: neither -100 nor -1")
