"""A loaded model and everything a probe may ask of it.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall, Handler
from attncheck.attention.inline import Refusals
from attncheck.attention.recorder import capture, record
from attncheck.core.capability import Capability
from attncheck.core.errors import Unsupported
from attncheck.core.finding import Expectation, Measurement, Verdict
from attncheck.core.settings import Settings
from attncheck.distributed.ranks import agreed, keep_in_step
from attncheck.model.buffers import buffers_of, put_buffers_back
from attncheck.model.capabilities import Capabilities
from attncheck.model.compat import plain_experts, text_config
from attncheck.model.encoder_inputs import fixed_input
from attncheck.model.facts import Facts, read_facts
from attncheck.model.forward import ForwardAdapter
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Inputs, Tokens, build_inputs
from attncheck.model.noise_floor import own_budget
from attncheck.model.passes import REFUSALS, Passes
from attncheck.model.placement import input_device, undisturbed, why_not_cast
from attncheck.model.precision import DTYPES, NAMES, cast_back, fits, own_dtypes, widens
from attncheck.numerics.budget import Budget
from attncheck.numerics.divergence import compare_logits, max_abs
from attncheck.numerics.promote import Promote
from attncheck.numerics.widen import Widen

T = TypeVar("T")
LEAST_MEMORY = 16 << 20
MEMORY_SHARE = 0.04


@final
@dataclass
class Subject:
    """The model under test. Probes ask it for logits, inputs, capabilities and measurements, and
    touch nothing else.
    """

    name: str
    model: nn.Module
    tokenizer: Any = None
    settings: Settings = field(default_factory=Settings)
    promoted: bool = False
    widened: bool = False
    load_notes: tuple[Measurement, ...] = ()
    remarks: tuple[str, ...] = ()
    on_forward: Callable[[int], None] | None = None
    forwards: int = 0
    runs_at: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model.eval()
        undisturbed(self.model)
        keep_in_step(self.model)
        self.own_dtype = self.dtype_name

    @cached_property
    def facts(self) -> Facts:
        """What the config says."""
        return read_facts(self.model)

    @cached_property
    def forward_adapter(self) -> ForwardAdapter:
        """The forward, called by meaning."""
        return ForwardAdapter(self.model, fixed_input(self.model, self.inputs.pool))

    @cached_property
    def inputs(self) -> Inputs:
        """Token material long enough for this model's borders."""
        spec = self.settings
        return build_inputs(
            self.facts,
            self.config,
            self.tokenizer,
            seed=spec.seed,
            prompt=spec.prompt,
            length=spec.length,
        )

    @cached_property
    def passes(self) -> Passes:
        """The memoised ways of asking for logits."""
        weights = sum(parameter.nbytes for parameter in self.model.parameters())
        return Passes(
            self.forward_adapter,
            self.device,
            self.dtype,
            context=self.numerics,
            switch=self.using,
            memory_limit=max(LEAST_MEMORY, int(MEMORY_SHARE * weights)),
            on_forward=self._count,
            chunked_kind=self.settings.cache or "",
            first_position=lambda: self.can.first_position,
        )

    @cached_property
    def can(self) -> Capabilities:
        """What this model can take, found out by trying."""
        return Capabilities(self.forward_adapter, self.passes, self.inputs, self.budget)

    def _count(self, tokens: int) -> None:
        self.forwards += 1
        if self.on_forward is not None:
            self.on_forward(tokens)

    @property
    def config(self) -> Any:
        """The model's config."""
        return getattr(self.model, "config", None)

    @property
    def text_config(self) -> Any:
        """The part of the config that describes the text decoder."""
        return text_config(self.config)

    @property
    def device(self) -> torch.device:
        """Where inputs go."""
        return input_device(self.model)

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(
            (p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that passes compute in: that of the weights, or float64 where operators are
        given them widened.
        """
        return torch.float64 if self.widened else self.stored_dtype

    @property
    def dtype_name(self) -> str:
        """The dtype that passes compute in as users write it."""
        return NAMES.get(self.dtype, str(self.dtype).removeprefix("torch."))

    @property
    def attn(self) -> str | None:
        """The attention implementation in force, read back from the model."""
        return getattr(self.config, "_attn_implementation", None)

    def numerics(self) -> AbstractContextManager[Any]:
        """The numerics that passes run under: float64 without hidden float32 where that works."""
        return Widen() if self.widened else Promote() if self.promoted else contextlib.nullcontext()

    @contextlib.contextmanager
    def using(self, attn: str | None) -> Iterator[None]:
        """Run under another attention implementation.

        Raises:
            Unsupported: the model refuses it, or keeps its own without saying so.
        """
        if attn is None or attn == self.attn:
            yield
            return
        before = self.attn
        self._set_attn(attn)
        try:
            yield
        finally:
            self._set_attn(str(before))

    def _set_attn(self, attn: str) -> None:
        setter: Callable[[str], None] | None = getattr(self.model, "set_attn_implementation", None)
        if setter is None:
            raise Unsupported(
                f"{type(self.model).__name__} cannot switch its attention implementation"
            )
        try:
            setter(attn)
        except (ValueError, ImportError, NotImplementedError) as error:
            raise Unsupported(f"`{attn}` attention: {str(error).splitlines()[0]}") from error
        if self.attn != attn:
            raise Unsupported(
                f"{type(self.model).__name__} keeps `{self.attn}` when asked for `{attn}` attention"
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
        self, tokens: Tokens, keep: Callable[[AttentionCall], T], **arguments: Any
    ) -> list[T]:
        """What `keep` takes from each attention call of one forward over these tokens, in order.

        Raises:
            Unsupported: the model runs no attention that can be recorded.
        """
        self.can.watch.require()
        with torch.no_grad(), record(self.model, keep, inline=not self.can.kernel) as kept:
            self.passes.call(tokens, **{"use_cache": False, **arguments})
        return kept

    def logits(self, spec: ForwardSpec) -> Tensor:
        """logits_BTV of one pass, from memory where it ran before."""
        return self.passes.logits(spec)

    @cached_property
    def budget(self) -> Budget:
        """What rounding alone does to this model's logits, measured once on the main input."""
        return own_budget(
            self.passes, ForwardSpec(self.inputs.tokens), self.dtype_name, self.numerics
        )

    def compare(
        self,
        name: str,
        got_BTV: Tensor,
        want_BTV: Tensor,
        *,
        expect: Expectation = "equal",
        broken: Verdict = Verdict.FAIL,
        offset: int = 0,
        note: str = "",
        spec: tuple[ForwardSpec, ForwardSpec] | None = None,
        budget: Budget | None = None,
    ) -> Measurement:
        """One case: `got_BTV` against `want_BTV` under this model's budget or another. `offset` is
        the T of the first column.

        `spec` are the passes behind the two, so that a failure can be diagnosed from the same
        tokens and schedule.
        """
        budget = budget or self.budget
        apart = compare_logits(got_BTV, want_BTV, budget.value, offset)
        return Measurement(
            name=name,
            expect=expect,
            broken=broken,
            note=note,
            spec=spec,
            cuts=spec[0].cuts if spec else (),
            budget=budget.value,
            budget_from=budget.source,
            **vars(apart),
        )

    def higher_dtype(self) -> str | None:
        """The highest precision above the present one: cast where it fits into memory, else
        operator by operator; or None.
        """
        names = [
            name for name in ("float64", "float32") if DTYPES[name].itemsize > self.dtype.itemsize
        ]
        able = [
            name
            for name in names
            if self.casts(DTYPES[name]) or (name == "float64" and widens(self.stored_dtype))
        ]
        return next((name for name in able if self._runs_at(name)), None)

    def _runs_at(self, dtype: str) -> bool:
        """Whether a forward works in another dtype: quantised weights and fused kernels may refuse;
        asked once.
        """
        if dtype not in self.runs_at:
            try:
                with self.at(dtype):
                    self.runs_at[dtype] = self.logits(ForwardSpec(self.inputs.tokens)).numel() > 0
            except REFUSALS:
                self.runs_at[dtype] = False
        return self.runs_at[dtype]

    def casts(self, dtype: torch.dtype) -> bool:
        """Whether the weights can be cast to a dtype and fit into free memory in it."""
        return agreed(
            "precision", why_not_cast(self.model) is None and fits(self.model, dtype, self.device)
        )

    def capability(self, name: str) -> Capability:
        """Whether the model can take something; asked in a higher precision where rounding would
        hide the answer.
        """
        if name not in vars(self.can) and not self.resolves:
            with self.at(self.higher_dtype()):
                answer = getattr(self.can, name)
            vars(self.can)[name] = answer
        found: Capability = getattr(self.can, name)
        return found

    @property
    def resolves(self) -> bool:
        """Whether a fault would stand out of the budget in this dtype."""
        return self.budget.value <= RESOLVED * max_abs(self.logits(ForwardSpec(self.inputs.tokens)))

    @contextlib.contextmanager
    def at(self, dtype: str | None, cast: bool = True) -> Iterator[None]:
        """The same weights in another dtype for a while; they come back bit for bit, buffers
        included.

        Weights that cannot be cast, would not fit, or are not to be (`cast`) are widened to float64
        operator by operator.

        Raises:
            RuntimeError: the weights cannot be cast (quantised weights refuse).
        """
        if dtype is None or dtype == self.dtype_name:
            yield
            return
        before, own, flags = (
            self.stored_dtype,
            own_dtypes(self.model),
            (self.promoted, self.widened),
        )
        saved = buffers_of(self.model)
        known = {name: self.__dict__.pop(name) for name in MEASURED if name in self.__dict__}
        try:
            self.take(DTYPES[dtype], cast)
            yield
        finally:
            if self.stored_dtype != before:
                cast_back(self.model, own, before)
            self.promoted, self.widened = flags
            put_buffers_back(self.model, saved)
            for name in MEASURED:
                self.__dict__.pop(name, None)
            self.__dict__.update(known)

    def take(self, dtype: torch.dtype, cast: bool = True) -> None:
        """Cast the weights, or have operators widen them to float64 where they cannot be cast,
        would not fit, or are not to be.

        float64 runs without hidden float32, and without fused expert kernels, which refuse it.

        Raises:
            RuntimeError: the weights cannot be cast.
        """
        wide = dtype == torch.float64
        self.widened = wide and self.stored_dtype != dtype and not (cast and self.casts(dtype))
        if dtype != self.stored_dtype and not self.widened:
            self.model.to(dtype)
        self.promoted = wide and not self.widened
        if wide:
            plain_experts(self.model)


MEASURED = ("passes", "budget", "can")
RESOLVED = 1e-3
