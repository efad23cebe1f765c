"""Predictions for faults of what is kept between calls: edits of our own key/value store between
two chunks.

Axes: B batch, G key/value heads, S stored positions, D head width, R rotary pairs, T positions, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.faults.engine.hypothesis import Hypothesis
from attncheck.faults.engine.schedule import Edit, Held, Store, scheduled_logits
from attncheck.faults.engine.trusted import Change, Trusted, View
from attncheck.model.caches import key_values, states
from attncheck.model.compat import cached_length
from attncheck.model.forward_spec import ForwardSpec, counting
from attncheck.numerics.divergence import beyond

LOW = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float32)
USUAL_BASE = 10000.0


def hypotheses(trusted: Trusted, spec: ForwardSpec) -> Iterator[Hypothesis]:
    """Lost, stale and misplaced slots, other layers' and other rows' keys, lost precision, lost
    states.
    """
    if len(spec.chunks) < 2:
        return
    lost = Hypothesis(
        fault="cache-drops-token",
        parameter="hidden",
        change=lambda each: Change(allowed=_without_ends),
    )
    if trusted.out_of_reach is None and not trusted.keeps_states:
        yield from _edits(trusted, spec)
    yield lost
    if 1 in spec.chunks[1:]:
        yield Hypothesis(fault="generate-repeats-token", predict=_repeated)
    if not trusted.keeps_states:
        return
    yield Hypothesis(fault="state-dropped", predict=_chunks_alone)
    for several in (False, True):
        for words in ("", "conv", "not conv"):
            said = ", ".join(
                filter(
                    None,
                    (words and f"{words} states", "in chunks of several tokens" if several else ""),
                )
            )
            yield Hypothesis(
                fault="state-dropped",
                parameter=said,
                predict=partial(_steps, partial(_forget, words), several),
            )
    if len(spec.tokens) > 1:
        yield Hypothesis(fault="cache-reorder", parameter="states too", predict=_on_the_row_before)


def _without_ends(allowed: Tensor, view: View) -> Tensor:
    """The newest key of every earlier call is hidden."""
    ends = torch.tensor(view.spec.chunks, device=allowed.device).cumsum(0) - 1
    lost = ends[ends < view.start]
    allowed = allowed.clone()
    allowed[..., lost] = False
    return allowed


def _edits(trusted: Trusted, spec: ForwardSpec) -> Iterator[Hypothesis]:
    yield _edited("cache-drops-token", "zeroed", partial(_each, _zeroed_newest))
    yield _edited("cache-stale", "", partial(_each, _stale_newest))
    yield _edited("cache-wrong-slot", "values beside their keys", partial(_each, _rolled_values))
    yield _edited("cache-wrong-slot", "keys beside their values", partial(_each, _rolled_keys))
    yield _edited("cache-layer-mixup", "two first layers", lambda: _swapped)
    yield _edited("cache-layer-mixup", "each reads the next", lambda: _next_layer)
    if len(spec.tokens) > 1:
        yield _edited("cache-reorder", "", partial(_each, _rolled_rows))
    for speed, said in _speeds(trusted):
        yield _edited("key-rotated-twice", said, partial(_each, partial(_turned, speed)))
        once = ", ".join(filter(None, (said, "once")))
        yield _edited("key-rotated-twice", once, partial(_once, partial(_turned, speed)))
    for low in LOW:
        if low.itemsize < trusted.subject.dtype.itemsize:
            name = str(low).removeprefix("torch.")
            yield _edited("cache-low-precision", name, partial(_each, partial(_rounded, low)))
            yield Hypothesis(
                fault="cache-low-precision",
                parameter=f"{name}, before they are first read",
                change=lambda each, low=low: Change(stored_as=low),  # type: ignore[misc]
            )


def _edited(fault: str, parameter: str, edit: Callable[[], Edit]) -> Hypothesis:
    """A new edit for each prediction, since some of them remember what they have seen."""

    def predict(trusted: Trusted, spec: ForwardSpec) -> Tensor:
        return scheduled_logits(trusted, spec, edit())

    return Hypothesis(fault=fault, parameter=parameter, predict=predict)


def _each(change: Callable[[Held], None]) -> Edit:
    def edit(store: Store) -> None:
        for held in store.values():
            change(held)

    return edit


def _once(change: Callable[[Held], None]) -> Edit:
    """Only slots that no earlier call has changed: what is read, and not what is stored, is wrong."""
    clean: dict[int, Tensor] = {}

    def edit(store: Store) -> None:
        for layer, held in store.items():
            before = clean.get(layer)
            known = before.shape[2] if before is not None else 0
            fresh = held.key_BGSD[:, :, known:]
            clean[layer] = fresh if before is None else torch.cat([before, fresh], 2)
            held.key_BGSD = clean[layer].clone()
            change(held)

    return edit


def _zeroed_newest(held: Held) -> None:
    held.key_BGSD[:, :, -1] = 0
    held.value_BGSD[:, :, -1] = 0


def _stale_newest(held: Held) -> None:
    before = -min(2, held.key_BGSD.shape[2] - held.first)
    for tensor in (held.key_BGSD, held.value_BGSD):
        tensor[:, :, -1] = tensor[:, :, before]


def _rolled_values(held: Held) -> None:
    held.value_BGSD[:, :, held.first :] = held.value_BGSD[:, :, held.first :].roll(1, 2)


def _rolled_keys(held: Held) -> None:
    held.key_BGSD[:, :, held.first :] = held.key_BGSD[:, :, held.first :].roll(1, 2)


def _rolled_rows(held: Held) -> None:
    held.key_BGSD, held.value_BGSD = held.key_BGSD.roll(1, 0), held.value_BGSD.roll(1, 0)


def _rounded(low: torch.dtype, held: Held) -> None:
    held.key_BGSD = held.key_BGSD.to(low).to(held.key_BGSD.dtype)
    held.value_BGSD = held.value_BGSD.to(low).to(held.value_BGSD.dtype)


def _swapped(store: Store) -> None:
    """The first two layers whose stored tensors have one shape change places."""
    seen: dict[tuple[int, ...], int] = {}
    for layer, held in sorted(store.items()):
        shape = (held.first, *held.key_BGSD.shape)
        if shape in seen:
            _exchange(store, seen[shape], layer)
            return
        seen[shape] = layer
    raise Unsupported("no two layers store tensors of one shape")


def _exchange(store: Store, left: int, right: int) -> None:
    one, other = store[left], store[right]
    one.key_BGSD, other.key_BGSD = other.key_BGSD, one.key_BGSD
    one.value_BGSD, other.value_BGSD = other.value_BGSD, one.value_BGSD


def _next_layer(store: Store) -> None:
    layers = sorted(store)
    if len({store[layer].key_BGSD.shape for layer in layers}) > 1:
        raise Unsupported("the layers store tensors of several shapes")
    kept = [(store[layer].key_BGSD, store[layer].value_BGSD) for layer in layers]
    for number, layer in enumerate(layers):
        store[layer].key_BGSD, store[layer].value_BGSD = kept[(number + 1) % len(kept)]


def _speeds(trusted: Trusted) -> list[tuple[Tensor, str]]:
    """speed_R of the model's own rotary table, and of the usual one."""
    tables = [
        b
        for name, b in trusted.subject.model.named_buffers()
        if name.endswith("inv_freq") and b.ndim == 1
    ]
    width = trusted.subject.facts.head_dim or 0
    with trusted.subject.numerics():
        usual_R = (
            USUAL_BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
            if width % 2 == 0 < width
            else None
        )
    found = [(tables[0], "")] if tables else []
    return (
        found
        if usual_R is None
        else [*found, (usual_R.to(trusted.subject.device), "with the usual base")]
    )


