"""The questions that an engine is compared with itself by, in families: each generator yields rows
that must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from attncheck.core.verdict import Verdict
from attncheck.engines.engine import EngineReply, EngineRequest, Ids
from attncheck.engines.pairs import Asker, Edit, RowPair

SHORT, LONG = 48, 96
PREFIXES = 24
"""Prefixes of a scored prompt that are asked one by one."""
STEPS, FEW_STEPS = 8, 3
MOST_STEPS = 96
NOT_HIT = "the engine took nothing from its cache here, so that this proves nothing"
NOT_AT_ONCE = "the engine did not compute them at once, so that this proves nothing"
NO_IDS = "the engine names tokens by text, so that what it generated cannot be asked again"
Family = Callable[[Asker], Iterator[RowPair]]


def repeats(asker: Asker) -> Iterator[RowPair]:
    """The same request twice."""
    ids = asker.ids(SHORT)
    first, again = (asker.engine.ask(EngineRequest(ids=ids)).rows for _ in range(2))
    yield RowPair(name="one request twice", got=again, want=first, places=(len(ids) - 1,))


def scoring(asker: Asker) -> Iterator[RowPair]:
    """The log-probabilities of a whole prompt, and those after each of its prefixes."""
    name = "a scored prompt against a fresh prefill of its prefixes"
    if not asker.engine.traits.scores:
        yield RowPair(name=name, reason="the engine gives no log-probabilities of a prompt")
        return
    ids = asker.ids(SHORT)
    reply = asker.engine.ask(EngineRequest(ids=ids, score=True))
    ends = range(len(ids), 0, -max(1, len(ids) // PREFIXES))
    chosen = [end for end in sorted(ends) if end <= len(reply.scored) and reply.scored[end - 1]]
    yield RowPair(
        name=name,
        got=tuple(reply.scored[end - 1] for end in chosen),
        want=tuple(asker.fresh(ids[:end]) for end in chosen),
        places=tuple(end - 1 for end in chosen),
        edits=tuple(tuple(_of_scoring(ids, end)) for end in chosen),
    )


def decoding(asker: Asker) -> Iterator[RowPair]:
    """Generated tokens, and a fresh prefill of all that stands before each of them."""
    ids = asker.ids(SHORT)
    for length in sorted({4, len(ids) // 2, len(ids)}):
        name = f"{STEPS} tokens generated after {length} against fresh prefills"
        if asker.engine.traits.texts:
            yield RowPair(name=name, reason=NO_IDS)
            continue
        reply = asker.engine.ask(EngineRequest(ids=ids[:length], steps=STEPS))
        yield _chained(asker, name, ids[:length], reply, _of_decoding)


def chunks(asker: Asker) -> Iterator[RowPair]:
    """A prompt fed in chunks on the cache, and fed at once."""
    ids = asker.ids(SHORT)
    if not asker.engine.traits.cuts:
        reason = "the engine cuts prompts by itself: compare two servers with other settings"
        yield RowPair(name="a prompt in chunks", reason=reason)
        return
    at_once = EngineRequest(ids=ids, score=True, chunks=(len(ids),))
    whole = asker.engine.ask(at_once).scored
    for size in (1, 7, len(ids) // 2):
        sizes = (*((size,) * (len(ids) // size)), len(ids) % size)
        request = EngineRequest(ids=ids, score=True, chunks=tuple(filter(None, sizes)))
        yield RowPair(
            name=f"a prompt in chunks of {size} against at once",
            got=asker.engine.ask(request).scored,
            want=whole,
            places=tuple(range(len(ids))),
            edits=tuple(tuple(_of_chunk(ids, at, size)) for at in range(len(ids))),
        )


def reuse(asker: Asker) -> Iterator[RowPair]:
    """What an engine takes from earlier requests, and a fresh prefill of the same tokens.

    The fresh ones are sent last: some engines keep them too.
    """
    if not asker.engine.traits.reuses:
        yield RowPair(name="warm prompt", reason="the engine takes nothing from earlier requests")
        return
    yield _warm(asker, "warm prompt", lambda ids: (ids,), lambda ids: ids)
    yield _warm(asker, "half warm prompt", lambda ids: (ids[: len(ids) // 2],), lambda ids: ids)
    tail = asker.ids(LONG)

    def branched(ids: Ids) -> Ids:
        return (*ids[: len(ids) // 2], *tail[len(ids) // 2 : len(ids)])

    yield _warm(asker, "branch of an earlier prompt", lambda ids: (ids,), branched)
    yield _warm(asker, "prompt after its branch", lambda ids: (ids, branched(ids)), lambda ids: ids)
    yield _warm(
        asker,
        "prompt whose middle was removed",
        lambda ids: (ids,),
        lambda ids: (*ids[: len(ids) // 4], *ids[len(ids) // 2 :]),
    )


def neighbours(asker: Asker) -> Iterator[RowPair]:
    """Requests that are computed beside others, and alone."""
    count = min(4, asker.engine.traits.together)
    if count < 2:
        yield RowPair(name="among neighbours", reason="the engine computes one request at a time")
        return
    rows = [asker.ids(SHORT) for _ in range(count)]
    half = len(rows[0]) // 2
    shared = [(*rows[0][:half], *row[half:]) for row in rows]
    yield from _beside(asker, "among neighbours", rows, reuses=False)
    kept = asker.engine.traits.reuses
    yield from _beside(asker, "among neighbours with the same prefix", shared, reuses=kept)


FAMILIES: dict[str, Family] = {
    "engine-repeat": repeats,
    "engine-scoring": scoring,
    "engine-decode": decoding,
    "engine-chunks": chunks,
    "engine-cache": reuse,
    "engine-batch": neighbours,
}
"""The families by the name that a report gives them."""


def _chained(
    asker: Asker,
    name: str,
    ids: Ids,
    reply: EngineReply,
    edits: Callable[[Ids, int], Iterator[Edit]],
    note: str = "",
    broken: Verdict = Verdict.FAIL,
) -> RowPair:
    """Rows of generated tokens against fresh prefills."""
    made = () if asker.engine.traits.texts else reply.generated
    want = asker.chain(ids, made)
    got = reply.rows[: len(want)]
    return RowPair(
        name=name,
        got=got,
        want=want,
        places=tuple(range(len(ids) - 1, len(ids) - 1 + len(got))),
        note=note,
        broken=broken,
        edits=tuple(tuple(edits((*ids, *made[:at]), at)) for at in range(len(got))),
    )


def _warm(
    asker: Asker, name: str, before: Callable[[Ids], tuple[Ids, ...]], after: Callable[[Ids], Ids]
) -> RowPair:
    """A prompt after others that left something in the cache."""
    ids, engine = asker.ids(LONG), asker.engine
    for each in before(ids):
        engine.ask(EngineRequest(ids=each, reuse=True))
    prompt, last = after(ids), before(ids)[-1]
    reply = engine.ask(EngineRequest(ids=prompt, steps=FEW_STEPS, reuse=True))
    if reply.cached == 0:
        return RowPair(name=name, reason=NOT_HIT)
    if reply.cached is None:
        note = "the engine does not say what it took from its cache"
    else:
        note = f"{reply.cached} of {len(prompt)} tokens from the cache"
    shared = max(_shared(prompt, each) for each in before(ids))
    moved = (reply.cached or 0) > shared
    note += f", {shared} of them in the same place" if moved else ""
    held = shared if reply.cached is None else reply.cached

    def edits(seen: Ids, at: int) -> Iterator[Edit]:
        yield from _of_reuse(seen, min(held, len(seen) - 1), last)

    broken = Verdict.WARN if moved else Verdict.FAIL
    return _chained(asker, name, prompt, reply, edits, note, broken)


def _shared(one: Ids, other: Ids) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _beside(asker: Asker, name: str, rows: Sequence[Ids], reuses: bool) -> Iterator[RowPair]:
    """Each of some requests beside the others, against the same one alone."""
    steps = STEPS
    requests = [EngineRequest(ids=ids, steps=steps, reuse=reuses) for ids in rows]
    together = asker.engine.ask_together(requests)
    while (together.at_once or 2) < 2 and steps < MOST_STEPS:
        steps *= 3
        requests = [EngineRequest(ids=ids, steps=steps, reuse=reuses) for ids in rows]
        together = asker.engine.ask_together(requests)
    if (together.at_once or 2) < 2:
        yield RowPair(name=name, reason=NOT_AT_ONCE)
        return
    told = f"{together.at_once} at once" if together.at_once else "not known how many at once"
    alone = [asker.engine.ask(EngineRequest(ids=ids, steps=STEPS)) for ids in rows]
    for number, (got, want) in enumerate(zip(together.replies, alone, strict=True)):
        same = 1 + _shared(got.generated, want.generated)
        others = [each for each in rows if each != rows[number]]
        yield RowPair(
            name=f"request {number + 1} of {len(rows)} {name}",
            got=got.rows[: min(same, STEPS)],
            want=want.rows[: min(same, STEPS)],
            places=tuple(range(len(rows[number]) - 1, len(rows[number]) + STEPS)),
            note=told,
            edits=(tuple(("rows-mixed", f"the row of {_named(each)}", each) for each in others),),
        )


def _named(ids: Ids) -> str:
    return f"the neighbour that ends with token {ids[-1]}"


def _of_scoring(ids: Ids, end: int) -> Iterator[Edit]:
    if end < len(ids):
        yield "label-shift", "each row stands one token too early", ids[: end + 1]
    if end > 2:
        yield "label-shift", "each row stands one token too late", ids[: end - 1]
        yield "cache-drops-token", "the first token is missing", ids[1:end]


def _of_decoding(seen: Ids, at: int) -> Iterator[Edit]:
    if at < 1 or len(seen) < 4:
        return
    yield "cache-drops-token", "the newest token is missing", seen[:-1]
    yield "cache-drops-token", "the token before the newest is missing", (*seen[:-2], seen[-1])
    prompt = len(seen) - at
    yield "cache-drops-token", "the last token of the prompt is missing", _without(seen, prompt - 1)
    yield "cache-stale", "the prompt is missing", seen[prompt:]
    yield "cache-wrong-slot", "the newest token is read twice", (*seen, seen[-1])


def _of_chunk(ids: Ids, at: int, size: int) -> Iterator[Edit]:
    start, seen = at - at % size, ids[: at + 1]
    if start < 2:
        return
    yield "cache-stale", "the chunks before are missing", seen[start:]
    yield (
        "cache-drops-token",
        "the last token before the chunk is missing",
        _without(seen, start - 1),
    )
    yield "cache-drops-token", "the first token is missing", seen[1:]


def _of_reuse(seen: Ids, held: int, last: Ids) -> Iterator[Edit]:
    if not 1 < held < len(seen):
        return
    yield "cache-drops-token", "the last cached token is missing", _without(seen, held - 1)
    yield "cache-drops-token", "the first token is missing", seen[1:]
    yield "cache-stale", "the cached tokens are missing", seen[held:]
    yield (
        "cache-wrong-slot",
        "the last cached token is read twice",
        (*seen[:held], *seen[held - 1 :]),
    )
    if last[:held] != seen[:held]:
        yield "cache-stale", "the prompt before is read", (*last[:held], *seen[held:])


def _without(ids: Ids, place: int) -> Ids:
    return (*ids[:place], *ids[place + 1 :])
