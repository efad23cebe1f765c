"""Change the future, watch the past.

What it checks
    The logits before a position do not move when the token at that position is replaced, whichever
    position it is; nor when all tokens from a cut on are replaced. Nor do they depend on how many
    tokens follow.

Why it matters
    A decoder that can read ahead has a wonderful training loss and writes nonsense. The mask has
    the right shape in every such bug; only its content is wrong. A leak can sit in one
    implementation, one mask form, one side of a window, or in front of a single position.

How it measures
    One batch holds the row as it is and, for every position, the row with another token there; in
    front of that position the two must agree. It also holds rows whose whole future is replaced,
    cut on both sides of every window, chunk and rotary switch that the config names. The batch runs
    without a mask and with a 2D mask of ones, with the cache off and on, in chunks on a cache and
    on a static cache, its rows each time in another order. A row that moves is run alone; where it
    then stays, the batch runs again with this one row restored, so that no neighbour is taken for
    the future. Healthy models move by exactly nothing, or by rounding where a kernel sums in
    another order. Every prefix of the row runs alone as well, and the first 32, 33, 64 and 128
    tokens of a row of 130, since kernels have block sizes that no config names.

False alarms
    Bidirectional and prefix models read ahead by design: only where the config or the class
    documents it (XLNet's `attn_type`, CPM-Ant's prompts, Reformer's hashing, masked language
    models). Any other model is judged as a decoder.

References
    Vaswani et al. 2017, section 3.2.3. Hugging Face transformers issue 48748 (Doge: sdpa ran
    without any mask).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from attncheck.probing import (
    Comparison,
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    all_ones,
    attempt,
    chosen,
    ends_compared,
    media_cases,
    merged,
    not_measured,
    prefixes_compared,
    token_sweep,
)

ALL, NEXT, LAST = "all later tokens", "only the next token", "only the last token"
CHANGES = (ALL, NEXT, LAST)
TAIL, TOKEN = "tokens from position {} on changed", "the token at position {} changed"

Prefixes = Callable[[Subject, str], list[Comparison]]
PREFIXES: dict[str, Prefixes] = {
    "every prefix alone": prefixes_compared,
    "prefixes of a long row": ends_compared,
}


@dataclass(frozen=True, kw_only=True)
class FutureToken(Probe):
    """Replaces later tokens and expects earlier logits to stay."""

    name = "future-token"
    title = "later tokens do not move earlier logits"
    needs = ("decodes", "sees_history")
    controls = ("causal-mask-missing", "mask-off-by-one", "leak-outside-attention")

    cuts: tuple[int, ...] = ()

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Three changes of the future, each with four ways of calling; every token on a cache."""
        tokens = subject.inputs.tokens
        for turn, (masked, use_cache) in enumerate(product((False, True), (False, True))):
            how = f"{'2D mask' if masked else 'no mask'}, cache {'on' if use_cache else 'off'}"
            mask = all_ones(tokens) if masked else None
            usual = ForwardSpec(tokens, mask=mask, use_cache=use_cache)
            yield from self._cases(subject, how, usual, turn, CHANGES)
        half = subject.inputs.length // 2
        chunks = ForwardSpec(tokens, chunks=(half, subject.inputs.length - half))
        yield from self._cases(subject, "chunks on a cache", chunks, 1, (NEXT,))
        static = ForwardSpec(tokens, cache_kind="static")
        yield from self._cases(subject, "static cache", static, 2, (NEXT,))
        yield from media_cases.future(subject)
        for name, prefixes in PREFIXES.items():
            yield attempt(name, _prefixes, subject, name, prefixes)

    def _cases(
        self, subject: Subject, how: str, usual: ForwardSpec, turn: int, kinds: tuple[str, ...]
    ) -> Iterator[Measurement]:
        if not chosen(how):
            return
        changes = {f"{kind}, {how}": self._futures(subject, kind) for kind in kinds}
        try:
            if usual.mask is not None:
                subject.can.mask_2d.require()
            yield from token_sweep.compare_changes(subject, usual, changes, turn).values()
        except Unsupported as reason:
            for name in changes:
                yield not_measured(name, reason)

    def _futures(self, subject: Subject, kind: str) -> list[token_sweep.TokenChange]:
        """The changed rows, each with the cut in front of which the logits must stay."""
        inputs, row, last = subject.inputs, subject.inputs.row, subject.inputs.length - 1
        wanted = {ALL: inputs.cuts, NEXT: range(1, last + 1), LAST: ()}[kind]
        cuts = (self.cuts or wanted) if wanted else (last,)
        span, note = (inputs.length, TAIL) if kind == ALL else (1, TOKEN)
        rows = {cut: inputs.other(row, cut, cut + span, salt=cut) for cut in cuts}
        return [token_sweep.TokenChange(cut, new, note.format(cut)) for cut, new in rows.items()]


def _prefixes(subject: Subject, name: str, compared: Prefixes) -> Measurement:
    return merged(name, compared(subject, name))
