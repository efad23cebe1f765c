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
    cut on both sides of every window, chunk and rotary switch that the config names. With a 2D mask
    of ones, with the cache on, in chunks on a cache and on a static cache, two rows without a token
    in common must give what they gave without, once in every sequence of a larger batch. Where they
    do not, the batch runs in this way and all later ones too, its rows in another order. A row that
    moves is run alone; where it then stays, the batch runs again with this one row restored, so
    that no neighbour is taken for the future. Healthy models move by exactly nothing, or by
    rounding where a kernel sums in another order. Every prefix of the row runs alone as well, and
    the first 32, 33, 64 and 128 tokens of a row of 130, since kernels have block sizes that no
    config names.

False alarms
    Bidirectional and prefix models read ahead by design: only where the config or the class
    documents it (XLNet's `attn_type`, CPM-Ant's prompts, Reformer's hashing, masked language
    models). Any other model is judged as a decoder.

References
    Vaswani et al. 2017, section 3.2.3. Hugging Face transformers issue 48748 (Doge: sdpa ran
    without any mask).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from attncheck.probing import (
    Comparison,
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    Verdict,
    all_ones,
    attempt,
    chosen,
    ends_compared,
    media_cases,
    merged,
    not_measured,
    prefixes_compared,
    token_sweep,
    verdict_of,
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
        proven: ForwardSpec | None = None
        for turn, (how, usual, kinds) in enumerate(_ways(subject)):
            if not chosen(how):
                continue
            same: Comparison | None = None
            if proven is not None and (usual.mask is None or subject.can.mask_2d):
                pairs = token_sweep.PAIRS if turn == 1 else 1
                with contextlib.suppress(Unsupported):  # the cases say so
                    same = token_sweep.as_proven(subject, how, usual, proven, pairs)
                    proven = proven if same else None
            cases = list[Measurement]()
            for case in self._cases(subject, how, usual, turn, kinds, same):
                cases.append(case)
                yield case
            if turn == 0 and all(verdict_of(each) is Verdict.PASS for each in cases):
                proven = usual
        yield from media_cases.future(subject)
        for name, prefixes in PREFIXES.items():
            yield attempt(name, _prefixes, subject, name, prefixes)

    def _cases(
        self,
        subject: Subject,
        how: str,
        usual: ForwardSpec,
        turn: int,
        kinds: tuple[str, ...],
        same: Comparison | None,
    ) -> Iterator[Measurement]:
        """A case for each kind of change: what the way has in common with a proven one, or else
        every change is made. A control stops at the first.
        """
        if same is not None:
            yield from (replace(same, name=f"{kind}, {how}") for kind in kinds)
            return
        for together in [(kind,) for kind in kinds] if subject.passes.injected else [kinds]:
            changes = {f"{kind}, {how}": self._futures(subject, kind) for kind in together}
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


def _ways(subject: Subject) -> Iterator[tuple[str, ForwardSpec, tuple[str, ...]]]:
    """In words, how the row is called, and which changes are made of it."""
    tokens, half = subject.inputs.tokens, subject.inputs.length // 2
    for masked, use_cache in product((False, True), (False, True)):
        how = f"{'2D mask' if masked else 'no mask'}, cache {'on' if use_cache else 'off'}"
        mask = all_ones(tokens) if masked else None
        yield how, ForwardSpec(tokens, mask=mask, use_cache=use_cache), CHANGES
    chunks = (half, subject.inputs.length - half)
    yield "chunks on a cache", ForwardSpec(tokens, chunks=chunks), (NEXT,)
    yield "static cache", ForwardSpec(tokens, cache_kind="static"), (NEXT,)


def _prefixes(subject: Subject, name: str, compared: Prefixes) -> Measurement:
    return merged(name, compared(subject, name))
