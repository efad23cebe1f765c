"""The model under test at one precision, and all that a probe may ask of it.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall, Handler
from attncheck.attention.inline import Refusals
from attncheck.attention.recorder import capture, record
from attncheck.core.capability import Capability
from attncheck.core.errors import Unsupported
from attncheck.core.measurement import Comparison, Relation, Rerun
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.capabilities import Capabilities
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Inputs, Tokens
from attncheck.model.loaded import LoadedModel
from attncheck.model.noise_floor import own_budget
from attncheck.model.passes import Passes
from attncheck.model.precision import DTYPES, Precision, widens
from attncheck.model.refusal import REFUSALS
from attncheck.numerics.budget import Budget
from attncheck.numerics.constants import free
from attncheck.numerics.divergence import compare_logits, max_abs

T = TypeVar("T")
LEAST_MEMORY, MEMORY_SHARE, RESOLVED = 16 << 20, 0.04, 1e-3
MEASURED = ("passes", "_budget", "can")


class WrongPrecision(Exception):
    """A forward was requested at a precision that the weights are not in at the moment."""


@final
class _Read(Generic[T]):
    """A read-only attribute of a subject that another object holds."""

    def __init__(self, read: Callable[[Subject], T]) -> None:
        self.read = read

    def __get__(self, subject: Subject, owner: type[Subject]) -> T:
        return self.read(subject)


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """The model under test at one precision, with logits, a budget and capabilities of its own.

    `at` gives the subject at another precision; `views` remembers those that were made.
    """

    loaded: LoadedModel
    precision: Precision
    views: dict[Precision, Subject] = field(default_factory=dict)

    dtype = _Read(lambda subject: subject.precision.dtype)
    dtype_name = _Read(lambda subject: subject.precision.name)
    name = _Read(lambda subject: subject.loaded.name)
    model = _Read(lambda subject: subject.loaded.model)
    tokenizer = _Read(lambda subject: subject.loaded.tokenizer)
    settings = _Read(lambda subject: subject.loaded.settings)
    facts = _Read(lambda subject: subject.loaded.facts)
    config = _Read(lambda subject: subject.loaded.config)
    text_config = _Read(lambda subject: subject.loaded.text_config)
    forward_adapter = _Read(lambda subject: subject.loaded.forward_adapter)
    device = _Read(lambda subject: subject.loaded.device)
    attn = _Read(lambda subject: subject.loaded.attn)
    using = _Read(lambda subject: subject.loaded.using)
    media = _Read(lambda subject: subject.loaded.media)
    inputs = _Read(lambda subject: subject.loaded.inputs)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        name: str = "model",
        *,
        settings: Settings | None = None,
        dtype: str | None = None,
    ) -> Subject:
        """A model in memory, its weights cast to `dtype` for good."""
        loaded = LoadedModel(name=name, model=model, settings=settings or Settings())
        return cls(loaded, loaded.settle(DTYPES[dtype]) if dtype else loaded.precision)

    def cast(self, dtype: str) -> Subject:
        """The same model with its weights cast for good."""
        return Subject(self.loaded, self.loaded.settle(DTYPES[dtype]))

    def with_inputs(self, inputs: Inputs) -> Subject:
        """The same subject with other token material; what was measured so far stays valid."""
        other = replace(self, views={})
        measured = {name: vars(self)[name] for name in MEASURED if name in vars(self)}
        vars(other).update(measured, inputs=inputs)
        return other

    @cached_property
    def passes(self) -> Passes:
        """The memoised ways of asking for logits."""
        weights = sum(each.nbytes for each in self.model.parameters())
        return Passes(
            self.forward_adapter,
            self.device,
            self.dtype,
            context=self.numerics,
            switch=self.using,
            memory_limit=max(LEAST_MEMORY, int(MEMORY_SHARE * weights)),
            on_forward=self.loaded.count,
            chunked_kind=self.settings.cache or "",
            first_position=lambda: self.can.first_position,
            injection=self.loaded.injection,
            medium=self.loaded.medium,
        )

    @cached_property
    def can(self) -> Capabilities:
        """What this model can take, found out by trying."""
        return Capabilities(
            self.forward_adapter,
            self.passes,
            self.inputs,
            lambda: self.budget,
            state=lambda: self.loaded.injection.active,
        )

    @contextlib.contextmanager
    def handle_calls(self, handler: Handler) -> Iterator[Refusals]:
        """Route every attention call through `handler`, which returns what the kernel would.

        Raises:
            Unsupported: the model runs no attention that can be recorded.
        """
        self.can.watch.require()
        with capture(self.model, handler, inline=not self.can.kernel) as refusals:
            yield refusals

    def record_calls(
        self, row: Tokens | ForwardSpec, keep: Callable[[AttentionCall], T], **arguments: Any
    ) -> list[T]:
        """What `keep` takes from each attention call of one forward over these tokens, in order;
        the logits of a `ForwardSpec` are remembered.

        Raises:
            Unsupported: the model runs no attention that can be recorded.
        """
        self.can.watch.require()
        with torch.no_grad(), record(self.model, keep, inline=not self.can.kernel) as kept:
            if isinstance(row, ForwardSpec):
                self.passes.drop(row)
                self.passes.logits(row)
            else:
                self.passes.call(row, **{"use_cache": False, **arguments})
        return kept

    @property
    def budget(self) -> Budget:
        """What rounding alone does to the logits of the main input, without a fault if it can."""
        kept: dict[str, Budget] = vars(self)
        measured = kept.get("_budget") or own_budget(self.passes, ForwardSpec(self.inputs.tokens))
        return measured if self.loaded.injection.active else kept.setdefault("_budget", measured)

    def numerics(self) -> AbstractContextManager[Any]:
        """The context of forwards; raises `WrongPrecision` while the weights are in another one."""
        if self.precision != self.loaded.precision:
            raise WrongPrecision(f"the weights are in {self.loaded.precision.name} at the moment")
        return self.precision.numerics()

    def logits(self, spec: ForwardSpec) -> Tensor:
        """logits_BTV of one forward, remembered."""
        return self.passes.logits(spec)

    def compare(
        self,
        name: str,
        got_BTV: Tensor,
        want_BTV: Tensor,
        *,
        expect: Relation = "equal",
        broken: Verdict = Verdict.FAIL,
        offset: int = 0,
        note: str = "",
        spec: tuple[ForwardSpec, ForwardSpec] | None = None,
        budget: Budget | None = None,
    ) -> Comparison:
        """One case: `got_BTV` against `want_BTV` under this model's budget or another, from T
        `offset` on; `spec` are the forwards behind the two, for a diagnosis.
        """
        budget = budget or self.budget
        divergence = compare_logits(got_BTV, want_BTV, budget.value, offset)
        return Comparison(
            name,
            divergence,
            budget.value,
            budget.source,
            expect=expect,
            broken=broken,
            note=note,
            rerun=Rerun(*spec) if spec else None,
            cuts=spec[0].cuts if spec else (),
        )

    def compare_forwards(
        self,
        name: str,
        got: ForwardSpec,
        want: ForwardSpec,
        *,
        row: int | None = None,
        at: slice = slice(None),
        alone: bool = False,
        expect: Relation = "equal",
        broken: Verdict = Verdict.FAIL,
        note: str = "",
        budget: Budget | None = None,
    ) -> Comparison:
        """One case: two forwards, in all rows or in one, at some positions or at all; with `alone`,
        `want` is the forward of just this row and these positions.
        """
        place = slice(None) if row is None else slice(row, row + 1), at
        got_BTV, want_BTV = self.logits(got)[place], self.logits(want)
        return self.compare(
            name,
            got_BTV,
            want_BTV if alone else want_BTV[place],
            expect=expect,
            broken=broken,
            offset=at.start or 0,
            note=note,
            spec=(got, want),
            budget=budget,
        )

    def capability(self, name: str) -> Capability:
        """A capability, tried in a higher precision where rounding would hide the answer."""
        if not self.can.knows(name) and not self.resolves:
            with self.at(self.higher_dtype()) as higher:
                self.can.learn(name, getattr(higher.can, name))
        found: Capability = getattr(self.can, name)
        return found

    @property
    def resolves(self) -> bool:
        """Whether a fault would stand out of the budget in this dtype."""
        size = max_abs(free(self.logits(ForwardSpec(self.inputs.tokens))))
        return self.budget.value <= RESOLVED * size

    def higher_dtype(self) -> str | None:
        """The highest precision above this one that runs: cast if it fits, else by operator."""
        for name in ("float64", "float32"):
            if DTYPES[name].itemsize > self.dtype.itemsize:
                by_operator = name == "float64" and widens(self.loaded.stored_dtype)
                if (self.loaded.casts(DTYPES[name]) or by_operator) and self._runs_at(name):
                    return name
        return None

    def _runs_at(self, dtype: str) -> bool:
        """Whether a forward works in this dtype: quantized weights and fused kernels may refuse."""
        known, runs = self.loaded.runs_at, False
        if dtype in known:
            return known[dtype]
        with contextlib.suppress(*REFUSALS, Unsupported), self.at(dtype) as view:
            runs = view.logits(ForwardSpec(view.inputs.tokens)).numel() > 0
        return runs if self.loaded.injection.active else known.setdefault(dtype, runs)

    @contextlib.contextmanager
    def at(self, dtype: str | None, cast: bool = True) -> Iterator[Subject]:
        """The subject in another dtype for a while; weights and buffers come back bit for bit.
        Inside, use what this yields: the weights are not in this subject's precision.

        Weights that cannot be cast, would not fit, or are not to be (`cast`) are widened to float64
        operator by operator.

        Raises:
            RuntimeError: the weights cannot be cast (quantized weights refuse).
        """
        if dtype is None or dtype == self.dtype_name:
            yield self
            return
        with self.loaded.at(DTYPES[dtype], cast) as precision:
            # a budget that is measured under a fault must not be remembered
            views = {} if self.loaded.injection.active else self.views
            view = views.setdefault(precision, replace(self, precision=precision, views=views))
            view.can.inherit(self.can)
            try:
                yield view
            finally:
                view.passes.memory.put_aside()
