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
    in another order. The first 32, 33, 64 and 128 tokens of a row of 130 also run alone, since
    kernels have block sizes that no config names.

False alarms
    Bidirectional and prefix models (XLNet, CPM-Ant, Reformer's hashing) read ahead by design.
    Mixture models whose experts have a capacity drop tokens depending on later ones.

References
    Vaswani et al. 2017, section 3.2.3. Hugging Face transformers issue 48748 (Doge: sdpa ran
    without any mask).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

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

ALL, NEXT, LAST = "all later tokens", "only the next token", "only the last token"
CHANGES = (ALL, NEXT, LAST)


@dataclass(frozen=True, kw_only=True)
class FutureToken(Probe):
    """Replaces later tokens and expects earlier logits to stay."""

    name = "future-token"
    title = "later tokens do not move earlier logits"
    needs = ("decodes", "sees_history")
    controls = ("causal-mask-missing", "mask-off-by-one", "leak-outside-attention")

    cuts: tuple[int, ...] = ()

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Three changes of the future, each with four ways of calling."""
        for masked, use_cache, change in product((False, True), (False, True), CHANGES):
            mask, cache = "2D mask" if masked else "no mask", "on" if use_cache else "off"
            name = f"{change}, {mask}, cache {cache}"
            yield attempt(name, self._case, subject, name, change, masked, use_cache)
        name = "prefixes of a long row"
        yield attempt(name, _prefixes, subject, name)

    def _case(
        self, subject: Subject, name: str, change: str, masked: bool, use_cache: bool
    ) -> Measurement:
        if masked:
            subject.can.mask_2d.require()
        tokens, compared = subject.inputs.tokens, []
        usual = ForwardSpec(tokens, mask=all_ones(tokens) if masked else None, use_cache=use_cache)
        for cut, row in self._futures(subject, change):
            changed, note = replace(usual, tokens=(row,)), f"tokens from position {cut} on changed"
            compared.append(
                subject.compare_forwards(name, changed, usual, at=slice(0, cut), note=note)
            )
        return merged(name, compared)

    def _futures(self, subject: Subject, change: str) -> list[tuple[int, tuple[int, ...]]]:
        """(cut, changed row): logits before the cut must stay."""
        inputs, row = subject.inputs, subject.inputs.row
        if change == LAST:
            return [(inputs.length - 1, inputs.other(row, inputs.length - 1))]
        cuts = self.cuts or inputs.cuts
        span = 1 if change == NEXT else inputs.length
        return [(cut, inputs.other(row, cut, cut + span, salt=cut)) for cut in cuts]


def _prefixes(subject: Subject, name: str) -> Measurement:
    subject.can.keeps_prefix.require()
    return merged(name, ends_compared(subject, name))
