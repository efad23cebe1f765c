"""How far back every layer reads.

What it checks
    Each attention layer reads exactly the keys that the config promises for it: the whole past, a sliding window, or its own
    chunk. No key more on the old side, none less, none from the future; in one forward and on a filled cache.

Why it matters
    A window that is off by one, ignored, or given to the wrong layers changes nothing until the input is longer than the
    window, and little after that. Implementations disagree in silence, and serving engines copy the wrong one.

How it measures
    The layer's own kernel is called again with blank queries and the identity as values: what comes out is each query's share
    of each key, and a share above zero means that it is read. Where the kernel is out of reach, the gradient of the attention
    module's output at a few queries with respect to its input says the same. Every (query, key) pair is compared with the
    promise of `layer_types`, `sliding_window`, `attention_chunk_size` and the per-layer patterns.

False alarms
    Layers that choose keys by content (sparse indexers, hashing) or by head promise no fixed reach and are skipped, as are
    layers that declare themselves not causal. A window longer than the input cannot be seen: pass a longer `--length`.

References
    Beltagy et al. 2020 (Longformer), Jiang et al. 2023 (Mistral 7B). Hugging Face transformers issues 26792, 28980, 33586,
    35924 (windows off by one, ignored by one implementation, given to the wrong layers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from attncheck.errors import Unsupported
from attncheck.finding import Evidence, Measurement, Ruling, skipped
from attncheck.probe import Cost, judge_cases
from attncheck.subject.passes import Pass, all_ones
from attncheck.subject.promises import FULL, Reach, ReachPromise, promised_reach
from attncheck.subject.reach import Seen, seen_at_kernel, seen_in_gradient
from attncheck.subject.subject import Subject

# Axes: T query positions, S key positions.

Ask = Callable[[Subject, Pass], list[Seen]]


@final
@dataclass(frozen=True, kw_only=True)
class Window:
    """Compares what each layer reads with what its config promises."""

    name: ClassVar[str] = "window"
    title: ClassVar[str] = "every layer reads exactly as far back as promised"
    cost: ClassVar[Cost] = "cheap"
    needs: ClassVar[tuple[str, ...]] = ("sees_history",)
    controls: ClassVar[tuple[str, ...]] = (
        "window-off-by-one",
        "window-ignored",
        "window-layers-swapped",
        "mask-off-by-one",
        "causal-mask-missing",
    )

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One forward without and with a 2D mask, then a prefill, a chunk and two steps on a cache."""
        tokens, length = subject.inputs.tokens, subject.inputs.length
        ask: Ask = seen_in_gradient if subject.can.kernel else seen_at_kernel
        yield from self._cases(subject, "one forward", Pass(tokens), ask, None)
        yield from self._cases(subject, "one forward, 2D mask", Pass(tokens, mask=all_ones(tokens)), ask, subject.can.mask_2d)
        half = length // 2
        schedule = tuple(size for size in (half, length - half - 2, 1, 1) if size)
        lacking = subject.can.kernel or subject.can.cache
        yield from self._cases(subject, "on a cache", Pass(tokens, chunks=schedule), ask, lacking)

    def judge(self, evidence: Evidence) -> Ruling:
        """The worst case decides."""
        return judge_cases(evidence)

    def _cases(self, subject: Subject, way: str, asked: Pass, ask: Ask, lacking: str | None) -> Iterator[Measurement]:
        try:
            if lacking:
                raise Unsupported(lacking)
            groups = _by_promise(subject, ask(subject, asked))
        except Unsupported as reason:
            yield skipped(way, str(reason))
            return
        for promise, seen in groups.items():
            yield _case(subject, f"{_named(promise)}, {way}", promise, seen, lambda: ask(subject, _changed(subject, asked)))


def _changed(subject: Subject, asked: Pass) -> Pass:
    return Pass((subject.inputs.other(subject.inputs.row),), chunks=asked.chunks, mask=asked.mask)


