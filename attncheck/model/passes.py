"""Run forwards and remember their logits: full, step by step, in chunks, batched.

A `ForwardSpec` holds everything that can change the logits, so that the full forward which five
probes need runs once.

Axes: B batch, T positions of this forward, P cached positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from attncheck.core.allocator import return_freed_memory
from attncheck.core.errors import CallFailed, Unsupported, first_line
from attncheck.model.cache_kinds import new_cache, promised
from attncheck.model.forward import ForwardAdapter, ForwardOutput
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Mask4D, Media, float_mask, words_for
from attncheck.model.injection import Faults, Injection
from attncheck.model.inputs import Tokens
from attncheck.model.logits_memory import LogitsMemory, joined
from attncheck.model.media import Medium
from attncheck.model.refusal import REFUSALS, classified, of_the_model, refuses
from attncheck.numerics.budget import Budget

SHORT = 4
T = TypeVar("T")


@final
@dataclass
class Passes:
    """Runs the forwards of one model and remembers their logits within a byte limit.

    `chunked_kind` is the kind of cache that chunks fill where their spec names none; empty leaves
    it to the model. Positions of a spec count from 0; `first_position`, from which the model itself
    counts, is added. `medium` says how the items of a kind are passed. `found` is
    what else was computed once, by keys that end with the injected faults.
    """

    forward_adapter: ForwardAdapter
    device: torch.device
    dtype: torch.dtype
    context: Callable[[], AbstractContextManager[Any]]
    switch: Callable[[str | None], AbstractContextManager[Any]]
    memory_limit: int = 64 << 20
    on_forward: Callable[[int], None] = field(default=lambda tokens: None)
    chunked_kind: str = ""
    first_position: Callable[[], int] = field(default=lambda: 0)
    injection: Injection = field(default_factory=Injection)
    medium: Callable[[str], Medium] = field(default=Medium)
    budgets: dict[Any, Budget] = field(default_factory=dict)
    memory: LogitsMemory = field(default_factory=LogitsMemory)
    found: dict[Any, Any] = field(default_factory=dict)

    def logits(self, spec: ForwardSpec, positions: tuple[int, ...] = ()) -> Tensor:
        """logits_BTV of a forward, from memory where it ran before.

        `positions` (ascending) keeps those only, of a row too long for all its logits.

        Raises:
            Unsupported: the model cannot be called this way.
        """
        key = (spec, positions, self.faults(spec))
        if key not in self.memory.kept:
            self._make_room(len(spec.tokens) * (len(positions) or spec.length))
        with contextlib.suppress(KeyError):
            return self.memory[key]
        with self._ready(spec):
            self.memory.kept[key] = self.run(spec, positions).detach()
        self.memory.keep_within(self.memory_limit, least=1)
        return self.memory[key]

    def run(self, spec: ForwardSpec, positions: tuple[int, ...] = ()) -> Tensor:
        """logits_BTV under the numerics and the implementation of the caller; not remembered."""
        return joined(self._parts(spec, positions), len(positions) or spec.length)

    def _parts(self, spec: ForwardSpec, positions: tuple[int, ...]) -> Iterator[Tensor]:
        start = 0
        for output in self._outputs(spec):
            end = start + output.logits_BTV.shape[1]
            here = [at - start for at in positions if start <= at < end]
            yield output.logits_BTV[:, here] if positions else output.logits_BTV
            start = end

    def cache(self, spec: ForwardSpec) -> Any:
        """The cache that a forward leaves behind; not remembered, since the next call changes it.

        Raises:
            Unsupported: the model returns no cache.
        """
        cache = None
        with self._ready(spec):
            for output in self._outputs(spec):
                cache = output.cache
        if cache is None:
            raise Unsupported(f"{self._kind} returns no cache")
        return cache

    def replay(self, spec: ForwardSpec) -> None:
        """Run a forward for what hooks see of it; not remembered.

        Raises:
            Unsupported: the model cannot be called this way.
        """
        return_freed_memory()
        with torch.no_grad(), self.context(), self.switch(spec.attn):
            for _ in self._outputs(spec):
                pass

    def call(self, tokens: Tokens, **arguments: Any) -> ForwardOutput:
        """One forward, not remembered, for what needs the cache or the whole output. Gradients
        follow the caller.
        """
        if arguments.get("positions_BT") is not None:
            arguments["positions_BT"] = arguments["positions_BT"] + self.first_position()
        self._make_room(sum(map(len, tokens)))
        way = f"with {', '.join(arguments.get('extra') or arguments) or 'ids alone'}"
        ids_BT = self.ids(tokens)
        arguments["media"] = self._media(arguments.get("media"), ids_BT)
        with self.context():
            return self._call(ids_BT, way, None, arguments)

    def _media(self, media: Media | None, ids_BT: Tensor, *part: int) -> dict[str, Any]:
        medium = media and self.medium(media.kind)
        return medium.arguments(ids_BT, media, self.dtype, *part) if medium and media else {}

    def ids(self, tokens: Tokens) -> Tensor:
        """ids_BT on the model's device."""
        return torch.tensor(tokens, device=self.device)

    def knows(self, spec: ForwardSpec) -> bool:
        """Whether a forward ran before, so that its logits cost nothing."""
        return (spec, (), self.faults(spec)) in self.memory

    def once(self, what: Hashable, find: Callable[[], T]) -> T:
        """What `find` returns, found out once in each state of the injected faults."""
        key = what, self.injection.active
        if key not in self.found:
            self.found[key] = find()
        known: T = self.found[key]
        return known

    def drop(self, spec: ForwardSpec) -> None:
        """Forget one forward, so that it runs again."""
        key = spec, (), self.faults(spec)
        self.memory.drop(lambda known: known == key)

    def forget(self) -> list[ForwardSpec]:
        """Forget every forward, and say which they were."""
        self.found.clear()
        return [key[0] for key in self.memory.clear()]

    @contextlib.contextmanager
    def under(self, fault: str, on_cache_only: bool) -> Iterator[None]:
        """A fault is injected inside: nothing that runs there is remembered afterwards. A fault of
        the cache leaves uncached forwards healthy, and their logits shared.
        """
        with self.injection.of(fault, on_cache_only):
            faults = self.injection.active
            try:
                yield
            finally:
                self.memory.forget_faults(faults)
                tables: tuple[dict[Any, Any], ...] = (self.budgets, self.found)
                for known in tables:
                    for key in [key for key in known if key[-1] == faults]:
                        del known[key]

    @property
    def injected(self) -> tuple[str, ...]:
        """The names of the faults that are injected now."""
        return tuple(name for _, name in self.injection.active)

    def faults(self, spec: ForwardSpec) -> Faults:
        """The injected faults that a forward has."""
        healthy = self.injection.on_cache_only and not spec.cached
        return () if healthy else self.injection.active

    @property
    def _kind(self) -> str:
        return type(self.forward_adapter.model).__name__

    def _make_room(self, tokens: int) -> None:
        """Forget what was read longest ago, until the logits of as many tokens as come next fit."""
        self.memory.keep_within(self.memory_limit - tokens * self.memory.width())

    @contextlib.contextmanager
    def _ready(self, spec: ForwardSpec) -> Iterator[None]:
        numerics = contextlib.nullcontext() if spec.unpromoted else self.context()
        with torch.no_grad(), numerics, self.switch(spec.attn):
            yield

    def _call(
        self, ids_BT: Tensor, way: str, spec: ForwardSpec | None, arguments: dict[str, Any]
    ) -> ForwardOutput:
        """One forward.

        Raises:
            Unsupported: the model refuses the call.
            CallFailed: it accepts the call, and raises.
        """
        self.on_forward(ids_BT.shape[1])
        try:
            return self.forward_adapter.call(ids_BT, **arguments)
        except REFUSALS as error:
            refused = refuses(error, self.forward_adapter.model)
            if spec is not None and not (refused or of_the_model(error)):
                raise
            message = f"{self._kind} raises {first_line(error)} when called {way}"
            raise classified(
                error,
                message,
                model=self.forward_adapter.model,
                documented=self._promised(spec, arguments.get("cache")),
                works=lambda: spec is not None and self._works_when_short(spec),
            ) from error

    def _promised(self, spec: ForwardSpec | None, cache: Any) -> bool:
        own = type(getattr(cache, "self_attention_cache", cache)).__name__.lower()
        kind = own if spec is None else spec.cache_kind
        on_cpu = spec is not None and spec.attn == "flex_attention" and self.device.type == "cpu"
        known = promised(kind, self.forward_adapter.model) and not on_cpu
        return known and (spec is None or spec.promised)

    def _works_when_short(self, spec: ForwardSpec) -> bool:
        """Whether the same call works with a few tokens: then the model does not refuse it."""
        if spec.length <= SHORT:
            return False
        try:
            self.replay(spec.shortened(SHORT))
        except (*REFUSALS, Unsupported):
            return False
        return True

    def _outputs(self, spec: ForwardSpec) -> Iterator[ForwardOutput]:
        """The forwards of a spec in order; each chunk gets its own slice of positions and mask."""
        ids_BT, cache, start = self.ids(spec.tokens), self._prepared_cache(spec), 0
        for size in spec.chunks or (spec.length,):
            stop = start + size
            arguments = {
                "positions_BT": self._positions(spec, start, stop),
                "mask": self._mask(spec, start, stop),
                "cache": cache,
                "before": start,
                "use_cache": True if spec.chunks or spec.cache_kind else spec.use_cache,
                "extra": {"output_attentions": True} if spec.attentions else {},
                "media": self._media(spec.media, ids_BT, start, stop),
            }
            output = self._call(
                ids_BT[:, start:stop], words_for(spec, start, size), spec, arguments
            )
            if spec.cache_kind and output.cache is not cache:
                raise Unsupported(f"{self._kind} does not use the cache that is passed to it")
            cache, start = output.cache, stop
            if cache is None and stop < spec.length:
                raise self._without_cache()
            yield output

    def _without_cache(self) -> Unsupported:
        """A model that takes no cache need not return one."""
        if self.forward_adapter.cache_name is None:
            return Unsupported(f"{self._kind}.forward takes no cache")
        return CallFailed(f"{self._kind} takes a cache, and returns none to continue from")

    def _prepared_cache(self, spec: ForwardSpec) -> Any:
        kind = spec.cache_kind or (self.chunked_kind if spec.chunks else "")
        if not kind:
            return None
        rows, model = len(spec.tokens), self.forward_adapter.model
        return new_cache(kind, model, rows=rows, length=spec.length, dtype=self.dtype)

    def _positions(self, spec: ForwardSpec, start: int, stop: int) -> Tensor | None:
        if spec.positions is None:
            return None
        rows_BT = torch.tensor([row[start:stop] for row in spec.positions], device=self.device)
        return rows_BT + self.first_position()

    def _mask(self, spec: ForwardSpec, start: int, stop: int) -> Tensor | None:
        """A 2D mask covers all that is cached and new (P + T), and what a longer one has beyond the
        whole forward; a 4D mask has a row for each new query.
        """
        if isinstance(spec.mask, Mask2D):
            rows = [
                row[:stop] + (0,) * (len(row) - stop) * (len(row) > spec.length)
                for row in spec.mask.rows
            ]
            return torch.tensor(rows, device=self.device, dtype=getattr(torch, spec.mask.dtype))
        if not isinstance(spec.mask, Mask4D):
            return None
        allowed_BTT = spec.mask.allowed_BTT()[:, start:stop, :stop]
        if spec.mask.boolean:
            return allowed_BTT[:, None].to(self.device)
        return float_mask(allowed_BTT, self.dtype, self.device)
