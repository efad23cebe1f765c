"""What a model can take, asked by effect: forwards swallow unknown arguments, so a signature proves
nothing.

Each capability is true when the model has it; else its `reason` is the reason of the `skip`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.inline import Refusals
from attncheck.attention.recorder import capture
from attncheck.core.capability import Capability
from attncheck.core.errors import Unsupported, first_line
from attncheck.model.compat import recognises_packing, text_config
from attncheck.model.facts import reads_ahead
from attncheck.model.forward import ForwardAdapter
from attncheck.model.forward_spec import ForwardSpec, Mask2D, all_ones, blocks, counting
from attncheck.model.inputs import Inputs
from attncheck.model.passes import REFUSALS, Faults, Passes
from attncheck.numerics.budget import Budget
from attncheck.numerics.divergence import beyond

T = TypeVar("T")
CAN = Capability()


@final
class _Tried(Generic[T]):
    """A capability that is tried when it is first read. What is tried while a fault is injected
    holds for as long as that fault stays in the model.
    """

    def __init__(self, attempt: Callable[[Capabilities], T]) -> None:
        self.attempt, self.name, self.__doc__ = attempt, attempt.__name__, attempt.__doc__

    def __get__(self, can: Capabilities, owner: type[Capabilities]) -> T:
        if not can.knows(self.name):
            can.learn(self.name, self.attempt(can))
        answer: T = can.answer(self.name)
        return answer


@final
@dataclass
class Capabilities:
    """What one model can take, each found out once."""

    forward_adapter: ForwardAdapter
    passes: Passes
    inputs: Inputs
    budget: Budget
    _found: dict[tuple[str, Faults], Any] = field(default_factory=dict)

    def knows(self, name: str) -> bool:
        """Whether a capability was tried already: of the healthy model, or under a fault that is
        injected now.
        """
        return any((name, faults) in self._found for faults in self._present())

    def learn(self, name: str, answer: Any) -> None:
        """Remember a capability of the model in its present state."""
        self._found[name, self.passes.injection.active] = answer

    def answer(self, name: str) -> Any:
        """What is known about a capability."""
        known = (faults for faults in self._present() if (name, faults) in self._found)
        return self._found[name, next(known)]

    def _present(self) -> Iterator[Faults]:
        active = self.passes.injection.active
        return (active[:depth] for depth in range(len(active) + 1))

    def _differ(
        self, left: ForwardSpec, right: ForwardSpec, start: int = 0, stop: int | None = None
    ) -> bool:
        left_BTV, right_BTV = (self.passes.logits(spec)[:, start:stop] for spec in (left, right))
        return beyond(left_BTV, right_BTV, self.budget.value)

    def _tried(self, attempt: Callable[[], Tensor | float | None], what: str) -> Capability:
        try:
            attempt()
        except Unsupported as reason:
            return Capability(str(reason))
        except REFUSALS as error:
            return Capability(f"{what} raises {first_line(error)}")
        return CAN

    @property
    def _full(self) -> ForwardSpec:
        return ForwardSpec(self.inputs.tokens)

    @_Tried
    def sees_history(self) -> Capability:
        """Changing the first token moves some later logits; else every other check would prove
        nothing.

        Not the last ones: layers that all have windows or chunks need not carry the first token
        that far.
        """
        row = self.inputs.row
        changed = ForwardSpec((self.inputs.other(row, 0, 1),))
        if self._differ(self._full, changed, start=1):
            return CAN  # values that are not finite are for the probes to count
        return Capability("changing the first token does not move any later logits beyond rounding")

    @_Tried
    def decodes(self) -> Capability:
        """The model says that it can generate, and its config promises no reading ahead: an encoder
        reads both ways by design.
        """
        if self._generates:
            return Capability(
                reads_ahead(text_config(getattr(self.forward_adapter.model, "config", None))) or ""
            )
        return Capability(
            f"{type(self.forward_adapter.model).__name__} cannot generate: it reads in both directions by design"
        )

    @property
    def _generates(self) -> bool:
        spec = getattr(self.forward_adapter.model, "can_generate", None)
        return not callable(spec) or bool(spec())

    @_Tried
    def cache(self) -> Capability:
        """A cache is returned, and a second chunk can be fed on it."""
        half = self.inputs.length // 2
        spec = ForwardSpec(self.inputs.tokens, chunks=(half, self.inputs.length - half))
        return self._tried(lambda: self.passes.logits(spec), "a second chunk on the cache")

    @_Tried
    def chunks_agree(self) -> Capability:
        """Several tokens on a filled cache give the logits of one forward; else only single steps
        can be relied on.
        """
        if not (known := self.cache & self.steps_agree):
            return known
        half = self.inputs.length // 2
        chunked = ForwardSpec(self.inputs.tokens, chunks=(half, self.inputs.length - half))
        if not self._differ(chunked, self._full):
            return CAN
        return Capability("several tokens on a filled cache do not give the logits of one forward")

    @_Tried
    def steps(self) -> Capability:
        """A cache is returned, and one token can be fed on it."""
        spec = ForwardSpec(self.inputs.tokens, chunks=(self.inputs.length - 1, 1))
        return self._tried(lambda: self.passes.logits(spec), "a step on the cache")

    @_Tried
    def steps_agree(self) -> Capability:
        """One token on a filled cache gives the logits of one forward: else whatever builds on a
        cache differs as well.
        """
        if not self.steps:
            return self.steps
        length = self.inputs.length
        for cut in (length - 1, length - 3, length // 2):
            stepped = ForwardSpec((self.inputs.row[: cut + 1],), chunks=(cut, 1))
            if self._differ(stepped, self._full, start=cut, stop=cut + 1):
                break
        else:
            return CAN
        return Capability(
            "a step on the model's own cache already differs from one forward: that is for `decode-paths`"
        )

    @_Tried
    def takes_positions(self) -> Capability:
        """`position_ids` is an argument, whether or not it changes anything."""
        spec = ForwardSpec(self.inputs.tokens, positions=counting(1, self.inputs.length))
        return self._tried(lambda: self.passes.logits(spec), "`position_ids`")

    @_Tried
    def reads_positions(self) -> Capability:
        """Reversed positions change the logits, beside a mask that keeps them from being read as
        packed documents.
        """
        if not self.takes_positions:
            return self.takes_positions
        tokens = self.inputs.tokens
        mask = all_ones(tokens) if self.mask_2d else None
        usual = ForwardSpec(
            tokens, positions=counting(1, self.inputs.length), mask=mask, use_cache=None
        )
        turned = ForwardSpec(
            tokens,
            positions=(tuple(reversed(range(self.inputs.length))),),
            mask=mask,
            use_cache=None,
        )
        if self._differ(usual, turned):
            return CAN
        return Capability("`position_ids` are accepted but change nothing")

    @_Tried
    def first_position(self) -> int:
        """What the model itself counts from: 0 nearly everywhere, pad + 1 in the family of RoBERTa;
        found by trying.
        """
        pad = getattr(
            text_config(getattr(self.forward_adapter.model, "config", None)), "pad_token_id", None
        )
        starts = dict.fromkeys((0, pad + 1 if isinstance(pad, int) and pad >= 0 else 1, 1, 2))
        return next((start for start in starts if self._counts_from(start)), 0)

    def _counts_from(self, start: int) -> bool:
        ids_BT = self.passes.ids(self.inputs.tokens)
        positions_BT = torch.arange(start, start + self.inputs.length, device=ids_BT.device)[None]
        try:
            with torch.no_grad(), self.passes.context():
                given_BTV = self.forward_adapter.call(
                    ids_BT, positions_BT=positions_BT, use_cache=False
                ).logits_BTV
        except (*REFUSALS, Unsupported):
            return False
        return not beyond(given_BTV, self.passes.logits(self._full), self.budget.value)

    @_Tried
    def mask_2d(self) -> Capability:
        """A 2D mask is an argument."""
        spec = ForwardSpec(self.inputs.tokens, mask=all_ones(self.inputs.tokens))
        return self._tried(lambda: self.passes.logits(spec), "a 2D `attention_mask`")

    @_Tried
    def takes_mask_4d(self) -> Capability:
        """A 4D mask is an argument, whether or not it is obeyed."""
        cut = self.inputs.length // 2
        spec = ForwardSpec(self.inputs.tokens, mask=blocks((cut, self.inputs.length - cut)))
        return self._tried(lambda: self.passes.logits(spec), "a 4D `attention_mask`")

    @_Tried
    def mask_4d(self) -> Capability:
        """A 4D mask is taken, and a block in it is obeyed: what it hides no longer moves the
        logits.
        """
        if not self.takes_mask_4d:
            return self.takes_mask_4d
        tokens, cut = self.inputs.tokens, self.inputs.length // 2
        row, mask = self.inputs.row, blocks((cut, self.inputs.length - cut))
        changed = ForwardSpec((self.inputs.other(row, 0, cut),), mask=mask)
        if not self._differ(ForwardSpec(tokens, mask=mask), changed, start=cut):
            return CAN
        return Capability(
            "a 4D `attention_mask` is taken, but tokens that it hides still move the logits"
        )

    @_Tried
    def packs(self) -> Capability:
        """Restarted positions are meant to isolate: the masks come from the library's builder,
        which recognises them.

        A model that takes a 4D mask and does not obey it carries a state past every mask.
        """
        if not self.reads_positions:
            return self.reads_positions
        if self.takes_mask_4d and not self.mask_4d:
            return self.mask_4d
        if recognises_packing(self.forward_adapter.model):
            return CAN
        return Capability(
            "the masks do not come from the library's builder, which recognises packed documents"
        )

    @_Tried
    def kernel(self) -> Capability:
        """Attention goes through transformers' attention interface, where it can be watched and
        changed.
        """
        seen, _ = self._calls_seen(inline=False)
        return Capability(
            ""
            if seen
            else "attention is computed inside the model, out of reach of the attention interface"
        )

    @_Tried
    def watch(self) -> Capability:
        """Attention can be watched: at the attention interface, or in the model's own arithmetic."""
        if self.kernel:
            return CAN
        seen, refused = self._calls_seen(inline=True)
        why = next(iter(refused.values()), "no scores pass a softmax and meet values")
        return Capability(
            ""
            if seen
            else f"{type(self.forward_adapter.model).__name__} runs no attention that can be watched: {why}"
        )

    def _calls_seen(self, inline: bool) -> tuple[int, Refusals]:
        seen: list[int] = []

        def watch(call: AttentionCall) -> Any:
            seen.append(call.query_BHTD.shape[1])
            return call.run()

        model = self.forward_adapter.model
        with capture(model, watch, inline=inline) as refused, torch.no_grad():
            self.passes.call(self.inputs.tokens, use_cache=False)
        return len(seen), refused

    @_Tried
    def reads_mask(self) -> Capability:
        """A 2D mask matters: it changes something, or attention goes through the interface, so that
        it must.
        """
        if not self.mask_2d:
            return self.mask_2d
        hidden = self.inputs.length // 3
        masked = ForwardSpec(
            self.inputs.tokens, mask=Mask2D(((0,) * hidden + (1,) * (self.inputs.length - hidden),))
        )
        if self._differ(masked, self._full, start=hidden):
            return CAN
        reason = self.kernel.reason
        return Capability(reason and f"the 2D mask is accepted but changes nothing, and {reason}")

    @_Tried
    def keeps_prefix(self) -> Capability:
        """Appending tokens leaves the earlier logits: a decoder that reads ahead, or hashes the
        whole row, differs by itself.

        Of an encoder nothing follows from it: what its mask hides must not count, however far it
        reads.
        """
        if not self._generates:
            return CAN
        cut = self.inputs.length - 1 - (self.inputs.length // 3)
        if not self._differ(ForwardSpec((self.inputs.row[:cut],)), self._full, stop=cut):
            return CAN
        return Capability("the logits depend on the length of the whole row, without padding too")
