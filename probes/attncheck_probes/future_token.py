"""Change the future, watch the past.

What it checks
    The logits before a cut do not move when tokens from the cut on are replaced: all of them, only
    the first of them, or only the last token of the row. Nor do they depend on how many tokens
    follow.

Why it matters
    A decoder that can read ahead has a wonderful training loss and writes nonsense. The mask has
    the right shape in every such bug; only its content is wrong. A leak can sit in one
    implementation, one mask form or one side of a window.

How it measures
    Two full forwards with one prefix. Cuts lie on both sides of every window, chunk and rotary
    switch that the config names. Every cut is tried without a mask and with a 2D mask of ones, with
    the cache off and on. Healthy models move by exactly nothing, or by rounding where a kernel sums
    in another order. The first 32, 33, 64 and 128 tokens of a row of 130 are also asked alone,
    since kernels have block sizes that no config names.

False alarms
    Bidirectional and prefix models (XLNet, CPM-Ant, Reformer's hashing) read ahead by design.
    Mixture models whose experts have a capacity drop tokens depending on later ones.

References
    Vaswani et al. 2017, section 3.2.3. Hugging Face transformers issue 48748 (Doge: sdpa ran
    without any mask).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from attncheck.probing import (
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    all_ones,
    attempt,
    ends_compared,
    merged,
)

# Axes: B batch, T positions, V vocabulary.


@final
@dataclass(frozen=True, kw_only=True)
class FutureToken(Probe):
    """Replaces later tokens and expects earlier logits to stay."""

    name: ClassVar[str] = "future-token"
    title: ClassVar[str] = "later tokens do not move earlier logits"
    needs: ClassVar[tuple[str, ...]] = (
        "decodes",
        "sees_history",
    )
    controls: ClassVar[tuple[str, ...]] = (
        "causal-mask-missing",
        "mask-off-by-one",
        "leak-outside-attention",
    )

    cuts: tuple[int, ...] = ()

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Three ways of changing the future, in four ways of calling."""
        for masked in (False, True):
            for use_cache in (False, True):
                for change in ("all later tokens", "only the next token", "only the last token"):
                    name = f"{change}, {'2D mask' if masked else 'no mask'}, cache {'on' if use_cache else 'off'}"
                    yield attempt(name, self._case, subject, name, change, masked, use_cache)
        yield attempt("prefixes of a long row", self._prefixes, subject)

    def _case(
        self, subject: Subject, name: str, change: str, masked: bool, use_cache: bool
    ) -> Measurement:
        if masked:
            subject.can.mask_2d.require()
        tokens = subject.inputs.tokens
        mask = all_ones(tokens) if masked else None
        usual = ForwardSpec(tokens, mask=mask, use_cache=use_cache)
        usual_BTV = subject.logits(usual)
        compared = []
        for cut, row in self._futures(subject, change):
            moved = ForwardSpec((row,), mask=mask, use_cache=use_cache)
            moved_BTV, note = subject.logits(moved), f"tokens from position {cut} on changed"
            compared.append(
                subject.compare(
                    name, moved_BTV[:, :cut], usual_BTV[:, :cut], note=note, spec=(moved, usual)
                )
            )
        return merged(name, compared)

    def _prefixes(self, subject: Subject) -> Measurement:
        subject.can.keeps_prefix.require()
        return merged("prefixes of a long row", ends_compared(subject, "prefixes of a long row"))

    def _futures(self, subject: Subject, change: str) -> list[tuple[int, tuple[int, ...]]]:
        """(cut, changed row): logits before the cut must stay."""
        inputs, row = subject.inputs, subject.inputs.row
        if change == "only the last token":
            return [(inputs.length - 1, inputs.other(row, inputs.length - 1))]
        cuts = self.cuts or inputs.cuts
        span = 1 if change == "only the next token" else inputs.length
        return [(cut, inputs.other(row, cut, cut + span, salt=cut)) for cut in cuts]