def _by_promise(subject: Subject, seen: list[Seen]) -> dict[ReachPromise, list[Seen]]:
    groups: dict[ReachPromise, list[Seen]] = {}
    for each in seen:
        groups.setdefault(promised_reach(subject.text_config, each.module, each.index), []).append(each)
    if not groups:
        raise Unsupported("no attention layer over the model's own tokens was seen")
    return groups


def _named(promise: ReachPromise) -> str:
    return " or ".join(map(str, promise.reaches)) or promise.reason


def _case(
    subject: Subject, name: str, promise: ReachPromise, seen: list[Seen], again: Callable[[], list[Seen]]
) -> Measurement:
    if not promise.reaches:
        return skipped(name, promise.reason)
    worst = max(seen, key=lambda each: _least_wrong(each, promise))
    wrong = _least_wrong(worst, promise)
    sliding = [reach for reach in promise.reaches if reach.kind != "full" and reach.size < subject.inputs.length]
    if not wrong and len(promise.reaches) > 1 and sliding and all(_wrong(each, FULL) == 0 for each in seen):
        wrong = sum(_wrong(each, sliding[0]) for each in seen)
    if wrong and (reason := _no_promise(worst, again)):
        return skipped(name, reason)
    return Measurement(
        name=name,
        expect="at-most",
        value=float(wrong),
        limit=0.0,
        unit="(query, key) pairs are not as promised",
        positions=sum(len(each.positions) for each in seen),
        note=_explained(worst, promise, wrong),
        module=worst.name if wrong else "",
        fault=_fault(worst, promise) if wrong else "",
    )


def _no_promise(seen: Seen, again: Callable[[], list[Seen]]) -> str:
    """Why a layer that reads something else is no fault: by head, by content, or because it says that it is not causal."""
    if not seen.alike:
        return f"{seen.name}: its heads read different keys"
    if getattr(seen.module, "is_causal", True) is False and _ahead(seen):
        return f"{seen.name} declares that it is not causal"
    twin = [each for each in again() if (each.name, each.stop) == (seen.name, seen.stop)]
    if any(each.reads_TS.shape != seen.reads_TS.shape or bool((each.reads_TS != seen.reads_TS).any()) for each in twin):
        return f"{seen.name} chooses its keys by content"
    return ""


def _wrong(seen: Seen, reach: Reach) -> int:
    """Pairs read that should not be, and the other way round; keys that a cache has cut off count as not read."""
    allowed = reach.allowed_TS(seen.stop, seen.stop, seen.reads_TS.device)[list(seen.positions)]
    width = seen.reads_TS.shape[1]
    cut = allowed[:, : seen.stop - width]
    return int((allowed[:, seen.stop - width :] != seen.reads_TS).sum() + cut.sum())


def _least_wrong(seen: Seen, promise: ReachPromise) -> int:
    return min(_wrong(seen, reach) for reach in promise.reaches)


def _ahead(seen: Seen) -> bool:
    own = FULL.allowed_TS(seen.stop, seen.stop, seen.reads_TS.device)[list(seen.positions)]
    return bool((seen.reads_TS & ~own[:, seen.stop - seen.reads_TS.shape[1] :]).any())


def _explained(seen: Seen, promise: ReachPromise, wrong: int) -> str:
    last, keys = seen.positions[-1], int(seen.reads_TS[-1].sum())
    if not wrong:
        hidden = max((reach.size for reach in promise.reaches), default=0) >= seen.stop
        return f"seen at the {seen.how}" + ("; the input is not longer than the window" if hidden else "")
    ahead = ", some of them ahead of it" if _ahead(seen) else ""
    return f"{seen.name}: the query at position {last} reads {keys} keys{ahead}; promised: {_named(promise)}"


def _fault(seen: Seen, promise: ReachPromise) -> str:
    """The catalogue's name for what was seen, where one fits exactly."""
    if _ahead(seen):
        return ""
    if promise.reaches != (FULL,) and _wrong(seen, FULL) == 0:
        return "window-ignored"
    near = (Reach(reach.kind, reach.size + step) for reach in promise.reaches for step in (-1, 1) if reach.size > 1)
    return "window-off-by-one" if any(_wrong(seen, reach) == 0 for reach in near) else ""