def _turned(speed_R: Tensor, held: Held) -> None:
    """Keys turned once more by their slot, halves paired; what is beyond the rotary width stays."""
    key_BGSD = held.key_BGSD[:, :, held.first :]
    pairs = speed_R.shape[0]
    if 2 * pairs > key_BGSD.shape[-1]:
        raise Unsupported("the rotary table is wider than the keys")
    angle_SR = torch.arange(key_BGSD.shape[2], device=key_BGSD.device)[:, None] * speed_R
    cos_SR, sin_SR = angle_SR.cos().to(key_BGSD.dtype), angle_SR.sin().to(key_BGSD.dtype)
    left, right, rest = (
        key_BGSD[..., :pairs],
        key_BGSD[..., pairs : 2 * pairs],
        key_BGSD[..., 2 * pairs :],
    )
    turned = torch.cat([left * cos_SR - right * sin_SR, right * cos_SR + left * sin_SR, rest], -1)
    held.key_BGSD = torch.cat([held.key_BGSD[:, :, : held.first], turned], 2)


def _repeated(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Single-token steps are fed the token before once more."""
    steps, start = set(), 0
    for size in spec.chunks:
        if start and size == 1:
            steps.add(start)
        start += size
    fed = tuple(
        tuple(row[t - 1] if t in steps else token for t, token in enumerate(row))
        for row in spec.tokens
    )
    return trusted.logits(replace(spec, tokens=fed))


def _chunks_alone(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Every chunk as a sequence of its own: for models that keep nothing but recurrent states."""
    if key_values(
        trusted.subject.passes.cache(ForwardSpec(trusted.subject.inputs.tokens, use_cache=True))
    ):
        raise Unsupported("the model keeps keys and values as well")
    alone, start = [], 0
    for size in spec.chunks:
        alone.append(
            trusted.logits(ForwardSpec(tuple(row[start : start + size] for row in spec.tokens)))
        )
        start += size
    return torch.cat(alone, 1)


def _steps(
    forget: Callable[[object], None], several: bool, trusted: Trusted, spec: ForwardSpec
) -> Tensor:
    """The first chunk, then one token at a time, where single steps are sound, with states
    forgotten where chunks begin.

    `several` forgets them only where a chunk of more than one token begins: such chunks often take
    another path.
    """
    subject, first = trusted.subject, spec.chunks[0]
    alone = ForwardSpec(spec.tokens, chunks=(first, *(1,) * (spec.length - first)))
    if not states(subject.passes.cache(ForwardSpec(spec.tokens, use_cache=True))):
        raise Unsupported("the cache holds no recurrent state")
    whole_BTV = trusted.logits(ForwardSpec(spec.tokens))
    if beyond(subject.logits(alone), whole_BTV, subject.budget.value):
        raise Unsupported("single steps disagree with one forward as well")
    boundaries = _beginnings(spec, several)
    logits_BTV, cache = _step(trusted, spec, 0, first, None)
    replies = [logits_BTV]
    for position in range(first, spec.length):
        if position in boundaries:
            forget(cache)
        logits_BTV, cache = _step(trusted, spec, position, position + 1, cache)
        replies.append(logits_BTV)
    return torch.cat(replies, 1)


def _beginnings(spec: ForwardSpec, several: bool) -> set[int]:
    starts = [sum(spec.chunks[:number]) for number in range(1, len(spec.chunks))]
    return {
        start
        for start, size in zip(starts, spec.chunks[1:], strict=True)
        if size > 1 or not several
    }


def _step(
    trusted: Trusted, spec: ForwardSpec, start: int, stop: int, cache: object
) -> tuple[Tensor, object]:
    passes = trusted.subject.passes
    positions_BT = None
    if trusted.subject.can.takes_positions and cached_length(cache) == start:
        row = counting(len(spec.tokens), stop - start, start + trusted.origin)
        positions_BT = torch.tensor(row, device=passes.device)
    tokens = tuple(row[start:stop] for row in spec.tokens)
    with torch.no_grad():
        reply = passes.call(tokens, cache=cache, positions_BT=positions_BT, use_cache=True)
    return reply.logits_BTV, reply.cache


def _forget(words: str, cache: object) -> None:
    for each in states(cache):
        convolution = any("conv" in part for part in each.path)
        if words == "" or convolution == (words == "conv"):
            each.tensor.zero_()


def _on_the_row_before(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Every row alone on a cache of its own, each chunk on the cache of the row before it."""
    caches: list[object] = [None] * len(spec.tokens)
    rows: list[list[Tensor]] = [[] for _ in spec.tokens]
    start = 0
    for size in spec.chunks:
        caches = [caches[number - 1] for number in range(len(caches))]
        for number, tokens in enumerate(spec.tokens):
            logits_BTV, caches[number] = _step(
                trusted, ForwardSpec((tokens,)), start, start + size, caches[number]
            )
            rows[number].append(logits_BTV)
        start += size
    return torch.cat([torch.cat(parts, 1) for parts in rows])
