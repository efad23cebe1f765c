"""The same weights in transformers, in float64: what an engine is compared with and predicted by.

Axes: T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from attncheck.core.errors import Unsupported
from attncheck.engines.engine import Ids, LogProbs
from attncheck.engines.rows import RowBudget, largest_gap, mean_kl
from attncheck.faults.engine import Fault
from attncheck.faults.engine.injection import at_kernel
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.budget import HEADROOM

LISTED = 40
"""Best tokens of a row that are compared, whether the engine lists them or not."""
LEVELS = ("float32", "float16 keys and values", "float16", "bfloat16")
"""How engines round, the finest first."""


class Predicts(Protocol):
    """Log-probabilities after each of some token ids."""

    def __call__(self, ids: Ids) -> Tensor:
        """logprobs_TV in float64."""


@final
@dataclass(frozen=True, eq=False)
class Twin:
    """A model of transformers that has the engine's weights."""

    subject: Subject

    def __call__(self, ids: Ids) -> Tensor:
        """logprobs_TV after each token."""
        return logprobs_of(self.subject, ForwardSpec((ids,)))

    def changed(self, model: nn.Module) -> Twin:
        """The twin of a changed model."""
        return Twin(Subject.of(model, self.subject.name, dtype="float64"))

    def rebuilt(self, edit: Any) -> Twin:
        """A model of the same weights whose config was edited in place by `edit(config)`.

        Raises:
            Unsupported: the class does not build it, or needs other weights then.
        """
        config = deepcopy(self.subject.model.config)
        try:
            edit(config)
            with _without_drawing():
                kind: Any = type(self.subject.model)
                model = kind._from_config(config)
            found = model.load_state_dict(
                self.subject.model.state_dict(), strict=False, assign=True
            )
            model.tie_weights()
        except Exception as error:
            raise Unsupported(f"the class does not build it: {error}") from error
        tied = {name for name in found.missing_keys if name in self.subject.model.state_dict()}
        if set(found.missing_keys) - tied or found.unexpected_keys:
            raise Unsupported("the changed model has other weights")
        return self.changed(model.eval())

    def rounded(self, level: str, ids: Ids) -> Tensor:
        """logprobs_TV with the rounding of one of `LEVELS`.

        Raises:
            Unsupported: this model does not run so.
        """
        if level == LEVELS[1]:
            return rounded_cache(self, torch.float16)(ids)
        try:
            with self.subject.at(level) as view:
                return logprobs_of(view, ForwardSpec((ids,)))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise Unsupported(f"{level}: {error}") from error


def logprobs_of(subject: Subject, spec: ForwardSpec) -> Tensor:
    """logprobs_TV of the first row of a forward, in float64 on the CPU."""
    return subject.logits(spec)[0].double().cpu().log_softmax(-1)


def rounded_cache(twin: Twin, dtype: torch.dtype) -> Predicts:
    """The prediction of keys and values that are stored in another dtype."""

    def handler(call: Any) -> Any:
        call.key_BGSD = call.key_BGSD.to(dtype).to(call.key_BGSD.dtype)
        call.value_BGSD = call.value_BGSD.to(dtype).to(call.value_BGSD.dtype)
        return call.run()

    return with_calls(twin, f"kv-{dtype}", handler)


def with_calls(twin: Twin, name: str, handler: Any) -> Predicts:
    """The prediction of a change of every attention call."""
    fault = Fault(name=name, inject=lambda subject: at_kernel(subject, handler))
    return with_fault(twin, fault)


def with_fault(twin: Twin, fault: Fault) -> Predicts:
    """The prediction of a fault of the catalogue in a forward without a cache."""

    def predict(ids: Ids) -> Tensor:
        with fault.injected(twin.subject):
            return twin(ids)

    return predict


def _without_drawing() -> AbstractContextManager[Any]:
    """Do not draw weights that are replaced at once, where the library offers it."""
    try:
        from transformers.initialization import no_init_weights
    except ImportError:
        return nullcontext()
    found: AbstractContextManager[Any] = no_init_weights()
    return found


def row_like(logprobs_V: Tensor, like: LogProbs) -> LogProbs:
    """A row of the twin over the tokens that the engine lists, and its own best ones."""
    best = logprobs_V.topk(min(LISTED, len(logprobs_V))).indices.tolist()
    tokens = list({*best, *(token for token in like if 0 <= token < len(logprobs_V))})
    return dict(zip(tokens, logprobs_V[tokens].tolist(), strict=True))


def rows_like(logprobs_TV: Tensor, like: Sequence[LogProbs], ends: Sequence[int]) -> list[LogProbs]:
    """Rows of the twin for prompts that end after `ends` tokens."""
    return [row_like(logprobs_TV[end - 1], row) for end, row in zip(ends, like, strict=True)]


def noise_of(
    twin: Twin, level: str, ids: Ids, ends: Sequence[int], like: Sequence[LogProbs]
) -> RowBudget:
    """What rounding of this level does to these rows, with the headroom of all budgets.

    Raises:
        Unsupported: the model does not run so.
    """
    want = rows_like(twin(ids), like, ends)
    got = rows_like(twin.rounded(level, ids), like, ends)
    gap, kl = largest_gap(got, want), mean_kl(got, want)
    source = f"transformers in {level} {gap:.1e} x {HEADROOM:.0f}"
    return RowBudget(max_abs=HEADROOM * gap, kl=HEADROOM * kl, source=source)
