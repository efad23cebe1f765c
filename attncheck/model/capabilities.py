"""What a model can take, found out by trying: forwards swallow unknown arguments, so a signature
proves nothing.

A capability is true where the model has it; otherwise its `reason` becomes the reason of a `skip`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from transformers import Cache

from attncheck.core.capability import Capability, Tried
from attncheck.core.errors import Unsupported
from attncheck.model.compat import recognises_packing
from attncheck.model.counting import counts
from attncheck.model.direction import reads_ahead, whole_row
from attncheck.model.forward_spec import ForwardSpec, all_ones, counting
from attncheck.model.mask_capabilities import CAN, MaskCapabilities
from attncheck.model.refusal import REFUSALS
from attncheck.numerics.divergence import beyond, finitely_beyond
from attncheck.numerics.selection import Selecting

CALLS = {"takes_positions", "mask_2d", "takes_mask_4d", "cache", "steps", "library_cache"}
TAKEN = CALLS | {"decodes", "kernel", "watch", "first_position", "keeps_prefix"}
"""What holds in float64 because it holds in float32: the call is taken."""
MOVED = {"sees_history", "reads_positions"}
"""What a difference beyond the rounding of float32 has shown."""


@final
@dataclass
class Capabilities(MaskCapabilities):
    """What one model can take, each found out once."""

    def inherit(self, coarser: Capabilities) -> None:
        """Take over what a coarser precision, though not a half one, has shown for good: a call
        that works, and a difference beyond its rounding. That two calls agree is asked again.
        """
        sizes = self.passes.dtype.itemsize, coarser.passes.dtype.itemsize, torch.half.itemsize
        if not sizes[0] > sizes[1] > sizes[2]:
            return
        for name in sorted(TAKEN | MOVED):
            if not self.knows(name) and (key := coarser.key(name)) is not None:
                answer = coarser.found[key]
                if answer or isinstance(answer, int):
                    self.learn(name, answer)

    @Tried
    def sees_history(self) -> Capability:
        """Changing the first token moves some later logits; otherwise no other check would prove
        anything.

        Not the last ones: where all layers have windows or chunks, the first token need not reach
        that far.
        """
        changed = ForwardSpec((self.inputs.other(self.inputs.row, 0, 1),))
        if self._differ(self._full, changed, start=1):
            return CAN  # also where values are not finite: the probes count those
        return Capability("changing the first token does not move any later logits beyond rounding")

    @Tried
    def decodes(self) -> Capability:
        """Neither the config nor the class documents that the model reads ahead: it is judged as a
        decoder, whatever it does.
        """
        return Capability(reads_ahead(self.forward_adapter.model))

    @Tried
    def cache(self) -> Capability:
        """A cache is returned, and a second chunk can be fed on it; what reads ahead by design
        continues nothing.
        """
        halves = ForwardSpec(self.inputs.tokens, chunks=self._halves)
        if not self.decodes:
            return self.decodes
        return self._runs(halves, "a second chunk on the cache")

    @Tried
    def chunks_agree(self) -> Capability:
        """Several tokens on a filled cache give the logits of one forward; otherwise only single
        steps can be relied on.
        """
        mixed, third = self._mixed, self.inputs.length // 3
        if not mixed or not self._runs(mixed, "chunks and steps"):
            mixed, third = ForwardSpec(self.inputs.tokens, chunks=self._halves), -1
        if not (known := self.steps_agree if third > 0 else self.cache & self.steps_agree):
            return known
        if not self._differ(mixed, self._full, start=third + 1):
            return CAN
        return Capability("several tokens on a filled cache do not give the logits of one forward")

    @Tried
    def steps(self) -> Capability:
        """A cache is returned, and one token can be fed on it; what reads ahead by design continues
        nothing.
        """
        step = ForwardSpec(self.inputs.tokens, chunks=(self.inputs.length - 1, 1))
        if not self.decodes:
            return self.decodes
        return self._runs(step, "a step on the cache")

    @Tried
    def steps_agree(self) -> Capability:
        """One token on a filled cache gives the logits of one forward; otherwise whatever builds
        on a cache differs as well.
        """
        if not self.steps:
            return self.steps
        length = self.inputs.length
        specs = {
            cut: ForwardSpec((self.inputs.row[: cut + 1],), chunks=(cut, 1))
            for cut in (length - 1, length - 3, length // 2)
        }
        if self._mixed and self._runs(self._mixed, "chunks and steps"):
            specs = {length - 1: specs[length - 1], length // 3: self._mixed}
        for cut, stepped in specs.items():
            if self._differ(stepped, self._full, cut, cut + 1, finitely_beyond):
                return Capability("a step on the model's own cache differs from one forward")
        return CAN

    @property
    def _mixed(self) -> ForwardSpec | None:
        """The main row in a prefill, a step and two chunks, which `decode-paths` asks as well; None
        where it is too short.
        """
        length = self.inputs.length
        chunks = (length // 3, 1, 2, length - length // 3 - 3)
        return ForwardSpec(self.inputs.tokens, chunks=chunks) if min(chunks) > 0 else None

    @Tried
    def library_cache(self) -> Capability:
        """The model returns a cache of the library's, so that it takes other kinds of those."""
        if not self.steps:
            return self.steps
        cache = self.filled_cache
        if isinstance(cache, Cache):
            return CAN
        return Capability(f"{self._kind} keeps a cache of its own kind ({type(cache).__name__})")

    @property
    def filled_cache(self) -> Any:
        """The model's own cache, filled with the main input once; only to be looked at.

        Raises:
            Unsupported: the model returns no cache.
        """
        spec = ForwardSpec(self.inputs.tokens, use_cache=True)
        return self.passes.once("filled cache", lambda: self.passes.cache(spec))

    @Tried
    def takes_positions(self) -> Capability:
        """`position_ids` is an argument, whether or not it changes anything."""
        counted = ForwardSpec(self.inputs.tokens, positions=counting(1, self.inputs.length))
        return self._runs(counted, "`position_ids`")

    @Tried
    def counts_positions(self) -> Capability:
        """A forward makes or reads numbers that grow along the row; without them, padding in front
        moves no position.
        """
        tokens = self.inputs.tokens
        ids_BT, model = self.passes.ids(tokens), self.forward_adapter.model
        if counts(model, ids_BT, lambda: self.passes.call(tokens, use_cache=False)):
            return CAN
        return Capability(f"nothing in {self._kind}.forward counts positions")

    @Tried
    def reads_positions(self) -> Capability:
        """Reversed positions change the logits, beside a mask that keeps them from being read as
        packed documents.
        """
        if not self.takes_positions:
            return self.takes_positions
        tokens = self.inputs.tokens
        mask = all_ones(tokens) if self.mask_2d else None
        (ascending,) = counting(1, self.inputs.length)
        usual, reversed_ = (
            ForwardSpec(tokens, positions=(row,), mask=mask, use_cache=None)
            for row in (ascending, ascending[::-1])
        )
        if self._differ(usual, reversed_):
            return CAN
        return Capability("`position_ids` are accepted but change nothing")

    @Tried
    def first_position(self) -> int:
        """What the model itself counts from: 0 nearly everywhere, pad + 1 in the family of RoBERTa;
        found by trying.
        """
        pad = getattr(self.forward_adapter.text_config, "pad_token_id", None)
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

    @Tried
    def packs(self) -> Capability:
        """Restarted positions are meant to isolate documents: the masks come from the library's
        builder, which recognises them.

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

    @Tried
    def is_smooth(self) -> Capability:
        """No operator of a forward selects by value: rounding moves the logits by little, whatever
        the tokens.
        """
        with torch.no_grad(), Selecting() as selecting:
            self.passes.call(self.inputs.tokens, use_cache=False)
        if not selecting.seen:
            return CAN
        return Capability(f"a forward selects by value ({', '.join(sorted(selecting.seen))})")

    @Tried
    def keeps_prefix(self) -> Capability:
        """The config documents nothing that makes a token's logits depend on the whole row, as
        hashing does. This is read, never measured: it is what other probes measure.
        """
        return Capability(whole_row(self.forward_adapter.text_config))
