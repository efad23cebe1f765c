"""The model in memory, and what is the same in every precision that it computes in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.core.errors import Unsupported
from attncheck.core.measurement import Measurement
from attncheck.core.settings import Settings
from attncheck.model.compat import (
    config_of,
    experts_of,
    plain_experts,
    pretrained,
    set_experts,
    text_config,
)
from attncheck.model.facts import Facts, read_facts
from attncheck.model.forward import ForwardAdapter, adapted_forward
from attncheck.model.forward_spec import Media
from attncheck.model.injection import Injection
from attncheck.model.inputs import Inputs, Row, build_inputs
from attncheck.model.kept_state import model_untouched
from attncheck.model.media import Medium, find_media
from attncheck.model.module_memory import ModuleMemory
from attncheck.model.placement import input_device, load_as_stored, why_not_cast
from attncheck.model.precision import Precision, cast_floats, fits
from attncheck.model.tables import Tables
from attncheck.model.weights import SavedBuffers, Weights, leave_inference_mode


@final
@dataclass
class LoadedModel:
    """Weights, tokenizer and settings; the precision that the weights are in now; counters.

    `agree` returns what all processes of a sharded model decide, given what this one would.
    """

    name: str
    model: nn.Module
    tokenizer: Any = None
    settings: Settings = field(default_factory=Settings)
    load_notes: tuple[Measurement, ...] = ()
    remarks: tuple[str, ...] = ()
    agree: Callable[[str, bool], bool] = lambda kind, mine: mine
    on_forward: Callable[[int], None] | None = None
    forwards: int = 0
    injection: Injection = field(default_factory=Injection)
    runs_at: dict[str, bool] = field(default_factory=dict)
    was_training: bool = False
    tables: Tables = field(default_factory=Tables)
    seconds_per_operation: float | None = None

    spare: dict[torch.dtype, tuple[Weights, Weights]] | None = None
    _media: tuple[Medium, ...] | None = None

    def __post_init__(self) -> None:
        self.was_training = self.model.training
        self.model.eval()
        leave_inference_mode(self.model)
        load_as_stored(self.model)
        self.memory = ModuleMemory.of(self.model)
        self.precision = Precision(self.stored_dtype)
        self.own_dtype = self.precision.name

    @cached_property
    def facts(self) -> Facts:
        """What the config says."""
        return read_facts(self.model)

    @cached_property
    def forward_adapter(self) -> ForwardAdapter:
        """The forward, called by the meaning of its arguments."""
        return adapted_forward(self.model, self.inputs.pool)

    @cached_property
    def inputs(self) -> Inputs:
        """Token material long enough for this model's boundaries."""
        wanted = self.settings
        return build_inputs(
            self.facts,
            self.config,
            self.tokenizer,
            seed=wanted.seed,
            prompt=wanted.prompt,
            length=wanted.length,
        )

    @property
    def media(self) -> tuple[Medium, ...]:
        """The kinds of pictures and sounds that the model takes, found by trying once; none where
        an encoder reads them, whose input is the same in every forward.
        """
        if self.forward_adapter.fixed:
            return ()
        if self._media is not None:
            return self._media
        untouched = model_untouched(self.model)  # some models remember the picture before
        with untouched, torch.no_grad(), self.precision.numerics():
            found = find_media(self.model, self.inputs.pool, self._with_media)
        if not self.injection.active:
            self._media = found
        return found

    def medium(self, kind: str) -> Medium:
        """How the items of one kind are passed; one that cannot be used where there is none."""
        return next((each for each in self.media if each.kind == kind), Medium(kind))

    def _with_media(self, medium: Medium, row: Row, media: Media) -> Tensor:
        self.count(len(row))
        ids_BT = torch.tensor([row], device=self.device)
        given = medium.arguments(ids_BT, media, self.stored_dtype)
        return self.forward_adapter.call(ids_BT, media=given, use_cache=False).logits_BTV

    @property
    def config(self) -> Any:
        """The model's config."""
        return config_of(self.model)

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
        """The dtype of the weights in memory now."""
        return next(
            (p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32
        )

    @property
    def attn(self) -> str | None:
        """The attention implementation in force, read back from the model."""
        return getattr(self.config, "_attn_implementation", None)

    def count(self, tokens: int) -> None:
        """Count one forward over this many tokens."""
        self.forwards += 1
        if self.on_forward is not None:
            self.on_forward(tokens)

    @contextlib.contextmanager
    def using(self, attn: str | None) -> Iterator[None]:
        """Run under another attention implementation.

        Raises:
            Unsupported: the model refuses it, or silently keeps its own.
        """
        if attn is None or attn == self.attn:
            yield
            return
        before = self.attn
        self.choose(attn)
        try:
            yield
        finally:
            self.choose(str(before))

    def choose(self, attn: str) -> None:
        """Switch the attention implementation for good.

        Raises:
            Unsupported: the model refuses it, or silently keeps its own.
        """
        kind = type(self.model).__name__
        setter: Callable[[str], None] | None = getattr(
            pretrained(self.model), "set_attn_implementation", None
        )
        if setter is None:
            raise Unsupported(f"{kind} cannot switch its attention implementation")
        try:
            setter(attn)
        except (ValueError, ImportError, NotImplementedError) as error:
            raise Unsupported(f"`{attn}` attention: {str(error).splitlines()[0]}") from error
        if self.attn != attn:
            raise Unsupported(f"{kind} keeps `{self.attn}` when asked for `{attn}` attention")

    def casts(self, dtype: torch.dtype) -> bool:
        """Whether the weights can be cast to a dtype and fit into free memory in it."""
        fit = why_not_cast(self.model) is None and fits(self.model, dtype, self.device)
        return self.agree("precision", fit)

    def settle(self, dtype: torch.dtype, cast: bool = True) -> Precision:
        """Cast the weights for good. Where they cannot be cast, would not fit, or are not to be,
        operators widen them to float64 instead.

        float64 runs without hidden float32, and without fused expert kernels, which refuse it.

        Raises:
            RuntimeError: the weights cannot be cast.
        """
        wide = dtype == torch.float64
        widened = wide and self.stored_dtype != dtype and not (cast and self.casts(dtype))
        if dtype != self.stored_dtype and not widened:
            self.tables.note(self.model, dtype)
            cast_floats(self.model, dtype)
            self.tables.restore(self.model)
        if wide:
            plain_experts(self.model)
        self.precision = Precision(dtype, promoted=wide and not widened, widened=widened)
        return self.precision

    @contextlib.contextmanager
    def at(self, dtype: torch.dtype, cast: bool = True) -> Iterator[Precision]:
        """`settle` for a while: weights, buffers and the choice of expert kernels come back."""
        before, stored, weights = self.precision, self.stored_dtype, Weights(self.model)
        buffers, experts = SavedBuffers(self.model), experts_of(self.model)
        known = (self.spare or {}).get(dtype)
        if known is not None and cast and known[0].are(weights):
            known[1].put_back()
            cast_floats(self.model, dtype)  # the buffers
            self.tables.restore(self.model)
        try:
            yield self.settle(dtype, cast)
        finally:
            if self.stored_dtype != stored:
                if self.spare is not None:
                    self.spare[dtype] = weights, Weights(self.model)
                weights.put_back()
            self.precision = before
            buffers.put_back()
            set_experts(experts)

    @contextlib.contextmanager
    def casting_once(self) -> Iterator[None]:
        """Inside, weights that `at` has cast to a dtype are kept for the next time, until the
        outermost such context ends; nobody may write into a weight meanwhile.
        """
        before = self.spare
        self.spare = {} if before is None else before
        try:
            yield
        finally:
            self.spare = before
