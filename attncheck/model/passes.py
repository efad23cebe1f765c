"""The one place that asks a model for logits: full, step by step, in chunks, batched; every pass is
remembered.

A `ForwardSpec` holds everything that can change the outcome, so that the full forward which five
probes need runs once.

Axes: B batch, T positions of this pass, P cached positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from attncheck.core.allocator import return_freed_memory
from attncheck.core.errors import Unsupported, first_line
from attncheck.model.cache_kinds import new_cache
from attncheck.model.forward import ForwardAdapter, ForwardOutput
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Mask4D, float_mask
from attncheck.model.inputs import Tokens
from attncheck.numerics.budget import Budget


def _way(spec: ForwardSpec, start: int) -> str:
    """What is special about a forward of a pass, in words."""
    ways = {
        "on a filled cache": start > 0,
        "with a cache": start == 0 and spec.cached,
        "with `position_ids`": spec.positions is not None,
        "with a 2D mask": isinstance(spec.mask, Mask2D),
        "with a 4D mask": isinstance(spec.mask, Mask4D),
        f"with `{spec.attn}` attention": spec.attn is not None,
        "with attention weights": spec.attentions,
    }
    return " and ".join(way for way, so in ways.items() if so)


Faults = tuple[tuple[int, str], ...]
REFUSALS = (
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    NotImplementedError,
    LookupError,
    ImportError,
    AssertionError,
)


def _joined(parts: Iterator[Tensor], length: int) -> Tensor:
    """Logits of successive chunks in one tensor, without a second copy of them all beside it."""
    first_BTV = next(parts)
    if first_BTV.shape[1] == length:
        return first_BTV
    whole_BTV, filled = first_BTV.new_empty(first_BTV.shape[0], length, first_BTV.shape[2]), 0
    for part_BTV in itertools.chain((first_BTV,), parts):
        whole_BTV[:, filled : filled + part_BTV.shape[1]] = part_BTV
        filled += part_BTV.shape[1]
    return whole_BTV[:, :filled]


@final
@dataclass
class Injection:
    """The faults that are injected into a model at the moment, each with a number of its own: what
    was found under one must not be taken for an answer later, not even under the same fault.
    """

    active: Faults = ()
    on_cache_only: bool = False
    count: int = 0

    @contextlib.contextmanager
    def of(self, fault: str, on_cache_only: bool) -> Iterator[None]:
        """One more fault is active inside. A fault of the cache leaves uncached forwards healthy."""
        before = self.active, self.on_cache_only
        self.count += 1
        self.active, self.on_cache_only = (*self.active, (self.count, fault)), on_cache_only
        try:
            yield
        finally:
            self.active, self.on_cache_only = before


@final
@dataclass
class Passes:
    """Runs passes on one model through its door and remembers their logits within a byte limit.

    `chunked_kind` is the kind of cache that passes in chunks fill where they ask for none; empty
    leaves it to the model. Positions of a `ForwardSpec` count from 0; `first_position` is what the
    model itself counts from, and is added.
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
    budgets: dict[Any, Budget] = field(default_factory=dict)
    _memory: OrderedDict[Any, Tensor] = field(default_factory=OrderedDict)

    def logits(self, spec: ForwardSpec, positions: tuple[int, ...] = ()) -> Tensor:
        """logits_BTV of a pass, from memory where it ran before.

        `positions` (ascending) asks for those only, of a row too long for all its logits to be
        kept.

        Raises:
            Unsupported: the model cannot be asked this way.
        """
        key = (spec, positions, self._faults(spec))
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        self._make_room(len(spec.tokens) * (len(positions) or spec.length))
        with torch.no_grad(), self._numerics(spec), self.switch(spec.attn):
            self._memory[key] = self.run(spec, positions).detach()
        self._keep_within(self.memory_limit, least=1)
        return self._memory[key]

    def run(self, spec: ForwardSpec, positions: tuple[int, ...] = ()) -> Tensor:
        """logits_BTV of a pass under the numerics and the implementation of the caller; nothing is
        remembered.
        """
        return _joined(self._parts(spec, positions), len(positions) or spec.length)

    def _parts(self, spec: ForwardSpec, positions: tuple[int, ...]) -> Iterator[Tensor]:
        start = 0
        for reply in self._replies(spec):
            end = start + reply.logits_BTV.shape[1]
            here = [at - start for at in positions if start <= at < end]
            yield reply.logits_BTV[:, here] if positions else reply.logits_BTV
            start = end

    def cache(self, spec: ForwardSpec) -> Any:
        """The cache that a pass leaves behind; never remembered, since the next call would change
        it.

        Raises:
            Unsupported: the model returns no cache.
        """
        with torch.no_grad(), self._numerics(spec), self.switch(spec.attn):
            cache = None
            for reply in self._replies(spec):
                cache = reply.cache
        if cache is None:
            raise Unsupported(f"{type(self.forward_adapter.model).__name__} returns no cache")
        return cache

    def replay(self, spec: ForwardSpec) -> None:
        """Run a pass for what hooks see of it; nothing is remembered.

        Raises:
            Unsupported: the model cannot be asked this way.
        """
        return_freed_memory()
        with torch.no_grad(), self.context(), self.switch(spec.attn):
            for _ in self._replies(spec):
                pass

    def drop(self, spec: ForwardSpec) -> None:
        """Forget one pass, so that it is run the next time it is asked for."""
        self._memory.pop((spec, (), self._faults(spec)), None)

    def call(self, tokens: Tokens, **spec: Any) -> ForwardOutput:
        """One forward, not remembered, for what needs the cache or the whole output. Gradients
        follow the caller.
        """
        if spec.get("positions_BT") is not None:
            spec["positions_BT"] = spec["positions_BT"] + self.first_position()
        self._make_room(sum(map(len, tokens)))
        with self.context():
            return self._asked(
                self.ids(tokens),
                "with " + ", ".join(spec.get("extra", {})),
                bool(spec.get("extra")),
                spec,
            )

    def ids(self, tokens: Tokens) -> Tensor:
        """ids_BT on the model's device."""
        return torch.tensor(tokens, device=self.device)

    def forget(self) -> None:
        """Drop every remembered pass."""
        self._memory.clear()

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
                for key in [key for key in self._memory if key[-1] == faults]:
                    del self._memory[key]

    @property
    def injected(self) -> tuple[str, ...]:
        """The names of the faults that are injected at the moment."""
        return tuple(name for _, name in self.injection.active)

    def _faults(self, spec: ForwardSpec) -> Faults:
        healthy = self.injection.on_cache_only and not spec.cached
        return () if healthy else self.injection.active

    def _make_room(self, tokens: int) -> None:
        """Forget what was asked for longest ago, until logits of as many tokens as are about to
        come fit as well.
        """
        coming = tokens * max((t.shape[2] * t.itemsize for t in self._memory.values()), default=0)
        self._keep_within(self.memory_limit - coming)

    def _keep_within(self, limit: int, least: int = 0) -> None:
        while len(self._memory) > least and sum(t.nbytes for t in self._memory.values()) > limit:
            self._memory.popitem(last=False)

    def _asked(
        self, ids_BT: Tensor, way: str, special: bool, spec: dict[str, Any]
    ) -> ForwardOutput:
        """One forward. A model that raises when it is asked in a special way cannot be asked so; a
        plain forward must work.
        """
        try:
            return self._forward(ids_BT, **spec)
        except REFUSALS as error:
            if not special:
                raise
            raise Unsupported(
                f"{type(self.forward_adapter.model).__name__} raises {first_line(error)} when called {way}"
            ) from error

    def _forward(self, ids_BT: Tensor, **spec: Any) -> ForwardOutput:
        self.on_forward(ids_BT.shape[1])
        return self.forward_adapter.call(ids_BT, **spec)

    def _replies(self, spec: ForwardSpec) -> Iterator[ForwardOutput]:
        """The forwards of a pass in order; each chunk gets its own slice of positions and mask."""
        ids_BT, cache, start = self.ids(spec.tokens), self._prepared_cache(spec), 0
        for size in spec.chunks or (spec.length,):
            stop = start + size
            call = {
                "positions_BT": self._positions(spec, start, stop),
                "mask": self._mask(spec, start, stop),
                "cache": cache,
                "before": start,
                "use_cache": True if spec.chunks or spec.cache_kind else spec.use_cache,
                "extra": {"output_attentions": True} if spec.attentions else {},
            }
            reply = self._asked(
                ids_BT[:, start:stop], _way(spec, start), spec != ForwardSpec(spec.tokens), call
            )
            if spec.cache_kind and reply.cache is not cache:
                raise Unsupported(
                    f"{type(self.forward_adapter.model).__name__} does not use the cache that it is handed"
                )
            cache, start = reply.cache, stop
            if cache is None and stop < spec.length:
                raise Unsupported(
                    f"{type(self.forward_adapter.model).__name__} returns no cache to continue from"
                )
            yield reply

    def _numerics(self, spec: ForwardSpec) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if spec.unpromoted else self.context()

    def _prepared_cache(self, spec: ForwardSpec) -> Any:
        kind = spec.cache_kind or (self.chunked_kind if spec.chunks else "")
        if not kind:
            return None
        return new_cache(
            kind,
            self.forward_adapter.model,
            rows=len(spec.tokens),
            length=spec.length,
            dtype=self.dtype,
        )

    def _positions(self, spec: ForwardSpec, start: int, stop: int) -> Tensor | None:
        if spec.positions is None:
            return None
        rows_BT = torch.tensor([row[start:stop] for row in spec.positions], device=self.device)
        return rows_BT + self.first_position()

    def _mask(self, spec: ForwardSpec, start: int, stop: int) -> Tensor | None:
        """A 2D mask covers all that is cached and new (P + T); a 4D mask has a row for each new
        query.
        """
        if isinstance(spec.mask, Mask2D):
            rows = [row[:stop] for row in spec.mask.rows]
            return torch.tensor(rows, device=self.device, dtype=getattr(torch, spec.mask.dtype))
        if not isinstance(spec.mask, Mask4D):
            return None
        allowed_BTT = spec.mask.allowed_BTT()[:, start:stop, :stop]
        return (
            allowed_BTT[:, None].to(self.device)
            if spec.mask.boolean
            else float_mask(allowed_BTT, self.dtype, self.device)
        )
